"""Through a transaction pooler: one server process serves everybody, and nobody takes what is another's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgps.client import AsyncClient
from pgps.client._async.session import is_pooled
from pgps.errors import WrongState
from tests.client.asynchronous.rig import dispatch, numbers, until
from tests.fix_broker import column, make_type, value
from tests.fix_pooler import Pooler

pytestmark = pytest.mark.anyio
Name = Callable[..., str]


async def test_two_clients_share_the_work_and_a_server_process(
    pooler: Pooler, admin: psycopg.Connection, name: Name
) -> None:
    made = name()
    make_type(admin, made)
    async with AsyncClient(pooler.dsn, name="a") as first, AsyncClient(pooler.dsn, name="b") as second:
        assert await first._core.session.run(is_pooled)
        mine = first.subscribe(made, made, handler="any", temporary=True)
        other = second.subscribe(made)
        async with mine, other:
            assert await first.publish(made, [{"n": n} for n in range(6)])
            dispatch(admin)
            taken = await mine.receive(3), await other.receive(3)
            assert sorted(event.payload["n"] for part in taken for event in part) == list(range(6))
            # In this database: beside it another test may have clients of its own.
            query = "select pid from pg_stat_activity where application_name ~ '^pgps-client' and datname = %s"
            assert len(set(column(admin, query, [admin.info.dbname]))) <= 1
            assert await other.ack() == 3
            await mine.nack(taken[0][0], "no", retry_in=0)
            assert await mine.ack() == 2
            assert await numbers(other) == [taken[0][0].payload["n"]]
            assert await other.ack() == 1
            assert value(admin, "select depth from pgps.subscriptions where name = %s", [made]) == 0


async def test_a_client_publishes_and_consumes_exactly_once(
    pooler: Pooler, admin: psycopg.Connection, name: Name
) -> None:
    made = name()
    make_type(admin, made, "n integer, since interval, at timestamptz")
    async with (
        AsyncClient(pooler.dsn, producer="p") as client,
        client.subscribe(made, made, temporary=True) as subscription,
        client.subscribe(made + "all", made + "*", temporary=True) as pattern,
    ):
        for n in range(5):
            await client.publish(made, {"n": n}, connection=None)
        async with client.transaction() as connection:
            await client.publish(made, [{"n": n} for n in range(5, 10)], connection=connection)
        dispatch(admin)
        found: list[int] = []
        async for batch in subscription.batches(4, timeout=0):
            found += [event.payload["n"] for event in batch]
        assert found == list(range(10))
        async with pattern.transaction(7, timeout=0) as events:
            assert [event.payload["n"] for event in events] == list(range(7))
        assert await numbers(pattern) == [7, 8, 9]
        assert await pattern.ack() == 3


@pytest.mark.parametrize("knows_another_way", [False, True])
async def test_who_waits_is_told_or_looks(
    pooler: Pooler,
    admin: psycopg.Connection,
    name: Name,
    caplog: pytest.LogCaptureFixture,
    knows_another_way: bool,
) -> None:
    made = name()
    make_type(admin, made)
    direct: dict[str, Any] = {"direct": pooler.direct} if knows_another_way else {}
    with caplog.at_level(logging.WARNING, "pgps.client"):
        async with (
            AsyncClient(pooler.dsn, poll=60.0, **direct) as client,
            client.subscribe(made, made, temporary=True) as subscription,
        ):
            found: list[int] = []
            await subscription.start(lambda event: found.append(event.payload["n"]))
            await client.publish(made, {"n": 1})
            dispatch(admin)
            await until(lambda: found == [1])
    said = [record.getMessage() for record in caplog.records if "pooler" in record.getMessage()]
    assert len(said) == (0 if knows_another_way else 1)
    assert all("direct=" in one for one in said)


async def test_a_client_known_by_name_is_refused(pooler: Pooler, admin: psycopg.Connection) -> None:
    async with AsyncClient(pooler.dsn, direct=pooler.direct) as client:
        with pytest.raises(WrongState, match="pooler"):
            await client.identify("somebody").connect()


async def test_nothing_is_left_in_the_session_that_others_get(pooler: Pooler, admin: psycopg.Connection) -> None:
    async with AsyncClient(pooler.dsn) as client:
        async with client.transaction() as connection:
            cursor = await connection.execute("show transaction_isolation")
            assert await cursor.fetchone() == ("read committed",)
        for _ in range(7):
            await client.execute("select %s::integer", [1])
    with psycopg.connect(pooler.dsn, autocommit=True) as other:
        other.prepare_threshold = None
        assert value(other, "select count(*) from pg_prepared_statements") == 0
        changed = "select name from pg_settings where source = 'session' and name not in ('application_name')"
        assert set(column(other, changed)) <= {
            "client_encoding",
            "DateStyle",
            "TimeZone",
            "standard_conforming_strings",
        }
