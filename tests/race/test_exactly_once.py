"""Sessions that do anything in any order: each subscriber gets the committed, matching events, once and in order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
import pytest

from tests.fix_broker import call, make_type, rows, sink, sunk, value
from tests.fix_db import Connect
from tests.fix_server import Server

MODULO = 3


@dataclass
class Producer:
    """A session that publishes, and what its open transaction has published: a list for each open savepoint."""

    number: int
    connection: psycopg.Connection
    levels: list[list[int]] = field(default_factory=lambda: [[]])


@dataclass
class Consumer:
    """A session of an external subscription: what it has processed for good."""

    subscription: str
    connection: psycopg.Connection
    processed: list[int] = field(default_factory=list)
    rejected: set[int] = field(default_factory=set)


class World:
    """Broker and model side by side; each step does one thing to both."""

    def __init__(self, connect: Connect, dsn: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.admin = connect(dsn=dsn)
        make_type(self.admin, "tick", "producer integer, n integer")
        self.table = sink(self.admin, "tick")
        call(self.admin, "subscribe", "inside", "tick", execute=self.table)
        call(self.admin, "subscribe", "every", "tick")
        call(self.admin, "subscribe", "some", "tick", filter=f"n % {MODULO} = 0")
        call(self.admin, "subscribe", "shared", "tick", handler="any")
        call(self.admin, "configure", "lease", "1 hour")
        # However long a step takes on a busy machine, no filter is left to the lanes, nor a lane to a worker.
        for limit in ("dispatch_filter_timeout", "dispatch_lane_timeout"):
            call(self.admin, "configure", limit, "1 hour")
        self.producers = [Producer(n, connect(autocommit=False, dsn=dsn)) for n in range(3)]
        names = ["every", "some", "shared", "shared"]
        self.consumers = [Consumer(each, connect(autocommit=False, dsn=dsn)) for each in names]
        self.committed: list[int] = []
        self.producer_of: dict[int, int] = {}
        self.numbers = iter(range(1, 1_000_000))

    def publish(self) -> None:
        producer = self.chance.choice(self.producers)
        numbers = [next(self.numbers) for _ in range(self.chance.choice([1, 1, 2, 5]))]
        rows(
            producer.connection,
            "insert into pgps_event.tick select %s, unnest(%s::integer[])",
            [producer.number, numbers],
        )
        producer.levels[-1] += numbers
        self.producer_of |= dict.fromkeys(numbers, producer.number)

    def savepoint(self) -> None:
        producer = self.chance.choice(self.producers)
        producer.levels.append([])
        rows(producer.connection, f"savepoint s{len(producer.levels)}")

    def leave_savepoint(self) -> None:
        producer = self.chance.choice([p for p in self.producers if len(p.levels) > 1] or [None])
        if producer is None:
            return
        name, numbers = f"s{len(producer.levels)}", producer.levels.pop()
        if self.chance.random() < 0.5:
            rows(producer.connection, f"rollback to savepoint {name}")
        else:
            producer.levels[-1] += numbers
        rows(producer.connection, f"release savepoint {name}")

    def finish(self, producer: Producer | None = None) -> None:
        commits = producer is not None or self.chance.random() < 0.7
        producer = producer or self.chance.choice(self.producers)
        if commits:
            producer.connection.commit()
            self.committed += [n for level in producer.levels for n in level]
        else:
            producer.connection.rollback()
        producer.levels = [[]]

    def dispatch(self) -> None:
        rows(self.admin, "select pgps.dispatch(%s)", [self.chance.choice([1, 2, 3, None])])

    def run(self) -> None:
        rows(self.admin, "call pgps.run_subscribers()")

    def reclaim(self) -> None:
        if self.chance.random() < 0.3:
            # Further segments come into use: of the log and the control queue, and of the positions.
            for sequence, size in (("event_id_seq", 65536), ("position_id_seq", 262144)):
                at = value(self.admin, f"select last_value from pgps_internal.{sequence}")
                rows(self.admin, f"select setval('pgps_internal.{sequence}', {(at // size + 1) * size + 5})")
        rows(self.admin, "select pgps.reclaim(100)")

    def consume(self, consumer: Consumer | None = None, max_events: int | None = None) -> int:
        consumer = consumer or self.chance.choice(self.consumers)
        limit = max_events or self.chance.choice([1, 3, 100])
        query = "select event_id, (payload ->> 'n')::integer from pgps.receive(%s, %s)"
        got = rows(consumer.connection, query, [consumer.subscription, limit])
        end = self.chance.random() if max_events is None else 1.0
        if end < 0.2:
            consumer.connection.rollback()
            return len(got)
        refused = [row for row in got if end < 0.4 and self.chance.random() < 0.3]
        for event_id, _ in refused:
            call(consumer.connection, "nack", consumer.subscription, event_id)
        processed = [n for event_id, n in got if (event_id, n) not in refused]
        if processed or refused:
            call(consumer.connection, "ack", consumer.subscription)
        consumer.connection.commit()
        consumer.processed += processed
        consumer.rejected |= {n for _, n in refused}
        return len(got)

    def settle(self) -> None:
        for producer in self.producers:
            self.finish(producer)
        rows(self.admin, "select pgps.dispatch()")
        self.run()
        for consumer in self.consumers:
            while self.consume(consumer, 50):
                pass

    def check(self) -> None:
        some = [n for n in self.committed if n % MODULO == 0]
        inside = sunk(self.admin, self.table)
        got = {"inside": inside}
        for consumer in self.consumers:
            got.setdefault(consumer.subscription, []).extend(consumer.processed)
        for name, numbers in got.items():
            assert sorted(numbers) == sorted(some if name == "some" else self.committed), name
        for name, rejected in (("inside", set()), *((c.subscription, c.rejected) for c in self.consumers[:2])):
            for producer in self.producers:
                kept = [n for n in got[name] if self.producer_of[n] == producer.number and n not in rejected]
                assert kept == sorted(kept), f"{name}: {producer.number}'s in its order"


STEPS: dict[Callable[[World], object], int] = {
    World.publish: 10,
    World.savepoint: 2,
    World.leave_savepoint: 2,
    World.finish: 5,
    World.dispatch: 4,
    World.run: 2,
    World.consume: 6,
    World.reclaim: 1,
}


@pytest.fixture
def world(connect: Connect, server: Server, own_database: str) -> Callable[[int], World]:
    return lambda seed: World(connect, own_database, seed)


@pytest.mark.parametrize("seed", range(4))
def test_each_subscriber_gets_the_committed_events_once_in_order(world: Callable[[int], World], seed: int) -> None:
    broker = world(seed)
    steps = broker.chance.choices(list(STEPS), list(STEPS.values()), k=250)
    for step in steps:
        step(broker)
    broker.settle()
    broker.check()
