from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from pgps_worker.config import WorkerConfig
from pgps_worker.connection import Connection, connect
from pgps_worker.links import early
from tests.fix_broker import rows, value
from tests.fix_db import table_waiters, wait_until

pytestmark = pytest.mark.anyio

# Its check is asked by the commit.
TABLE = """
    create table entry (n integer, note text);
    create table gate ();
    create function refuse() returns trigger language plpgsql as $$
    begin
        lock table gate in share mode;
        if new.n < 0 then raise exception 'refused' using errcode = '23514'; end if;
        return null;
    end $$;
    create constraint trigger late after insert on entry deferrable initially deferred
        for each row execute function refuse();
    create function enter(n integer, note text = null) returns integer language sql volatile as $$
        insert into entry values (n, note) returning n $$;
    """


@pytest.fixture
async def connection(own_database: str) -> AsyncIterator[Connection]:
    async with connect(WorkerConfig(dsn=own_database, name="me"), "tester", statement_timeout=60) as made:
        await made.execute(TABLE.encode())
        yield made


async def test_the_row_is_there_while_the_transaction_is_still_being_committed(
    connection: Connection, own_database: str
) -> None:
    with psycopg.connect(own_database, autocommit=True) as other:
        with psycopg.connect(own_database) as keeper:
            keeper.execute("lock table gate")
            assert await early.value(connection, b"select enter($1)::text", [b"1"]) == "1"
            wait_until(lambda: table_waiters(other, "gate"), what="it is being committed")
            assert value(other, "select count(*) from entry") == 0
        await early.committed(connection)
        assert value(other, "select count(*) from entry") == 1


async def test_what_the_commit_refuses_has_had_a_row(connection: Connection, own_database: str) -> None:
    assert await early.value(connection, b"select enter($1)::text", [b"-1"]) == "-1"
    with pytest.raises(psycopg.errors.CheckViolation, match="refused"):
        await early.committed(connection)
    with psycopg.connect(own_database, autocommit=True) as other:
        assert value(other, "select count(*) from entry") == 0
    assert await early.value(connection, b"select enter($1)::text", [b"2"]) == "2", "the connection can be used"
    await early.committed(connection)


async def test_a_statement_that_fails_leaves_a_connection_that_can_be_used(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        await early.value(connection, b"select (1 / $1::integer)::text", [b"0"])
    found = await (await connection.execute("select 1")).fetchone()
    assert found == (1,)


async def test_parameters_may_be_null_and_texts_are_exact(connection: Connection, own_database: str) -> None:
    assert await early.value(connection, b"select enter($1, $2)::text", [b"1", None]) == "1"
    await early.committed(connection)
    text = "ä'\\ \" €" * 20_000
    assert await early.value(connection, b"select $1::text", [text.encode()]) == text
    await early.committed(connection)
    with psycopg.connect(own_database) as other:
        assert rows(other, "select * from entry") == [(1, None)]


async def test_a_session_that_is_ended_meanwhile_is_an_error(connection: Connection, own_database: str) -> None:
    pid = connection.info.backend_pid
    with psycopg.connect(own_database, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s)", [pid])
        wait_until(lambda: not value(other, "select count(*) from pg_stat_activity where pid = %s", [pid]))
    with pytest.raises(psycopg.OperationalError):
        await early.value(connection, b"select 1::text", [])


async def test_what_was_opened_is_committed_when_it_is_said(connection: Connection, own_database: str) -> None:
    with psycopg.connect(own_database, autocommit=True) as other:
        assert await early.opened(connection, b"select enter($1)::text", [b"1"]) == "1"
        assert value(other, "select count(*) from entry") == 0
        await early.commit(connection)
        assert value(other, "select count(*) from entry") == 1


async def test_what_was_opened_and_fails_is_rolled_back_by_its_caller(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        await early.opened(connection, b"select (1 / $1::integer)::text", [b"0"])
    assert connection.info.transaction_status.name == "INERROR"
    await connection.rollback()
    assert await early.opened(connection, b"select enter($1)::text", [b"-1"]) == "-1"
    with pytest.raises(psycopg.errors.CheckViolation, match="refused"):
        await early.commit(connection)
    assert connection.info.transaction_status.name == "IDLE"
