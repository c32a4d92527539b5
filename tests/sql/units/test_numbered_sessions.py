"""Sessions by number, for programs behind a transaction pooler; and cancelling what another session has sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.fix_broker import call, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.fix_units import Party
from tests.sql.units.conftest import SERVICE

PARTS = SERVICE.split("/")


def numbered(party: Party, token: str | None, take_over: bool | None = None) -> int:
    """Log a session on that belongs to no backend, and return its number."""
    args = [token] if take_over is None else [token, take_over]
    number: int = value(party.connection, f"select pgps.logon_session({', '.join(['%s'] * len(args))})", args)
    return number


def test_any_connection_of_the_role_speaks_for_a_session(
    broker: psycopg.Connection, party: Callable[..., Party], role: Callable[..., str]
) -> None:
    one, two = party(), party()
    session = numbered(one, "worker")
    for connection in (one, two):
        connection.call("register_service", *PARTS, session=session)
    uow_id = two.send("x", to_service=SERVICE, session=session)["uow_id"]
    assert one.sync("commit", uow_id, session=session)["status"] == "ACCEPTED"
    assert two.text("new", session=session) == "x"
    assert one.receive("any", session=session) is None
    stranger = party(role=role("stranger"))
    with pytest.raises(errors.InsufficientPrivilege):
        stranger.sync("last", session=session)
    # What the session that had the token holds goes back with it.
    newer = numbered(two, "worker", take_over=True)
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        one.sync("commit", session=session)
    two.call("register_service", *PARTS, session=newer)
    row = two.receive("new", session=newer)
    assert row is not None
    assert row["attempts"] == 1
    rows(one.connection, "select pgps.logoff(%s)", [newer])
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        two.sync("commit", session=newer)
    # Nobody has to wait for a session that has logged off.
    numbered(one, "worker")


def test_a_session_keeps_its_token_while_it_is_used(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock
) -> None:
    clock.set("2026-03-01 12:00+00")
    call(broker, "configure", "session_lease", "40 seconds")
    program, other = party(), party()
    session = numbered(program, "worker")
    sent = program.send("1", to_service=SERVICE, session=session)

    def is_refused() -> bool:
        for attempt in (
            lambda: numbered(other, "worker"),
            lambda: numbered(other, "worker", take_over=False),
            lambda: other.call("logon", "worker"),
        ):
            with pytest.raises(errors.ObjectInUse, match="worker") as refused:
                attempt()
            assert f"pgps.logoff({session})" in str(refused.value.diag.message_hint)
        return True

    assert is_refused()
    # Each of these calls is noted, since the one before it is older than a quarter of the lease.
    for verb in ("send", "last", "query"):
        clock.advance("30 seconds")
        if verb == "send":
            program.send("2", sent["conversation"], session=session)
        else:
            program.sync(verb, sent["uow_id"], session=session)
        clock.advance("29 seconds")
        assert is_refused()
        assert program.sync("query", sent["uow_id"], session=session)["status"] == "RECEIVED"
    clock.advance("41 seconds")
    assert program.sync("commit", session=session)["status"] == "ACCEPTED"
    program.send("3", sent["conversation"], session=session)
    clock.advance("41 seconds")
    newer = numbered(other, "worker")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not logged on"):
        program.sync("commit", session=session)
    assert other.sync("last", session=newer)["uow_id"] == sent["uow_id"]
    clock.advance("41 seconds")
    other.call("logon", "worker")
    with pytest.raises(errors.ObjectInUse, match="process"):
        numbered(program, "worker", take_over=True)


def test_a_session_keeps_its_token_while_a_transaction_of_it_runs(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock
) -> None:
    clock.set("2026-03-01 12:00+00")
    program, other = party(autocommit=False), party()
    session = numbered(program, "worker")
    program.connection.commit()
    uow_id = program.send("1", to_service=SERVICE, session=session)["uow_id"]
    clock.advance("1 hour")
    with pytest.raises(errors.ObjectInUse, match="worker"):
        numbered(other, "worker")
    assert program.sync("commit", uow_id, session=session)["status"] == "ACCEPTED"
    program.connection.commit()
    assert program.sync("query", uow_id, session=session)["status"] == "ACCEPTED"


def test_cancelling_touches_no_other_unit_and_no_session(
    broker: psycopg.Connection, party: Callable[..., Party], role: Callable[..., str], connect: Connect,
    own_database: str,
) -> None:  # fmt: skip
    behind_a_pooler, plain, nameless = party(), party("plain"), party()
    session = numbered(behind_a_pooler, "worker")
    nobody = connect(dsn=own_database)
    programs: list[tuple[Party, dict[str, Any]]] = [
        (behind_a_pooler, {"session": session}),
        (plain, {}),
        (nameless, {}),
    ]
    for program, named in programs:
        done = program.send("1", to_service=SERVICE, option="commit", status_lifetime=1, **named)["uow_id"]
        making = program.send("2", to_service=SERVICE, **named)["uow_id"]
        assert rows(nobody, "select status from pgps.cancel_unit(%s)", [done]) == [("CANCELLED",)]
        for unit, status in ((making, "RECEIVED"), (done, "CANCELLED")):
            with pytest.raises(errors.ObjectNotInPrerequisiteState, match=status):
                nobody.execute("select pgps.cancel_unit(%s)", [unit])
        assert program.sync("commit", making, **named)["status"] == "ACCEPTED"
        with pytest.raises(errors.InsufficientPrivilege):
            party(role=role("stranger")).call("cancel_unit", making)
    server = party("server").serve(SERVICE)
    held = server.receive("new")
    assert held is not None
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="DELIVERED"):
        nobody.execute("select pgps.cancel_unit(%s)", [held["uow_id"]])
    for unknown in ("U0", None):
        with pytest.raises(errors.UndefinedObject):
            nobody.execute("select pgps.cancel_unit(%s)", [unknown])
