"""A unit that times out in the hands of its server: the server learns that before it goes on with another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fix_broker import refused
from tests.fix_clock import Clock
from tests.fix_units import Party, Row
from tests.sql.units.conftest import SERVICE

pytestmark = pytest.mark.usefixtures("broker")


def _two(client: Party) -> tuple[Row, Row]:
    """Send a conversation with two units of two messages, of which the first lives for a minute."""
    first = client.request(SERVICE, "1.1", "1.2", lifetime="1 minute", status_lifetime=9)
    client.send("2.1", first["conversation"])
    client.send("2.2", first["conversation"])
    return first, client.sync("commit", conversation=first["conversation"])


@pytest.mark.parametrize("which", ["by id", "any", "old"])
@pytest.mark.parametrize("in_one", [False, True], ids=["calls", "a transaction"])
def test_receiving_on_is_refused_once(party: Callable[..., Party], clock: Clock, which: str, in_one: bool) -> None:
    clock.set(clock.now())
    client, server = party("c"), party("s").serve(SERVICE)
    first, second = _two(client)
    conversation = first["conversation"] if which == "by id" else which
    if in_one:
        server.connection.autocommit = False
    assert server.text() == "1.1"
    clock.advance("61 seconds")
    with refused("55000", f'"{first["uow_id"]}" is TIMEOUT', "goes on"):
        server.receive(conversation)
    if in_one:
        server.connection.rollback()
        server.connection.autocommit = True
    assert client.status(first["uow_id"]) == "TIMEOUT"
    # It knows, and goes on.
    assert [server.text(first["conversation"]), server.text(first["conversation"])] == ["2.1", "2.2"]
    assert server.sync("commit")["uow_id"] == second["uow_id"]


@pytest.mark.parametrize("option", ["commit", "both", "backout", "cancel"])
def test_syncpoint_does_not_go_over_to_another_unit(party: Callable[..., Party], clock: Clock, option: str) -> None:
    clock.set(clock.now())
    client, server = party("c"), party("s").serve(SERVICE)
    bound = client.request(SERVICE, "0")
    assert server.text() == "0"
    server.sync("commit")
    client.send("1", bound["conversation"], lifetime="1 minute", status_lifetime=9)
    late = client.sync("commit")["uow_id"]
    assert server.text() == "1"
    answer = server.send("answer", bound["conversation"], status_lifetime=9)["uow_id"]
    clock.advance("61 seconds")
    with refused("55000", f'"{late}" is TIMEOUT', "goes on"):
        if option == "both":
            server.both()
        else:
            server.sync(option)
    assert server.status(answer) == "RECEIVED"
    assert server.sync("backout")["uow_id"] == answer


def test_an_answer_to_one_that_is_over_is_refused_for_that(party: Callable[..., Party], clock: Clock) -> None:
    clock.set(clock.now())
    client, server = party("c"), party("s").serve(SERVICE)
    sent = client.request(SERVICE, "1", lifetime="1 minute", status_lifetime=9)
    assert server.text() == "1"
    clock.advance("61 seconds")
    for _ in range(2):
        with refused("55000", f'"{sent["uow_id"]}" is TIMEOUT'):
            server.send("answer", sent["conversation"])


def test_after_a_refused_commit_the_next_one_is_received(party: Callable[..., Party], clock: Clock) -> None:
    clock.set(clock.now())
    client, server = party("c"), party("s").serve(SERVICE)
    first, second = _two(client)
    assert [server.text(), server.text()] == ["1.1", "1.2"]
    clock.advance("61 seconds")
    with refused("55000", "TIMEOUT"):
        server.sync("commit")
    assert server.text(first["conversation"]) == "2.1"
    assert server.sync("commit")["uow_id"] == second["uow_id"]


@pytest.mark.parametrize("option", ["commit", "cancel"])
def test_who_was_told_by_the_commit_is_not_told_again(party: Callable[..., Party], clock: Clock, option: str) -> None:
    clock.set(clock.now())
    client, server = party("c"), party("s").serve(SERVICE)
    late = client.request(SERVICE, "1", lifetime="1 minute", status_lifetime=9)["uow_id"]
    assert server.text() == "1"
    with refused("55000", f'"{late}" is TIMEOUT'), server.connection.transaction():
        server.sync(option)
        clock.advance("61 seconds")
    following = client.request(SERVICE, "2", status_lifetime=9)
    with server.connection.transaction():
        assert server.text() == "2"
        server.send("answer", following["conversation"])
        assert [row["status"] for row in server.both()] == ["PROCESSED", "ACCEPTED"]
    assert client.text() == "answer"
