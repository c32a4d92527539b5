"""What is over, dropped, revoked or cancelled counts no more, and what is not, does."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, refused, rows, value
from tests.fix_clock import Clock
from tests.fix_units import Party, make_service
from tests.links.conftest import brokers  # noqa: F401 - a fixture
from tests.links.unit_scene import Scene, scene  # noqa: F401 - a fixture
from tests.sql.units.conftest import SERVICE

PARTS = SERVICE.split("/")
Parties = Callable[..., Party]


@pytest.mark.parametrize("longer", ["unit", "service"])
def test_reclaim_keeps_the_conversation_of_what_is_being_sent(
    broker: psycopg.Connection, party: Parties, clock: Clock, longer: str
) -> None:
    if longer == "service":
        call(broker, "alter_service", *PARTS, lifetime="30 days")
    client, other = party("c"), party("o")
    lifetime = "30 days" if longer == "unit" else None
    sent = client.send("part one", to_service=SERVICE, lifetime=lifetime)
    number = int(sent["conversation"][1:], 16)
    clock.advance("2 days")
    for _ in range(3):
        rows(
            broker,
            "select setval('pgps_internal.uow_no_seq', (last_value / 65536 + 1) * 65536) from pgps_internal.uow_no_seq",
        )
        other.send("", to_service=SERVICE, option="commit")
        call(broker, "reclaim")
    assert value(broker, "select count(*) from pgps_internal.conversation where conversation_no = %s", [number]) == 1
    client.send("part two", sent["conversation"])
    assert client.sync("commit", sent["uow_id"])["status"] == "ACCEPTED"
    server = party("s").serve(SERVICE)
    assert [server.text(sent["conversation"]) for _ in range(2)] == ["part one", "part two"]
    server.send("answer", sent["conversation"])
    assert len(server.both(sent["conversation"])) == 2


def test_what_a_dropped_service_had_in_hand_is_open_no_more(broker: psycopg.Connection, party: Parties) -> None:
    other = make_service(broker, "shop/orders/other", deferred=True)
    client, server = party("c"), party("s").serve(SERVICE).serve(other)
    client.request(SERVICE, "one")
    assert server.text("new") == "one"
    client.send("being sent", to_service=SERVICE)
    call(broker, "drop_service", *PARTS)
    second = client.send("two", to_service=other)
    assert client.sync("commit")["uow_id"] == second["uow_id"]
    assert server.text("new") == "two"
    server.send("answer", second["conversation"])
    assert [row["status"] for row in server.both()] == ["PROCESSED", "ACCEPTED"]
    # With nothing else open it says what has become of it.
    with refused("55000", "DISCARDED"):
        server.sync("commit")


def test_who_may_not_serve_any_more_receives_nothing(
    broker: psycopg.Connection, party: Parties, role: Callable[..., str]
) -> None:
    name = role("server")
    for privilege in ("send", "serve"):
        call(broker, "grant_service", *PARTS, privilege, name)
    client, server = party("c"), party("s", role=name).serve(SERVICE)
    talk = client.request(SERVICE, "one")["conversation"]
    assert server.text("new") == "one"
    server.sync("commit")
    client.send("two", talk)
    client.send("three", talk)
    client.sync("commit")
    assert server.text("any") == "two"
    call(broker, "revoke_service", *PARTS, "serve", name)
    # What it holds it receives to its end.
    assert server.text(talk) == "three"
    server.sync("commit")
    client.send("secret", talk, option="commit")
    for which in ("any", "old"):
        assert server.receive(which) is None
    with refused("42501", "may not serve"):
        server.receive(talk)
    # It still may be the client of another conversation.
    own = server.request(SERVICE, "mine")["conversation"]
    boss = party("b").serve(SERVICE)
    assert boss.text(own) == "mine"
    boss.send("answer", own)
    boss.both(own)
    assert server.text("any") == "answer"
    server.sync("commit")
    call(broker, "grant_service", *PARTS, "serve", name)
    assert server.text("any") == "secret"


def test_what_a_dropped_service_had_counts_no_more(broker: psycopg.Connection, party: Parties) -> None:
    other = make_service(broker, "shop/orders/other", deferred=True)
    client, server = party("c"), party("s").serve(SERVICE)
    for _ in range(3):
        client.request(SERVICE, "")
        assert server.text("new") == ""
        server.sync("commit")
    call(broker, "configure", "uow_max_active", "2")
    for _ in range(2):
        client.send("", to_service=SERVICE, option="commit")
    for _ in range(2):
        with refused("54000"):
            client.send("", to_service=SERVICE, option="commit")
    call(broker, "drop_service", *PARTS)
    for _ in range(2):
        client.send("", to_service=other, option="commit")


def test_what_is_over_at_the_broker_that_serves_counts_no_more(scene: Scene) -> None:  # noqa: F811
    call(scene.shop.admin, "alter_service", *PARTS, max_uows=2, deferred=True)
    client = scene.client()
    sent = [client.request(SERVICE, str(n))["uow_id"] for n in range(2)]
    scene.settle()
    assert [client.status(one) for one in sent] == ["ACCEPTED", "ACCEPTED"]
    refused_one = client.request(SERVICE, "too many")["uow_id"]
    scene.settle()
    assert client.sync("query", refused_one)["user_status"] == "refused: 54000"
    client.sync("cancel", sent[0])
    scene.settle()
    assert client.status(sent[0]) == "CANCELLED"
    again = client.request(SERVICE, "again")["uow_id"]
    scene.settle()
    assert client.status(again) == "ACCEPTED"


def test_who_waits_is_woken_for_the_unit_behind_a_cancelled_one(broker: psycopg.Connection, party: Parties) -> None:
    client, one, two = party("c"), party("1").serve(SERVICE), party("2").serve(SERVICE)
    (channel,) = [row[0] for row in rows(broker, "select channel from pgps.services")]
    talk = client.request(SERVICE, "first")["conversation"]
    client.send("second", talk, option="commit")
    assert one.text("new") == "first"
    rows(two.connection, f"listen {channel}")
    assert two.receive("new") is None
    assert not list(two.connection.notifies(timeout=0.2))
    one.sync("cancel")
    assert [told.channel for told in two.connection.notifies(timeout=10, stop_after=1)] == [channel]
    assert two.text("new") == "second"
