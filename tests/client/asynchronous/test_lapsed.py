"""A unit of work that times out while it is received in part: who iterates hears of it before the next one comes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgps.client import AsyncClient, AsyncParty
from pgps.errors import WrongState
from tests.fix_broker import rows, value
from tests.fix_clock import Clock
from tests.fix_units import make_service

SERVICE = "bank/ledger/book"

pytestmark = pytest.mark.anyio


@pytest.fixture
def broker(own_database: str, connect: Any, clock: Clock) -> psycopg.Connection:
    clock.set(clock.now())
    connection: psycopg.Connection = connect(dsn=own_database)
    make_service(connection, SERVICE, deferred=True)
    rows(connection, "create table public.booked (what text)")
    return connection


async def _two(teller: AsyncParty) -> str:
    """Send two units of two messages in one conversation, of which the first lives for a minute; return its id."""
    request = teller.begin(SERVICE)
    async with request:
        first = await request.send("1.1", lifetime="1 minute", status_lifetime=9)
        await request.send("1.2")
    async with request:
        await request.send("2.1")
        await request.send("2.2")
    assert first.uow_id is not None
    return first.uow_id


@pytest.mark.parametrize("in_one", [False, True], ids=["calls", "a transaction"])
async def test_iterating_on_is_refused_and_the_next_unit_is_whole(
    own_database: str, broker: psycopg.Connection, clock: Clock, in_one: bool
) -> None:
    heard: list[bytes] = []
    async with AsyncClient(own_database) as client, client.logon("teller") as teller, client.logon("bank") as bank:
        await bank.register(SERVICE)
        late = await _two(teller)
        with pytest.raises(WrongState, match=f'"{late}" is TIMEOUT') as refused:
            async for conversation in bank.conversations(timeout=60):
                if in_one:
                    async with bank.transaction() as connection, conversation:
                        async for message in conversation:
                            heard.append(message.data)
                            await connection.execute("insert into public.booked values ('half')")
                            clock.advance("61 seconds")
                else:
                    async with conversation:
                        async for message in conversation:
                            heard.append(message.data)
                            clock.advance("61 seconds")
        assert refused.value.sqlstate == "55000"
        assert "goes on" in str(refused.value.hint)
        assert heard == [b"1.1"]
        stands = await teller.query(late)
        assert stands is not None
        assert stands.status == "TIMEOUT"
        async for conversation in bank.conversations(timeout=60):
            async with conversation:
                assert [message.data async for message in conversation] == [b"2.1", b"2.2"]
            break
        assert value(broker, "select count(*) from public.booked") == 0
        assert await bank.receive() is None


async def test_one_that_is_over_while_it_is_answered_is_not_answered(
    own_database: str, broker: psycopg.Connection, clock: Clock
) -> None:
    async def handle(messages: list[Any], connection: Any) -> str:
        said = b" ".join(message.data for message in messages).decode()
        await connection.execute("insert into public.booked values (%s)", [said])
        if "1.1" in said:
            clock.advance("61 seconds")
        return "done"

    async with AsyncClient(own_database) as client, client.logon("teller") as teller, client.logon("bank") as bank:
        late = await _two(teller)
        with pytest.raises(WrongState, match=f'"{late}" is TIMEOUT'):
            await bank.answer(SERVICE, handle, timeout=60)
        assert value(broker, "select count(*) from public.booked") == 0
        # Called again, it goes on with the next one.
        assert await bank.answer(SERVICE, handle, timeout=0) == 1
        answer = await teller.receive(timeout=60)
        assert answer is not None
        assert (answer.data, answer.status) == (b"done", "RECV_ONLY")
    assert value(broker, "select string_agg(what, ',') from public.booked") == "2.1 2.2"
