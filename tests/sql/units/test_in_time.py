"""A unit that is over before the transaction of its SYNCPOINT is committed is TIMEOUT, and nothing else afterwards.

The clock stands, so that nothing is over before it is to be, however long a test takes.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors

from tests.fix_broker import rows, value
from tests.fix_clock import Clock
from tests.fix_units import Party
from tests.sql.units.conftest import SERVICE


@pytest.fixture(autouse=True)
def _written(broker: psycopg.Connection) -> None:
    rows(broker, "create table public.written (what text); grant all on public.written to public")


@pytest.mark.parametrize("received", ["before", "in the transaction"])
@pytest.mark.parametrize("option", ["commit", "both", "cancel"])
def test_a_commit_that_comes_too_late_is_refused(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock, option: str, received: str
) -> None:
    clock.set(clock.now())
    client, server = party("c"), party("s").serve(SERVICE)
    sent = client.request(SERVICE, "1", lifetime="1 minute", status_lifetime=9)
    if received == "before":
        assert server.text("new") == "1"
    rows(server.connection, "begin")
    if received != "before":
        assert server.text("new") == "1"
    rows(server.connection, "insert into public.written values ('half')")
    if option == "both":
        server.send("answer", sent["conversation"])
        assert len(server.both(sent["conversation"])) == 2
    else:
        server.sync(option)
    clock.advance("61 seconds")
    assert client.status(sent["uow_id"]) == "TIMEOUT"
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="is TIMEOUT") as refused:
        rows(server.connection, "commit")
    assert "longer lifetime" in str(refused.value.diag.message_hint)
    assert client.status(sent["uow_id"]) == "TIMEOUT"
    assert client.receive() is None
    assert value(broker, "select count(*) from public.written") == 0
    # The server goes on.
    again = client.request(SERVICE, "2", status_lifetime=9)
    assert server.text("new") == "2"
    server.sync("commit", again["uow_id"])
    assert client.status(again["uow_id"]) == "PROCESSED"


def test_a_sender_that_cancels_too_late_is_refused(party: Callable[..., Party], clock: Clock) -> None:
    clock.set(clock.now())
    client = party("c")
    sent = client.request(SERVICE, "1", lifetime="1 minute", status_lifetime=9)
    rows(client.connection, "begin")
    assert client.sync("cancel", sent["uow_id"])["status"] == "CANCELLED"
    clock.advance("61 seconds")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="is TIMEOUT"):
        rows(client.connection, "commit")
    assert client.status(sent["uow_id"]) == "TIMEOUT"


def test_what_is_taken_back_does_not_count(party: Callable[..., Party], clock: Clock) -> None:
    clock.set(clock.now())
    client, server = party("c"), party("s").serve(SERVICE)
    client.request(SERVICE, "1", lifetime="1 minute", status_lifetime=9)
    assert server.text("new") == "1"
    with server.connection.transaction():
        with server.connection.transaction(force_rollback=True):
            server.sync("commit")
        clock.advance("61 seconds")


def test_messages_that_belong_to_no_unit_are_consumed_by_receiving(party: Callable[..., Party], clock: Clock) -> None:
    clock.set(clock.now())
    client, server = party("c"), party("s").serve(SERVICE)
    client.send("1", to_service=SERVICE, option="msg", lifetime="1 minute")
    with server.connection.transaction():
        assert server.text() == "1"
        clock.advance("61 seconds")


def test_every_segment_is_looked_at_also_in_replicating_sessions(broker: psycopg.Connection) -> None:
    found = "select count(*), array_agg(distinct tgenabled::text) from pg_trigger where tgname = 'pgps_in_time'"
    assert rows(broker, found) == [(5, ["A"])]
