"""The audit: what is lost, repeated or altered behind the brokers' backs is named, and nothing else is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.cli.conftest import Pgps, pgps, pgps_without_database  # noqa: F401 - fixtures
from tests.fix_broker import call, column, make_type, publish, refused, rows, value
from tests.links.horizon_stage import Scene, wants_all
from tests.links.rig import Broker, Link, filters_from, linked, received, settle

Brokers = Callable[[int], list[Broker]]


def audit(broker: Broker) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = column(broker.admin, "select to_jsonb(a) from pgps.audit() a")
    return found


def findings(broker: Broker) -> list[tuple[str, str, str, str, int, int]]:
    query = (
        "select kind, what, neighbour, origin, events_there, events_here from pgps.audit_findings order by 1, 2, 3, 4"
    )
    return [(*row,) for row in rows(broker.admin, query)]


@contextmanager
def line(made: list[Broker], *, filter: str | None = None) -> Iterator[list[Link]]:  # noqa: A002
    """Brokers in a row, the last of which gets the first one's ticks; what is counted was compared once."""
    for broker in made:
        call(broker.admin, "configure", "link_report_interval", "0 seconds")
        make_type(broker.admin, "tick")
    with linked(list(itertools.pairwise(made))) as links:
        for link in links:
            link.out.with_rows = link.back.with_rows = 32
        settle(made, links)
        call(made[-1].admin, "subscribe", "all", "tick", filter=filter, scope="global")
        settle(made, links)
        for n in (1, 2):
            publish(made[0].admin, "tick", n)
            settle(made, links)
        yield links


def end_to_end(broker: Broker, origin: str) -> dict[str, Any]:
    (row,) = [row for row in audit(broker) if row["kind"] == "end" and row["origin"] == origin]
    return row


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


def alter_log(broker: Broker, statement: str) -> None:
    """Do something to a log that nobody should."""
    assert broker.admin.execute(statement.encode()).rowcount > 0, statement


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
        key = s.ready()
        said: dict[str, Any] = {"events": 0, "places": 0, "contents": 0, "shape": None, "since": 0, "contents_since": 0}

        def goes_on(upto: int, came: int, published: int) -> None:
            """One batch of x, of which so many events come; then what x says of how many there are, if anything."""
            one = s.number(s.b)
            s.b.say(s.b.data(s.x, one, upto - 1, upto, *[(10 * upto + n, n) for n in range(1, came + 1)]))
            hashed = int(value(here.admin, "select pgps_internal.place_hash(%s)", [upto]))
            said["events"], said["places"] = said["events"] + published, (said["places"] + published * hashed) % 2**60

        def states(upto: int, **types: Any) -> None:
            s.b.say(s.b.message("audit", **s.x.key, attachment=s.number(s.b), batch=upto, types=types))

        goes_on(5, 2, 2)
        states(5, tick=said)
        goes_on(6, 2, 2)
        states(6, tick=said)
        # Only some are wanted, and b says no total any more.
        s.subscribe("few", "n < 3")
        call(here.admin, "unsubscribe", "all")
        s.b.hear()
        s.b.say(s.b.active(s.x, s.b.key(s.x), s.number(s.b), 6))
        s.b.hear()
        goes_on(7, 1, 4)
        states(7)
        goes_on(8, 1, 4)
        # c wants all of them, from batch 7 on; states stay as they were until b is told.
        s.c.say(*wants_all(s, s.c, key, 7))
        for peer in (s.c, s.b, s.c, s.b):
            peer.hear()
        one = s.number(s.b)
        states(8)
        s.b.say(s.b.data(s.x, one, 7, 8, (82, 3), (83, 4), (84, 5)), s.b.active(s.x, key, one, 8))
        goes_on(9, 4, 4)
        states(9, tick=said)
        assert findings(here) == []
        goes_on(10, 4, 4)
        states(10, tick=said)
        assert findings(here) == []
        # From here on it compares.
        goes_on(11, 3, 4)
        states(11, tick=said)
        assert findings(here) == [("end", "count", "b", "x", 4, 3)]


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


def test_what_came_while_all_was_wanted_is_no_difference(brokers: Brokers) -> None:
    made = brokers(2)
    a, b = made
    with line(made, filter="n > 0") as links:
        publish(a.admin, "tick", 3, -3)
        settle(made, links)
        call(b.admin, "subscribe", "whole", "tick", scope="global")
        # Both filters are at a, and b has yet to hear that the wider one is in force.
        while filters_from(a, "b") != ["n > 0", None]:
            assert links[0].back.move()
        publish(a.admin, "tick", *range(-10, 10))
        a.settle()
        links[0].out.carry(links[0].out.next(refresh=False))
        call(b.admin, "unsubscribe", "whole")
        settle(made, links)
        publish(a.admin, "tick", 4, -4)
        settle(made, links)
        assert ([findings(broker) for broker in made], filters_from(a, "b")) == ([[], []], ["n > 0"])
