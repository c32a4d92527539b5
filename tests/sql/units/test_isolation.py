"""Units of work in transactions that are read-only, keep one snapshot, or are open at the same time."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import IsolationLevel, errors

from tests.fix_broker import call, refused, rows, value
from tests.fix_db import Connect, wait_until
from tests.fix_units import Party, make_service
from tests.sql.units.conftest import SERVICE


def test_a_status_is_asked_for_in_any_transaction(
    broker: psycopg.Connection, party: Callable[..., Party], role: Callable[..., str], connect: Connect
) -> None:
    sender = role("sender")
    call(broker, "grant_service", *SERVICE.split("/"), "send", sender)
    client, server = party("c", role=sender), party("s").serve(SERVICE)
    sent = client.request(SERVICE, "x", status_lifetime=5)
    taken = server.receive("new")
    assert taken is not None
    pooled = value(client.connection, "select pgps.logon_session('behind a pooler')")
    for setting in ("read_only", "isolation_level"):
        for one in (client, server):
            if setting == "read_only":
                one.connection.read_only = True
            else:
                one.connection.isolation_level = IsolationLevel.REPEATABLE_READ
        with client.connection.transaction():
            for row in (client.sync("query", sent["uow_id"]), client.sync("LAST")):
                assert (row["uow_id"], row["status"], row["service"]) == (sent["uow_id"], "DELIVERED", "book")
            assert client.sync("last", conversation=sent["conversation"])["uow_id"] == sent["uow_id"]
            assert client.sync("query", "UFFFF")["code"] == "00780305"
            assert client.sync("last", session=pooled)["code"] == "00780305"
        with server.connection.transaction():
            assert server.sync("query")["status"] == "DELIVERED"
            assert server.sync("query", sent["uow_id"], taken["conversation"])["uow_id"] == sent["uow_id"]
        code = "25006" if setting == "read_only" else "25001"
        for function, args in (
            ("receive_message", ()),
            ("syncpoint", ("commit",)),
            ("send_message", (b"y", sent["conversation"])),
            ("end_conversation", (sent["conversation"],)),
        ):
            with (
                pytest.raises(psycopg.Error, match="units of work cannot be sent or received in a") as refused,
                server.connection.transaction(),
            ):
                server.call(function, *args)
            assert refused.value.sqlstate == code
            assert refused.value.diag.message_hint
        for one in (client, server):
            one.connection.read_only = one.connection.isolation_level = None
    assert server.sync("commit")["status"] == "PROCESSED"


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_status_that_never_was_is_refused(
    broker: psycopg.Connection, party: Callable[..., Party], level: IsolationLevel, read_only: bool
) -> None:
    """Who lives is known as of now, what was committed as of the snapshot."""

    def is_lost(one: Party) -> None:
        pid = one.connection.info.backend_pid
        one.connection.close()
        gone = "select count(*) = 0 from pg_stat_activity where pid = %s"
        wait_until(lambda: value(broker, gone, [pid]), what="the end of the session")

    client, server, sender = party("c"), party("s").serve(SERVICE), party("d")
    kept, unkept = (client.request(SERVICE, "pay", **named) for named in ({"status_lifetime": 5}, {}))
    assert [server.text("new"), server.text("new")] == ["pay", "pay"]
    sent = sender.send("x", to_service=SERVICE)["uow_id"]
    client.connection.isolation_level, client.connection.read_only = level, read_only
    with client.connection.transaction():
        assert client.status(kept["uow_id"]) == "DELIVERED"
        for unit in (kept, unkept):
            server.sync("commit", unit["uow_id"])
        assert client.status(kept["uow_id"]) == "DELIVERED"
        is_lost(server)
        for asks in (("query", kept["uow_id"]), ("query", unkept["uow_id"]), ("last",)):
            with refused("25001", "has changed since", "READ COMMITTED"), client.connection.transaction():
                client.sync(*asks)
    assert client.status(kept["uow_id"]) == "PROCESSED"
    # What is its own, and what nobody has changed, is told.
    waits = value(broker, "select uow_id from pgps.units_of_work where uow_id = %s and status = 'RECEIVED'", [sent])
    client.connection.isolation_level = client.connection.read_only = None
    again, held = party("again").serve(SERVICE), client.request(SERVICE, "again")["uow_id"]
    assert again.text("new") == "again"
    client.connection.isolation_level, client.connection.read_only = level, read_only
    with client.connection.transaction():
        assert client.status(held) == "DELIVERED"
        is_lost(again)
        assert client.sync("query", held)["status"] == "ACCEPTED"
        assert client.sync("last")["attempts"] == 1
    sender.connection.isolation_level, sender.connection.read_only = level, read_only
    with sender.connection.transaction():
        assert sender.status(waits) == "RECEIVED"


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
@pytest.mark.parametrize("read_only", [False, True])
def test_what_was_processed_in_time_is_not_said_to_have_timed_out(
    broker: psycopg.Connection, party: Callable[..., Party], level: IsolationLevel, read_only: bool
) -> None:
    """The time is known as of now, what was committed as of the snapshot."""
    client, server = party("c"), party("s").serve(SERVICE)
    late = client.request(SERVICE, "late", lifetime="10 seconds", status_lifetime=9)["uow_id"]
    done = client.request(SERVICE, "done", lifetime="9 seconds", status_lifetime=9)["uow_id"]
    assert [server.text(), server.text()] == ["late", "done"]
    client.connection.isolation_level, client.connection.read_only = level, read_only
    with client.connection.transaction():
        assert client.status(done) == "DELIVERED"
        server.sync("commit", done)
        over = "select status = 'TIMEOUT' from pgps.units_of_work where uow_id = %s"
        wait_until(lambda: value(broker, over, [late]), what="the end of the lifetime")
        assert client.status(late) == "TIMEOUT"
        for asks in (("query", done), ("last",)):
            with refused("25001", "has changed since", "READ COMMITTED"), client.connection.transaction():
                client.sync(*asks)
    assert client.status(done) == "PROCESSED"


def test_who_asks_in_a_read_only_transaction_is_known(
    broker: psycopg.Connection, party: Callable[..., Party], role: Callable[..., str], connect: Connect
) -> None:
    sender, mallory = role("sender"), role("mallory")
    call(broker, "grant_service", *SERVICE.split("/"), "send", "public")
    client = party("c", role=sender)
    sent = client.request(SERVICE, "x", status_lifetime=5)
    session = value(broker, "select max(session_id) from pgps_internal.participant_session")
    other = Party(connect(mallory, dsn=broker.info.dsn), logon=False)
    other.connection.execute("set default_transaction_read_only = on")
    for arguments in ({}, {"session": session}):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not logged on"):
            other.sync("query", sent["uow_id"], **arguments)
    # Somebody else's function, run by the client, asks for its owner.
    assert rows(other.connection, "select * from pgps_entry.own_sessions") == []
    assert len(rows(client.connection, "select * from pgps_entry.own_sessions")) == 1


def test_what_stands_in_a_view_is_not_shown_to_a_readers_function(
    broker: psycopg.Connection, party: Callable[..., Party], role: Callable[..., str], connect: Connect
) -> None:
    reader = role("reader")
    call(broker, "grant_service", *SERVICE.split("/"), "send", reader)
    party("c").request(SERVICE, "x", user_status="secret", lifetime="1 day")
    connection = connect(reader, dsn=broker.info.dsn)
    connection.execute(
        "create function pg_temp.tell(text) returns boolean language plpgsql cost 0.0001"
        " as $$ begin raise exception 'seen: %', $1; end $$"
    )
    for view, column in (("units_of_work", "user_status"), ("conversations", "client_token")):
        query = f"select count(*) from pgps.{view} where pg_temp.tell({column})"
        assert value(connection, query) == 0


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_new_conversation_begins_in_a_transaction_that_keeps_its_snapshot(
    broker: psycopg.Connection, party: Callable[..., Party], level: IsolationLevel
) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    client.connection.isolation_level = level
    with client.connection.transaction():
        sent = client.send("x", to_service=SERVICE, option="commit")
        client.send("y", to_service=SERVICE, option="msg")
        with pytest.raises(errors.ActiveSqlTransaction), client.connection.transaction():
            client.send("z", sent["conversation"], option="commit")
        assert server.receive() is None
    assert [server.text(), server.text(), server.text()] == ["x", "y", None]


def test_a_limit_counts_what_open_transactions_have_sent(
    broker: psycopg.Connection, party: Callable[..., Party]
) -> None:
    limited = make_service(broker, "l/s/p", deferred=True, max_uows=3)
    first, second = (party(token, autocommit=False) for token in "ab")
    for text in ("1", "2"):
        first.send(text, to_service=limited, option="commit")
    assert second.send("3", to_service=limited)["status"] == "RECEIVED"
    for one in (second, first):
        with (
            pytest.raises(errors.ProgramLimitExceeded, match="at most 3 active units") as refused,
            one.connection.transaction(),
        ):
            one.send("4", to_service=limited, option="commit")
        assert "max_uows" in str(refused.value.diag.message_hint)
    # What is rolled back does not count, and what is committed still does.
    second.connection.rollback()
    first.connection.commit()
    with second.connection.transaction():
        second.send("3", to_service=limited, option="commit")
        with pytest.raises(errors.ProgramLimitExceeded), second.connection.transaction():
            second.send("4", to_service=limited, option="commit")
    server = party("s").serve(limited)
    assert [server.text("new"), server.sync("commit")["status"]] == ["1", "PROCESSED"]
    # Room for one: whoever is first has it, also before it is committed.
    first.send("5", to_service=limited, option="commit")
    with pytest.raises(errors.ProgramLimitExceeded), second.connection.transaction():
        second.send("6", to_service=limited, option="commit")
    first.connection.commit()
    assert value(broker, "select depth from pgps.services where class = 'l'") == 3


def test_the_brokers_limit_counts_what_open_transactions_have_sent(
    broker: psycopg.Connection, party: Callable[..., Party]
) -> None:
    call(broker, "configure", "uow_max_active", "2")
    first, second = (party(token, autocommit=False) for token in "ab")
    first.send("1", to_service=SERVICE, option="commit")
    second.send("2", to_service=make_service(broker, "other/s/p", deferred=True), option="commit")
    for one in (first, second):
        with pytest.raises(errors.ProgramLimitExceeded, match="uow_max_active"), one.connection.transaction():
            one.send("3", to_service=SERVICE, option="commit")
    first.connection.rollback()
    second.connection.commit()
    with first.connection.transaction():
        first.send("3", to_service=SERVICE, option="commit")
    assert value(broker, "select count(*) from pgps.units_of_work") == 2
