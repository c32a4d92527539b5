"""Units of work with the client library."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import psycopg
import pytest

from pgps.client import AsyncClient, Message
from pgps.client._async import runtime
from pgps.errors import ClientClosed, ConnectionLost, ConstraintViolated, PgpsError, WrongState
from tests.client.asynchronous.rig import until
from tests.fix_broker import rows, value
from tests.fix_units import make_service

SERVICE = "bank/ledger/book"

pytestmark = pytest.mark.anyio


@pytest.fixture
def broker(own_database: str, connect: Any) -> psycopg.Connection:
    connection: psycopg.Connection = connect(dsn=own_database)
    make_service(connection, SERVICE, deferred=True)
    return connection


async def test_a_request_its_answer_and_the_servers_writes_are_one_transaction(
    own_database: str, broker: psycopg.Connection
) -> None:
    rows(broker, "create table public.booked (what text)")
    async with AsyncClient(own_database) as client:
        async with client.logon("teller") as teller, client.logon("bank") as bank:
            await bank.register(SERVICE)
            request = teller.begin(SERVICE)
            async with request:
                await request.send("pay", status_lifetime=2)
                await request.send(b"100")
            async for conversation in bank.conversations(timeout=60):
                async with bank.transaction() as connection, conversation:
                    said = [message.data async for message in conversation]
                    await connection.execute("insert into public.booked values (%s)", [b" ".join(said).decode()])
                    await conversation.send("paid", status_lifetime=2)
                break
            answer = await request.receive(timeout=60)
            assert answer is not None
            assert (answer.data, answer.status, answer.sender_token) == (b"paid", "RECV_ONLY", "bank")
            await request.commit()
            last = await bank.last()
            assert last is not None
            assert (last.status, last.service_class) == ("PROCESSED", "bank")
    assert value(broker, "select what from public.booked") == "pay 100"


async def test_a_block_that_fails_backs_out(own_database: str, broker: psycopg.Connection) -> None:
    async with AsyncClient(own_database) as client:
        async with client.logon("teller") as teller, client.logon("bank") as bank:
            await bank.register(SERVICE)
            request = teller.begin(SERVICE)
            await request.send("pay", commit=True)
            with pytest.raises(ZeroDivisionError):
                async for conversation in bank.conversations(timeout=60):
                    async with conversation:
                        await conversation.send("half")
                        raise ZeroDivisionError
            again = await bank.receive("new")
            assert again is not None
            assert again.attempts == 1
            assert await teller.receive() is None
            await bank.syncpoint("cancel")
            assert await bank.last() is None


async def test_who_waits_is_woken_without_polling(own_database: str, broker: psycopg.Connection) -> None:
    """The client would look again after an hour: only what the broker says wakes it."""
    async with AsyncClient(own_database, poll=3600.0) as client:
        async with client.logon("teller") as teller, client.logon("bank") as bank:
            await bank.register(SERVICE)
            heard: list[bytes] = []

            async def serve() -> None:
                async for conversation in bank.conversations():
                    async with conversation:
                        async for message in conversation:
                            heard.append(message.data)
                            await conversation.send(message.data + b"!")
                    if len(heard) == 3:
                        return

            task = runtime.Task(serve, "server")
            request = teller.begin(SERVICE)
            for number in range(3):
                await request.send(str(number), commit=True)
                answer = await request.receive(timeout=60)
                assert answer is not None
                assert answer.data == f"{number}!".encode()
                await request.commit()
            await task.join()
    assert heard == [b"0", b"1", b"2"]


async def test_a_party_that_waits_is_closed_at_once(own_database: str, broker: psycopg.Connection) -> None:
    waits = "select 1 from pg_stat_activity where query like '%%pgps.receive_message%%' and state = 'idle' and pid = %s"
    ends: list[type[BaseException]] = []

    async def took(client: AsyncClient) -> float:
        """Return how long it takes to close one that waits."""
        party = client.logon()
        await party.register(SERVICE)
        pid = (await party.connection()).info.backend_pid

        async def wait() -> None:
            try:
                await party.receive(timeout=None)
            except PgpsError as error:
                ends.append(type(error))

        task = runtime.Task(wait, "waits")
        await until(lambda: rows(broker, waits, [pid]))
        begun = time.monotonic()
        await party.close()
        await task.join()
        return time.monotonic() - begun

    async with AsyncClient(own_database, poll=60.0) as client:
        # Several times: a machine that has something else to do does not hold up each of them.
        assert min([await took(client) for _ in range(3)]) < 5.0
    assert ends == [ClientClosed] * 3


async def test_a_lost_connection_is_a_session_that_ended(own_database: str, broker: psycopg.Connection) -> None:
    async with AsyncClient(own_database) as client, client.logon("bank") as bank, client.logon("teller") as teller:
        await bank.register(SERVICE)
        sent = await teller.send("pay", service=SERVICE, option="commit")
        assert await bank.receive("new") is not None
        await teller.send("half", service=SERVICE)
        for party in (bank, teller):
            rows(broker, "select pg_terminate_backend(%s)", [(await party.connection()).info.backend_pid])
        found = None
        for _ in range(3):
            # The first call may find the connection lost; the next one logs on and registers again.
            with contextlib.suppress(ConnectionLost):
                found = found or await bank.receive("any", timeout=60)
        assert found is not None
        assert (found.data, found.attempts) == (b"pay", 1)
        assert sent.uow_id is not None
        assert sent.status == "ACCEPTED"


async def test_a_transaction_whose_connection_is_lost_does_not_go_on_in_another_one(
    own_database: str, broker: psycopg.Connection
) -> None:
    rows(broker, "create table public.half (what text)")
    async with AsyncClient(own_database) as client, client.logon("bank") as bank:
        await bank.register(SERVICE)
        await bank.send("pay", service=SERVICE, option="commit")
        with pytest.raises(ConnectionLost):
            async with bank.transaction() as connection:
                await connection.execute("insert into public.half values ('first')")
                rows(broker, "select pg_terminate_backend(%s, 60000)", [connection.info.backend_pid])
                # The first call may be the one that finds it lost, the second one may not log on again.
                for _ in range(2):
                    with contextlib.suppress(ConnectionLost):
                        await bank.receive("new")
                        raise AssertionError("received in another transaction")
        # Nothing is left of it, and the next block is whole again.
        async with bank.transaction() as connection:
            message = await bank.receive("new")
            assert message is not None
            await connection.execute("insert into public.half values ('second')")
            await bank.syncpoint("commit")
    assert value(broker, "select string_agg(what, ',') from public.half") == "second"


async def test_requests_are_answered_each_in_one_transaction(own_database: str, broker: psycopg.Connection) -> None:
    rows(broker, "create table public.asked (what text)")
    async with AsyncClient(own_database) as client:
        async with client.logon("teller") as teller, client.logon("bank") as bank:

            async def handle(messages: list[Any], connection: Any) -> str | None:
                said = b" ".join(message.data for message in messages).decode()
                await connection.execute("insert into public.asked values (%s)", [said])
                if said == "fail":
                    raise ZeroDivisionError
                return said.upper()

            async def serve() -> None:
                while await bank.answer(SERVICE, handle, timeout=1) == 0:
                    pass

            task = runtime.Task(serve, "server")
            answer = await teller.request(SERVICE, "how", "much", timeout=60)
            assert answer is not None
            assert [message.data for message in answer] == [b"HOW MUCH"]
            await task.join()
            assert await teller.request(SERVICE, "fail", timeout=0) is None
            with pytest.raises(ZeroDivisionError):
                await bank.answer(SERVICE, handle)
    assert value(broker, "select string_agg(what, ',') from public.asked") == "how much"


async def test_a_token_in_use_and_a_conversation_that_has_not_begun(
    own_database: str, broker: psycopg.Connection
) -> None:
    async with AsyncClient(own_database) as client, client.logon("bank") as bank:
        assert await bank.query("U1") is None
        with pytest.raises(WrongState) as refused:
            await client.logon("bank").connection()
        assert refused.value.sqlstate == "55006"
        with pytest.raises(WrongState):
            await bank.begin(SERVICE).receive()
        request = bank.begin(SERVICE)
        await request.send("x", commit=True, lifetime="1 hour")
        await request.end()
        with pytest.raises(WrongState):
            await request.send("y")


async def test_a_unit_whose_answer_fails_at_the_commit_is_backed_out(
    own_database: str, broker: psycopg.Connection
) -> None:
    rows(
        broker, "create table public.part (n integer primary key, of integer references public.part initially deferred)"
    )

    async def handle(_messages: list[Message], connection: psycopg.AsyncConnection) -> str:
        await connection.execute("insert into public.part values (1, 99)")
        return "done"

    async with AsyncClient(own_database) as client:
        async with client.logon("teller") as teller, client.logon("bank") as bank:
            await bank.register(SERVICE)
            request = teller.begin(SERVICE)
            await request.send("pay", commit=True)
            with pytest.raises(ConstraintViolated):
                await bank.answer(SERVICE, handle, timeout=60)
            again = await bank.receive("new")
            assert again is not None
            assert (again.data, again.attempts) == (b"pay", 1)
            assert await teller.receive() is None
            await bank.syncpoint("cancel")
