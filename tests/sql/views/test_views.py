"""Catalogue and queue views: the right figures, and only what the reader may see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, endpoint, ids, make_type, publish, refused, rows, take, value
from tests.fix_db import Connect

Name = Callable[..., str]
VIEWS = [
    *"event_types queues advertisements subscriptions rules policies exceptions".split(),
    *"workers activity links link_details routes settings".split(),
]


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    made = name("tick")
    make_type(admin, made)
    call(admin, "subscribe", made, made, max_attempts=1)
    return made


def test_the_queues_show_where_an_event_is(admin: psycopg.Connection, tick: str) -> None:
    into, out = (f"select n, state from pgps_queue.{tick}_{kind} order by n" for kind in ("in", "out"))
    publish(admin, tick, 1, 2)
    assert (rows(admin, into), rows(admin, out)) == ([(1, "waiting"), (2, "waiting")], [])
    rows(admin, "select pgps.dispatch()")
    assert (rows(admin, into), rows(admin, out)) == (
        [(1, "dispatched"), (2, "dispatched")],
        [(1, "waiting"), (2, "waiting")],
    )
    first, second = ids(admin, tick)
    assert rows(admin, out) == [(1, "received"), (2, "received")]
    call(admin, "nack", tick, second, "no")
    call(admin, "ack", tick, first)
    assert rows(admin, out) == []
    assert rows(admin, f"select n, state, error from pgps_queue.{tick}_exception") == [(2, "failed", "no")]
    call(admin, "ack", tick)
    assert rows(admin, into) == []


def test_figures_of_the_catalogue_are_right(admin: psycopg.Connection, tick: str) -> None:
    depths = "select kind, depth from pgps.queues where event_type = %s order by kind"
    publish(admin, tick, 1, 2, 3)
    assert rows(admin, depths, [tick]) == [("exception", 0), ("in", 3), ("out", 0)]
    rows(admin, "select pgps.dispatch()")
    call(admin, "nack", tick, ids(admin, tick)[2], "no")
    assert rows(admin, depths, [tick])[:2] == [("exception", 1), ("in", 0)]
    call(admin, "ack", tick)
    assert rows(admin, depths, [tick]) == [("exception", 1), ("in", 0), ("out", 0)]
    query = "select depth, lag_events, delivered, failed, last_error, state from pgps.subscriptions where name = %s"
    assert rows(admin, query, [tick]) == [(0, 0, 2, 1, "no", "active")]
    query = "select published, repeats, waiting from pgps.activity where event_type = %s"
    assert rows(admin, query, [tick]) == [(3, 0, 0)]
    query = "select subscription, attempts, error from pgps.exceptions where event_type = %s"
    assert rows(admin, query, [tick]) == [(tick, 1, "no")]


def test_the_depth_counts_events_and_not_the_ids_between_them(
    admin: psycopg.Connection, connect: Connect, role: Any, name: Name, tick: str
) -> None:
    """A statement in the midst of which others publish: its ids reach further than it has events."""
    other = name("other")
    make_type(admin, other)
    between = f"public.{tick}_between"
    rows(
        admin,
        f"create function {between}(n integer) returns integer language plpgsql as "
        f"$$ begin insert into {endpoint(other)} select 1 from generate_series(1, 10); return n; end $$",
    )
    interleaved = f"insert into {endpoint(tick)} select {between}(n) from generate_series(1, 4) n"
    first, late = connect(), connect(autocommit=False)
    rows(late, interleaved)
    rows(late, "savepoint s")
    rows(late, interleaved)
    rows(late, "rollback to savepoint s")
    rows(first, interleaved)
    publish(first, tick, 1)
    depth = "select depth from pgps.queues where event_type = %s and kind = 'in'"
    waiting = "select waiting from pgps.activity where event_type = %s"
    reader = connect(role("reader"))
    for connection in (admin, reader):
        assert (value(connection, depth, [tick]), value(connection, waiting, [tick])) == (5, 5)
        assert value(connection, depth, [other]) == 40
    rows(admin, "select pgps.dispatch()")
    assert value(reader, depth, [tick]) == 0
    late.commit()
    assert (value(reader, depth, [tick]), value(reader, waiting, [tick])) == (4, 4)
    rows(admin, "select pgps.dispatch()")
    rows(admin, f"drop function {between}")


def test_who_may_not_use_a_type_cannot_count_its_events(
    admin: psycopg.Connection, connect: Connect, role: Any, tick: str
) -> None:
    publish(admin, tick, 1)
    rows(admin, f"revoke all on {endpoint(tick)} from public")
    stranger, reader = connect(role("stranger")), role("reader")
    rows(admin, f"grant select on {endpoint(tick)} to {reader}")
    for claimed in (stranger.info.user, reader, admin.info.user):
        assert call(stranger, "_count_waiting", tick, claimed) is None
    assert call(connect(reader), "_count_waiting", tick, reader) == 1
    assert call(stranger, "_count_waiting", "no_such", stranger.info.user) is None


def test_every_view_is_readable_by_everybody_and_shows_a_stranger_nothing(
    admin: psycopg.Connection, connect: Connect, role: Any, tick: str
) -> None:
    rows(admin, f"revoke all on {endpoint(tick)} from public")
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    stranger = connect(role("stranger"))
    for view in VIEWS:
        assert tick not in str(rows(stranger, f"select * from pgps.{view}")), view
    for kind in ("in", "out", "exception", "log"):
        for what in ("*", "count(*)", "event_id", "1"):
            with refused("42501", tick):
                rows(stranger, f"select {what} from pgps_queue.{tick}_{kind}")
    chief = connect(role("chief", "pgps_admin"))
    for view in ("event_types", "queues", "advertisements", "subscriptions", "activity"):
        assert tick in str(rows(chief, f"select * from pgps.{view}")), view


def test_internals_are_closed(admin: psycopg.Connection, connect: Connect, role: Any, tick: str) -> None:
    stranger = connect(role("stranger"))
    for query in (
        f"select * from pgps_internal.{tick}_log",
        f"insert into pgps_internal.{tick}_log (n) values (1)",
        "select pgps_internal.last_batch()",
        "select pgps.dispatch()",
        "call pgps.run_subscribers()",
        "select pgps.reclaim()",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(stranger, query)
    open_functions = """
        select p.proname from pg_proc p where p.pronamespace = 'pgps_internal'::regnamespace and p.prokind = 'f'
        and p.proacl is null and not exists (select from pg_depend d where d.objid = p.oid and d.deptype = 'e')
    """
    assert rows(admin, open_functions) == []


def test_explain_tells_why(admin: psycopg.Connection, tick: str) -> None:
    call(admin, "subscribe", f"{tick}_few", tick, filter="n > 5")
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    event = ids(admin, tick)[0]
    steps = rows(admin, "select * from pgps.explain(%s, %s)", [f"{tick}_few", event])
    assert [step for step, _ in steps][:1] == ["published"]
    assert rows(admin, "select * from pgps.explain(%s, %s)", [tick, event]) != steps
    assert "not there" in str(rows(admin, "select * from pgps.explain(%s, 0)", [tick]))
    assert take(admin, tick) == [1]
    assert value(admin, "select count(*) from pgps.explain(%s, %s)", [tick, event]) > 1
