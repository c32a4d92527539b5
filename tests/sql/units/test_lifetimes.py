"""Lifetimes of units of work and of their statuses, by the clock: whoever looks sees it, nobody has to write.

The clock stands, so that nothing is over before it is to be, however long a test takes.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors

from tests.fix_broker import call, value
from tests.fix_clock import Clock
from tests.fix_units import Party, make_service
from tests.sql.units.conftest import SERVICE


def test_a_lifetime_begins_with_the_first_send(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock
) -> None:
    began = clock.set("2026-03-01 12:00+00")
    client, server = party("c"), party("s").serve(SERVICE)
    sent = client.send("1", to_service=SERVICE, lifetime="10 seconds", status_lifetime=3)
    clock.advance("6 seconds")
    client.send("2", sent["conversation"], lifetime="1 hour")
    assert (client.sync("commit")["lifetime_ends"] - began).total_seconds() == 10
    clock.advance("3 seconds")
    assert client.status(sent["uow_id"]) == "ACCEPTED"
    clock.advance("1 second")
    assert client.status(sent["uow_id"]) == "TIMEOUT"
    assert server.receive("new") is None
    assert value(broker, "select depth from pgps.services") == 0
    clock.advance("29 seconds")
    assert client.status(sent["uow_id"]) == "TIMEOUT"
    clock.advance("1 second")
    assert client.status(sent["uow_id"]) is None
    assert client.sync("last")["code"] == "00780305"


@pytest.mark.parametrize(
    ("broker_says", "service_says", "sender_says", "kept"),
    [(0, None, 0, 0), (2, None, 0, 2), (2, 3, 0, 3), (2, 3, 5, 5), (2, 3, 255, 0), (2, 0, 0, 0), (0, None, 254, 254)],
)
def test_who_says_how_long_a_status_is_kept(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock, broker_says: int, service_says: int | None,
    sender_says: int, kept: int,
) -> None:  # fmt: skip
    clock.set("2026-03-01 12:00+00")
    make_service(broker, "a/b/c", deferred=True, lifetime="1 minute", status_lifetime=service_says)
    call(broker, "configure", "uow_status_lifetime", str(broker_says))
    client, server = party("c"), party("s").serve("a/b/c")
    uow_id = client.request("a/b/c", "1", status_lifetime=sender_says)["uow_id"]
    clock.advance("30 seconds")
    assert server.text("new") == "1"
    server.sync("commit")
    clock.advance(f"{max(60 * kept - 1, 0)} seconds")
    assert client.status(uow_id) == ("PROCESSED" if kept else None)
    clock.advance("1 second")
    assert client.status(uow_id) is None


def test_who_says_how_long_a_unit_may_take(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock
) -> None:
    now = clock.set("2026-03-01 12:00+00")
    client = party("c")
    assert (client.request(SERVICE, "x")["lifetime_ends"] - now).days == 1
    call(broker, "configure", "uow_lifetime", "2 days")
    assert (client.request(SERVICE, "x")["lifetime_ends"] - now).days == 2
    call(broker, "alter_service", *SERVICE.split("/"), lifetime="3 days")
    assert (client.request(SERVICE, "x")["lifetime_ends"] - now).days == 3
    assert (client.request(SERVICE, "x", lifetime="4 days")["lifetime_ends"] - now).days == 4


@pytest.mark.parametrize("status_lifetime", [1, 255])
def test_a_unit_that_times_out_while_it_is_delivered(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock, status_lifetime: int
) -> None:
    clock.set(clock.now())
    client, server = party("c"), party("s").serve(SERVICE)
    sent = client.request(SERVICE, "1", lifetime="1 minute", status_lifetime=status_lifetime)
    client.send("2", sent["conversation"], option="commit", lifetime="1 hour")
    assert server.text("new") == "1"
    clock.advance("61 seconds")
    for option in ("commit", "backout", "cancel"):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="TIMEOUT"):
            server.sync(option)
    assert client.status(sent["uow_id"]) == ("TIMEOUT" if status_lifetime == 1 else None)
    # The conversation goes on with the unit after it.
    assert server.text("new") == "2"
    assert server.sync("commit")["status"] == "PROCESSED"


def test_a_unit_that_times_out_while_it_is_sent(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock
) -> None:
    clock.set(clock.now())
    client = party("c")
    sent = client.send("1", to_service=SERVICE, lifetime="1 minute", status_lifetime=9)
    clock.advance("1 minute")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="TIMEOUT"):
        client.send("2", sent["conversation"])
    # Its sender has been told once, also if the transaction is rolled back: what it sends now is another unit.
    again = client.send("3", sent["conversation"], lifetime="1 minute", status_lifetime=9)
    assert (again["uow_id"] != sent["uow_id"], again["status"]) == (True, "RECEIVED")
    clock.advance("1 minute")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="TIMEOUT"):
        client.sync("commit")
    assert client.send("4", sent["conversation"], option="commit")["status"] == "ACCEPTED"
    server = party("s").serve(SERVICE)
    assert [server.text("new"), server.sync("commit")["status"]] == ["4", "PROCESSED"]
    client.call("logoff")
    # It had timed out before the session ended, and stays what it was.
    assert party("c").status(sent["uow_id"]) == "TIMEOUT"


def test_a_session_that_ended_before_the_lifetime_has_backed_out(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock
) -> None:
    clock.set(clock.now())
    client = party("c")
    uow_id = client.send("1", to_service=SERVICE, lifetime="1 minute", status_lifetime=9)["uow_id"]
    client.call("logoff")
    assert party("c").status(uow_id) == "BACKEDOUT"
    clock.advance("2 minutes")
    value(broker, "select status from pgps.units_of_work")
    assert value(broker, "select status from pgps.units_of_work") == "BACKEDOUT"


def _lose(broker: psycopg.Connection, party: Party) -> None:
    """End the backend of a party, of which nobody is told."""
    broker.execute("select pg_terminate_backend(%s, 60000)", [party.connection.info.backend_pid])


@pytest.mark.parametrize("passes_first", [False, True], ids=["lost", "timed out, then lost"])
def test_what_becomes_of_a_unit_whose_session_is_lost_does_not_depend_on_who_notes_that(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock, passes_first: bool
) -> None:
    clock.set(clock.now())
    status = "select status from pgps.units_of_work"
    client = party("c")
    uow_id = client.send("1", to_service=SERVICE, lifetime="1 minute", status_lifetime=9)["uow_id"]
    if passes_first:
        clock.advance("61 seconds")
        assert value(broker, status) == "TIMEOUT"
    _lose(broker, client)
    if not passes_first:
        assert value(broker, status) == "BACKEDOUT"
        clock.advance("61 seconds")
    # Nobody has noted when the session ended: so it is over by its lifetime, before a logon tells and afterwards.
    assert value(broker, status) == "TIMEOUT"
    again = party("c")
    assert [value(broker, status), again.status(uow_id)] == ["TIMEOUT", "TIMEOUT"]


def test_a_logon_before_the_lifetime_ends_settles_that_a_lost_session_has_backed_out(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock
) -> None:
    clock.set(clock.now())
    client = party("c")
    uow_id = client.send("1", to_service=SERVICE, lifetime="1 minute", status_lifetime=9)["uow_id"]
    _lose(broker, client)
    again = party("c")
    assert again.status(uow_id) == "BACKEDOUT"
    clock.advance("61 seconds")
    assert again.status(uow_id) == "BACKEDOUT"


@pytest.mark.parametrize("status", ["BACKEDOUT", "TIMEOUT"])
def test_when_a_session_ended_is_known_for_as_long_as_its_units(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock, status: str
) -> None:
    client = party("c")
    uow_id = client.send("1", to_service=SERVICE, lifetime="1 hour", status_lifetime=200)["uow_id"]
    clock.advance("2 hours" if status == "TIMEOUT" else "1 minute")
    client.call("logoff")
    asks = party("c")
    for _ in range(2):
        assert asks.status(uow_id) == status
        clock.advance("2 days")
        call(broker, "reclaim")


def test_how_often_a_unit_was_given_back_is_known_for_as_long_as_the_unit(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock
) -> None:
    client = party("c")
    uow_id = client.request(SERVICE, "1", lifetime="1 hour", status_lifetime=200)["uow_id"]
    server = party("s").serve(SERVICE)
    assert server.text("new") == "1"
    clock.advance("1 minute")
    server.call("logoff")
    clock.advance("2 hours")
    for _ in range(2):
        stands = client.sync("query", uow_id)
        assert (stands["status"], stands["attempts"]) == ("TIMEOUT", 1)
        clock.advance("2 days")
        call(broker, "reclaim")


def test_sessions_that_left_nothing_are_forgotten(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock
) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    client.request(SERVICE, "1")
    server.call("logoff")
    client.call("logoff")
    clock.advance("2 days")
    call(broker, "reclaim")
    assert value(broker, "select count(*) from pgps_internal.participant_session") == 0
