"""Sending and receiving: options, order, transactions, locks, limits and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.fix_broker import call, rows, value
from tests.fix_db import wait_until
from tests.fix_units import Party, make_service
from tests.sql.units.conftest import SERVICE


def received(party: Party, which: str = "any", **named: Any) -> tuple[str, str, int] | None:
    row = party.receive(which, **named)
    return None if row is None else (bytes(row["message"]).decode(), row["status"], row["number"])


def logged_on(party: Callable[..., Party], token: str) -> Party:
    """Log a party on again as soon as the server has noticed that its connection is closed."""
    again: list[Party] = []

    def is_logged_on() -> bool:
        try:
            again.append(party(token))
        except errors.ObjectInUse:
            return False
        return True

    wait_until(is_logged_on, what=f"{token} is logged on")
    (later,) = again
    return later


def test_a_unit_of_work_is_received_message_by_message(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    sent = client.request(SERVICE, "1", "2", "3", user_status="new")
    conversation, uow_id = sent["conversation"], sent["uow_id"]
    assert conversation.isalnum()
    assert conversation.isupper()
    assert uow_id.isalnum()
    assert uow_id.isupper()
    row = server.receive("new")
    assert row is not None
    assert {key: row[key] for key in ("status", "uow_id", "conversation", "sender_token", "user_status", "number")} == {
        "status": "RECV_FIRST", "uow_id": uow_id, "conversation": conversation, "sender_token": "c",
        "user_status": "new", "number": 1,
    }  # fmt: skip
    assert (row["class"], row["server"], row["service"], row["attempts"], row["code"]) == (*SERVICE.split("/"), 0, None)
    assert received(server, "new") is None
    assert received(server, "old") == ("2", "RECV_MIDDLE", 2)
    assert received(server, conversation) == ("3", "RECV_LAST", 3)
    ended = server.receive(conversation)
    assert ended is not None
    assert (ended["code"], ended["message"], ended["uow_id"]) == ("00740301", None, uow_id)
    for which in ("new", "old", "any"):
        assert server.receive(which) is None
    assert client.status(uow_id) == "DELIVERED"
    assert server.sync("commit")["status"] == "PROCESSED"
    assert server.receive(conversation) is None
    assert client.status(uow_id) is None
    client.send("only", conversation, option="commit")
    assert received(server, "old") == ("only", "RECV_ONLY", 1)


def test_a_message_outside_of_units_of_work(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    row = client.send("1", to_service=SERVICE, option="msg")
    assert row["uow_id"] is None
    conversation = row["conversation"]
    client.send("2", conversation, option="msg")
    client.request(SERVICE, "unit")
    assert received(server, "new", option="msg") == ("1", "RECV_NONE", 1)
    assert received(server, "old", option="sync") is None
    assert received(server, conversation, option="sync") is None
    assert received(server, conversation) == ("2", "RECV_NONE", 1)
    assert server.receive(conversation) is None
    server.send("answer", conversation, option="msg")
    assert received(client, conversation, option="any") == ("answer", "RECV_NONE", 1)
    assert received(server, "new", option="msg") is None
    assert received(server, "any", option="sync") == ("unit", "RECV_ONLY", 1)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not allowed"):
        client.send("x", conversation, option="sync")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not allowed"):
        server.send("x", server.sync("commit")["conversation"], option="msg")


def test_receiving_answering_writing_and_both_commits_in_one_transaction(
    broker: psycopg.Connection, party: Callable[..., Party]
) -> None:
    rows(broker, "create table public.done (what text)")
    client, server = party("c"), party("s", autocommit=False).serve(SERVICE)
    server.connection.commit()
    conversation = client.request(SERVICE, "ask")["conversation"]
    for attempt in range(2):
        assert server.text("new") == "ask"
        rows(server.connection, "insert into public.done values ('ask')")
        server.send("answer", conversation)
        assert [row["status"] for row in server.both()] == ["PROCESSED", "ACCEPTED"]
        assert client.receive(conversation) is None
        assert client.sync("last")["status"] == "ACCEPTED"
        if attempt == 0:
            server.connection.rollback()
            assert client.sync("last")["attempts"] == 0
    server.connection.commit()
    assert client.text(conversation) == "answer"
    assert value(broker, "select count(*) from public.done") == 1


def test_order_of_new_conversations_and_of_their_units(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    client, late, server = party("c"), party("l", autocommit=False), party("s").serve(SERVICE)
    # The paper's figure: T1 and T2 in one conversation, T3 in another, committed in this order.
    one = client.send("T1", to_service=SERVICE)
    late.request(SERVICE, "T0")
    two = client.send("T3", to_service=SERVICE)
    client.sync("commit", one["uow_id"])
    client.send("T2", one["conversation"], option="commit")
    client.sync("commit", two["uow_id"])
    assert server.text("new") == "T1"
    assert server.text("new") == "T3"
    # Nobody waited for T0, which had its SYNCPOINT first.
    late.connection.commit()
    assert server.text("new") == "T0"
    assert server.receive("new") is None
    assert server.receive("any") is None
    server.sync("commit", one["uow_id"])
    assert server.text("old") == "T2"


def test_a_conversation_is_bound_once_its_first_unit_is_committed(
    broker: psycopg.Connection, party: Callable[..., Party]
) -> None:
    client, one, two = party("c"), party("one").serve(SERVICE), party("two").serve(SERVICE)
    first = client.request(SERVICE, "1")
    conversation = first["conversation"]
    client.send("2", conversation, option="commit")
    assert one.text("new") == "1"
    with pytest.raises(errors.InsufficientPrivilege, match="somebody else"):
        two.receive(conversation)
    assert one.sync("backout")["attempts"] == 1
    row = two.receive("new")
    assert row is not None
    assert (bytes(row["message"]), row["attempts"]) == (b"1", 1)
    assert two.sync("commit")["status"] == "PROCESSED"
    # Bound: its second unit goes to nobody else, and back to it when it backs it out.
    assert one.receive("any") is None
    with pytest.raises(errors.InsufficientPrivilege, match="bound"):
        one.receive(conversation)
    for attempt in range(3):
        row = two.receive("old")
        assert row is not None
        assert row["attempts"] == attempt
        assert two.receive("new") is None
        two.sync("backout")
    two.connection.close()
    again = logged_on(party, "two")
    assert again.text("any") == "2"
    again.sync("commit")


def test_a_session_that_ends_backs_out(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    client, server, sender = party("c"), party("s").serve(SERVICE), party("x")
    uow_id = client.request(SERVICE, "1")["uow_id"]
    sent = sender.send("half", to_service=SERVICE, status_lifetime=1)["uow_id"]
    assert server.text("new") == "1"
    server.connection.close()
    sender.call("logoff")
    other = party("o").serve(SERVICE)
    given: list[Any] = []

    def is_given() -> bool:
        given.extend(filter(None, [other.receive("new")]))
        return bool(given)

    wait_until(is_given)
    (row,) = given
    assert (row["uow_id"], row["attempts"]) == (uow_id, 1)
    assert party("x").status(sent) == "BACKEDOUT"


def test_what_is_locked_is_passed_over(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    client = party("c")
    one = party("one", autocommit=False).serve(SERVICE)
    one.connection.commit()
    two = party("two").serve(SERVICE)
    client.request(SERVICE, "1")
    client.request(SERVICE, "2")
    assert one.text("new") == "1"
    assert two.text("new") == "2"
    assert two.receive("any") is None
    one.connection.rollback()
    row = two.receive("new")
    assert row is not None
    assert (bytes(row["message"]), row["attempts"]) == (b"1", 0)


def test_syncpoint_locks_its_conversation(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    client = party("c", autocommit=False)
    server = party("s").serve(SERVICE)
    conversation = client.request(SERVICE, "1")["conversation"]
    client.connection.commit()
    assert server.text("new") == "1"
    client.send("2", conversation, option="commit")
    rows(server.connection, "set lock_timeout = '100ms'")
    with pytest.raises(errors.LockNotAvailable):
        server.sync("commit")
    # Asking and receiving wait for nobody.
    assert server.sync("query", None, conversation)["status"] == "DELIVERED"
    client.connection.rollback()
    assert server.sync("commit")["status"] == "PROCESSED"


def test_the_end_of_a_conversation(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    for option in ("eoc", "eoccancel"):
        sent = client.send("1", to_service=SERVICE)
        assert client.sync(option)["conversation_state"] == option
        row = server.receive("new")
        assert row is not None
        assert row["conversation_state"] == option
        for who in (client, server):
            with pytest.raises(errors.ObjectNotInPrerequisiteState, match="has ended"):
                who.send("2", sent["conversation"])
        assert server.sync("commit")["status"] == "PROCESSED"
    conversation = client.request(SERVICE, "3")["conversation"]
    half = client.send("4", conversation, status_lifetime=1)["uow_id"]
    (row,) = client.call("end_conversation", conversation)
    assert (row["conversation"], row["conversation_state"]) == (conversation, "eoc")
    assert client.status(half) == "BACKEDOUT"
    assert server.text("new") == "3"
    with pytest.raises(errors.InsufficientPrivilege):
        party("z").call("end_conversation", conversation)
    with pytest.raises(errors.UndefinedObject):
        client.call("end_conversation", "C999999")


def test_user_status(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    client, server = party("c"), party("s", autocommit=False).serve(SERVICE)
    server.connection.commit()
    uow_id = client.request(SERVICE, "1", user_status="asked")["uow_id"]
    assert server.text("new", user_status="begun") == "1"
    assert client.sync("query", uow_id)["user_status"] == "asked"
    server.connection.commit()
    assert client.sync("query", uow_id)["user_status"] == "begun"
    assert server.sync("setustatus", uow_id, user_status="half")["status"] == "DELIVERED"
    assert client.sync("query", uow_id)["user_status"] == "begun"
    server.connection.commit()
    assert client.sync("query", uow_id)["user_status"] == "half"
    client.sync("setustatus", uow_id, user_status="stop")
    assert server.sync("query")["user_status"] == "stop"
    with pytest.raises(errors.ProgramLimitExceeded, match="has 33"):
        client.sync("setustatus", uow_id, user_status="x" * 33)
    with pytest.raises(errors.InvalidParameterValue):
        client.sync("setustatus", uow_id)


def test_limits(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    make_service(broker, "a/b/c", deferred=True, max_uows=2, max_messages_in_uow=2, max_message_bytes=3)
    client, server = party("c"), party("s").serve("a/b/c")
    with pytest.raises(errors.ProgramLimitExceeded, match="max_message_bytes is 3"):
        client.request("a/b/c", "abcd")
    with pytest.raises(errors.ProgramLimitExceeded, match="max_messages_in_uow is 2"):
        client.request("a/b/c", "1", "2", "3")
    client.sync("backout")
    client.request("a/b/c", "1")
    client.request("a/b/c", "2")
    with pytest.raises(errors.ProgramLimitExceeded, match="max_uows is 2"):
        client.request("a/b/c", "3")
    client.send("m", to_service="a/b/c", option="msg")
    assert server.text("new") == "1"
    server.sync("commit")
    client.request("a/b/c", "3")
    call(broker, "configure", "uow_max_message_bytes", "5")
    with pytest.raises(errors.ProgramLimitExceeded, match="uow_max_message_bytes is 5"):
        client.request(SERVICE, "123456")
    call(broker, "configure", "uow_max_active", "2")
    with pytest.raises(errors.ProgramLimitExceeded, match="uow_max_active is 2"):
        client.request(SERVICE, "1")
    call(broker, "configure", "uow_max_active", "0")
    with pytest.raises(errors.ProgramLimitExceeded, match="uow_max_active is 0"):
        client.request(SERVICE, "1")


@pytest.mark.parametrize(
    ("named", "error", "what"),
    [
        ({"message": None}, errors.InvalidParameterValue, "null"),
        ({"option": "any"}, errors.InvalidParameterValue, "any"),
        ({"option": None}, errors.InvalidParameterValue, "option"),
        ({"store": "disk"}, errors.InvalidParameterValue, "disk"),
        ({"store": None}, errors.InvalidParameterValue, "store"),
        ({"lifetime": "0"}, errors.InvalidParameterValue, "lifetime"),
        ({"lifetime": "1000000 years"}, (errors.InvalidParameterValue, errors.IntervalFieldOverflow), "year"),
        ({"status_lifetime": 256}, errors.InvalidParameterValue, "256"),
        ({"status_lifetime": -1}, errors.InvalidParameterValue, "-1"),
        ({"user_status": "x" * 33}, errors.ProgramLimitExceeded, "33"),
        ({"to_service": "shop/orders"}, errors.InvalidParameterValue, "shop/orders"),
        ({"to_service": None}, errors.InvalidParameterValue, "service"),
        ({"to_service": "a/b/d"}, errors.UndefinedObject, "a/b/d"),
        ({"conversation": "C9999"}, errors.UndefinedObject, "C9999"),
        ({"conversation": "nonsense"}, errors.UndefinedObject, "nonsense"),
    ],
)
def test_what_cannot_be_sent(
    broker: psycopg.Connection, party: Callable[..., Party], named: dict[str, Any], error: Any, what: str
) -> None:
    with pytest.raises(error, match=what):
        party("c").send(**{"message": "x", "to_service": SERVICE} | named)


def test_what_cannot_be_received_or_synced(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    client, stranger = party("c"), party("z")
    sent = client.request(SERVICE, "1")
    with pytest.raises(errors.InvalidParameterValue, match="commit"):
        client.receive("any", option="commit")
    with pytest.raises(errors.UndefinedObject):
        client.receive("C77777")
    with pytest.raises(errors.InsufficientPrivilege, match="somebody else"):
        stranger.receive(sent["conversation"])
    with pytest.raises(errors.InsufficientPrivilege, match="somebody else"):
        stranger.send("x", sent["conversation"])
    with pytest.raises(errors.InsufficientPrivilege, match="somebody else"):
        stranger.sync("cancel", sent["uow_id"])
    assert stranger.sync("query", sent["uow_id"])["code"] == "00780305"
    with pytest.raises(errors.InvalidParameterValue, match="undo"):
        client.sync("undo", sent["uow_id"])
    with pytest.raises(errors.UndefinedObject):
        client.sync("cancel", "U77777")
    with pytest.raises(errors.UndefinedObject):
        client.sync("cancel", "nonsense")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="no unit of work is open"):
        client.sync("commit")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not one each"):
        client.both()
    with pytest.raises(errors.InvalidParameterValue, match="both"):
        client.sync("cancel", "both")
    for _ in range(2):
        client.send("x", to_service=SERVICE)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="several"):
        client.sync("commit")
    rows(client.connection, "begin isolation level repeatable read")
    with pytest.raises(errors.ActiveSqlTransaction):
        client.send("x", to_service=SERVICE)


def test_nobody_who_is_not_logged_on(broker: psycopg.Connection) -> None:
    party = Party(broker, logon=False)
    for attempt in (
        lambda: party.send("x", to_service=SERVICE), party.receive, lambda: party.sync("last"),
        lambda: party.serve(SERVICE), lambda: party.call("logoff"), lambda: party.call("end_conversation", "C1"),
    ):  # fmt: skip
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not logged on"):
            attempt()


def test_last_is_the_newest_unit_of_the_token(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    assert client.sync("last")["code"] == "00780305"
    one = client.request(SERVICE, "1", status_lifetime=2)
    two = client.request(SERVICE, "2", status_lifetime=255)
    assert client.sync("last")["uow_id"] == two["uow_id"]
    assert client.sync("last", None, one["conversation"])["uow_id"] == one["uow_id"]
    assert server.text("new") == "1"
    server.sync("commit")
    assert server.text("new") == "2"
    server.sync("commit")
    client.connection.close()
    # The second left no trace; the first is found by a later session, too.
    later = logged_on(party, "c")
    last = later.sync("last")
    assert (last["uow_id"], last["status"]) == (one["uow_id"], "PROCESSED")
    assert (last["class"], last["server"], last["service"]) == tuple(SERVICE.split("/"))
    assert later.sync("delete", one["uow_id"])["status"] == "PROCESSED"
    assert later.sync("last")["code"] == "00780305"


def test_a_participant_may_talk_to_itself(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    one = party("t").serve(SERVICE)
    conversation = one.request(SERVICE, "ask")["conversation"]
    assert one.text("new") == "ask"
    one.send("answer", conversation)
    one.both()
    assert one.text(conversation) == "answer"
    one.sync("commit")
    one.send("again", conversation, option="commit")
    assert one.text("any") == "again"
