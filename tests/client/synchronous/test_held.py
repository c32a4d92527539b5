# Made by tools/unasync_client.py from tests/client/asynchronous/test_held.py: change that, then `make generate`.
"""Who was interrupted while he received messages of units of work gets them when he asks again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgps.client import Client, Message, Party
from pgps.client._sync import runtime
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

    def answered_and_interrupted(self: runtime.Answer[Any]) -> Any:
        rows = query(self)
        left[0] -= 1
        if left[0] == -1:
            raise InterruptedHereError
        return rows

    def after(others: int) -> None:
        left[0] = others

    monkeypatch.setattr(runtime.Answer, "get", answered_and_interrupted)
    return after


def send(party: Party, *messages: str) -> str:
    conversation = party.begin(SERVICE)
    for message in messages:
        conversation.send(message)
    conversation.commit()
    assert conversation.id is not None
    return conversation.id


def texts(messages: list[Message] | None) -> list[str]:
    return [one.data.decode() for one in messages or []]


@pytest.mark.usefixtures("broker")
def test_each_message_is_received_once_and_in_its_order(own_database: str, interrupt: Interrupt) -> None:
    with Client(own_database) as client, client.logon("teller") as teller, client.logon("bank") as bank:
        bank.register(SERVICE)
        send(teller, "a", "b", "c")
        found: list[Message] = []
        for which in ("new", "any", "id"):
            interrupt(0)
            with pytest.raises(InterruptedHereError):
                bank.receive(found[0].conversation if which == "id" else which, timeout=60)
            message = bank.receive(found[0].conversation if which == "any" else which.replace("id", "old"))
            assert message is not None
            found.append(message)
        assert texts(found) == ["a", "b", "c"]
        assert bank.receive() is None
        done = bank.syncpoint("commit")
        assert done.status == "PROCESSED"


@pytest.mark.usefixtures("broker")
def test_what_was_not_asked_for_waits_for_who_asks_for_it(own_database: str, interrupt: Interrupt) -> None:
    with Client(own_database) as client, client.logon("teller") as teller, client.logon("bank") as bank:
        bank.register(SERVICE)
        first, second = send(teller, "a", "b"), send(teller, "x")
        interrupt(0)
        with pytest.raises(InterruptedHereError):
            bank.receive("any", service=SERVICE)
        assert bank.receive("any", option="msg") is None
        assert texts(bank.conversation(first).all()) == ["a", "b"]
        bank.syncpoint("commit", conversation=first)
        interrupt(0)
        with pytest.raises(InterruptedHereError):
            bank.receive("new")
        bank.syncpoint("backout", conversation=second)
        again = bank.receive("any")
        assert again is not None
        assert (again.data, again.attempts) == (b"x", 1)
        assert bank.receive("any") is None


@pytest.mark.usefixtures("broker")
def test_a_whole_unit_and_the_answer_of_a_request_are_whole_again(own_database: str, interrupt: Interrupt) -> None:
    with Client(own_database) as client, client.logon("teller") as teller, client.logon("bank") as bank:
        bank.register(SERVICE)
        first = send(teller, "a", "b", "c")
        conversation = bank.conversation(first)
        interrupt(1)
        with pytest.raises(InterruptedHereError):
            conversation.all(timeout=60)
        assert texts(conversation.all(timeout=60)) == ["a", "b", "c"]
        for answer in "xyz":
            conversation.send(answer)
        conversation.commit()
        interrupt(2)
        with pytest.raises(InterruptedHereError):
            teller.conversation(first).all(timeout=60)
        asked = teller.conversation(first)
        assert texts(asked.all(timeout=60)) == ["x", "y", "z"]
        asked.commit()


def test_nothing_is_left_of_what_the_broker_gives_again(
    own_database: str, broker: psycopg.Connection, interrupt: Interrupt
) -> None:
    with Client(own_database) as client, client.logon("teller") as teller, client.logon("bank") as bank:
        bank.register(SERVICE)
        first = send(teller, "a", "b")
        for others in (0, 1):
            interrupt(others)
            with pytest.raises(InterruptedHereError):
                with bank.transaction():
                    bank.conversation(first).all()
        with pytest.raises(ZeroDivisionError):
            with bank.transaction():
                interrupt(0)
                with pytest.raises(InterruptedHereError):
                    bank.receive("any")
                assert texts(bank.conversation(first).all()) == ["a", "b"]
                raise ZeroDivisionError
        interrupt(0)
        with pytest.raises(InterruptedHereError):
            bank.receive("any")
        rows(broker, "select pg_terminate_backend(%s, 60000)", [(bank.connection()).info.backend_pid])
        again = bank.receive("any", timeout=60)
        assert again is not None
        assert (again.data, again.attempts) == (b"a", 1)
        assert texts(bank.conversation(first).all()) == ["b"]
