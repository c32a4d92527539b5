"""An occurrence in hand for each registration, for parts of a program that work side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import column, make_type, publish, refused, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect

Name = Callable[..., str]


class Part:
    """What works on some registrations of a client."""

    def __init__(self, client: Client, *registrations: int) -> None:
        self._client = client
        self._among = [*registrations] if registrations else None

    def receive(self, event: str | None = None) -> list[int] | None:
        found = self._one("receive_event(%s, %s, null, null, %s::bigint[])", event)
        return None if found is None else self.tuples()

    def again(self) -> tuple[list[int], int] | None:
        found = self._one("re_receive_event(%s, null, %s::bigint[])")
        return None if found is None else (self.tuples(), found["attempt"])

    def tuples(self) -> list[int]:
        query = "select payload -> 'n' from pgps.fetch_tuples(%s, 0, 1000, null, %s::bigint[])"
        return column(self._client.connection, query, [self._client.name, self._among])

    def commit(self) -> int | None:
        query = "select pgps.commit_event(%s, null, null, %s::bigint[])"
        done: int | None = value(self._client.connection, query, [self._client.name, self._among])
        return done

    def _one(self, call: str, *given: Any) -> dict[str, Any] | None:
        return self._client.one(f"select * from pgps.{call}", params=[self._client.name, *given, self._among])


@pytest.fixture
def three(connect: Connect, own_database: str) -> tuple[psycopg.Connection, Client, Part, Part, Part]:
    """Return an administrator, a client of x and y, what works on x, on y, and on all."""
    admin = connect(dsn=own_database)
    client = Client(connect(dsn=own_database), "client")
    numbers = []
    for kind in ("x", "y"):
        make_type(admin, kind)
        numbers.append(client.register(kind)["registration"])
    for n in range(4):
        publish(admin, "xy"[n % 2], n)
    rows(admin, "select pgps.dispatch()")
    return admin, client, Part(client, numbers[0]), Part(client, numbers[1]), Part(client)


def test_parts_of_a_program_work_side_by_side(three: tuple[psycopg.Connection, Client, Part, Part, Part]) -> None:
    admin, client, x, y, whole = three
    assert (x.receive(), y.receive(), y.receive("y")) == ([0], [1], [3])
    assert (x.tuples(), y.tuples()) == ([0], [3])
    with refused("42704", "not registered"):
        y.receive("x")
    state = "select last_received_event, last_committed_event from pgps.registrations order by event_name"
    (received, committed), (_, of_y) = rows(admin, state)
    assert (received is None, committed, of_y is None) == (False, None, False)
    assert y.receive() is None, "and completes the one before"
    assert y.again() == ([3], 2), "though it is completed"
    assert x.again() == ([0], 2)
    assert whole.again() == ([0], 3), "the one that is in hand"
    with refused("55006", f"event {received} is pending"):
        client.call("disconnect_client")
    again = Client(client.connection, client.name)
    assert again.before is not None
    assert (again.before["last_received_event"], again.before["last_committed_event"] > received) == (received, True)
    assert (y.commit(), x.commit(), x.commit()) == (None, received, None)
    assert (x.receive(), whole.receive(), whole.receive()) == ([2], None, None)
    client.call("disconnect_client")
    latest = "select last_received_event = last_committed_event from pgps.clients"
    assert value(admin, latest) is True


def test_who_receives_among_all_completes_all(three: tuple[psycopg.Connection, Client, Part, Part, Part]) -> None:
    _, _, x, y, whole = three
    assert (x.receive(), y.receive()) == ([0], [1])
    assert (whole.receive(), whole.receive(), whole.receive()) == ([2], [3], None)
    assert (x.commit(), y.commit()) == (None, None)


def test_what_is_in_hand_of_each_outlives_the_segments_of_the_ledger(
    three: tuple[psycopg.Connection, Client, Part, Part, Part],
) -> None:
    admin, _, x, y, whole = three

    def turn(place: int) -> None:
        rows(admin, "select setval('pgps_internal.client_mark_id_seq', %s)", [16384 * place + 5])
        rows(admin, "select pgps.reclaim(100)")

    assert (x.receive(), y.receive()) == ([0], [1])
    rows(admin, "select setval('pgps_internal.client_mark_id_seq', %s)", [16384 + 5])
    assert y.receive() == [3], "the completed one before is noted in the next segment, too"
    for place in (2, 3, 4):
        turn(place)
        assert value(admin, "select count(*) from pgps_internal.client_mark") < 8
        assert (x.again(), y.again()) == (([0], place), ([3], place)), place
    assert (x.receive(), y.receive(), whole.receive()) == ([2], None, None)
