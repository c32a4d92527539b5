"""Filters that travel over links: which of them do, what they mean elsewhere, and from when on they hold."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import Connect, wait_until
from tests.links.rig import Broker, filters_from, linked, received, settle

Brokers = Callable[[int], list[Broker]]

INTERN = """
    select pgps_internal.intern_filter(t, f.filter,
        case when f.filter is not null then pgps_internal.constant_types('quote', f.filter, '{}') end, '{}')
    from pgps_internal.event_type t, (select %s::text) f(filter) where t.name = 'quote'
"""


def test_a_date_in_a_filter_that_travels_is_the_day_that_it_is_for_the_subscriber(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick", "n integer, d date")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        rows(b.admin, "set datestyle = 'SQL, DMY'")
        call(b.admin, "subscribe", "one", "tick", filter="d = '01/02/2024'", scope="global")
        # As dates of February and April the second is covered by the first, as days of January it is the other way.
        call(b.admin, "subscribe", "wide", "tick", filter="d > '05/01/2024' and d < '13/12/2024'", scope="global")
        call(b.admin, "subscribe", "narrow", "tick", filter="d > '04/02/2024' and d < '13/12/2024'", scope="global")
        rows(b.admin, "set datestyle = 'ISO, MDY'")
        settle([a, b], links)
        days = "(1, '2024-02-01'), (2, '2024-01-02'), (3, '2024-04-01'), (4, '2024-12-14')"
        rows(a.admin, f"insert into pgps_event.tick select n, d::date from (values {days}) v (n, d)")
        settle([a, b], links)
        got = [[n for _, n in received(b, name)] for name in ("one", "wide", "narrow")]
        assert got == [[1], [1, 3], [3]]


def test_only_the_widest_of_filters_travels_and_its_end_brings_the_others_back_first(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        for limit in (5, 1, 9):
            call(b.admin, "subscribe", f"over{limit}", "tick", filter=f"n > {limit}", scope="global")
        settle([a, b], links)
        assert filters_from(a, "b") == ["n > 1"]
        filters = "select sent_filters, received_filters from pgps.link_details"
        assert (rows(b.admin, filters), rows(a.admin, filters)) == ([(["tick: n > 1"], [])], [([], ["tick: n > 1"])])
        in_force = value(b.admin, "select filters_in_force from pgps.routes where origin = 'a'")
        assert in_force == ["tick: n > 1", "tick: n > 5", "tick: n > 9"]
        publish(a.admin, "tick", 2, 6, 10)
        call(b.admin, "unsubscribe", "over1")
        publish(a.admin, "tick", 3, 7, 11)
        settle([a, b], links)
        assert filters_from(a, "b") == ["n > 5"]
        publish(a.admin, "tick", 4, 8, 12)
        settle([a, b], links)
        assert [n for _, n in received(b, "over5")] == [6, 10, 7, 11, 8, 12]
        assert [n for _, n in received(b, "over9")] == [10, 11, 12]


def test_conditions_over_tables_stay_at_home(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    rows(b.admin, "create table public.wanted as select 3 as n")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        here = "n > 2 and n in (select n from public.wanted)"
        call(b.admin, "subscribe", "mine", "tick", filter=here, scope="global")
        settle([a, b], links)
        assert filters_from(a, "b") == ["n > 2"]
        publish(a.admin, "tick", 1, 2, 3, 4)
        settle([a, b], links)
        assert [n for _, n in received(b, "mine")] == [3]


def test_a_subscription_gets_nothing_from_elsewhere_before_its_filter_is_in_force_there(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "high", "tick", filter="n > 5", scope="global")
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        publish(a.admin, "tick", 1, 6, 2, 7)
        a.settle()
        while links[0].out.move():
            b.settle()
        publish(a.admin, "tick", 8, 3)
        settle([a, b], links)
        publish(a.admin, "tick", 4, 9)
        settle([a, b], links)
        got = [n for _, n in received(b, "all")]
        assert got in ([8, 3, 4, 9], [4, 9]), "from one moment on everything"
        assert [n for _, n in received(b, "high")] == [6, 7, 8, 9]


def test_a_filter_is_said_to_be_in_force_behind_the_batch_that_was_being_matched_when_it_came(
    brokers: Brokers, connect: Connect
) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        asks = links[0].back.next()
        publish(a.admin, "tick", 1)
        dispatcher = connect(dsn=a.dsn)
        with ThreadPoolExecutor() as pool:
            with dispatcher.transaction():
                assert value(dispatcher, "select pgps.dispatch()") == 1
                heard = pool.submit(links[0].back.carry, asks)
                waits = "select count(*) from pg_locks where pid = %s and not granted"
                wait_until(
                    lambda: heard.done() or value(a.admin, waits, [links[0].back.target.info.backend_pid]) == 1,
                    what="the filter has come, or waits for the dispatcher",
                )
                if heard.done():
                    links[0].out.move()
            heard.result()
        unmatched = value(a.admin, "select max(batch_id) from pgps_internal.batch")
        settle([a, b], links)
        assert value(b.admin, "select min(since) from pgps_internal.activation") >= unmatched
        publish(a.admin, "tick", 2)
        settle([a, b], links)
        assert received(b, "all") == [("a", 2)]


def test_a_filter_implies_those_of_its_shape_that_have_narrower_bounds_and_the_same_values(brokers: Brokers) -> None:
    (a,) = brokers(1)
    make_type(a.admin, "quote", "symbol text, price numeric, day date")
    filters = [
        None,
        "symbol = 'A'",
        "symbol = 'B'",
        "symbol = 'A' and price > 1",
        "symbol = 'A' and price > 2",
        "symbol = 'B' and price > 3",
        "price > 1.0",
        "price > 1",
        "price > 9 and day <= '2026-01-01'",
        "price > 8 and day <= '2026-01-02'",
        "price > 7 and day <= '2025-12-31'",
    ]
    keys = {}
    for text in filters:
        keys[value(a.admin, INTERN, [text])] = text
    found = {(keys[one], keys[other]) for one, other in rows(a.admin, "select key, by_key from pgps_internal.cover")}
    assert {pair for pair in found if pair[1] is None} == {(text, None) for text in filters[1:]}
    implied = {pair for pair in found if pair[1] is not None}
    # The two that say the same imply each other, which is noted once.
    assert {frozenset(pair) for pair in implied} == {
        frozenset(("symbol = 'A' and price > 2", "symbol = 'A' and price > 1")),
        frozenset(("price > 1.0", "price > 1")),
        frozenset(("price > 9 and day <= '2026-01-01'", "price > 8 and day <= '2026-01-02'")),
    }
    assert len(implied) == 3
    assert ("symbol = 'A' and price > 2", "symbol = 'A' and price > 1") in implied
    # Whatever the order in which they come.
    rows(a.admin, "delete from pgps_internal.link_filter")
    assert not rows(a.admin, "select from pgps_internal.cover")
    for text in reversed(filters):
        value(a.admin, INTERN, [text])
    assert {
        (keys[one], keys[other]) for one, other in rows(a.admin, "select key, by_key from pgps_internal.cover")
    } == found


def test_a_filter_that_is_withdrawn_does_not_go_round_in_a_ring(brokers: Brokers) -> None:
    # Each broker wants everything of all others in turn, so that each way round is in use; each then wants the filter
    # of the first because the one before it does.
    ring = brokers(5)
    for broker in ring:
        make_type(broker.admin, "tick")
    with linked(list(zip(ring, ring[1:] + ring[:1], strict=True))) as links:
        for place, broker in enumerate(ring):
            call(broker.admin, "subscribe", "own", "tick", filter=f"n % 5 = {place}", scope="global")
        call(ring[0].admin, "subscribe", "short", "tick", filter="n = 77", scope="global")
        settle(ring, links, rounds=200)
        holders = "select count(*) from pgps_internal.wanted w join pgps_internal.link_filter f using (key)"
        holders += " where f.filter = 'n = 77'"
        assert all(value(broker.admin, holders) for broker in ring)
        call(ring[0].admin, "unsubscribe", "short")
        settle(ring, links, rounds=200)
        assert [value(broker.admin, holders) for broker in ring] == [0] * 5
        publish(ring[2].admin, "tick", 77, 78)
        settle(ring, links)
        assert [received(broker, "own") for broker in ring] == [[], [], [("c", 77)], [("c", 78)], []]


def test_a_filter_may_travel_as_far_as_there_are_brokers(brokers: Brokers) -> None:
    (a,) = brokers(1)
    assert value(a.admin, "select pgps_internal.farthest()") == 16
    with a.admin.transaction(force_rollback=True):
        rows(
            a.admin,
            "insert into pgps_internal.origin (broker_id, epoch, name)"
            " select gen_random_uuid(), 1, n::text from generate_series(1, 40) n",
        )
        assert value(a.admin, "select pgps_internal.farthest()") == 128


def test_a_changed_filter_travels_and_what_both_want_comes_without_a_break(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "mine", "tick", filter="n > 5", scope="global")
        settle([a, b], links)
        # Wider, another one, none, narrower: each is in force at last, alone, and no event that the filters before and
        # after it accept is missing, wherever it was when the filter was changed.
        for wanted, both in (
            ("n > 2", [3, 9]),
            ("n in (3, 9)", [3, 9]),
            ("", [1, 3, 9]),
            ("n > 8", [9]),
            ("n > 8 and n < 1000", [9]),
        ):
            publish(a.admin, "tick", 9)
            a.settle()
            call(b.admin, "alter_subscription", "mine", filter=wanted)
            publish(a.admin, "tick", 9)
            links[0].out.move()
            publish(a.admin, "tick", 9)
            settle([a, b], links)
            publish(a.admin, "tick", 1, 3, 9)
            settle([a, b], links)
            assert [n for _, n in received(b, "mine")] == [9, 9, 9, *both], wanted
            call(b.admin, "ack", "mine")
            assert filters_from(a, "b") == [wanted or None]
            assert value(b.admin, "select count(*) from pgps_internal.pushed") == 1


def test_an_open_transaction_that_ends_a_subscription_holds_up_no_link(brokers: Brokers, connect: Connect) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "mine", "tick", scope="global")
        settle([a, b], links)
        # One that links have not heard of yet, and one whose filter they have just been told.
        call(b.admin, "subscribe", "told", "tick", filter="n < 9", scope="global")
        links[0].back.move()
        call(b.admin, "subscribe", "new", "tick", filter="n < 8", scope="global")
        publish(a.admin, "tick", 1)
        for session in (links[0].back.source, links[0].out.target):
            rows(session, "set lock_timeout = '20s'")
        ending = connect(dsn=b.dsn)
        with ending.transaction(force_rollback=True):
            for name in ("told", "new"):
                call(ending, "unsubscribe", name)
            settle([a, b], links)
            publish(a.admin, "tick", 2)
            settle([a, b], links)
            assert [n for _, n in received(b, "mine")] == [1, 2]
        # They go on, since their end was taken back.
        settle([a, b], links)
        publish(a.admin, "tick", 3)
        settle([a, b], links)
        assert [received(b, name)[-1:] for name in ("mine", "told", "new")] == [[("a", 3)]] * 3
