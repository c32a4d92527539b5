"""Blocks that are one transaction and catch what failed in them: their end tells that all of it was taken back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgps import errors
from pgps.client import AsyncClient
from tests.client.asynchronous.rig import dispatch, numbers
from tests.fix_broker import make_type, publish, rows, value
from tests.fix_units import make_service

pytestmark = pytest.mark.anyio
Name = Callable[..., str]
FAILED = "taken back"


async def test_a_publication_that_was_rolled_back_is_told_although_the_block_has_caught_the_error(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    async with AsyncClient(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        with pytest.raises(errors.BrokerError, match=FAILED) as told:
            async with client.transaction() as connection:
                await client.publish(kind, {"n": 1}, connection=connection)
                with contextlib.suppress(errors.PgpsError):
                    await client.publish(kind, {"n": "bad"}, connection=connection)
        assert told.value.sqlstate == "25P02"
        assert "savepoint" in str(told.value.hint)
        with pytest.raises(errors.BrokerError, match=FAILED):
            async with client.transaction() as connection:
                await client.publish(kind, {"n": 2}, connection=connection)
                with contextlib.suppress(psycopg.Error):
                    await connection.execute(b"select 1 / 0")
        async with client.transaction() as connection:
            await client.publish(kind, {"n": 3}, connection=connection)
            with pytest.raises(errors.BadArgument):
                async with connection.transaction():
                    await client.publish(kind, {"n": "bad"}, connection=connection)
            await client.publish(kind, {"n": 4}, connection=connection)
        dispatch(admin)
        assert await numbers(subscription) == [3, 4]


async def test_a_batch_whose_block_has_caught_an_error_comes_again(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    async with AsyncClient(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        for count in (0, 2):
            if count:
                publish(admin, kind, 1, 2)
                dispatch(admin)
            with pytest.raises(errors.BrokerError, match=FAILED):
                async with subscription.transaction(timeout=0.0) as batch:
                    assert len(batch) == count
                    with contextlib.suppress(psycopg.Error):
                        await batch.connection.execute(b"select 1 / 0")
        assert await numbers(subscription) == [1, 2]


async def test_a_unit_of_work_whose_block_has_caught_an_error_is_not_committed(own_database: str, connect: Any) -> None:
    broker = connect(dsn=own_database)
    make_service(broker, "bank/ledger/book", deferred=True)
    rows(broker, "create table public.booked (n integer)")
    async with AsyncClient(own_database) as client, client.logon("bank") as bank:
        await bank.register("bank/ledger/book")
        with pytest.raises(errors.BrokerError, match=FAILED):
            async with bank.transaction() as connection:
                await connection.execute("insert into public.booked values (1)")
                await bank.send("pay", service="bank/ledger/book", option="commit")
                with contextlib.suppress(psycopg.Error):
                    await connection.execute("select 1 / 0")
        assert await bank.receive("new") is None
        async with bank.transaction() as connection:
            await connection.execute("insert into public.booked values (2)")
            with pytest.raises(psycopg.errors.DivisionByZero):
                async with connection.transaction():
                    await connection.execute("select 1 / 0")
    assert value(broker, "select string_agg(n::text, ',') from public.booked") == "2"


async def test_a_conversation_stands_as_before_a_block_that_failed(own_database: str, connect: Any) -> None:
    broker = connect(dsn=own_database)
    service = "bank/ledger/book"
    make_service(broker, service, deferred=True, status_lifetime=2)

    class Off(Exception):
        """Ends a block."""

    async with AsyncClient(own_database) as client, client.logon("ann") as ann, client.logon("bank") as bank:
        await bank.register(service)
        begun = ann.begin(service)
        for commits in (False, True):
            with contextlib.suppress(Off):
                async with ann.transaction():
                    await begun.send("lost", commit=commits)
                    raise Off
            assert begun.id is None
        first = await begun.send("1")
        assert first.conversation is not None
        with contextlib.suppress(Off):
            async with ann.transaction():
                await begun.send("lost")
                await begun.backout()
                await begun.send("lost, too")
                raise Off
        await begun.send("2")
        await begun.commit()
        assert begun.id == first.conversation
        # The other side: what was received, given back or cancelled in it is received again, or is still held.
        answers = bank.conversation(first.conversation)
        with contextlib.suppress(Off):
            async with bank.transaction():
                assert [each.data for each in await answers.all()] == [b"1", b"2"]
                raise Off
        assert [each.data for each in await answers.all()] == [b"1", b"2"]
        for end in (answers.backout, answers.cancel, answers.commit):
            with contextlib.suppress(Off):
                async with bank.transaction():
                    await end()
                    raise Off
        await answers.commit()
        assert value(broker, "select count(*) from pgps.units_of_work where status = 'PROCESSED'") == 1
