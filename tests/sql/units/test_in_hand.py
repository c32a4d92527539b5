"""What a session knows of what it has in hand: nothing that others may have changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors

from tests.fix_broker import call, rows, value
from tests.fix_clock import Clock
from tests.fix_units import Party
from tests.sql.units.conftest import SERVICE
from tests.sql.units.test_ledgers import serve_all, skip_to_next_segment


def exchange(client: Party, server: Party, text: str, commit: Callable[[], None] = lambda: None) -> str:
    """Ask and answer; return the conversation. Then both have had something in hand, so what they have is known."""
    conversation: str = client.send(text, to_service=SERVICE, option="commit")["conversation"]
    assert server.text("new") == text
    server.send(f"answer to {text}", conversation)
    assert [row["status"] for row in server.both()] == ["PROCESSED", "ACCEPTED"]
    commit()
    assert client.text(conversation) == f"answer to {text}"
    assert client.sync("commit")["status"] == "PROCESSED"
    return conversation


def test_what_the_other_party_does_to_a_unit_that_is_held_is_seen(
    broker: psycopg.Connection, party: Callable[..., Party]
) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    exchange(client, server, "0")
    sent = client.send("1", to_service=SERVICE, option="commit")
    assert server.text("new") == "1"
    client.sync("setustatus", sent["uow_id"], user_status="stop")
    assert server.send("answer", sent["conversation"])["committed_at"] == sent["committed_at"]
    assert [row["user_status"] for row in server.both()] == ["stop", None]
    # The client ends a conversation while its server holds a unit of it: that one is committed, and no answer.
    again = client.send("2", to_service=SERVICE, option="commit")
    assert server.text("new") == "2"
    server.send("late", again["conversation"])
    client.call("end_conversation", again["conversation"])
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="has ended"):
        server.both()
    assert server.sync("commit", again["uow_id"])["conversation_state"] == "eoc"
    assert server.sync("backout")["status"] == "BACKEDOUT"


def test_what_a_transaction_that_was_rolled_back_had_in_hand_is_not(
    broker: psycopg.Connection, party: Callable[..., Party]
) -> None:
    client, server = party("c"), party("s", autocommit=False).serve(SERVICE)
    server.connection.commit()
    exchange(client, server, "0", server.connection.commit)
    asked = client.send("1", to_service=SERVICE, option="commit")
    other = client.send("2", to_service=SERVICE, option="commit")
    for _ in range(2):
        with server.connection.transaction(force_rollback=True):
            assert server.text("new") == "1"
            server.send("lost", asked["conversation"])
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="no unit of work is open"):
            server.sync("commit")
        server.connection.rollback()
    with server.connection.transaction():
        assert server.text("new") == "1"
        with server.connection.transaction(force_rollback=True):
            server.send("lost", asked["conversation"])
            assert len(server.both()) == 2
        assert server.sync("commit")["uow_id"] == asked["uow_id"]
    assert client.receive(asked["conversation"]) is None
    with server.connection.transaction():
        assert server.text("new") == "2"
    server.connection.rollback()
    assert server.sync("commit")["uow_id"] == other["uow_id"]


def test_a_unit_that_is_over_is_not_committed(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock
) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    exchange(client, server, "0")
    conversation = client.send("1", to_service=SERVICE, option="commit")["conversation"]
    assert server.text("new") == "1"
    server.send("answer", conversation)
    clock.advance("2 days")
    for uow_id in (None, "both"):
        with pytest.raises(errors.ObjectNotInPrerequisiteState):
            server.sync("commit", uow_id)
    clock.advance("-2 days")
    call(broker, "drop_service", *SERVICE.split("/"))
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="DISCARDED"):
        server.both()


def test_units_of_several_messages_and_further_units(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    conversation = exchange(client, server, "0")
    for n in range(2):
        # In a conversation that is bound, from a client that has nothing in hand.
        client.send(f"{n} a", conversation)
        client.send(f"{n} b", conversation)
        assert client.sync("commit")["status"] == "ACCEPTED"
        assert [server.text("old"), server.text(conversation)] == [f"{n} a", f"{n} b"]
        client.send(f"{n} c", conversation, option="commit")
        assert server.sync("commit")["status"] == "PROCESSED"
        assert [server.text("any"), server.sync("commit")["status"]] == [f"{n} c", "PROCESSED"]
    # In one that is not, the second unit has the place of the first.
    first = client.send("1", to_service=SERVICE)
    assert client.sync("commit")["status"] == "ACCEPTED"
    client.send("other", to_service=SERVICE, option="commit")
    client.send("2", first["conversation"])
    client.sync("commit")
    client.sync("cancel", first["uow_id"])
    assert [server.text("new"), server.text("new"), server.text("any")] == ["2", "other", None]


def test_messages_that_are_in_the_ledger_of_messages(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    """As the first ones of units are that come from other brokers, and all that were sent before revision 0030."""
    client, server = party("c"), party("s").serve(SERVICE)
    exchange(client, server, "0")
    client.send("1", to_service=SERVICE, option="commit")
    client.request(SERVICE, "2", "3")
    rows(broker, "insert into pgps_internal.unit_message (at_no, unit_no, number, message) "
         "select u.at_no, u.unit_no, 1, u.message from pgps_internal.unit u where u.message is not null")  # fmt: skip
    rows(broker, "update pgps_internal.unit set message = null")
    assert value(broker, "select array_agg(messages order by uow_id) from pgps.units_of_work") == [1, 2]
    assert [server.text("new"), server.sync("commit")["status"]] == ["1", "PROCESSED"]
    assert [server.text("new"), server.text("any"), server.text("any")] == ["2", "3", None]
    assert server.sync("commit")["status"] == "PROCESSED"


def test_a_session_goes_on_in_another_segment(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    """What it has in hand, and the entry that it holds, are in an older one."""
    client, server = party("c"), party("s").serve(SERVICE)
    for n in range(5):
        exchange(client, server, str(n))
        asked = client.send("over", to_service=SERVICE, option="commit")
        assert server.text("new") == "over"
        skip_to_next_segment(broker)
        server.send("answer", asked["conversation"])
        if n % 2:
            skip_to_next_segment(broker)
        assert [row["status"] for row in server.both()] == ["PROCESSED", "ACCEPTED"]
        assert client.text(asked["conversation"]) == "answer"
        client.sync("commit")
    assert serve_all(server) == []
