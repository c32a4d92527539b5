"""A conversation that is bound while another server looks what it may receive next is not given to that one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import errors

from tests.fix_broker import meanwhile, rows, value
from tests.fix_db import Connect
from tests.fix_units import Party, Row
from tests.sql.units.conftest import SERVICE

BEFORE_READING, AFTER_READING = "begin\n", "    return v_state;\n"


def pause_at(broker: psycopg.Connection, place: str) -> None:
    """Let sessions that ask for it wait where they look how a conversation stands."""
    function = "pgps_internal.state_of(bigint)"
    definition = value(broker, "select pg_get_functiondef(%s::regprocedure)", [function])
    assert definition.count(place) == 1
    wait = (
        "if current_setting('pgps_test.pauses', true) = 'yes' then perform pg_advisory_xact_lock_shared(4); end if;\n"
    )
    paused = place + wait if place == BEFORE_READING else wait + place
    rows(broker, definition.replace(place, paused))


@contextmanager
def looking(
    connect: Connect, broker: psycopg.Connection, server: Party, *args: str, **named: str
) -> Iterator[list[Row | None]]:
    """Let a server receive, and hold it where it looks; what it has got is there afterwards."""
    got: list[Row | None] = []
    rows(server.connection, "set pgps_test.pauses = 'yes'")
    rows(broker, "select pg_advisory_lock(4)")
    with meanwhile(connect(dsn=broker.info.dsn), server.connection, lambda: got.append(server.receive(*args, **named))):
        yield got
        assert not got
        rows(broker, "select pg_advisory_unlock(4)")
    rows(server.connection, "reset pgps_test.pauses")


@pytest.mark.parametrize("said", [{}, {"user_status": "mine"}], ids=["simply", "with a user status"])
@pytest.mark.parametrize("option", ["sync", "msg"])
def test_the_second_unit_goes_to_the_server_that_has_committed_the_first(
    broker: psycopg.Connection, party: Callable[..., Party], connect: Connect, option: str, said: dict[str, str]
) -> None:
    client, one, two = party("c"), party("one").serve(SERVICE), party("two").serve(SERVICE)
    commit = "commit" if option == "sync" else "msg"
    conversation = client.send("1", to_service=SERVICE, option=commit)["conversation"]
    client.send("2", conversation, option=commit)
    # A message outside of units of work is over when the transaction that receives it is.
    one.connection.autocommit = option == "sync"
    assert one.text("new") == "1"
    pause_at(broker, BEFORE_READING)
    with looking(connect, broker, two, "new", **said) as got:
        if option == "sync":
            one.sync("commit")
        else:
            one.connection.commit()
    assert got == [None]
    assert one.text("old") == "2"


def test_who_asks_for_the_conversation_by_its_id_is_refused(
    broker: psycopg.Connection, party: Callable[..., Party], connect: Connect
) -> None:
    client, one, two = party("c"), party("one").serve(SERVICE), party("two").serve(SERVICE)
    conversation = client.request(SERVICE, "1")["conversation"]
    client.send("2", conversation, option="commit")
    assert one.text("new") == "1"
    pause_at(broker, AFTER_READING)
    with pytest.raises(errors.InsufficientPrivilege, match="somebody else"):  # noqa: SIM117
        with looking(connect, broker, two, conversation):
            one.sync("commit")
    assert one.text("old") == "2"
