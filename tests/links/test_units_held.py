"""A unit of work or conversation that an open transaction holds is late; what others send over links is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fix_broker import call, rows, value
from tests.fix_db import wait_until
from tests.fix_units import make_service
from tests.links.rig import Broker, settle
from tests.links.unit_scene import SERVICE, Scene

OTHER = "shop/orders/sell"


@pytest.fixture
def busy(scene: Scene) -> Iterator[Scene]:
    """Two services, and nobody who waits for long."""
    for broker in (scene.home, scene.shop):
        make_service(broker.admin, OTHER, status_lifetime=9, lifetime="1 hour", store="broker")
        rows(broker.admin, "set statement_timeout = '10s'")
    call(scene.shop.admin, "grant_service", *OTHER.split("/"), "send", "pgps_neighbour")
    call(scene.home.admin, "place_service", *OTHER.split("/"), "b")
    scene.settle()
    yield scene
    for broker in (scene.home, scene.shop):
        rows(broker.admin, "reset statement_timeout")


def late(broker: Broker) -> int:
    """Return how many events a broker has left for later."""
    count: int = value(
        broker.admin,
        "select count(*) from pgps_internal.failure f join pgps_internal.subscription s using (subscription_id) "
        "where s.name = 'pgps_uow' and f.state = 'retrying'",
    )
    return count


def caught_up(scene: Scene) -> bool:
    scene.settle()
    return not late(scene.home) and not late(scene.shop)


def test_a_server_that_receives_holds_up_no_other_conversation(busy: Scene) -> None:
    ann, bob = busy.client("ann"), busy.client("bob")
    server, seller = busy.server(), busy.server("seller", OTHER)
    held = ann.request(SERVICE, "held")
    other = ann.request(SERVICE, "of ann, too")
    busy.settle()
    with server.connection.transaction(force_rollback=True):
        assert server.text("new") == "held"
        # In this order for whoever serves that conversation.
        ann.sync("cancel", held["uow_id"])
        ann.send("more", held["conversation"], option="commit")
        bobs = bob.request(OTHER, "bob's")
        ann.sync("setustatus", other["uow_id"], user_status="hurry")
        busy.settle()
        assert late(busy.shop) == 2
        assert seller.text("new") == "bob's"
        seller.sync("commit")
        found = server.receive("new")
        assert found is not None
        assert (bytes(found["message"]), found["user_status"]) == (b"of ann, too", "hurry")
        busy.settle()
        assert bob.status(bobs["uow_id"]) == "PROCESSED"
        assert late(busy.shop) == 2
    wait_until(lambda: caught_up(busy))
    assert ann.status(held["uow_id"]) == "CANCELLED"
    assert {server.text("new"), server.text("new")} == {"more", "of ann, too"}


def test_the_messages_of_a_held_conversation_come_in_order(busy: Scene) -> None:
    ann, bob = busy.client("ann"), busy.client("bob")
    server, seller = busy.server(), busy.server("seller", OTHER)
    first = ann.request(SERVICE, "1")
    busy.settle()
    assert server.text("new") == "1"
    server.connection.autocommit = False
    server.sync("commit")
    for number in range(2, 6):
        ann.send(str(number), first["conversation"], option="commit")
        bob.request(OTHER, str(number))
        busy.settle()
    assert late(busy.shop) == 4
    for number in range(2, 6):
        assert seller.text("new") == str(number)
        seller.sync("commit")
    server.connection.commit()
    server.connection.autocommit = True
    # Whatever is due first.
    ann.send("6", first["conversation"], option="commit")
    wait_until(lambda: caught_up(busy))
    for number in range(2, 7):
        assert server.text() == str(number)
        server.sync("commit")
    busy.settle()
    assert ann.status(first["uow_id"]) == "PROCESSED"


def test_a_client_holds_up_nobody_elses_status(busy: Scene) -> None:
    ann, bob = busy.client("ann"), busy.client("bob")
    server, seller = busy.server(), busy.server("seller", OTHER)
    anns, bobs = ann.request(SERVICE, "ann's")["uow_id"], bob.request(OTHER, "bob's")["uow_id"]
    busy.settle()
    with ann.connection.transaction(force_rollback=True):
        ann.sync("setustatus", anns, user_status="hurry")
        for party, text in ((server, "ann's"), (seller, "bob's")):
            assert party.text("new") == text
            party.sync("commit")
        busy.settle()
        assert late(busy.home) == 2
        assert bob.status(bobs) == "PROCESSED"
        assert value(busy.home.admin, "select status from pgps.units_of_work where uow_id = %s", [anns]) == "ACCEPTED"
    wait_until(lambda: caught_up(busy))
    assert ann.status(anns) == "PROCESSED"


def test_what_is_left_for_later_is_looked_at_now_and_then(busy: Scene) -> None:
    ann, server = busy.client("ann"), busy.server()
    held = ann.request(SERVICE, "held")
    busy.settle()
    with server.connection.transaction(force_rollback=True):
        assert server.text("new") == "held"
        ann.sync("cancel", held["uow_id"])
        settle([busy.home, busy.shop], busy.links)
        assert value(busy.shop.admin, "select pgps.relay_units()") == 1
        for _ in range(20):
            rows(busy.shop.admin, "update pgps_internal.failure set due_at = pgps_internal.clock()")
            assert value(busy.shop.admin, "select pgps.relay_units()") == 1
        due = "select due_at - pgps_internal.clock() <= '1 second', sqlstate from pgps_internal.failure"
        assert rows(busy.shop.admin, due) == [(True, "55P03")]
    wait_until(lambda: caught_up(busy))
    assert ann.status(held["uow_id"]) == "CANCELLED"
