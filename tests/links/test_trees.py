"""Events over trees of brokers, moved step by step: who gets what, in which order, and what travels for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, refused, rows, value
from tests.fix_db import Connect, wait_until
from tests.links.rig import Broker, filters_from, linked, open_lane, open_link, received, settle

Brokers = Callable[[int], list[Broker]]


def test_an_event_reaches_a_global_subscription_two_brokers_away(brokers: Brokers) -> None:
    a, b, c = brokers(3)
    make_type(a.admin, "tick", "n integer, s text")
    with linked([(a, b), (b, c)]) as links:
        settle([a, b, c], links)
        call(c.admin, "subscribe", "far", "tick", filter="n > 2", scope="global")
        settle([a, b, c], links)
        publish(a.admin, "tick", 1, 2, 3, None, 4)
        publish(a.admin, "tick", 5)
        settle([a, b, c], links)
        assert received(c, "far") == [("a", 3), ("a", 4), ("a", 5)]
        assert value(b.admin, "select count(*) from pgps_internal.tick_log") == 3, "the filter is asked at the origin"


def test_an_event_crosses_a_link_once_however_many_want_it(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(b, a)]) as links:
        settle([a, b], links)
        for limit in (0, 5, 7):
            call(b.admin, "subscribe", f"over{limit}", "tick", filter=f"n > {limit}", scope="global")
        call(b.admin, "subscribe", "even", "tick", filter="n % 2 = 0", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", *range(1, 11))
        settle([a, b], links)
        assert value(b.admin, "select count(*) from pgps_internal.tick_log") == 10
        assert [n for _, n in received(b, "over7")] == [8, 9, 10]
        assert [n for _, n in received(b, "even")] == [2, 4, 6, 8, 10]


def test_a_local_subscription_asks_for_nothing_and_gets_what_is_known_here(brokers: Brokers) -> None:
    a, b, c = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        settle([a, b, c], links)
        call(b.admin, "advertise", "tick")
        call(b.admin, "subscribe", "here", "tick", filter="n < 10")
        settle([a, b, c], links)
        publish(a.admin, "tick", 1)
        publish(b.admin, "tick", 2)
        settle([a, b, c], links)
        assert received(b, "here") == [("b", 2)], "nobody has asked for what others publish"
        # Somebody behind this broker asks, and what he gets is known here.
        call(c.admin, "subscribe", "behind", "tick", filter="n > 4", scope="global")
        settle([a, b, c], links)
        publish(a.admin, "tick", 3, 5, 11)
        publish(b.admin, "tick", 6)
        settle([a, b, c], links)
        assert sorted(received(b, "here")) == [("a", 5), ("b", 6)]
        assert sorted(received(c, "behind")) == [("a", 5), ("a", 11), ("b", 6)]


def test_the_parts_of_a_large_transaction_cross_once_and_in_order(brokers: Brokers) -> None:
    a, b, c = brokers(3)
    for broker in (a, b, c):
        call(broker.admin, "configure", "max_part_events", "50")
        call(broker.admin, "configure", "max_batch_events", "100")
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        settle([a, b, c], links)
        call(c.admin, "subscribe", "far", "tick", scope="global")
        call(b.admin, "subscribe", "third", "tick", filter="n % 3 = 0", scope="global")
        settle([a, b, c], links)
        publish(a.admin, "tick", -1)
        with a.admin.transaction():
            publish(a.admin, "tick", *range(200))
            for n in range(200, 240):
                publish(a.admin, "tick", n)
            publish(a.admin, "tick", *range(240, 400))
        publish(a.admin, "tick", 400)
        settle([a, b, c], links)
        assert [n for _, n in received(c, "far")] == list(range(-1, 401))
        assert [n for _, n in received(b, "third")] == list(range(0, 401, 3))


def test_lengths_and_precisions_of_a_type_that_is_created_here_are_those_of_the_origin(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(
        a.admin,
        "tick",
        "n integer, v varchar(3), c char(5), p numeric(8,2), ps numeric(6,1)[], b bit(3), vb bit varying(4), "
        "t timestamp(0), tz timestamptz(3), ti time(2), i interval second(1), f float(20)",
    )
    with linked([(a, b)]) as links:
        settle([a, b], links)
        assert value(b.admin, "select attributes from pgps.event_types") == value(
            a.admin, "select attributes from pgps.event_types"
        )
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        rows(a.admin, "insert into pgps_event.tick (n, v, c, p) values (1, 'abc', 'abcd', 123456.78)")
        settle([a, b], links)
        assert received(b, "all") == [("a", 1)]


@pytest.mark.parametrize("with_rows", [0, 200])
def test_attributes_may_be_named_as_the_broker_names_things(brokers: Brokers, with_rows: int) -> None:
    a, b = brokers(2)
    names = [*"abcdefghijklmnopqrstuvwxyz", "ids", "lo", "hi", "rows", "batch", "origin", "lseq"]
    make_type(a.admin, "tick", ", ".join(f'"{each}" integer' for each in names))
    with linked([(a, b)]) as links:
        links[0].out.with_rows = with_rows
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", filter="r > 0 and x > 0", scope="global")
        settle([a, b], links)
        each = ", ".join("v" for _ in names)
        rows(a.admin, f"begin; insert into pgps_event.tick select {each} from generate_series(1, 3) v; commit")
        rows(a.admin, f"insert into pgps_event.tick select {each} from generate_series(4, 4) v")
        settle([a, b], links)
        got = column(b.admin, "select payload from pgps.receive('all')")
        assert got == [dict.fromkeys(names, n) for n in range(1, 5)]
        assert rows(b.admin, "select hop from pgps_queue.tick_in i, pgps.trace(i.origin, i.origin_event_id)")


def test_types_and_order_of_one_transaction_are_kept_over_links(brokers: Brokers) -> None:
    a, b, c = brokers(3)
    make_type(a.admin, "t_one")
    make_type(a.admin, "t_two")
    with linked([(a, b), (b, c)]) as links:
        settle([a, b, c], links)
        call(c.admin, "subscribe", "both", "t_*", scope="global")
        settle([a, b, c], links)
        with a.admin.transaction():
            for n in range(20):
                publish(a.admin, "t_one" if n % 3 else "t_two", n)
        settle([a, b, c], links)
        assert received(c, "both") == [("a", n) for n in range(20)]
        assert value(c.admin, "select count(distinct xid) from pgps_queue.t_one_in") <= 1


def test_both_ways_and_from_the_middle_each_origin_in_order(brokers: Brokers) -> None:
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (c, b)]) as links:
        settle(made, links)
        for broker in made:
            call(broker.admin, "advertise", "tick")
        settle(made, links)
        for broker in made:
            call(broker.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        for n in range(0, 30, 3):
            for place, broker in enumerate(made):
                publish(broker.admin, "tick", n + place)
            if n % 4 == 0:
                links[n % 2].move()
        settle(made, links)
        for broker in made:
            got = received(broker, "all")
            for place, origin in enumerate("abc"):
                assert [n for o, n in got if o == origin] == list(range(place, 30, 3)), (broker.name, origin)


def test_a_batch_that_is_carried_twice_counts_once(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", 1, 2)
        a.settle()
        lane = links[0].out
        lane.mark = None
        batch = lane.next(refresh=False)
        lane.carry(batch)
        before = lane.last
        lane.carry(batch)
        assert lane.last == before
        settle([a, b], links)
        assert received(b, "all") == [("a", 1), ("a", 2)]


def test_a_lost_session_goes_on_where_the_receiver_is(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", 1)
        a.settle()
        lane = links[0].out
        lane.mark = None
        lane.carry(lane.next(refresh=False))  # and nobody confirms it
        publish(a.admin, "tick", 2)
        links[0].close()
        again = open_link(a, b, "to_b")
        links[0] = again
        settle([a, b], links)
        assert received(b, "all") == [("a", 1), ("a", 2)]


def test_what_the_receivers_constraints_refuse_is_an_exception_there_and_the_rest_goes_on(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    make_type(b.admin, "tick", "n integer check (n <> 13)")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", 12, 13, 14)
        publish(a.admin, "tick", 15)
        settle([a, b], links)
        assert [n for _, n in received(b, "all")] == [12, 14, 15]
        assert rows(b.admin, "select sqlstate, state from pgps.exceptions") == [("23514", "refused")]


def test_another_schema_is_refused_with_the_difference(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick", "n integer, price numeric")
    make_type(b.admin, "tick", "n integer, price text")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        assert filters_from(a, "b") == []
        error = value(b.admin, "select last_error from pgps.links")
        assert error == 'event type "tick": attribute "price" is text here and numeric at "a"'


def test_types_are_not_created_when_the_setting_says_no(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    call(b.admin, "configure", "link_create_types", "false")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        assert (
            value(b.admin, "select last_error from pgps.links") == 'event type "tick": there is no such event type here'
        )


def test_the_neighbours_role_receives_what_its_policies_let_through(brokers: Brokers, role: Callable[..., str]) -> None:
    a, b = brokers(2)
    guest = role("guest")
    make_type(a.admin, "tick")
    rows(a.admin, "revoke all on pgps_event.tick from public")
    rows(a.admin, f"grant select on pgps_event.tick to {guest}")
    call(a.admin, "create_policy", "tick", "low", guest, "n < 5")
    call(a.admin, "create_link", "to_b", b.dsn, role=guest)
    link = open_link(a, b, "to_b")
    try:
        settle([a, b], [link])
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], [link])
        publish(a.admin, "tick", 3, 7, 4)
        settle([a, b], [link])
        assert [n for _, n in received(b, "all")] == [3, 4]
    finally:
        link.close()


def test_a_link_to_itself_a_second_one_and_a_strangers_are_refused(brokers: Brokers, role: Callable[..., str]) -> None:
    a, b = brokers(2)
    call(a.admin, "create_link", "self", a.dsn)
    with refused("22023", "itself"):
        open_link(a, a, "self")
    with linked([(a, b)]):
        call(a.admin, "create_link", "again", b.dsn)
        with refused("42710", '"again"', '"to_b"'):
            open_lane(a, b, link="again", defined_at_source=True)


def test_every_administrator_and_nobody_else_sees_that_a_link_is_up(
    brokers: Brokers, role: Callable[..., str], connect: Connect
) -> None:
    a, b = brokers(2)
    plain, worker, stranger = role("plain", "pgps_admin"), role("worker", "pgps_worker"), role("stranger")
    with linked([(a, b)]):
        seen = {who: connect(who, dsn=a.dsn) for who in (plain, worker, stranger)}
        assert rows(seen[plain], "select state from pgps.links") == [("up",)]
        assert rows(seen[worker], "select connected_since is not null from pgps.link_details") == [(True,)]
        assert rows(seen[stranger], "select * from pgps.links") == []
        assert len(rows(seen[plain], "select * from pgps._link_sessions(%s)", [plain])) == 2
        assert rows(seen[stranger], "select * from pgps._link_sessions(%s)", [plain]) == []
        assert rows(seen[stranger], "select * from pgps._link_sessions(%s)", [stranger]) == []


def test_silence_says_nothing_of_a_batch_that_is_made_while_it_is_said(brokers: Brokers, connect: Connect) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        a.settle()
        silent, lock = connect(dsn=a.dsn), connect(dsn=a.dsn)
        # Something of another type, so that there is something to be silent about.
        make_type(a.admin, "other")
        publish(a.admin, "other", 1)
        a.settle()
        says = "select pgps_internal.be_silent(n, (pgps_internal.last_batch()).batch_id) from pgps_internal.neighbour n"
        with ThreadPoolExecutor() as pool:
            with lock.transaction():
                lock.execute("lock table pgps_internal.shipment in share mode")
                said = pool.submit(rows, silent, says)
                waits = "select count(*) from pg_locks where pid = %s and not granted"
                wait_until(lambda: value(a.admin, waits, [silent.info.backend_pid]) == 1, what="it is about to say it")
                publish(a.admin, "tick", 7)
                a.settle()
            said.result()
        settle([a, b], links)
        assert received(b, "all") == [("a", 7)]


def test_the_way_of_an_event_can_be_seen(brokers: Brokers) -> None:
    a, b, c = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        settle([a, b, c], links)
        call(c.admin, "subscribe", "far", "tick", scope="global")
        settle([a, b, c], links)
        publish(a.admin, "tick", 1)
        settle([a, b, c], links)
        there = value(a.admin, "select event_id from pgps_internal.tick_log")
        event = value(c.admin, "select event_id from pgps.receive('far')")
        assert column(c.admin, "select broker from pgps.trace('a', %s)", [there]) == ["a", "b", "c"]
        assert value(c.admin, "select origin_event_id from pgps_queue.tick_in") == there
        outcome = value(c.admin, "select outcome from pgps.explain('far', %s) where step = 'origin'", [event])
        assert outcome == f"event {there} of broker a, by way of: a, b"


@pytest.mark.parametrize("function", ["link_next(0, 1)", "link_begin('{}')", "link_apply('{}')", "link_take('{}')"])
def test_a_session_that_has_opened_no_link_carries_nothing(brokers: Brokers, function: str) -> None:
    (a,) = brokers(1)
    with refused("55000", "has not opened a link"):
        rows(a.admin, f"select pgps.{function}")


def test_a_client_cannot_forge_an_origin(brokers: Brokers, role: Callable[..., str]) -> None:
    (a,) = brokers(1)
    make_type(a.admin, "tick")
    for column_name in ("pgps_origin_event", "origin"):
        with pytest.raises(psycopg.errors.UndefinedColumn):
            rows(a.admin, f"insert into pgps_event.tick (n, {column_name}) values (1, 5)")
