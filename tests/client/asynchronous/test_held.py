"""Who was interrupted while he received messages of units of work gets them when he asks again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgps.client import AsyncClient, AsyncParty, Message
from pgps.client._async import runtime
from tests.fix_broker import rows
from tests.fix_units import make_service

SERVICE = "bank/ledger/book"

pytestmark = pytest.mark.anyio
Interrupt = Callable[[int], None]


class InterruptedHereError(BaseException):
    """As Ctrl-C, or a timeout around a call."""


@pytest.fixture
def broker(own_database: str, connect: Any) -> psycopg.Connection:
    connection: psycopg.Connection = connect(dsn=own_database)
    make_service(connection, SERVICE, deferred=True)
    return connection


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    """Interrupt the answer that comes after so many others, when the broker has given it."""
    query = runtime.Answer.get
    left = [-1]

    async def answered_and_interrupted(self: runtime.Answer[Any]) -> Any:
        rows = await query(self)
        left[0] -= 1
        if left[0] == -1:
            raise InterruptedHereError
        return rows

    def after(others: int) -> None:
        left[0] = others

    monkeypatch.setattr(runtime.Answer, "get", answered_and_interrupted)
    return after


async def send(party: AsyncParty, *messages: str) -> str:
    conversation = party.begin(SERVICE)
    for message in messages:
        await conversation.send(message)
    await conversation.commit()
    assert conversation.id is not None
    return conversation.id


def texts(messages: list[Message] | None) -> list[str]:
    return [one.data.decode() for one in messages or []]


@pytest.mark.usefixtures("broker")
async def test_each_message_is_received_once_and_in_its_order(own_database: str, interrupt: Interrupt) -> None:
    async with AsyncClient(own_database) as client, client.logon("teller") as teller, client.logon("bank") as bank:
        await bank.register(SERVICE)
        await send(teller, "a", "b", "c")
        found: list[Message] = []
        for which in ("new", "any", "id"):
            interrupt(0)
            with pytest.raises(InterruptedHereError):
                await bank.receive(found[0].conversation if which == "id" else which, timeout=60)
            message = await bank.receive(found[0].conversation if which == "any" else which.replace("id", "old"))
            assert message is not None
            found.append(message)
        assert texts(found) == ["a", "b", "c"]
        assert await bank.receive() is None
        done = await bank.syncpoint("commit")
        assert done.status == "PROCESSED"


@pytest.mark.usefixtures("broker")
async def test_what_was_not_asked_for_waits_for_who_asks_for_it(own_database: str, interrupt: Interrupt) -> None:
    async with AsyncClient(own_database) as client, client.logon("teller") as teller, client.logon("bank") as bank:
        await bank.register(SERVICE)
        first, second = await send(teller, "a", "b"), await send(teller, "x")
        interrupt(0)
        with pytest.raises(InterruptedHereError):
            await bank.receive("any", service=SERVICE)
        assert await bank.receive("any", option="msg") is None
        assert texts(await bank.conversation(first).all()) == ["a", "b"]
        await bank.syncpoint("commit", conversation=first)
        interrupt(0)
        with pytest.raises(InterruptedHereError):
            await bank.receive("new")
        await bank.syncpoint("backout", conversation=second)
        again = await bank.receive("any")
        assert again is not None
        assert (again.data, again.attempts) == (b"x", 1)
        assert await bank.receive("any") is None


@pytest.mark.usefixtures("broker")
async def test_a_whole_unit_and_the_answer_of_a_request_are_whole_again(
    own_database: str, interrupt: Interrupt
) -> None:
    async with AsyncClient(own_database) as client, client.logon("teller") as teller, client.logon("bank") as bank:
        await bank.register(SERVICE)
        first = await send(teller, "a", "b", "c")
        conversation = bank.conversation(first)
        interrupt(1)
        with pytest.raises(InterruptedHereError):
            await conversation.all(timeout=60)
        assert texts(await conversation.all(timeout=60)) == ["a", "b", "c"]
        for answer in "xyz":
            await conversation.send(answer)
        await conversation.commit()
        interrupt(2)
        with pytest.raises(InterruptedHereError):
            await teller.conversation(first).all(timeout=60)
        asked = teller.conversation(first)
        assert texts(await asked.all(timeout=60)) == ["x", "y", "z"]
        await asked.commit()


async def test_nothing_is_left_of_what_the_broker_gives_again(
    own_database: str, broker: psycopg.Connection, interrupt: Interrupt
) -> None:
    async with AsyncClient(own_database) as client, client.logon("teller") as teller, client.logon("bank") as bank:
        await bank.register(SERVICE)
        first = await send(teller, "a", "b")
        for others in (0, 1):
            interrupt(others)
            with pytest.raises(InterruptedHereError):
                async with bank.transaction():
                    await bank.conversation(first).all()
        with pytest.raises(ZeroDivisionError):
            async with bank.transaction():
                interrupt(0)
                with pytest.raises(InterruptedHereError):
                    await bank.receive("any")
                assert texts(await bank.conversation(first).all()) == ["a", "b"]
                raise ZeroDivisionError
        interrupt(0)
        with pytest.raises(InterruptedHereError):
            await bank.receive("any")
        rows(broker, "select pg_terminate_backend(%s, 60000)", [(await bank.connection()).info.backend_pid])
        again = await bank.receive("any", timeout=60)
        assert again is not None
        assert (again.data, again.attempts) == (b"a", 1)
        assert texts(await bank.conversation(first).all()) == ["b"]
