"""What consumers are given equals a list that is read from the front, whatever they do and whoever commits late."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fix_broker import call, column, ids, make_type, publish, refused, rows, value
from tests.fix_db import Connect

ATTEMPTS = 3
TYPES = ("pa", "pb", "pc")
Place = tuple[int, int]  # batch, event id


@dataclasses.dataclass
class Published:
    """An event: its type, its attribute, its id."""

    type: str
    n: int
    id: int


class Consumer:
    """What the one consumer of a subscription must see: a list in delivery order, after what was put back."""

    shared = False

    def __init__(self, name: str, types: tuple[str, ...], wants: Callable[[int], bool] = lambda n: True) -> None:
        self.name, self.types, self._wants = name, types, wants
        self.waiting: list[int] = []
        self.given: list[int] = []
        self.failed: set[int] = set()
        self.retries: dict[int, int] = {}  # event id: how often it was tried
        self.type_of: dict[int, str] = {}

    def dispatched(self, batch: list[Published]) -> None:
        for event in sorted(batch, key=lambda one: one.id):
            if event.type in self.types and self._wants(event.n):
                self.waiting.append(event.id)
                self.type_of[event.id] = event.type

    def receive(self, most: int) -> list[tuple[int, int | None]]:
        due = sorted(self.retries)[:most]
        fresh = self.waiting[: most - len(due)]
        seen: list[tuple[int, int | None]] = [(one, self.retries[one] + 1) for one in due]
        self.given = due + fresh
        return [*seen, *((one, None) for one in fresh)]

    def ack(self, up_to: int | None = None) -> int:
        count = len(self.given) if up_to is None else self.given.index(up_to) + 1
        for one in self.given[:count]:
            self.retries.pop(one, None)
            if one in self.waiting:
                self.waiting.remove(one)
        self.given = self.given[count:]
        return count

    def nack(self, one: int) -> None:
        tried = self.retries.pop(one, 0) + 1
        self.given.remove(one)
        if one in self.waiting:
            self.waiting.remove(one)
        if tried >= ATTEMPTS:
            self.failed.add(one)
        else:
            self.retries[one] = tried


class Sharer(Consumer):
    """One of one that shares: what it was given is its own until it is acknowledged, and comes again until then."""

    shared = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._held: set[int] = set()

    def receive(self, most: int) -> list[tuple[int, int | None]]:
        self.given = self.waiting[:most]
        again = self._held & set(self.given)
        for one in set(self.given) - again:
            self.retries[one] = self.retries.get(one, 0) + 1
        self._held |= set(self.given)
        return [(one, self.retries[one] + (one in again)) for one in self.given]

    def ack(self, up_to: int | None = None) -> int:
        count = len(self.given) if up_to is None else self.given.index(up_to) + 1
        gone, self.given = self.given[:count], self.given[count:]
        self.waiting = [one for one in self.waiting if one not in gone]
        self._held -= set(gone)
        return count

    def nack(self, one: int) -> None:
        self.given.remove(one)
        self._held.remove(one)
        if self.retries[one] >= ATTEMPTS:
            self.waiting.remove(one)
            self.failed.add(one)


class World:
    """A broker with subscriptions of each kind, and what each must see."""

    def __init__(self, connection: psycopg.Connection, others: list[psycopg.Connection], number: int) -> None:
        self.connection, self.others = connection, others
        self._open: dict[int, list[Published]] = {}
        self._committed: list[Published] = []
        self._n = itertools.count(1)
        self.consumers = [
            Consumer(f"plain{number}", ("pa",)),
            Consumer(f"even{number}", ("pa",), lambda n: n % 2 == 0),
            # On every third it raises: those fail, and the others are matched in parts of the batch.
            Consumer(f"shaky{number}", ("pb",), lambda n: n % 3 > 0),
            Consumer(f"pattern{number}", TYPES),
            Consumer(f"picky{number}", TYPES, lambda n: n % 5 > 1),
            Sharer(f"shared{number}", ("pa",)),
            Sharer(f"all{number}", TYPES),
        ]
        filters = {"even": "n % 2 = 0", "shaky": "6 / (n % 3) > 0", "picky": "n % 5 > 1"}
        for one in self.consumers:
            call(
                connection,
                "subscribe",
                one.name,
                "p*" if one.types == TYPES else one.types[0],
                filter=filters.get(one.name.rstrip("0123456789")),
                max_attempts=ATTEMPTS,
                handler="any" if one.shared else "all",
            )

    def publish(self, types: list[str], session: int | None) -> None:
        """Publish one event of each of these types, in a transaction that is still open where a session is given."""
        connection = self.connection if session is None else self.others[session]
        events = []
        with connection.transaction() if session is None else contextlib.nullcontext():
            for one in types:
                n = next(self._n)
                (event_id,) = column(
                    connection, "select pgps.publish(%s, jsonb_build_object('n', %s::integer))", [one, n]
                )
                events.append(Published(one, n, event_id))
        if session is None:
            self._committed += events
        else:
            self._open.setdefault(session, []).extend(events)

    def commit(self, session: int) -> None:
        self.others[session].commit()
        self._committed += self._open.pop(session, [])

    def dispatch(self) -> None:
        rows(self.connection, "select pgps.dispatch()")
        for consumer in self.consumers:
            consumer.dispatched(self._committed)
        self._committed = []

    def receive(self, consumer: Consumer, most: int, *, takes: bool = False) -> None:
        expected = consumer.receive(most)
        function = "take" if takes else "receive"
        found = rows(
            self.connection, f"select event_id, attempt, event_type from pgps.{function}(%s, %s)", [consumer.name, most]
        )
        assert [one for one, _, _ in found] == [one for one, _ in expected], consumer.name
        tried = {one: attempt for one, attempt in expected if attempt is not None}
        assert {one: attempt for one, attempt, _ in found if one in tried} == tried, consumer.name
        assert all(consumer.type_of[one] == event_type for one, _, event_type in found)
        if takes:
            consumer.ack()

    def receive_rows(self, consumer: Consumer, most: int) -> None:
        """Receive as typed rows, where there is one type."""
        expected = [one for one, _ in consumer.receive(most)]
        query = f"select pgps_event_id from pgps_queue.{consumer.types[0]}_receive(array[%s]::text[], %s)"
        assert column(self.connection, query, [consumer.name, most]) == expected, consumer.name

    def read(self, consumer: Consumer, most: int) -> None:
        """Read a step of it as a stream, and acknowledge that."""
        start = call(self.connection, "open_stream", consumer.name)
        end = call(self.connection, "end_of_stream", consumer.name, start["batch"], start["event"], most)
        query = """
            select i from pgps.slice_stream(%s, %s, %s, %s, %s, %s::bigint[]) s, unnest(s.ids) r,
                generate_series(lower(r), upper(r) - 1) i
            order by s.batch_id, i
        """
        ends = [start["batch"], start["event"], end["batch"], end["event"], end["retried"]]
        found = column(self.connection, query, [consumer.name, *ends])
        due = sorted(consumer.retries)[:most]
        fresh = consumer.waiting[: len(found) - len(due)]
        assert found == due + fresh, consumer.name
        assert fresh or not consumer.waiting or end["batch"] > start["batch"], consumer.name
        call(self.connection, "ack_stream", consumer.name, end["batch"], end["event"], end["retried"])
        consumer.given = found
        consumer.ack()

    def ack(self, consumer: Consumer, place: int | None) -> None:
        if place is None:
            assert call(self.connection, "ack", consumer.name) == consumer.ack(), consumer.name
        elif place < len(consumer.given):
            up_to = consumer.given[place]
            assert call(self.connection, "ack", consumer.name, up_to) == consumer.ack(up_to), consumer.name
        else:
            for one in [one for one in consumer.waiting if one not in consumer.given][:1]:
                with refused("55000", str(one)):
                    call(self.connection, "ack", consumer.name, one)

    def nack(self, consumer: Consumer, places: list[int]) -> None:
        chosen = sorted({consumer.given[place % len(consumer.given)] for place in places}) if consumer.given else []
        for one in chosen:
            consumer.nack(one)
        query = "select pgps.nack_events(%s, %s::bigint[], 'no', '0')"
        assert value(self.connection, query, [consumer.name, chosen]) == len(chosen)

    def finish(self) -> None:
        """Commit what is open, and read all of it."""
        for session in list(self._open):
            self.commit(session)
        self.dispatch()
        for consumer in self.consumers:
            if consumer.shared:
                self.ack(consumer, None)
            while consumer.waiting or (consumer.retries and not consumer.shared):
                self.receive(consumer, 7, takes=True)
            assert ids(self.connection, consumer.name) == []
            query = "select depth from pgps.subscriptions where name = %s"
            assert value(self.connection, query, [consumer.name]) == 0
            failed = "select event_id from pgps.exceptions where subscription = %s and error = 'no'"
            assert set(column(self.connection, failed, [consumer.name])) == consumer.failed

    def close(self) -> None:
        for other in self.others:
            other.rollback()
        for consumer in self.consumers:
            call(self.connection, "unsubscribe", consumer.name)


WHO = st.integers(0, 6)
MOST = st.sampled_from([1, 2, 3, 5, 8, 20])
STEPS = st.one_of(
    st.tuples(
        st.just("publish"),
        st.lists(st.sampled_from(TYPES), min_size=1, max_size=12),
        st.sampled_from([None, None, 0, 1]),
    ),
    st.tuples(st.just("commit"), st.integers(0, 1)),
    st.tuples(st.just("dispatch")),
    st.tuples(st.just("receive"), WHO, MOST),
    st.tuples(st.just("take"), WHO, MOST),
    st.tuples(st.just("rows"), st.integers(0, 2), MOST),
    st.tuples(st.just("read"), st.integers(0, 4), MOST),
    st.tuples(st.just("ack"), WHO, st.one_of(st.none(), st.integers(0, 8))),
    st.tuples(st.just("nack"), WHO, st.lists(st.integers(0, 8), min_size=1, max_size=3)),
)


@pytest.fixture
def market(own_database: str, connect: Connect) -> tuple[psycopg.Connection, list[psycopg.Connection]]:
    connection = connect(dsn=own_database)
    for one in TYPES:
        make_type(connection, one)
    return connection, [connect(dsn=own_database, autocommit=False) for _ in range(2)]


_number = itertools.count(1)
PUBLISHED = [("publish", ["pa", "pb"] * 5, None), ("dispatch",)]


@settings(max_examples=40)
@given(steps=st.lists(STEPS, min_size=3, max_size=40))
@example(steps=[*PUBLISHED * 2, ("take", 3, 14), ("take", 3, 14)])
@example(
    steps=[
        ("publish", ["pb"] * 12, None),
        ("dispatch",),
        ("receive", 2, 2),
        ("ack", 2, 0),
        ("take", 2, 3),
        ("take", 2, 3),
    ]
)
@example(steps=[("publish", ["pb"] * 12, None), ("dispatch",), ("read", 2, 1), ("read", 2, 5), ("read", 2, 20)])
@example(steps=[("publish", ["pa"] * 2, None), ("dispatch",), ("receive", 1, 1), ("nack", 1, [0])])
def test_each_consumer_is_given_every_event_once_and_in_order(
    market: tuple[psycopg.Connection, list[psycopg.Connection]], steps: list[Any]
) -> None:
    world = World(*market, next(_number))
    try:
        for verb, *args in steps:
            if verb == "publish":
                world.publish(*args)
            elif verb == "commit":
                world.commit(*args)
            elif verb == "dispatch":
                world.dispatch()
            elif verb == "receive":
                world.receive(world.consumers[args[0]], args[1])
            elif verb == "take":
                world.receive(world.consumers[args[0]], args[1], takes=True)
            elif verb == "rows":
                world.receive_rows(world.consumers[args[0]], args[1])
            elif verb == "read":
                world.read(world.consumers[args[0]], args[1])
            elif verb == "ack":
                world.ack(world.consumers[args[0]], args[1])
            else:
                world.nack(world.consumers[args[0]], args[1])
        world.finish()
    finally:
        world.close()


def test_a_pattern_loses_nothing_when_a_batch_is_cut(own_database: str, connect: Connect) -> None:
    connection = connect(dsn=own_database)
    for one in ("pa", "pb"):
        make_type(connection, one)
    call(connection, "subscribe", "pat", "p*")
    for lo in (0, 10):
        for n in range(lo, lo + 10):
            publish(connection, "pa" if n % 2 == 0 else "pb", n)
        rows(connection, "select pgps.dispatch()")
    query = "select (payload ->> 'n')::integer from pgps.take('pat', 14)"
    assert column(connection, query) == list(range(14))
    assert value(connection, "select depth from pgps.subscriptions where name = 'pat'") == 6
    assert column(connection, query) == list(range(14, 20))
