"""Who spools messages in a story of kills: a thread for each, with small transactions, some of which commit late, in
parts, or not at all."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.chaos.kills.members import ANSWER, QUESTION, SENT
from tests.fix_broker import call, value

ORDERINGS = ("cbcast", "abcast", "gbcast", "fbcast")
BROKEN = ("08", "57P")
"""Classes of SQLSTATE that a sender gets when the server or its session is killed."""


@dataclass(frozen=True)
class Sent:
    """A transaction that committed: when it began and when its commit was reported, and its requests by spool."""

    began: float
    ended: float
    requests: dict[str, list[int]]


@dataclass
class Sender(threading.Thread):
    """Spools messages with numbers of its own, each sender in one ordering."""

    dsn: str
    number: int
    seed: int
    spools: tuple[str, ...]
    pause: float
    committed: list[Sent] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(name=f"sender-{self.number}", daemon=True)
        self.chance = random.Random(f"{self.seed}/sender/{self.number}")
        self.ordering = ORDERINGS[self.number % len(ORDERINGS)]
        self.known = f"sender_{self.number}"
        self.sent = 0
        self.ending = threading.Event()
        self.recent: list[int] = []

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        """Spool until it is told to end; after an error go on in a new session."""
        while not self.ending.is_set():
            try:
                with psycopg.connect(self.dsn, options="-c statement_timeout=60s", autocommit=True) as session:
                    while not self.ending.is_set():
                        self._transaction(session)
                        time.sleep(self.chance.random() * self.pause)  # the rate of the load
            except psycopg.Error as error:
                if error.sqlstate and not error.sqlstate.startswith(BROKEN):
                    self.problems.append(f"{self.known} got {error.sqlstate} {error}")
                time.sleep(0.05)  # so long the killed server is left alone

    def _transaction(self, session: psycopg.Connection[Any]) -> None:
        requests: dict[str, list[int]] = {}
        stays = self.chance.random() > 0.15
        began = time.monotonic()
        with session.transaction(force_rollback=not stays):
            for _ in range(self.chance.choice([1, 1, 1, 2, 5])):
                spool = self.chance.choice(self.spools)
                with contextlib.suppress(psycopg.Rollback), session.transaction():
                    made = self._many(session, spool) if self.chance.random() < 0.2 else [self._one(session, spool)]
                    if self.chance.random() < 0.1:
                        raise psycopg.Rollback
                    requests.setdefault(spool, []).extend(made)
            if self.recent and self.chance.random() < 0.1:
                self._cancel(session, self.chance.choice(self.recent[-5:]))
            if self.chance.random() < 0.05:
                time.sleep(self.chance.random())  # a transaction that stays open
        if stays:
            self.committed.append(Sent(began, time.monotonic(), requests))
            self.recent += [one for made in requests.values() for one in made]

    def _message(self) -> tuple[int, dict[str, Any], dict[str, int], list[str]]:
        self.sent += 1
        entry = QUESTION if self.chance.random() < 0.3 else ANSWER
        message = {"who": f"{self.known}/{self.sent}", "ordering": self.ordering}
        return entry, message, {"n": self.sent, "who": self.number}, [["even", "odd"][self.sent % 2]]

    def _one(self, session: psycopg.Connection[Any], spool: str) -> int:
        entry, message, keys, keywords = self._message()
        request: int = call(
            session, "spool", spool, entry, json.dumps(message), json.dumps(keys), keywords, ordering=self.ordering
        )
        session.execute(SENT, [spool, entry, request, message["who"]])
        return request

    def _many(self, session: psycopg.Connection[Any], spool: str) -> list[int]:
        made = [self._message() for _ in range(self.chance.randint(2, 20))]
        messages = [
            {"entry": entry, "message": message, "keys": keys, "keywords": keywords, "ordering": self.ordering}
            for entry, message, keys, keywords in made
        ]
        requests: list[int] = call(session, "spool_many", spool, json.dumps(messages))
        with session.cursor() as cursor:
            lines = [(spool, one[0], request, one[1]["who"]) for one, request in zip(made, requests, strict=True)]
            cursor.executemany(SENT, lines)
        return requests

    def _cancel(self, session: psycopg.Connection[Any], request: int) -> None:
        if call(session, "spool_cancel", request):
            value(session, "insert into siege.cancelled values (%s) returning request", [request])
