"""The audit under narrower filters: each hop counts again what they select; what was lost is named, nothing else."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg
import pytest

from tests.fix_broker import call, meanwhile, publish, rows, value
from tests.links.auditing import Brokers, alter_log, audit, findings, line
from tests.links.horizon_stage import Scene, wants_all
from tests.links.rig import filters_from, received, settle


def test_what_a_narrow_filter_selects_is_counted_again_at_each_hop(brokers: Brokers) -> None:
    made = brokers(3)
    a, b, c = made
    with line(made, filter="n > 0") as links:
        stated = "select count(*) from pgps_internal.shipment where kind = 'audit' and body ? 'recounts'"
        before = [value(broker.admin, stated) for broker in (a, b)]
        publish(a.admin, "tick", 3, -3)
        settle(made, links)
        publish(a.admin, "tick", *range(-300, 301))
        settle(made, links)
        assert [value(broker.admin, stated) - one for broker, one in zip((a, b), before, strict=True)] == [2, 2]
        assert [findings(broker) for broker in made] == [[], [], []]
        (row,) = [row for row in audit(c) if row["kind"] == "log" and row["origin"] == "a"]
        assert (row["filter"], row["verdict"], row["digest_equal"]) == ("n > 0", "complete", True)
        assert row["events_there"] == row["events_here"] >= 301
        # The sender skips a batch that it has matched.
        publish(a.admin, "tick", 4, 5, -6)
        a.settle()
        last = "select max(batch_id) from pgps_internal.delivery"
        alter_log(a, f"delete from pgps_internal.delivery where batch_id = ({last})")
        settle(made, links)
        assert findings(b) == [("log", "count", "a", "a", 2, 0)]
        assert findings(c) == []
        # The broker between has what it is to send on no more.
        publish(a.admin, "tick", 7, 8, -9)
        a.settle()
        assert links[0].out.move()
        b.settle()
        alter_log(b, f"delete from pgps_internal.delivery where batch_id = ({last})")
        settle(made, links)
        assert findings(c) == [("log", "count", "b", "a", 2, 0)]
        (row,) = [row for row in audit(c) if row["kind"] == "log" and row["origin"] == "a"]
        assert (row["verdict"], row["events_there"] - row["events_here"]) == ("differs", 2)
        publish(a.admin, "tick", 10)
        settle(made, links)
        assert len(findings(b) + findings(c)) == 2


def test_an_event_lost_between_under_a_narrow_filter_is_named_where_it_was_lost(brokers: Brokers) -> None:
    made = brokers(3)
    a, b, c = made
    with line(made, filter="n > 0") as links:
        publish(a.admin, "tick", 3, 4, 5)
        a.settle()
        links[0].out.carry(links[0].out.next(refresh=False))
        alter_log(b, "delete from pgps_internal.tick_log where n = 4")
        settle(made, links)
        assert [n for _, n in received(c, "all")] == [1, 2, 3, 5]
        assert findings(b) == [("here", "count", "a", "a", 3, 2)]


@pytest.mark.parametrize("lost", [False, True])
def test_what_comes_while_it_is_counted_is_in_the_next_count(brokers: Brokers, lost: bool) -> None:
    made = brokers(3)
    a, b, c = made
    with line(made, filter="n > 0") as (first, second), psycopg.connect(b.dsn) as holds:
        publish(a.admin, "tick", 3)
        a.settle()
        assert first.out.move()
        b.settle()
        publish(a.admin, "tick", 4, 5, -6)
        a.settle()
        # Held up where it looks up what is to be dispatched; what is said of totals would be before that.
        rows(b.admin, "update pgps_internal.neighbour set is_audited = false")
        rows(holds, "lock table pgps_internal.batch_type in access exclusive mode")
        with meanwhile(b.admin, second.out.source, second.out.next):
            try:
                assert first.out.move()
            finally:
                holds.rollback()
        b.settle()
        if lost:
            alter_log(b, "delete from pgps_internal.delivery where batch_id = (select max(batch_id) from"
                      " pgps_internal.delivery)")  # fmt: skip
        # That answer did not arrive, so the count comes with what came meanwhile.
        settle(made, [first, second])
        assert [n for _, n in received(c, "all")] == [1, 2, 3, *([] if lost else [4, 5])]
        assert findings(c) == ([("log", "count", "b", "a", 2, 0)] if lost else [])


def test_of_many_events_one_batch_in_so_many_is_counted_again(brokers: Brokers) -> None:
    made = brokers(2)
    a, b = made
    with line(made, filter="n > 0") as links:
        newest = "select max(batch_id) from pgps_internal.batch"
        first = value(a.admin, newest) + 1
        for n in range(60):
            publish(a.admin, "tick", *range(n - 20, n))
            a.settle()
        settle(made, links)
        counted = """
            select (body #>> '{recounts,tick,modulus}')::integer from pgps_internal.shipment
            where kind = 'audit' and body ? 'recounts' order by lseq desc limit 1
        """
        numbers = f"generate_series({first}, ({newest})) n where pgps_internal.is_one_in(16, n)"
        if value(a.admin, f"select count(*) from {numbers}"):
            assert value(a.admin, counted) == 16
        assert findings(b) == []
        assert received(b, "all")[2:] == [("a", n) for k in range(60) for n in range(k - 20, k) if n > 0]


def test_filters_that_change_between_two_counts_are_no_difference(brokers: Brokers) -> None:
    made = brokers(2)
    a, b = made
    with line(made, filter="n > 0") as links:
        for n in range(8):
            publish(a.admin, "tick", n - 4, n)
            a.settle()
            call(b.admin, "subscribe", f"s{n}", "tick", filter=f"n % 8 = {n}", scope="global")
            if n % 2:
                call(b.admin, "unsubscribe", f"s{n - 1}")
            publish(a.admin, "tick", n - 4, n)
            for broker in made:
                broker.settle()
            links[0].move()
        settle(made, links)
        publish(a.admin, "tick", *range(-8, 8))
        settle(made, links)
        assert [findings(broker) for broker in made] == [[], []]


@pytest.mark.parametrize("stated", ["while it was there", "before and after"])
def test_what_came_while_all_was_wanted_is_no_difference(brokers: Brokers, stated: str) -> None:
    made = brokers(2)
    a, b = made
    with line(made, filter="n > 0") as links:
        publish(a.admin, "tick", 3, -3)
        settle(made, links)
        if stated == "before and after":
            call(a.admin, "configure", "link_report_interval", "1 hour")
        call(b.admin, "subscribe", "whole", "tick", scope="global")
        # Both filters are at a, and b has yet to hear that the wider one is in force.
        while filters_from(a, "b") != ["n > 0", None]:
            assert links[0].back.move()
        publish(a.admin, "tick", *range(-10, 10))
        a.settle()
        links[0].out.carry(links[0].out.next(refresh=False))
        call(b.admin, "unsubscribe", "whole")
        settle(made, links)
        call(a.admin, "configure", "link_report_interval", "0 seconds")
        for n in (4, 5):
            publish(a.admin, "tick", n, -n)
            settle(made, links)
        assert ([findings(broker) for broker in made], filters_from(a, "b")) == ([[], []], ["n > 0"])


def test_what_is_fetched_again_for_a_child_is_compared_with_no_count(brokers: Brokers) -> None:
    """A part of it came before, and was counted then."""
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        s.subscribe("few", "n >= 5")
        s.b.say(s.b.ad(s.x))
        s.b.hear()
        s.b.say(s.b.data(s.x, 1, 0, 4), s.b.active(s.x, s.b.key(s.x), 1, 4))

        def counts(after: int, upto: int, *events: int) -> None:
            """What b says that the filters select in its log, by batch."""
            hashes = [int(value(here.admin, "select pgps_internal.place_hash(%s)", [n])) for n in events]
            stated = {"after": after, "upto": upto, "modulus": 1, "events": len(events), "places": sum(hashes) % 2**60}
            s.b.say(s.b.message("audit", **s.x.key, attachment=s.number(s.b), recounts={"tick": stated}))

        s.b.say(s.b.data(s.x, 1, 4, 5, (50, 5)))
        counts(4, 5, 5)
        s.b.say(s.b.data(s.x, 1, 5, 6, (60, 6)), s.b.data(s.x, 1, 6, 7, (70, 7)))
        # A child that wants all of it from batch 4 on: b is asked again.
        d = s.peer("d")
        d.say(*wants_all(s, d, "every", 4))
        for peer in (d, s.b, d, s.b):
            peer.hear()
        two = s.number(s.b)
        assert (two, s.b.attachment(s.x)["horizon"]) == (2, 4)
        s.b.say(s.b.data(s.x, two, 4, 5, (50, 5), (51, 1)), s.b.data(s.x, two, 5, 6, (60, 6)))
        counts(4, 6, 5, 5, 6)
        s.b.say(s.b.data(s.x, two, 6, 7, (70, 7)), s.b.data(s.x, two, 7, 8, (80, 8), (81, 1)))
        counts(6, 8, 7, 8, 8)
        assert (s.got("few"), findings(here)) == ([5, 6, 7, 8], [])
        # From here on it compares.
        s.b.say(s.b.data(s.x, two, 8, 9, (90, 9)))
        counts(8, 9, 9, 9)
        assert findings(here) == [("log", "count", "b", "x", 2, 1)]
