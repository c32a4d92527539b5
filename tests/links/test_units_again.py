"""Units of work between brokers of which one was put back, says things twice, drops a service or restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, refused, rows, value
from tests.fix_units import Party, make_service
from tests.links.rig import Broker, open_link
from tests.links.unit_scene import SERVICE, Scene

OTHER = "shop/orders/sell"


def place_other(scene: Scene) -> None:
    """Have another service at the shop, which the home broker's clients use, too."""
    for broker in (scene.home, scene.shop):
        make_service(broker.admin, OTHER, status_lifetime=9, lifetime="1 hour", store="broker")
    call(scene.shop.admin, "grant_service", *OTHER.split("/"), "send", "pgps_neighbour")
    call(scene.home.admin, "place_service", *OTHER.split("/"), "b")
    scene.settle()


def back_up(scene: Scene, copied: Callable[[Broker], Broker], which: str) -> Broker:
    """Copy a broker's database as it is now, and go on."""
    scene.links[0].close()
    backup = copied(getattr(scene, which))
    scene.links[0] = open_link(scene.home, scene.shop, "to_b")
    return backup


def put_back(scene: Scene, which: str, backup: Broker) -> None:
    """Have the copy take the place of the broker; its link is to be opened."""
    scene.links[0].close()
    setattr(scene, which, backup)
    with refused("55000", "restored", "resume_links"):
        open_link(scene.home, scene.shop, "to_b")


def resume(scene: Scene, backup: Broker) -> None:
    call(backup.admin, "resume_links", "restored")
    scene.links[0] = open_link(scene.home, scene.shop, "to_b")
    scene.settle()


def test_what_a_client_broker_numbers_again_is_not_taken_for_what_it_was(
    copied: Callable[[Broker], Broker], scene: Scene
) -> None:
    place_other(scene)
    backup = back_up(scene, copied, "home")
    ann = scene.client("ann")
    first = ann.request(SERVICE, "ann's")
    scene.settle()
    ann.connection.close()
    put_back(scene, "home", backup)
    # Also before somebody has resumed.
    bob = scene.client("bob")
    second = bob.request(OTHER, "bob's")
    ids = ("conversation", "uow_id")
    assert [first[name] for name in ids] == [second[name] for name in ids]
    resume(scene, backup)
    server, seller = scene.server(), scene.server("seller", OTHER)
    got = seller.receive("new")
    assert got is not None
    assert (bytes(got["message"]), got["service"], got["sender_token"].rpartition("/")[2]) == (b"bob's", "sell", "bob")
    scene.settle()
    assert bob.status(second["uow_id"]) == "DELIVERED"
    # The client of the first one is gone with all that its broker knew; the answer is nobody else's.
    old = server.receive("new")
    assert old is not None
    assert bytes(old["message"]) == b"ann's"
    lost = server.send("for ann", old["conversation"])["uow_id"]
    server.both()
    scene.settle()
    assert bob.status(second["uow_id"]) == "DELIVERED"
    assert bob.receive() is None
    refusal = server.sync("query", lost)
    assert (refusal["status"], refusal["user_status"]) == ("CANCELLED", "refused: 42704")
    seller.send("for bob", got["conversation"])
    seller.both()
    scene.settle()
    assert bob.status(second["uow_id"]) == "PROCESSED"
    assert bob.text(second["conversation"]) == "for bob"


def test_what_a_serving_broker_numbers_again_in_a_conversation_is_another_unit(
    copied: Callable[[Broker], Broker], scene: Scene
) -> None:
    client, server = scene.client(), scene.server()
    conversation = client.request(SERVICE, "begin")["conversation"]
    scene.settle()
    at_shop = server.receive("new")
    assert at_shop is not None
    server.sync("commit")
    scene.settle()
    server.connection.close()
    backup = back_up(scene, copied, "shop")
    server = scene.server()
    lost = server.send("lost", at_shop["conversation"], option="commit")["uow_id"]
    scene.settle()
    assert client.text(conversation) == "lost"
    client.sync("commit")
    server.connection.close()
    put_back(scene, "shop", backup)
    server = scene.server()
    again = server.send("again", at_shop["conversation"], option="commit")["uow_id"]
    assert again == lost
    resume(scene, backup)
    # That the lost one was processed is told after this one was sent.
    assert server.status(again) == "ACCEPTED"
    assert client.text(conversation) == "again"
    scene.settle()
    assert server.status(again) == "DELIVERED"
    client.sync("commit")
    scene.settle()
    assert server.status(again) == "PROCESSED"


def whole(service: str = SERVICE) -> dict[str, Any]:
    """A body as brokers send it."""
    class_, server_name, name = service.split("/")
    return {"class": class_, "server": server_name, "service": name, "role": "r", "token": "t", "to_server": True,
            "is_uow": True, "is_persistent": False, "began_at": "2026-01-01", "ends_at": "2100-01-01"}  # fmt: skip


def say(
    broker: Broker, verb: str, conversation: int, unit: int | None, body: Any, messages: list[bytes] | None
) -> None:
    """Have a broker, a neighbour, say something about a unit that it sends."""
    rows(
        broker.admin,
        "insert into pgps_event.pgps_uow (to_broker, verb, client_broker, conversation, unit, body, messages)"
        " values ('b', %s, 'a', %s, %s, %s, %s)",
        [verb, conversation, unit, Jsonb(body), messages],
    )


@pytest.mark.parametrize("verb", ["cancel", "note"])
def test_a_unit_that_is_sent_twice_is_there_once_and_holds_up_nobody(scene: Scene, verb: str) -> None:
    for _ in range(2):
        say(scene.home, "unit", 900, 901, whole(), [b"twice"])
    say(scene.home, verb, 900, 901, {"user_status": "x"}, None)
    client, server = scene.client(), scene.server()
    client.request(SERVICE, "once")
    scene.settle()
    texts = ["twice", "once"] if verb == "note" else ["once"]
    assert [server.text("new") for _ in texts] == texts
    assert server.receive("new") is None


def test_a_unit_without_messages_or_a_number_is_refused(scene: Scene) -> None:
    say(scene.home, "unit", 1, 1, whole(), [])
    say(scene.home, "unit", 2, None, whole(), [b"x"])
    scene.settle()
    assert value(scene.shop.admin, "select count(*) from pgps_internal.unit") == 0
    assert scene.server().receive("new") is None


def test_the_right_to_send_is_that_to_the_service_of_the_conversation(scene: Scene) -> None:
    place_other(scene)
    client, server = scene.client(), scene.server()
    begun = client.request(SERVICE, "1")
    scene.settle()
    call(scene.shop.admin, "revoke_service", *SERVICE.split("/"), "send", "pgps_neighbour")
    say(scene.home, "unit", int(begun["conversation"][1:], 16), 999, whole(OTHER), [b"by another name"])
    scene.settle()
    assert server.text("new") == "1"
    server.sync("commit")
    assert server.receive() is None
    assert client.status(begun["uow_id"]) == "ACCEPTED"


def test_what_is_in_a_service_that_is_dropped_is_told(scene: Scene) -> None:
    client, server = scene.client(), scene.server()
    waits, held = (client.request(SERVICE, text) for text in ("waits", "held"))
    done = client.request(SERVICE, "done")
    scene.settle()
    assert server.text("new") == "waits"
    server.sync("backout")
    call(scene.shop.admin, "drop_service", *SERVICE.split("/"))
    scene.settle()
    for sent in (waits, held, done):
        assert client.status(sent["uow_id"]) == "DISCARDED"
    # In its conversations nothing is taken any more.
    late = client.send("late", waits["conversation"], option="commit")["uow_id"]
    scene.settle()
    row = client.sync("query", late)
    assert (row["status"], row["user_status"]) == ("CANCELLED", "refused: 42704")


def test_an_answer_in_a_service_that_the_client_broker_drops_is_told(scene: Scene) -> None:
    client, server = scene.client(), scene.server()
    client.request(SERVICE, "1")
    scene.settle()
    got = server.receive("new")
    assert got is not None
    answer = server.send("2", got["conversation"])["uow_id"]
    server.both()
    scene.settle()
    assert server.status(answer) == "ACCEPTED"
    call(scene.home.admin, "drop_service", *SERVICE.split("/"))
    scene.settle()
    assert server.status(answer) == "DISCARDED"


def restart(scene: Scene) -> None:
    """Begin another life of the shop."""
    rows(scene.shop.admin, "delete from pgps_internal.broker_life_mark")
    rows(scene.shop.admin, "select pgps_internal.note_life()")


def test_what_a_restart_discards_is_told_so_many_at_a_time_and_waits_for_nobody(scene: Scene) -> None:
    client = scene.client()
    kept = client.request(SERVICE, "kept")["uow_id"]
    lost = [client.request(SERVICE, f"lost {n}", store="no")["uow_id"] for n in range(5)]
    scene.settle()
    restart(scene)
    server: Party = scene.server()
    rows(scene.shop.admin, "set lock_timeout = '2s'")
    first = "select min(unit_no) from pgps_internal.unit where not is_persistent"
    holder = scene.connect(dsn=scene.shop.dsn, autocommit=False)
    rows(holder, f"select from pgps_internal.unit where unit_no = ({first}) for update")
    scene.settle()
    assert [client.status(uow_id) for uow_id in lost] == ["ACCEPTED", *["DISCARDED"] * 4]
    holder.rollback()
    scene.settle()
    assert [client.status(uow_id) for uow_id in lost] == ["DISCARDED"] * 5
    assert client.status(kept) == "ACCEPTED"
    lost = [client.request(SERVICE, f"lost {n}", store="no")["uow_id"] for n in range(5)]
    scene.settle()
    restart(scene)
    with scene.connect(dsn=scene.shop.dsn, autocommit=False) as worker:
        told = [value(worker, "select pgps_internal.tell_what_happened(2)") for _ in range(4)]
        assert told == [2, 2, 1, 0]
        # What goes on waiting is received meanwhile.
        server = scene.server("another")
        assert server.text("new") == "kept"
    scene.settle()
    assert [client.status(uow_id) for uow_id in lost] == ["DISCARDED"] * 5
