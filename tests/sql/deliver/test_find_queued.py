"""pgps.find_queued and pgps.count_exceptions: pages of the queues, by key, with what their views have."""

from __future__ import annotations

import json
from collections.abc import Callable

import psycopg

from tests.fix_broker import Rows, call, endpoint, make_type, refused, rows, value
from tests.fix_db import Connect

_VIEWS = {
    "in": "select event_id, null from pgps_queue.tick_in",
    "out": "select event_id, subscription, matched_at, attempts, state, null, null from pgps_queue.tick_out",
    "exception": "select event_id, subscription, failed_at, attempts, state, sqlstate, error"
    " from pgps_queue.tick_exception",
}
_PAGE = """
    select batch, event_id, subscription, at, attempts, state, sqlstate, error
    from pgps.find_queued(%s, before_batch => %s, before_event => %s, before_subscription => %s, max_rows => %s)
"""


def _all(connection: psycopg.Connection, queue: str, most: int = 7) -> Rows:
    """Return what all pages of a queue together have, each row once, in the order that is promised."""
    found: Rows = []
    place: tuple[object, ...] = (None, None, None)
    while page := rows(connection, _PAGE, [queue, *place, most]):
        assert len(page) <= most
        found += page
        place = page[-1][:3]
    keys = [(row[0] if row[0] is not None else 10**9, row[1], row[2] or "") for row in found]
    assert keys == sorted(set(keys), reverse=True)
    return found


def _same(connection: psycopg.Connection, most: int = 7) -> dict[str, Rows]:
    """Check that the pages of each queue have what its view has; return them."""
    pages = {kind: _all(connection, f"tick_{kind}", most) for kind in _VIEWS}
    for kind, view in _VIEWS.items():
        width = 2 if kind == "in" else 7
        assert sorted(row[1 : 1 + width] for row in pages[kind]) == sorted(rows(connection, view)), kind
    return pages


def _publish(connection: psycopg.Connection, first: int, last: int) -> None:
    rows(connection, f"insert into {endpoint('tick')} (n) select n from generate_series({first}, {last}) n")


def _furnish(admin: psycopg.Connection) -> None:
    """Make five batches of 20 events, for subscriptions of every kind."""
    make_type(admin, "tick")
    call(admin, "subscribe", "all", "tick", max_attempts=1)
    call(admin, "subscribe", "odd", "tick", "n % 2 = 1")
    call(admin, "subscribe", "tenth", "tick", "n % 10 = 0", max_attempts=1)
    call(admin, "subscribe", "shared", "tick", "n < 40", handler="any")
    # 501 members, so that a part of the deliveries is looked at first.
    rows(admin, "select pgps.subscribe('s' || n, 'tick', 'n = ' || n % 60) from generate_series(1, 501) n")
    for first in range(1, 100, 20):
        _publish(admin, first, first + 19)
        rows(admin, "select pgps.dispatch()")


def test_pages_of_a_queue_have_what_its_view_has(connect: Connect, role: Callable[..., str], own_database: str) -> None:
    admin, alice = connect(dsn=own_database), role("alice")
    _furnish(admin)
    pages = _same(admin)
    assert len(pages["in"]) == 100
    assert _same(admin, 1000) == pages

    # Received in part, acknowledged in part, put back, given up, and settled before the position has passed.
    rows(admin, "select pgps.receive('all', 30)")
    first = value(admin, "select min(event_id) from pgps_queue.tick_in")
    call(admin, "nack_events", "all", [first + 25, first + 26], "no bed")
    call(admin, "ack", "all", first + 9)
    rows(admin, "select pgps.receive('odd', 1000)")
    call(admin, "ack", "odd")
    rows(admin, "select pgps.receive('shared', 9)")
    call(admin, "nack", "shared", value(admin, "select min(event_id) from pgps_queue.tick_out where state = 'leased'"))
    rows(admin, "select pgps.receive('tenth', 1000)")
    call(
        admin,
        "nack_events",
        "tenth",
        [
            event
            for (event,) in rows(
                admin, "select event_id from pgps_queue.tick_out where subscription = 'tenth' order by 1 desc limit 9"
            )
        ],
        "off",
    )
    _publish(admin, 101, 110)
    pages = _same(admin)
    states = {row[5] for row in pages["out"]}
    assert {"waiting", "received", "leased", "retrying"} <= states
    assert len(pages["exception"]) == 11
    assert [row[0] for row in pages["in"][:10]] == [None] * 10

    # A policy hides events, but not the pages behind them.
    rows(admin, f"grant select on {endpoint('tick')} to {alice}")
    call(admin, "create_policy", "tick", "few", alice, "n in (3, 97)")
    seen = _same(connect(alice, dsn=own_database), 2)
    assert len(seen["in"]) == 2
    assert {row[2] for row in seen["out"]} >= {"all", "s3", "s63"}
    rows(admin, f"revoke select on {endpoint('tick')} from public")
    with refused("42501", "tick_in", "grant select"):
        call(connect(role("bob"), dsn=own_database), "find_queued", "tick_in")
    with refused("42704", '"none_in"'):
        call(admin, "find_queued", "none_in")
    with refused("22023", "max_rows 1001"):
        call(admin, "find_queued", "tick_in", max_rows=1001)

    # An audited in queue has, at the end, what is in no batch any more.
    call(admin, "alter_queue", "tick_in", auditable=True)
    rows(admin, "select pgps.dispatch()")
    assert len(_same_in(admin)) == 110


def _same_in(connection: psycopg.Connection) -> Rows:
    found = _all(connection, "tick_in")
    assert sorted(row[1] for row in found) == [
        event for (event,) in rows(connection, "select event_id from pgps_queue.tick_in order by event_id")
    ]
    return found


def test_exceptions_are_counted_up_to_a_limit(connect: Connect, role: Callable[..., str], own_database: str) -> None:
    admin, alice = connect(dsn=own_database), role("alice")
    own = connect(alice, dsn=own_database)
    make_type(admin, "tick")
    for name, owner in (("a", admin), ("b", own), ("c", admin)):
        call(owner, "subscribe", name, "tick", max_attempts=1 if name != "c" else 5)
    call(admin, "subscribe", "quiet", "tick")
    _publish(admin, 1, 20)
    rows(admin, "select pgps.dispatch()")
    for name, owner in (("a", admin), ("b", own), ("c", admin)):
        events = [event for (event,) in rows(owner, f"select event_id from pgps.receive('{name}', 20)")]
        call(owner, "nack_events", name, events[: 20 if name == "a" else 3], f"no {name}")
    query = "select subscription, failed, retrying, is_limited, last_error from pgps.count_exceptions({})"
    assert rows(admin, query.format("")) == [
        ("a", 20, 0, False, "no a"), ("b", 3, 0, False, "no b"), ("c", 0, 3, False, "no c"),
    ]  # fmt: skip
    assert rows(own, query.format("")) == [("b", 3, 0, False, "no b")]
    assert rows(admin, query.format("max_count => 10, max_rows => 1")) == [("a", 11, 0, True, "no a")]
    assert [row[0] for row in rows(admin, query.format("after => 'a'"))] == ["b", "c"]
    with refused("22023", "max_count 0"):
        call(admin, "count_exceptions", max_count=0)
    with refused("22023", "max_rows 0"):
        call(admin, "count_exceptions", max_rows=0)


def _pages_read(connection: psycopg.Connection, query: str) -> int:
    """Return how many pages of tables and indexes a query reads, with all that it calls."""
    rows(connection, query)
    ((plan,),) = rows(connection, f"explain (analyze, buffers, timing off, format json) {query}")
    top = (plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"]
    return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])


def test_a_page_reads_no_more_when_there_is_a_hundred_times_as_much(connect: Connect, own_database: str) -> None:
    """What pages cost is counted in pages of tables that are read: that does not depend on the machine's load."""
    admin = connect(dsn=own_database)
    make_type(admin, "tick")
    call(admin, "subscribe", "all", "tick")
    call(admin, "subscribe", "failing", "tick", "n % 4 = 0", max_attempts=1)
    call(admin, "subscribe", "shared", "tick", "n % 4 = 1", handler="any")
    queries = [
        "select * from pgps.find_queued('tick_in', max_rows => 51)",
        "select * from pgps.find_queued('tick_out', max_rows => 51)",
        "select * from pgps.find_queued('tick_exception', max_rows => 51)",
        "select * from pgps.find_queued('tick_in', before_batch => 2, before_event => 90, max_rows => 51)",
        "select * from pgps_queue.tick_in where event_id = any (array(select generate_series(100, 150)))",
        "select * from pgps_queue.tick_log where event_id = any (array(select generate_series(100, 150)))",
        "select * from pgps.find_exceptions(max_rows => 51)",
        "select * from pgps.count_exceptions(max_count => 100)",
        "select * from pgps.find_subscriptions(max_rows => 51)",
    ]
    read: dict[str, list[int]] = {query: [] for query in queries}
    for first, last in ((1, 400), (401, 40_000)):
        for part in (1, 2):
            middle = (first + last) // 2
            _publish(admin, *((first, middle) if part == 1 else (middle + 1, last)))
            rows(admin, "select pgps.dispatch()")
        rows(
            admin,
            "select pgps.nack_events('failing', array(select event_id from pgps.receive('failing', 20000)), 'no bed')",
        )
        call(admin, "ack", "failing")
        # As autovacuum does: plans are made for what there is, and pages that are all visible are not read again.
        rows(admin, "vacuum analyze")
        for query in queries:
            read[query].append(_pages_read(admin, query))
    too_many = {query: counts for query, counts in read.items() if counts[1] > 3 * counts[0] + 100}
    assert not too_many
    # The measure sees what it is meant to see.
    assert _pages_read(admin, "select * from pgps_queue.tick_in order by event_id desc limit 51") > 10_000
