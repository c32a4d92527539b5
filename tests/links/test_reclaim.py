"""Ledgers and logs of linked brokers are truncated when nobody needs them; links go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, meanwhile, publish, rows, value
from tests.links.horizon_stage import Scene
from tests.links.rig import Broker, linked, open_link, received, settle

Brokers = Callable[[int], list[Broker]]
SEGMENT = 65536
LATER = """
    insert into pgps_internal.batch
    select 5000, b.snapshot, pg_current_snapshot(), null, b.base_hi, b.max_hi, b.incarnation
    from pgps_internal.last_batch() b
"""
"""Some thousand batches later."""
LOG = "select log from pgps_internal.event_type where name = 'tick'"
PARENT = """
    select n.name from pgps_internal.origin o join pgps_internal.neighbour n on n.neighbour_id = o.parent
    where o.name = 'a'
"""


def go_on(broker: Broker, *sequences: str) -> None:
    """Let logs and ledgers, or some of them, go on in new segments."""
    for sequence in sequences or ("event_id_seq", "shipment_id_seq", "arrival_id_seq"):
        name = f"pgps_internal.{sequence}"
        rows(broker.admin, f"select setval('{name}', ((select last_value from {name}) / {SEGMENT} + 1) * {SEGMENT})")


def turn(broker: Broker) -> None:
    """Let logs and ledgers go on in new segments, and give back what nobody needs."""
    go_on(broker)
    rows(broker.admin, "select pgps.reclaim(100)")


def test_ledgers_of_links_are_truncated_and_links_go_on(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        for n in range(1, 4):
            publish(a.admin, "tick", n)
            settle([a, b], links)
            assert received(b, "all") == [("a", n)]
            turn(a)
            turn(b)
        assert value(a.admin, "select max(events) from pgps_internal.shipment") == 0, "only what is carried over"
        assert value(b.admin, "select count(*) from pgps_internal.arrival where ids is not null") <= 1


@pytest.mark.parametrize("side", ["sender", "horizon", "last"])
def test_who_waits_for_a_ledger_that_is_being_truncated_goes_on_where_it_was(brokers: Brokers, side: str) -> None:
    a, b = made = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links, psycopg.connect(b.dsn, autocommit=True) as reader:
        settle(made, links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        for n in (1, 2):
            publish(a.admin, "tick", n)
            settle(made, links)
            assert received(b, "all") == [("a", n)]
        query = {
            "sender": "select 1",
            "horizon": "select pgps_internal.horizon(origin_id) from pgps_internal.origin where name = 'a'",
            "last": "select pgps_internal.last_received(neighbour_id) from pgps_internal.neighbour",
        }[side]
        before, found = value(reader, query), []
        lane = links[0].out
        if side == "sender":
            publish(a.admin, "tick", 3)
            a.settle()
        reclaims, waits, step = b, reader, lambda: found.append(value(reader, query))
        if side == "sender":
            reclaims, waits, step = (
                a,
                lane.source,
                lambda: found.append(sum(i.get("events", 0) for i in lane.next()["items"])),
            )
        go_on(reclaims)
        with psycopg.connect(reclaims.dsn) as session:
            session.execute("select pgps.reclaim(100)")
            with meanwhile(reclaims.admin, waits, step):
                is_waiting = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
                assert value(reclaims.admin, is_waiting, [waits.info.backend_pid])
                session.commit()
        assert found == [before]
        if side != "sender":
            publish(a.admin, "tick", 3)
        settle(made, links)
        assert received(b, "all") == [("a", 3)]


def test_what_was_trimmed_before_another_path_was_taken_is_an_exception_at_every_broker_behind(
    brokers: Brokers,
) -> None:
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        settle(made, links)
        call(c.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        settle(made, links)
        # The neighbour is forgotten with what waits for it; its horizon stays where it is.
        links[0].close()
        publish(a.admin, "tick", 2)
        a.settle()
        call(a.admin, "drop_link", "to_b", True)
        call(b.admin, "drop_link", "a", True)
        turn(a)
        with linked([(a, b)]) as again:
            publish(a.admin, "tick", 3)
            settle(made, [*again, links[1]])
            publish(a.admin, "tick", 4)
            settle(made, [*again, links[1]])
        assert [n for _, n in received(c, "all")] == [1, 3, 4]
        for broker in (b, c):
            assert column(broker.admin, "select sqlstate from pgps.exceptions") == ["58030"], broker.name


@pytest.mark.parametrize(("retention", "found"), [("7 days", [1, 2, 3]), ("0 seconds", [1, 3])])
def test_an_origin_keeps_what_a_broker_behind_its_neighbour_may_fetch_by_another_path(
    brokers: Brokers, retention: str, found: list[int]
) -> None:
    a, b, c, d = made = brokers(4)
    make_type(a.admin, "tick")
    for broker in made:
        call(broker.admin, "configure", "link_report_interval", "0 seconds")
        call(broker.admin, "configure", "link_retention", retention)
    with linked([(a, b), (a, c), (b, d), (c, d)]) as links:
        settle(made, links)
        call(d.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        settle(made, links)
        parent = value(d.admin, PARENT)
        # Its parent has it and has confirmed it, and cannot pass it on any more.
        cut = links[2 if parent == "b" else 3]
        cut.close()
        publish(a.admin, "tick", 2)
        for _ in range(5):
            a.settle()
            links[0].move(), links[1].move()
        turn(a)
        left = [link for link in links if link is not cut]
        settle(made, left)
        publish(a.admin, "tick", 3)
        settle(made, left)
        assert [n for _, n in received(d, "all")] == found
        assert column(d.admin, "select sqlstate from pgps.exceptions") == ([] if found == [1, 2, 3] else ["58030"])
        # It learns that nobody behind it waits for it.
        links.append(open_link(b if parent == "b" else c, d, "to_d"))
        settle(made, [*left, links[-1]])
        turn(a)
        assert value(a.admin, f"select count(*) from {value(a.admin, LOG)}") == 0, "what came to all is kept for nobody"


def test_the_last_of_a_former_path_is_carried_over_without_the_horizon_of_that_time(brokers: Brokers) -> None:
    a, b, c, d = made = brokers(4)
    make_type(a.admin, "tick")
    with linked([(a, b), (a, c), (b, d), (c, d)]) as links:
        settle(made, links)
        call(d.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        parent = b if value(d.admin, PARENT) == "b" else c
        first, cut = (links[0], links[2]) if parent is b else (links[1], links[3])
        a.settle()
        assert first.move()
        parent.settle()
        # The last that it sends is an event: a worker asks for one without asking what else there is to tell.
        cut.out.carry(cut.out.next(refresh=False))
        last = "select origin_id is not null from pgps_internal.arrival order by arrival_id desc limit 1"
        assert value(d.admin, last)
        cut.close()
        left = [link for link in links if link is not cut]
        got = []
        for n in range(2, 7):
            go_on(d)
            publish(a.admin, "tick", n)
            settle(made, left)
            got += [n for _, n in received(d, "all")]
            rows(d.admin, "select pgps.reclaim(100)")
        assert got == [1, 2, 3, 4, 5, 6]
        horizons = "select horizon from pgps_internal.arrival where origin_id is not null order by arrival_id"
        assert column(d.admin, horizons) == sorted(column(d.admin, horizons)), "it never goes back"
        assert rows(d.admin, "select * from pgps.exceptions") == []


def test_what_comes_while_batches_are_truncated_is_there_for_who_subscribes_meanwhile(brokers: Brokers) -> None:
    """Its ids were drawn before theirs, and it is dispatched behind them."""
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        publish(here.admin, "tick", 1)
        s.ready()
        batch, events = s.b.batch(s.b.data(s.x, 1, 4, 5, (50, 5)))
        text = json.dumps(batch)
        with s.b.says.transaction():
            (statement,) = value(s.b.says, "select pgps.link_begin(%s::jsonb)", [text])["copies"]
            with s.b.says.cursor().copy(statement.encode()) as copy:
                copy.set_types(["int8", "int4"])
                copy.write_row(events[0])
            publish(here.admin, "tick", 2)
            assert s.got() == [2]
            s.subscribe("new")
            s.b.hear(settle=False)
            rows(here.admin, LATER)
            rows(s.b.says, "select pgps.link_apply()")
        assert value(here.admin, "select pgps.reclaim(100)") > 0
        assert value(here.admin, "select count(*) from pgps_internal.batch_0") == 0
        assert (s.got(), s.got("new")) == ([5], [5])
