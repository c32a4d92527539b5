"""A log that is written anew looks empty in an older snapshot: whoever waits for it meanwhile still finds all events.

PostgreSQL writes a table anew for a column of a domain with constraints, and when it becomes logged or unlogged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, meanwhile, publish, rows
from tests.fix_db import Connect

Name = Callable[..., str]


@pytest.fixture(params=["domain", "unlogged", "logged"])
def change(
    request: pytest.FixtureRequest, admin: psycopg.Connection, name: Name, tick: str
) -> Callable[[psycopg.Connection], object]:
    """Make the log be written anew in a transaction that stays open."""
    if request.param == "domain":
        domain = f"public.{name('positive')}"
        rows(admin, f"create domain {domain} as integer check (value > 0)")
        return lambda session: call(session, "alter_event_type", tick, add_attribute=f"new {domain} default 5")
    call(admin, "alter_queue", f"{tick}_in", persistent=request.param == "unlogged")
    return lambda session: call(session, "alter_queue", f"{tick}_in", persistent=request.param == "logged")


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    tick = name("tick")
    make_type(admin, tick, "n integer")
    return tick


@pytest.mark.parametrize(
    "wanted", [None, "n > 0", "n > (select count(*) from pg_class where relname = '-')"], ids=["all", "event", "table"]
)
def test_the_dispatcher_passes_no_event_over(
    admin: psycopg.Connection,
    connect: Connect,
    name: Name,
    tick: str,
    change: Callable[[psycopg.Connection], object],
    wanted: str | None,
) -> None:
    session, changing, some = connect(), connect(autocommit=False), name("some")
    call(admin, "subscribe", some, tick, filter=wanted)
    publish(admin, tick, 1)
    rows(session, "select pgps.dispatch()")
    publish(admin, tick, 2)
    change(changing)
    with meanwhile(admin, session, lambda: rows(session, "select pgps.dispatch()")):
        changing.commit()
    rows(session, "call pgps.run_lanes()")
    assert column(admin, f"select payload -> 'n' from pgps.take('{some}')") == [1, 2]


@pytest.mark.parametrize("handler", ["all", "any", "rows"])
def test_a_consumer_loses_none(
    admin: psycopg.Connection,
    connect: Connect,
    name: Name,
    tick: str,
    change: Callable[[psycopg.Connection], object],
    handler: str,
) -> None:
    session, changing, all_of_it = connect(), connect(autocommit=False), name("all")
    call(admin, "subscribe", all_of_it, tick, handler="any" if handler == "any" else "all")
    read = f"select payload -> 'n' from pgps.receive('{all_of_it}')"
    if handler == "rows":
        read = f"select n from pgps_queue.{tick}_receive('{{{all_of_it}}}', 10)"
    found: list[int] = []
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    found += column(session, read)
    call(session, "ack", all_of_it)
    publish(admin, tick, 2)
    rows(admin, "select pgps.dispatch()")
    change(changing)
    with meanwhile(admin, session, lambda: found.extend(column(session, read))):
        changing.commit()
    assert found == [1, 2]


def test_a_callback_misses_none(
    admin: psycopg.Connection,
    connect: Connect,
    name: Name,
    tick: str,
    change: Callable[[psycopg.Connection], object],
) -> None:
    seen, note, noted = f"public.{name('seen')}", f"public.{name('note')}", name("noted")
    session, changing = connect(), connect(autocommit=False)
    rows(admin, f"create table {seen} (g bigserial, n integer)")
    rows(
        admin,
        f"create function {note}(n integer) returns void language sql as 'insert into {seen} (n) values ($1)'",
    )
    call(admin, "subscribe", noted, tick, execute=f"{note}(n)")
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    rows(session, "call pgps.run_subscribers()")
    publish(admin, tick, 2)
    rows(admin, "select pgps.dispatch()")
    change(changing)
    with meanwhile(admin, session, lambda: rows(session, "call pgps.run_subscribers()")):
        changing.commit()
    assert column(admin, f"select n from {seen} order by g") == [1, 2]


READS = {
    "copy": "copy (select n from pgps_queue.{0}_log where event_id > 0 order by event_id) to stdout",
    "cursor": "declare c cursor for select n from pgps_queue.{0}_log",
}


@pytest.mark.parametrize("read", READS)
def test_who_took_the_snapshot_before_is_told_so_instead_of_nothing(
    admin: psycopg.Connection,
    connect: Connect,
    name: Name,
    tick: str,
    change: Callable[[psycopg.Connection], object],
    read: str,
) -> None:
    session, changing = connect(), connect(autocommit=False)
    publish(admin, tick, 1)

    def look() -> None:
        if read == "copy":
            with session.cursor().copy(READS[read].format(tick).encode()) as copy:
                assert b"".join(copy) == b"1\n"
        else:
            session.execute(b"begin")
            rows(session, READS[read].format(tick))
            assert column(session, "fetch all from c") == [1]
            session.execute(b"commit")

    look()
    change(changing)
    # Where the view is locked, too, a cursor waits for it before it takes its snapshot.
    with suppress(psycopg.errors.SerializationFailure), meanwhile(admin, session, look):
        changing.commit()
    session.execute(b"rollback")
    look()


def test_what_is_generated_reads_a_log_in_a_snapshot_that_is_taken_behind_its_lock(
    admin: psycopg.Connection, connect: Connect, name: Name, tick: str, role: Callable[..., str]
) -> None:
    # A function that is STABLE reads in the snapshot of the statement that calls it, which is taken before.
    reader = role("reader")
    call(admin, "create_policy", tick, "positive", reader, "n > 0")
    call(connect(reader), "subscribe", name("seen"), tick)
    call(admin, "subscribe", name("some"), tick, filter="n > 1")
    query = """
        select p.proname::text, p.provolatile from pg_proc p
        where p.pronamespace = 'pgps_internal'::regnamespace and p.prokind = 'f'
            and pg_get_functiondef(p.oid) ~ ('\\m' || %s || '_log\\M')
    """
    found = {name.rpartition("_")[0]: volatile for name, volatile in rows(admin, query, [tick])}
    assert {"part_ids", "unfold", "sent", "push", "slice", "events", "rows"} <= found.keys()
    assert set(found.values()) == {"v"}, found
