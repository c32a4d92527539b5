"""What code of a user leaves in a session, and locks it takes, do not stop the broker or speak for others."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, endpoint, publish, quoted, rows, value
from tests.fix_db import Connect
from tests.security.conftest import Mallory


def prepares(mallory: Mallory, statement: str) -> str:
    """Return PL/pgSQL that puts a statement of the attacker under a name the client may use."""
    mallory.define("win()", "integer", "1")
    return f"execute 'deallocate all'; execute 'prepare {statement} as select {mallory.schema}.win()';"


def test_a_statement_prepared_by_a_callback_is_forgotten(mallory: Mallory, name: Callable[..., str]) -> None:
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", prepares(mallory, "_pg3_0")), max_attempts=1)
    publish(mallory.admin, mallory.event_type, 1)
    rows(mallory.admin, "select pgps.dispatch()")
    rows(mallory.admin, "call pgps.run_subscribers()")
    assert rows(mallory.admin, "select name from pg_prepared_statements where from_sql") == []
    assert value(mallory.admin, "select delivered from pgps.subscriptions where name = %s", [found]) == 1
    assert not mallory.has_won()


@pytest.mark.parametrize("where", ["callback", "filter"])
def test_a_cursor_with_hold_is_not_run_with_the_rights_of_the_broker(
    mallory: Mallory, name: Callable[..., str], where: str
) -> None:
    mallory.define("win()", "integer", "1")
    opens = f"execute 'declare c cursor with hold for select {mallory.schema}.win()';"
    if where == "callback":
        mallory.subscribe(name("s"), execute=mallory.callback("f", opens), max_attempts=1)
    else:
        function = mallory.define("f(integer)", "boolean", "true", before=opens)
        mallory.subscribe(name("s"), filter=f"{function}(n)")
    publish(mallory.admin, mallory.event_type, 1)
    rows(mallory.admin, "select pgps.dispatch()")
    rows(mallory.admin, "call pgps.run_subscribers()")
    assert rows(mallory.admin, "select name from pg_cursors where is_holdable") == []
    assert not mallory.has_won()
    failed = column(mallory.admin, "select sqlstate from pgps.exceptions where event_type = %s", [mallory.event_type])
    assert failed == (["0A000"] if where == "callback" else [])


def test_a_statement_prepared_by_a_filter_is_forgotten(mallory: Mallory, name: Callable[..., str]) -> None:
    function = mallory.define("f(integer)", "boolean", "true", before=prepares(mallory, "_pg3_0"))
    found = mallory.subscribe(name("s"), filter=f"{function}(n)")
    publish(mallory.admin, mallory.event_type, 1)
    rows(mallory.admin, "select pgps.dispatch()")
    assert rows(mallory.admin, "select name from pg_prepared_statements where from_sql") == []
    assert len(column(mallory.connection, "select payload from pgps.receive(%s)", [found])) == 1


def test_two_dispatchers_wait_for_each_other(mallory: Mallory, connect: Connect) -> None:
    publish(mallory.admin, mallory.event_type, 1)
    first, second = connect(autocommit=False), connect()
    rows(first, "select pgps.dispatch()")
    rows(second, "set lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        rows(second, "select pgps.dispatch()")
    first.rollback()
    assert value(second, "select pgps.dispatch()") >= 1
    assert quoted(mallory.event_type)


def test_a_slow_filter_of_built_in_functions_is_found_and_suspended(mallory: Mallory, name: Callable[..., str]) -> None:
    found, other = mallory.subscribe(name("s"), filter=f"word like '%{'a' * 900}b'"), name("s")
    call(mallory.admin, "subscribe", other, quoted(mallory.event_type))
    text = "select 1, repeat('a', 20000) from generate_series(1, 300)"
    rows(mallory.admin, f"insert into {endpoint(mallory.event_type)} (n, word) {text}")
    # In its role's lane it is asked no longer than by default.
    call(mallory.admin, "configure", "dispatch_lane_timeout", "3 seconds")
    blamed = None
    # On a busy machine the time may be over before the filter is asked: nobody is to blame, and it is tried again.
    for seconds in (1, 2, 4):
        if blamed is None:
            rows(mallory.admin, f"set statement_timeout = '{seconds}s'")
            with pytest.raises(psycopg.errors.QueryCanceled):
                rows(mallory.admin, "select pgps.dispatch()")
            rows(mallory.admin, "reset statement_timeout")
            blamed = value(mallory.admin, "select pgps.blame()")
    assert blamed == found
    rows(mallory.admin, "select pgps.dispatch()")
    assert len(column(mallory.admin, "select event_id from pgps.receive(%s, 1000)", [other])) == 300
    call(mallory.admin, "unsubscribe", found)
