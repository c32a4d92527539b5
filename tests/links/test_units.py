"""Services at another broker: conversations over links, exactly once both ways, with the same statuses as there."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.fix_broker import call, rows, value
from tests.fix_clock import Clock
from tests.links.unit_scene import SERVICE, Scene


def test_a_conversation_is_one_both_ways_and_its_sender_sees_what_becomes_of_it(scene: Scene) -> None:
    client, server, other = scene.client(), scene.server(), scene.server("other")
    request = client.request(SERVICE, "one", "two", user_status="mine")
    assert (request["status"], request["conversation_state"]) == ("ACCEPTED", "open")
    assert server.receive("any") is None
    scene.settle()
    got = server.receive("new")
    assert got is not None
    assert (bytes(got["message"]), got["status"], got["user_status"]) == (b"one", "RECV_FIRST", "mine")
    assert (got["sender"], got["sender_token"]) == ("pgps_neighbour", f"a/{client.connection.info.user}/client")
    assert client.status(request["uow_id"]) == "ACCEPTED"
    scene.settle()
    assert client.status(request["uow_id"]) == "DELIVERED"
    server.sync("backout")
    scene.settle()
    again = client.sync("query", request["uow_id"])
    assert (again["status"], again["attempts"]) == ("ACCEPTED", 1)
    # Received, answered and committed: at the sender it is PROCESSED when it is, and not before.
    with server.connection.transaction():
        conversation = server.receive("new")["conversation"]  # type: ignore[index]
        assert server.text(conversation) == "two"
        answer = server.send("done", conversation)["uow_id"]
        assert [row["status"] for row in server.both(conversation)] == ["PROCESSED", "ACCEPTED"]
        scene.settle()
        assert client.status(request["uow_id"]) == "ACCEPTED"
    assert client.receive("any") is None
    scene.settle()
    assert client.status(request["uow_id"]) == "PROCESSED"
    # The client answers in the conversation, which is bound to the server now.
    assert client.text(request["conversation"]) == "done"
    client.send("thanks", request["conversation"])
    client.both()
    assert server.status(answer) == "ACCEPTED"
    scene.settle()
    assert server.status(answer) == "PROCESSED"
    assert other.receive("any") is None
    assert server.text("old") == "thanks"


def test_user_statuses_and_the_end_of_a_conversation_cross_both_ways(scene: Scene) -> None:
    client, server = scene.client(), scene.server()
    request = client.request(SERVICE, "long")
    second, conversation = request["uow_id"], request["conversation"]
    scene.settle()
    got = server.receive("new")
    assert got is not None
    server.sync("setustatus", user_status="packing")
    scene.settle()
    seen = client.sync("query", second)
    assert (seen["status"], seen["user_status"]) == ("DELIVERED", "packing")
    client.sync("setustatus", second, user_status="hurry")
    scene.settle()
    assert server.sync("query")["user_status"] == "hurry"
    server.sync("cancel")
    scene.settle()
    assert client.status(second) == "CANCELLED"
    client.send("bye", conversation)
    client.sync("eoc")
    scene.settle()
    # Cancelling has bound the conversation to nobody.
    last = server.receive("new")
    assert last is not None
    assert (bytes(last["message"]), last["conversation_state"]) == (b"bye", "eoc")
    server.sync("commit")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="has ended"):
        server.send("late", got["conversation"])


def test_what_happens_without_anybody_doing_it_is_told_too(scene: Scene) -> None:
    clocks = [Clock(broker.admin) for broker in (scene.home, scene.shop)]
    client, server = scene.client(), scene.server()
    slow = client.request(SERVICE, "slow", lifetime="1 minute")["uow_id"]
    held = client.request(SERVICE, "held")["uow_id"]
    lost = client.request(SERVICE, "lost", store="no")["uow_id"]
    scene.settle()
    assert server.text("new") == "slow"
    assert server.text("new") == "held"
    scene.settle()
    assert [client.status(uow_id) for uow_id in (slow, held, lost)] == ["DELIVERED", "DELIVERED", "ACCEPTED"]
    for clock in clocks:
        clock.advance("2 minutes")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="TIMEOUT"):
        server.sync("commit", _unit(scene, "slow"))
    # Until the broker that has it says so, its sender is not told that it was too late.
    assert client.status(slow) == "DELIVERED"
    scene.settle()
    assert client.status(slow) == "TIMEOUT"
    server.call("logoff")
    scene.settle()
    back = client.sync("query", held)
    assert (back["status"], back["attempts"]) == ("ACCEPTED", 1)
    rows(scene.shop.admin, "delete from pgps_internal.broker_life_mark")
    rows(scene.shop.admin, "select pgps_internal.note_life()")
    scene.settle()
    assert [client.status(uow_id) for uow_id in (slow, held, lost)] == ["TIMEOUT", "ACCEPTED", "DISCARDED"]


def _unit(scene: Scene, message: str) -> str:
    """Return the id that a unit with one message has at the shop."""
    found: str = value(
        scene.shop.admin,
        "select 'U' || upper(to_hex(unit_no)) from pgps_internal.unit_message where message = %s",
        [message.encode()],
    )
    return found


def test_cancelling_is_decided_where_the_unit_is(scene: Scene) -> None:
    client, server = scene.client(), scene.server()
    waits, taken = (client.request(SERVICE, text)["uow_id"] for text in ("waits", "taken"))
    scene.settle()
    assert server.text("new") == "waits"
    server.sync("backout")
    assert client.sync("cancel", waits)["status"] == "ACCEPTED"
    assert server.text("new") == "waits"
    server.sync("commit")
    client.sync("cancel", taken)
    scene.settle()
    # The first one was processed before the wish came, the second one waited still.
    assert [client.status(uow_id) for uow_id in (waits, taken)] == ["PROCESSED", "CANCELLED"]
    assert server.receive("any") is None


def test_what_the_other_broker_does_not_take_is_cancelled_there(scene: Scene) -> None:
    client = scene.client()
    call(scene.shop.admin, "alter_service", *SERVICE.split("/"), max_message_bytes=3)
    long = client.request(SERVICE, "long")["uow_id"]
    scene.settle()
    call(scene.shop.admin, "revoke_service", *SERVICE.split("/"), "send", "pgps_neighbour")
    short = client.request(SERVICE, "ab")["uow_id"]
    scene.settle()
    seen = [client.sync("query", uow_id) for uow_id in (long, short)]
    assert [(row["status"], row["user_status"]) for row in seen] == [
        ("CANCELLED", "refused: 54000"),
        ("CANCELLED", "refused: 42501"),
    ]
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match='served at broker "b"'):
        client.serve(SERVICE)


def test_a_message_outside_of_units_of_work_crosses_too(scene: Scene) -> None:
    client, server = scene.client(), scene.server()
    sent = client.send("note", to_service=SERVICE, option="msg")
    scene.settle()
    got = server.receive("new", option="msg")
    assert got is not None
    assert (bytes(got["message"]), got["status"]) == (b"note", "RECV_NONE")
    server.send("noted", got["conversation"], option="msg")
    scene.settle()
    assert client.text(sent["conversation"]) == "noted"


def test_only_administrators_place_services(scene: Scene, role: Callable[..., str]) -> None:
    nobody: psycopg.Connection = scene.connect(role(), dsn=scene.home.dsn)
    for name, arguments in (("place_service", (*SERVICE.split("/"), "b")), ("relay_services", ())):
        with pytest.raises(errors.InsufficientPrivilege):
            call(nobody, name, *arguments)
    with pytest.raises(errors.InsufficientPrivilege):
        rows(nobody, "select pgps.relay_units()")
    with pytest.raises(errors.UndefinedObject):
        call(scene.home.admin, "place_service", "no", "such", "service", "b")
    with pytest.raises(errors.InvalidParameterValue):
        call(scene.home.admin, "place_service", *SERVICE.split("/"), "a")


def test_what_makes_no_sense_holds_up_nobody_elses_units(scene: Scene) -> None:
    class_, server_name, service = SERVICE.split("/")
    whole = {"class": class_, "server": server_name, "service": service, "role": "r", "token": "t", "to_server": True,
             "is_uow": True, "is_persistent": False, "began_at": "2026-01-01", "ends_at": "2100-01-01"}  # fmt: skip
    garbage: list[tuple[str, object, list[bytes] | None]] = [
        ("unit", None, None),
        ("unit", {**whole, "to_server": "maybe"}, [b"x"]),
        ("unit", {**whole, "is_persistent": None}, [b"x"]),
        ("unit", {**whole, "ends_at": "soon"}, [b"x"]),
        ("unit", {**whole, "is_uow": None}, [b"x"]),
        ("unit", [1], [b"x"]),
        ("end", {"ended": [1]}, None),
        ("nonsense", {}, None),
    ]
    for verb, body, messages in garbage:
        rows(
            scene.home.admin,
            "insert into pgps_event.pgps_uow (to_broker, verb, client_broker, conversation, unit, body, messages)"
            " values ('b', %s, 'a', 1, 1, %s, %s)",
            [verb, Jsonb(body), messages],
        )
    client, server = scene.client(), scene.server()
    request = client.request(SERVICE, "one")
    scene.settle()
    assert server.text("new") == "one"
    scene.settle()
    # What the other broker says of a unit makes no sense, either.
    for body in ({}, {"status": "NEVER", "attempts": 1}, {"status": "PROCESSED", "attempts": "x"}, [1]):
        rows(
            scene.shop.admin,
            "insert into pgps_event.pgps_uow (to_broker, verb, client_broker, conversation, unit, body)"
            " values ('a', 'status', 'a', %s, %s, %s)",
            [request["conversation"][1:], request["uow_id"][1:], Jsonb(body)],
        )
    scene.settle()
    server.sync("commit")
    scene.settle()
    assert client.status(request["uow_id"]) == "PROCESSED"


def test_times_of_a_unit_from_elsewhere_are_such_as_can_be_reckoned_with(scene: Scene) -> None:
    class_, server_name, service = SERVICE.split("/")
    body = {"class": class_, "server": server_name, "service": service, "role": "r", "token": "t", "to_server": True,
            "is_uow": True, "is_persistent": False, "began_at": "-infinity", "ends_at": "infinity"}  # fmt: skip
    rows(
        scene.home.admin,
        "insert into pgps_event.pgps_uow (to_broker, verb, client_broker, conversation, unit, body, messages)"
        " values ('b', 'unit', 'a', 1, 1, %s, '{x}')",
        [Jsonb(body)],
    )
    scene.settle()
    kept = "select isfinite(began_at), isfinite(ends_at), ends_at - began_at > '1 year' from pgps_internal.unit"
    assert rows(scene.shop.admin, kept) == [(True, True, True)]
    assert scene.server().text("new") == "x"
