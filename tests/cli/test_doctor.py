"""`pgps doctor` at a real server: what it has to find out by itself."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.cli.conftest import Pgps
from tests.fix_broker import call, rows
from tests.fix_clock import Clock
from tests.fix_db import Connect


def _found(pgps: Pgps, dsn: str) -> dict[str, tuple[str, str, str]]:
    """Return level, message and fix by check; of several of one check the worst."""
    order = ["ok", "note", "warning", "problem"]
    done = pgps("doctor", "--json", dsn=dsn)
    assert done.out, done.err
    found = done.json
    ranked = sorted(found, key=lambda one: order.index(one["level"]))
    return {one["check"]: (one["level"], one["message"], one["fix"]) for one in ranked}


def _texts(pgps: Pgps, dsn: str) -> list[str]:
    return [f"{one['level']} {one['check']} {one['message']}" for one in pgps("doctor", "--json", dsn=dsn).json]


def test_doctor_outlives_a_short_timeout_and_names_it(
    pgps: Pgps, own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    name = role("admin", "pgps_admin")
    admin = connect(dsn=own_database)
    admin.execute(sql.SQL("alter role {} set statement_timeout = '1ms'").format(sql.Identifier(name)))
    found = _found(pgps, make_conninfo(own_database, user=name, password="test"))
    assert found["timeouts"] == (
        "warning",
        f"statement_timeout of role {name} is 1 ms: pgps.dispatch() may need longer",
        f"alter role {name} set statement_timeout = 0",
    )
    assert found["disk"][1].endswith("free (data)")
    assert found["locks"] == ("ok", "nobody waits for one", "")
    assert "consumers" not in found


def test_doctor_counts_what_a_crash_took(pgps: Pgps, own_database: str, connect: Connect) -> None:
    admin = connect(dsn=own_database)
    call(admin, "create_event_type", "tick", "n integer", persistent=False)
    call(admin, "advertise", "tick")
    rows(admin, "insert into pgps_event.tick (n) select generate_series(1, 7)")
    rows(admin, "insert into pgps_event.tick (n) values (8)")
    assert "gone" not in str(_found(pgps, own_database))
    # What recovery does with an unlogged table.
    rows(admin, "truncate pgps_internal.tick_log")
    assert _found(pgps, own_database)["durability"] == (
        "warning",
        'about 8 events of "tick" lost: its queue is not persistent',
        "pgps queue set tick_in --persistent, if they are worth it",
    )
    call(admin, "create_event_type", "tock", "n integer", reliability="non-guaranteed")
    call(admin, "advertise", "tock")
    rows(admin, "insert into pgps_event.tock values (1); truncate pgps_internal.tock_log")
    assert 'note durability about 1 non-guaranteed events of "tock" went with a crash' in _texts(pgps, own_database)


def test_doctor_names_a_subscription_that_nobody_reads(
    pgps: Pgps, own_database: str, connect: Connect, clock: Clock
) -> None:
    admin = connect(dsn=own_database)
    call(admin, "create_event_type", "tick", "n integer")
    call(admin, "advertise", "tick")
    call(admin, "subscribe", "left", "tick")
    rows(admin, "insert into pgps_event.tick (n) values (1)")
    rows(admin, "select pgps.dispatch()")
    assert "consumers" not in _found(pgps, own_database)
    clock.advance("2 hours")
    level, message, fix = _found(pgps, own_database)["consumers"]
    assert (level, fix) == ("warning", "start its consumer; or pgps sub rm left")
    assert message.startswith('nobody takes the events of "left": 1 wait')
    call(admin, "alter_subscription", "left", dead_after="3 hours")
    assert "consumers" not in _found(pgps, own_database), "it said itself how long"
    call(admin, "alter_subscription", "left", dead_after="10 minutes")
    assert _found(pgps, own_database)["consumers"] == (level, message, fix)


def test_doctor_sees_a_clock_that_was_set_back(pgps: Pgps, own_database: str, connect: Connect, clock: Clock) -> None:
    admin = connect(dsn=own_database)
    call(admin, "create_event_type", "tick", "n integer")
    call(admin, "advertise", "tick")
    rows(admin, "insert into pgps_event.tick (n) values (1)")
    rows(admin, "select pgps.dispatch()")
    assert "clock" not in _found(pgps, own_database)
    clock.advance("1 hour")
    rows(admin, "insert into pgps_event.tick (n) values (2)")
    rows(admin, "select pgps.dispatch()")
    assert "clock" not in _found(pgps, own_database)
    clock.advance("-1 hour")
    assert _found(pgps, own_database)["clock"][0] == "warning"


def test_a_stranger_is_told_less(
    pgps: Pgps, own_database: str, role: Callable[..., str], admin: psycopg.Connection
) -> None:
    found = _found(pgps, make_conninfo(own_database, user=role("stranger"), password="test"))
    assert not {"disk", "locks"} & set(found)


def test_topology_draws_into_a_file_of_its_kind(pgps: Pgps, own_database: str) -> None:
    done = pgps("topology", "--svg", "network.png", dsn=own_database)
    assert done.status == 2
    assert "ends in .svg" in done.err
