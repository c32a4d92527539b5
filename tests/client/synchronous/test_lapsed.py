# Made by tools/unasync_client.py from tests/client/asynchronous/test_lapsed.py: change that, then `make generate`.
"""A unit of work that times out while it is received in part: who iterates hears of it before the next one comes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgps.client import Client, Party
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


def _two(teller: Party) -> str:
    """Send two units of two messages in one conversation, of which the first lives for a minute; return its id."""
    request = teller.begin(SERVICE)
    with request:
        first = request.send("1.1", lifetime="1 minute", status_lifetime=9)
        request.send("1.2")
    with request:
        request.send("2.1")
        request.send("2.2")
    assert first.uow_id is not None
    return first.uow_id


@pytest.mark.parametrize("in_one", [False, True], ids=["calls", "a transaction"])
def test_iterating_on_is_refused_and_the_next_unit_is_whole(
    own_database: str, broker: psycopg.Connection, clock: Clock, in_one: bool
) -> None:
    heard: list[bytes] = []
    with Client(own_database) as client, client.logon("teller") as teller, client.logon("bank") as bank:
        bank.register(SERVICE)
        late = _two(teller)
        with pytest.raises(WrongState, match=f'"{late}" is TIMEOUT') as refused:
            for conversation in bank.conversations(timeout=60):
                if in_one:
                    with bank.transaction() as connection, conversation:
                        for message in conversation:
                            heard.append(message.data)
                            connection.execute("insert into public.booked values ('half')")
                            clock.advance("61 seconds")
                else:
                    with conversation:
                        for message in conversation:
                            heard.append(message.data)
                            clock.advance("61 seconds")
        assert refused.value.sqlstate == "55000"
        assert "goes on" in str(refused.value.hint)
        assert heard == [b"1.1"]
        stands = teller.query(late)
        assert stands is not None
        assert stands.status == "TIMEOUT"
        for conversation in bank.conversations(timeout=60):
            with conversation:
                assert [message.data for message in conversation] == [b"2.1", b"2.2"]
            break
        assert value(broker, "select count(*) from public.booked") == 0
        assert bank.receive() is None


def test_one_that_is_over_while_it_is_answered_is_not_answered(
    own_database: str, broker: psycopg.Connection, clock: Clock
) -> None:
    def handle(messages: list[Any], connection: Any) -> str:
        said = b" ".join(message.data for message in messages).decode()
        connection.execute("insert into public.booked values (%s)", [said])
        if "1.1" in said:
            clock.advance("61 seconds")
        return "done"

    with Client(own_database) as client, client.logon("teller") as teller, client.logon("bank") as bank:
        late = _two(teller)
        with pytest.raises(WrongState, match=f'"{late}" is TIMEOUT'):
            bank.answer(SERVICE, handle, timeout=60)
        assert value(broker, "select count(*) from public.booked") == 0
        # Called again, it goes on with the next one.
        assert bank.answer(SERVICE, handle, timeout=0) == 1
        answer = teller.receive(timeout=60)
        assert answer is not None
        assert (answer.data, answer.status) == (b"done", "RECV_ONLY")
    assert value(broker, "select string_agg(what, ',') from public.booked") == "2.1 2.2"
