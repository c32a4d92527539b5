"""Publish events, each of them written into the journal in the same transaction."""

from __future__ import annotations

import json
import random
import time

import psycopg

from tests.chaos.churn.stage import MAKER, Player, Stage
from tests.chaos.churn.truth import Span
from tests.fix_broker import call, rows


class Writer:
    """Writes as one session of the truth: what it publishes is numbered."""

    def __init__(self, stage: Stage, session: int, chance: random.Random) -> None:
        self.stage, self.session, self.random = stage, session, chance
        self.seq = 0

    def write(self, connection: psycopg.Connection, name: str, count: int) -> list[int]:
        """Publish some events of a type, and write them into the journal; return their numbers."""
        made = []
        for _ in range(count):
            self.seq += 1
            made.append((next(self.stage.numbers), self.random.randrange(10), self.session, self.seq))
        if self.random.random() < 0.3:
            payload = [dict(zip(("n", "m", "session", "seq"), one, strict=True)) for one in made]
            call(connection, "publish", name, json.dumps(payload))
        else:
            places = ", ".join(["(%s, %s, %s, %s)"] * count)
            rows(connection, f"insert into pgps_event.{name} (n, m, session, seq) values {places}", sum(made, ()))
        query = "insert into churn.journal (n, m, session, seq, type, oid) values "
        places = ", ".join([f"(%s, %s, %s, %s, '{name}', 'pgps_event.{name}'::regclass::oid)"] * count)
        rows(connection, query + places, sum(made, ()))
        return [n for n, *_ in made]

    def commit(self, connection: psycopg.Connection, ns: list[int]) -> None:
        """Commit, and record when that was."""
        began = time.time()
        for n in ns:
            self.stage.spans[n] = Span(began, float("inf"))
        rows(connection, "commit")
        for n in ns:
            self.stage.spans[n] = Span(began, time.time())


class Publisher(Player):
    """Publishes small transactions, of which some stay open for a while, and some are rolled back."""

    def __init__(self, stage: Stage, number: int, rate: float) -> None:
        super().__init__(stage, f"publisher-{number}", MAKER)
        self.writer = Writer(stage, number, self.random)
        self.rate = rate

    def step(self) -> float:
        chance = self.random
        names = list(self.stage.types)
        rows(self.connection, "begin")
        ns: list[int] = []
        for _ in range(chance.choice([1, 1, 2, 3])):
            ns += self.writer.write(self.connection, chance.choice(names), chance.choice([1, 1, 2, 4]))
        if chance.random() < 0.08:
            self._ending.wait(chance.uniform(0.05, 0.8))
        if chance.random() < 0.05:
            rows(self.connection, "rollback")
        else:
            self.writer.commit(self.connection, ns)
            self.stage.counts["published"] += len(ns)
        return chance.expovariate(self.rate / 3.5)
