from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgps.errors import ConfigError
from pgps_worker import calls
from pgps_worker.config import WorkerConfig, default_name
from pgps_worker.connection import Connection, connect, is_alive, notified
from pgps_worker.stop import Stop
from tests.fix_broker import call, make_type, value
from tests.fix_db import Connect, wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def config(dsn: str) -> WorkerConfig:
    return WorkerConfig(dsn=dsn, name="me")


async def show(connection: Connection, setting: str) -> str:
    row = await (await connection.execute("select current_setting(%s)", [setting])).fetchone()
    assert row is not None
    return str(row[0])


async def test_it_names_itself_and_has_time_limits(config: WorkerConfig) -> None:
    async with connect(config, "tester", statement_timeout=61.5, settings={"lock_timeout": "2s"}) as connection:
        assert await show(connection, "application_name") == "pgps-worker/me/tester"
        assert await show(connection, "statement_timeout") == "61500ms"
        assert await show(connection, "lock_timeout") == "2s"
        assert await show(connection, "client_connection_check_interval") == "1s"


async def test_the_limits_are_what_a_reset_leads_back_to(config: WorkerConfig) -> None:
    async with connect(config, "tester", statement_timeout=61.5) as connection:
        await connection.execute("set statement_timeout = 0")
        await calls.wash(connection)
        assert await show(connection, "statement_timeout") == "61500ms"
        assert await show(connection, "application_name") == "pgps-worker/me/tester"


async def test_no_setting_of_the_database_changes_how_it_works(own_database: str, connect_as: Connect) -> None:
    admin = connect_as(dsn=own_database)
    for each in (
        "default_transaction_isolation = serializable",
        "datestyle = german",
        "search_path = nowhere",
        "lock_timeout = 9",
        "row_security = off",
    ):
        admin.execute(f"alter database {admin.info.dbname} set {each}".encode())
    config = WorkerConfig(dsn=own_database, name="me")
    async with connect(config, "tester", statement_timeout=60) as connection:
        await connection.execute("select pgps.dispatch()")
        assert await show(connection, "lock_timeout") == "0"
        assert await show(connection, "row_security") == "on"
        row = await (await connection.execute("select now()")).fetchone()
    assert row is not None


async def test_options_of_the_connection_string_are_kept(dsn: str) -> None:
    given = make_conninfo(dsn, options=r"-c search_path=a,\ b -c work_mem=9MB", application_name="mine")
    async with connect(WorkerConfig(dsn=given), "tester", statement_timeout=60) as connection:
        assert await show(connection, "work_mem") == "9MB"
        assert await show(connection, "search_path") == "a, b"
        assert (await show(connection, "application_name")).startswith("pgps-worker/")


async def test_an_idle_session_that_has_ended_is_noticed(config: WorkerConfig, admin: psycopg.Connection) -> None:
    async with connect(config, "tester", statement_timeout=60) as connection:
        assert is_alive(connection)
        admin.execute("select pg_terminate_backend(%s, 60000)", [connection.info.backend_pid])
        assert not is_alive(connection)


async def test_a_notification_is_not_taken_for_a_hang_up(config: WorkerConfig, admin: psycopg.Connection) -> None:
    async with connect(config, "tester", statement_timeout=60) as connection:
        await connection.execute("listen worker_test")
        admin.execute("notify worker_test")
        assert is_alive(connection)
        assert await notified(connection, 60, stop=Stop())
        assert not await notified(connection, 0.01, stop=Stop())


async def test_a_notification_that_comes_during_a_statement_is_kept(
    config: WorkerConfig, admin: psycopg.Connection
) -> None:
    async with connect(config, "tester", statement_timeout=60) as connection:
        await connection.execute("listen worker_test")
        admin.execute("notify worker_test")
        await connection.execute("select 1")
        assert await notified(connection, 60, stop=Stop())


async def test_waiting_ends_when_asked_to_stop(config: WorkerConfig) -> None:
    stop = Stop()
    async with connect(config, "tester", statement_timeout=60) as connection:
        await connection.execute("listen worker_test")
        stop.request()
        assert not await notified(connection, 60, stop=stop)
        assert await show(connection, "statement_timeout") == "1min", "the session is still of use"


async def test_terminate_ends_a_session_of_the_same_role(config: WorkerConfig, connect_as: Connect) -> None:
    victim = connect_as()
    async with connect(config, "tester", statement_timeout=60) as connection:
        await calls.terminate(connection, victim.info.backend_pid)
    with pytest.raises(psycopg.errors.AdminShutdown):
        victim.execute("select pg_sleep(10)")


async def test_only_one_session_looks_for_a_bad_event(
    config: WorkerConfig, admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    event_type, one_of_them, another = name(), name("watch"), name("watch")
    make_type(admin, event_type)
    call(admin, "subscribe", one_of_them, event_type)
    call(admin, "subscribe", another, event_type)
    async with connect(config, "two", statement_timeout=60) as two:
        async with connect(config, "one", statement_timeout=60) as one:
            assert await calls.try_suspect(one, one_of_them)
            assert not await calls.try_suspect(two, one_of_them)
            assert await calls.try_suspect(two, another)
            await calls.release_suspects(one)
            assert await calls.try_suspect(two, one_of_them)
            await calls.release_suspects(two)
            assert await calls.try_suspect(one, one_of_them)
            gone = one.info.backend_pid
        # A server process goes a moment after its client.
        running = "select count(*) from pg_stat_activity where pid = %s"
        wait_until(lambda: value(admin, running, [gone]) == 0, what="the session has ended")
        assert await calls.try_suspect(two, one_of_them), "a session that has ended looks for nothing"


@pytest.fixture
def connect_as(connect: Connect) -> Connect:
    """The fixture `connect`, whose name the function under test has here."""
    return connect


def test_a_name_fits_the_application_name() -> None:
    config = WorkerConfig(name="x" * 32)
    assert len(f"pgps-worker/{config.name}/subscriber-100") <= 63
    assert WorkerConfig(name=default_name()).name


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("name", "", "worker name"),
        ("name", "a/b", '"a/b"'),
        ("name", "x" * 33, "worker name"),
        ("concurrency", 0, "concurrency"),
        ("callback_timeout", 0, "callback timeout"),
        ("callback_timeout", float("nan"), "callback timeout"),
        ("reclaim_every", -1.0, "reclaim every"),
        ("cores", 0, "cores"),
        ("dsn", "host=", None),
        ("dsn", "this is no dsn", "connection string"),
    ],
)
def test_settings_that_cannot_work_are_refused(setting: str, value: object, says: str | None) -> None:
    given = {setting: value}
    if says is None:
        WorkerConfig(**given)  # type: ignore[arg-type]
        return
    with pytest.raises(ConfigError) as refused:
        WorkerConfig(**given)  # type: ignore[arg-type]
    assert says in str(refused.value)


async def test_a_host_that_cannot_be_a_name_is_wrong_in_the_connection_string() -> None:
    config = WorkerConfig(dsn="host=a..b dbname=x", name="me")
    with pytest.raises(ConfigError, match="no host has such a name") as caught:
        async with connect(config, "tester", statement_timeout=1):
            pass
    assert caught.value.hint
