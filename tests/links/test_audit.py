"""The audit: what is lost, repeated or altered behind the brokers' backs is named, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.cli.conftest import Pgps, pgps, pgps_without_database  # noqa: F401 - fixtures
from tests.fix_broker import call, column, make_type, publish, refused, rows, value
from tests.links.auditing import Brokers, Totals, alter_log, audit, end_to_end, findings, line
from tests.links.horizon_stage import Scene, wants_all
from tests.links.rig import linked, received, settle


def test_what_arrives_as_it_was_published_is_complete(brokers: Brokers) -> None:
    made = brokers(3)
    with line(made) as links:
        for n in range(3, 40, 4):
            publish(made[0].admin, "tick", n, n + 1, n + 2)
            made[0].settle()
            publish(made[0].admin, "tick", n + 3)
            settle(made, links)
        before = end_to_end(made[2], "a")
        publish(made[0].admin, "tick", *range(100, 250))
        settle(made, links)
        after = end_to_end(made[2], "a")
        assert after["events_here"] == after["events_there"] == before["events_here"] + 150
        assert (after["verdict"], after["digest_equal"], after["filter"]) == ("complete", True, "all")
        hops = [row for row in audit(made[2]) if row["kind"] == "hop" and row["origin"] == "a"]
        assert [(row["neighbour"], row["events_here"], row["verdict"]) for row in hops] == [("b", 192, "complete")]
        assert [findings(broker) for broker in made] == [[], [], []]


def test_an_event_deleted_at_a_broker_between_is_named_by_it_and_by_the_next(brokers: Brokers) -> None:
    made = brokers(3)
    a, b, c = made
    with line(made) as links:
        publish(a.admin, "tick", 3, 4, 5)
        a.settle()
        assert links[0].out.move()
        b.settle()
        alter_log(b, "delete from pgps_internal.tick_log where n = 4")
        settle(made, links)
        assert [n for _, n in received(c, "all")] == [1, 2, 3, 5]
        assert ("end", "count", "b", "a", 3, 2) in findings(c)
        assert ("hop", "count", "b", "a", 3, 2) in findings(c)
        found = end_to_end(c, "a")
        assert (found["verdict"], found["digest_equal"]) == ("differs", False)
        assert found["events_there"] == found["events_here"] + 1
        assert "a" in found["hint"]


def test_an_event_that_its_broker_has_lost_before_it_was_dispatched_is_named_end_to_end(brokers: Brokers) -> None:
    """The broker between has never matched it, so that its own counts are as if it had not been."""
    made = brokers(3)
    a, b, c = made
    with line(made) as links:
        publish(a.admin, "tick", 3, 4, 5)
        a.settle()
        assert links[0].out.move()
        alter_log(b, "delete from pgps_internal.tick_log where n = 4")
        settle(made, links)
        assert [n for _, n in received(c, "all")] == [1, 2, 3, 5]
        assert ("end", "count", "b", "a", 3, 2) in findings(c)


def test_a_row_gone_from_the_ledger_of_what_was_received_is_named(brokers: Brokers) -> None:
    made = brokers(3)
    a, b, c = made
    with line(made) as links:
        publish(a.admin, "tick", 3)
        a.settle()
        links[0].out.carry(links[0].out.next(refresh=False))
        publish(a.admin, "tick", 4)
        a.settle()
        links[0].out.carry(links[0].out.next(refresh=False))
        lost = "select arrival_id from pgps_internal.arrival where ids is not null order by 1 desc limit 1 offset 1"
        alter_log(b, f"delete from pgps_internal.arrival where arrival_id = ({lost})")
        settle(made, links)
        publish(a.admin, "tick", 5)
        settle(made, links)
        assert ("end", "count", "a", "a") in [found[:4] for found in findings(b)]
        assert ("end", "count", "b", "a") in [found[:4] for found in findings(c)]


def test_what_the_sender_skips_is_named(brokers: Brokers) -> None:
    made = brokers(2)
    a, b = made
    with line(made) as links:
        publish(a.admin, "tick", 3)
        a.settle()
        last = "select max(batch_id) from pgps_internal.delivery"
        alter_log(a, f"delete from pgps_internal.delivery where batch_id = ({last})")
        settle(made, links)
        assert [n for _, n in received(b, "all")] == [1, 2]
        assert findings(b) == [("end", "count", "a", "a", 1, 0)]


def test_what_the_sender_leaves_out_of_an_item_is_named_under_any_filter(brokers: Brokers) -> None:
    made = brokers(2)
    a, b = made
    with line(made, filter="n > 0") as links:
        publish(a.admin, "tick", 3, 4, -1, 5)
        a.settle()
        batch = links[0].out.next()
        assert [item["events"] for item in batch["items"] if item["kind"] == "data"] == [3]
        wire = batch["types"][0]
        wire["rows"], wire["runs"] = wire["rows"][:-1], [{**wire["runs"][0], "n": 2}]
        links[0].out.carry(batch)
        settle(made, links)
        assert findings(b) == [("hop", "count", "a", "a", 3, 2), ("log", "count", "a", "a", 3, 2)]
        (hop,) = [row for row in audit(b) if row["kind"] == "hop"]
        assert (hop["verdict"], hop["events_there"] - hop["events_here"], hop["filter"]) == ("differs", 1, "n > 0")


def test_whoever_looks_after_a_broker_is_told_until_it_is_dismissed(
    brokers: Brokers,
    pgps: Pgps,  # noqa: F811
    role: Callable[..., str],
) -> None:
    made = brokers(2)
    a, b = made
    with line(made) as links:
        assert pgps("audit", dsn=b.dsn).status == 0
        publish(a.admin, "tick", 3)
        a.settle()
        alter_log(a, "delete from pgps_internal.tick_log where n = 3")
        settle(made, links)
        assert findings(b) == [("end", "count", "a", "a", 1, 0), ("hop", "count", "a", "a", 1, 0)]
        assert findings(a) == [("here", "count", "a", "a", 1, 0)]
        printed = pgps("audit", "--json", dsn=b.dsn)
        assert printed.status == 1
        assert [row["kind"] for row in printed.json if row["verdict"] == "differs"] == ["end", "hop"]
        examined = pgps("doctor", "--json", dsn=b.dsn)
        assert examined.status == 1
        told = [row["message"] for row in examined.json if row["check"] == "audit"]
        assert [("by way of" in message, "1 published" in message, "0 here" in message) for message in told] == [
            (True, True, True),
            (False, True, True),
        ]
        with b.admin.transaction(force_rollback=True):
            rows(b.admin, f"set local role {role('nobody')}")
            assert rows(b.admin, "select * from pgps.audit_findings") == []
            with refused("42501", "may not read the audit"):
                audit(b)
        with refused("42704"):
            call(b.admin, "dismiss_findings", 4711)
        assert pgps("audit", "--dismiss", "--yes", dsn=b.dsn).status == 0
        assert pgps("audit", dsn=b.dsn).status == 0
        publish(a.admin, "tick", 4)
        settle(made, links)
        assert findings(b) == []
        assert value(b.admin, "select pgps.dismiss_findings()") == 0


def test_as_many_events_in_other_batches_are_not_the_same(brokers: Brokers) -> None:
    """One lost and another one twice."""
    made = brokers(2)
    a, b = made
    with line(made) as links:
        call(b.admin, "configure", "audit", "off")
        for n in (3, 4):
            publish(a.admin, "tick", n)
            settle(made, links)
        # The first of the two counts as one more of the second.
        rows(
            b.admin,
            "with last as (select arrival_id, upto from pgps_internal.arrival where ids is not null"
            " order by arrival_id desc limit 2)"
            " update pgps_internal.arrival a set upto = (select max(upto) from last)"
            " where a.arrival_id = (select min(arrival_id) from last)",
        )
        call(b.admin, "configure", "audit", "on")
        publish(a.admin, "tick", 5)
        settle(made, links)
        assert findings(b) == [("end", "places", "a", "a", 3, 3)]


def test_an_altered_event_is_named_by_who_gets_it(brokers: Brokers) -> None:
    made = brokers(3)
    a, b, c = made
    with line(made) as links:
        publish(a.admin, "tick", 3, 4, 5)
        a.settle()
        links[0].out.carry(links[0].out.next(refresh=False))
        alter_log(b, "update pgps_internal.tick_log set n = 44 where n = 4")
        settle(made, links)
        assert [n for _, n in received(c, "all")] == [1, 2, 3, 44, 5]
        assert findings(c) == [("end", "contents", "b", "a", 3, 3)]
        assert findings(b) == [("end", "contents", "a", "a", 3, 3)]


def test_a_total_from_before_nobody_wanted_all_events_is_not_compared_with_later_ones(
    brokers: Brokers,
) -> None:
    """They are wanted for a child, and from a batch on that is older than the one compared last."""
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        key, totals = s.ready(), Totals(s)
        goes_on, states = totals.goes_on, totals.states
        goes_on(5, 2, 2)
        states(5)
        goes_on(6, 2, 2)
        states(6)
        # Only some are wanted, and b says no total any more.
        s.subscribe("few", "n < 3")
        call(here.admin, "unsubscribe", "all")
        s.b.hear()
        s.b.say(s.b.active(s.x, s.b.key(s.x), s.number(s.b), 6))
        s.b.hear()
        goes_on(7, 1, 4)
        states(7, said=False)
        goes_on(8, 1, 4)
        # c wants all of them, from batch 7 on; states stay as they were until b is told.
        s.c.say(*wants_all(s, s.c, key, 7))
        for peer in (s.c, s.b, s.c, s.b):
            peer.hear()
        one = s.number(s.b)
        states(8, said=False)
        s.b.say(s.b.data(s.x, one, 7, 8, (82, 3), (83, 4), (84, 5)), s.b.active(s.x, key, one, 8))
        goes_on(9, 4, 4)
        states(9)
        assert findings(here) == []
        goes_on(10, 4, 4)
        states(10)
        assert findings(here) == []
        # From here on it compares.
        goes_on(11, 3, 4)
        states(11)
        assert findings(here) == [("end", "count", "b", "x", 4, 3)]


def test_totals_of_a_former_epoch_are_not_compared(brokers: Brokers) -> None:
    """A broker that was put back counts other events under numbers that were used before, until it notices."""
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        s.ready()
        totals = Totals(s)
        for upto in (5, 6):
            totals.goes_on(upto, 2, 2)
            totals.states(upto)
        totals.goes_on(7, 1, 2)
        s.b.say({**s.b.ad(s.x), "body": {**s.b.ad(s.x)["body"], "epoch": 2}})
        totals.states(7)
        assert findings(here) == []


@pytest.mark.parametrize("rows_within", [0, 100])
def test_what_was_under_way_when_its_type_was_dropped_stops_no_other_type_and_is_named(
    brokers: Brokers, rows_within: int
) -> None:
    a, b = made = brokers(2)
    for kind in ("tick", "tock"):
        make_type(a.admin, kind)
    with linked([(a, b)]) as links:
        settle(made, links)
        for kind in ("tick", "tock"):
            call(b.admin, "subscribe", f"{kind}s", kind, scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        a.settle()
        packed = "select jsonb_array_length(pgps.link_next(%s, 1000, with_rows => %s) -> 'items')"
        lane = links[0].out
        assert column(lane.source, packed, [lane.last, rows_within]) == [1]
        call(a.admin, "drop_event_type", "tick", True)
        # It is asked for again from where the receiver stands.
        assert column(lane.source, packed, [lane.last, rows_within]) == [1]
        publish(a.admin, "tock", 1)
        settle(made, links)
        assert [n for _, n in received(b, "tocks")] == [1]
    found = rows(b.admin, "select kind, event_type, events_there, events_here from pgps.audit_findings")
    assert found == [("hop", "tick", 1, 0)]
