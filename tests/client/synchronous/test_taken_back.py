# Made by tools/unasync_client.py from tests/client/asynchronous/test_taken_back.py: change that, then `make generate`.
"""Blocks that are one transaction and catch what failed in them: their end tells that all of it was taken back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgps import errors
from pgps.client import Client
from tests.client.synchronous.rig import dispatch, numbers
from tests.fix_broker import make_type, publish, rows, value
from tests.fix_units import make_service

pytestmark = pytest.mark.anyio
Name = Callable[..., str]
FAILED = "taken back"


def test_a_publication_that_was_rolled_back_is_told_although_the_block_has_caught_the_error(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    with Client(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        with pytest.raises(errors.BrokerError, match=FAILED) as told:
            with client.transaction() as connection:
                client.publish(kind, {"n": 1}, connection=connection)
                with contextlib.suppress(errors.PgpsError):
                    client.publish(kind, {"n": "bad"}, connection=connection)
        assert told.value.sqlstate == "25P02"
        assert "savepoint" in str(told.value.hint)
        with pytest.raises(errors.BrokerError, match=FAILED):
            with client.transaction() as connection:
                client.publish(kind, {"n": 2}, connection=connection)
                with contextlib.suppress(psycopg.Error):
                    connection.execute(b"select 1 / 0")
        with client.transaction() as connection:
            client.publish(kind, {"n": 3}, connection=connection)
            with pytest.raises(errors.BadArgument):
                with connection.transaction():
                    client.publish(kind, {"n": "bad"}, connection=connection)
            client.publish(kind, {"n": 4}, connection=connection)
        dispatch(admin)
        assert numbers(subscription) == [3, 4]


def test_a_batch_whose_block_has_caught_an_error_comes_again(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind = name()
    make_type(admin, kind)
    with Client(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        for count in (0, 2):
            if count:
                publish(admin, kind, 1, 2)
                dispatch(admin)
            with pytest.raises(errors.BrokerError, match=FAILED):
                with subscription.transaction(timeout=0.0) as batch:
                    assert len(batch) == count
                    with contextlib.suppress(psycopg.Error):
                        batch.connection.execute(b"select 1 / 0")
        assert numbers(subscription) == [1, 2]


def test_a_unit_of_work_whose_block_has_caught_an_error_is_not_committed(own_database: str, connect: Any) -> None:
    broker = connect(dsn=own_database)
    make_service(broker, "bank/ledger/book", deferred=True)
    rows(broker, "create table public.booked (n integer)")
    with Client(own_database) as client, client.logon("bank") as bank:
        bank.register("bank/ledger/book")
        with pytest.raises(errors.BrokerError, match=FAILED):
            with bank.transaction() as connection:
                connection.execute("insert into public.booked values (1)")
                bank.send("pay", service="bank/ledger/book", option="commit")
                with contextlib.suppress(psycopg.Error):
                    connection.execute("select 1 / 0")
        assert bank.receive("new") is None
        with bank.transaction() as connection:
            connection.execute("insert into public.booked values (2)")
            with pytest.raises(psycopg.errors.DivisionByZero):
                with connection.transaction():
                    connection.execute("select 1 / 0")
    assert value(broker, "select string_agg(n::text, ',') from public.booked") == "2"


def test_a_conversation_stands_as_before_a_block_that_failed(own_database: str, connect: Any) -> None:
    broker = connect(dsn=own_database)
    service = "bank/ledger/book"
    make_service(broker, service, deferred=True, status_lifetime=2)

    class Off(Exception):
        """Ends a block."""

    with Client(own_database) as client, client.logon("ann") as ann, client.logon("bank") as bank:
        bank.register(service)
        begun = ann.begin(service)
        for commits in (False, True):
            with contextlib.suppress(Off):
                with ann.transaction():
                    begun.send("lost", commit=commits)
                    raise Off
            assert begun.id is None
        first = begun.send("1")
        assert first.conversation is not None
        with contextlib.suppress(Off):
            with ann.transaction():
                begun.send("lost")
                begun.backout()
                begun.send("lost, too")
                raise Off
        begun.send("2")
        begun.commit()
        assert begun.id == first.conversation
        # The other side: what was received, given back or cancelled in it is received again, or is still held.
        answers = bank.conversation(first.conversation)
        with contextlib.suppress(Off):
            with bank.transaction():
                assert [each.data for each in answers.all()] == [b"1", b"2"]
                raise Off
        assert [each.data for each in answers.all()] == [b"1", b"2"]
        for end in (answers.backout, answers.cancel, answers.commit):
            with contextlib.suppress(Off):
                with bank.transaction():
                    end()
                    raise Off
        answers.commit()
        assert value(broker, "select count(*) from pgps.units_of_work where status = 'PROCESSED'") == 1
