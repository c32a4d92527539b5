"""Consumers as processes of their own, so that they can be killed: what they process and what they acknowledge is one
transaction, so each event has to be processed once."""

from __future__ import annotations

import multiprocessing
import random
import time
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess

import psycopg

_METHOD = multiprocessing.get_context("forkserver")
_METHOD.set_forkserver_preload(["tests.chaos.kills.clients"])

_PROCESS = """
insert into storm.got (subscription, n)
select %s, (payload ->> 'n')::bigint from pgps.receive(%s, %s, %s) with ordinality order by ordinality
"""
_RECEIVE = "select (payload ->> 'n')::bigint from pgps.receive(%s, %s, %s) with ordinality order by ordinality"


def consume(dsn: str, subscription: str, consumer: str | None, seed: str) -> None:
    """Process events until killed; whatever goes wrong is tried again in a new session."""
    chance = random.Random(seed)
    while True:
        try:
            with psycopg.connect(dsn, options="-c statement_timeout=20s") as session:
                while True:
                    _batch(session, subscription, consumer, chance)
        except psycopg.Error:
            time.sleep(0.05)  # so long the killed server is left alone


def _batch(session: psycopg.Connection, subscription: str, consumer: str | None, chance: random.Random) -> None:
    most = chance.choice([1, 3, 20, 200])
    if consumer is not None and chance.random() < 0.5:
        # A transaction receives, and another one processes: whoever shares the name may have received meanwhile.
        ns = [n for (n,) in session.execute(_RECEIVE.encode(), [subscription, most, consumer])]
        session.commit()
        if ns:
            session.execute(
                "insert into storm.got (subscription, n) select %s, n from unnest(%s::bigint[]) n", [subscription, ns]
            )
    else:
        ns = [None] * session.execute(_PROCESS.encode(), [subscription, subscription, most, consumer]).rowcount
    if not ns:
        session.rollback()
        time.sleep(0.02)  # until there may be events again
        return
    acked = session.execute("select pgps.ack(%s, consumer => %s)", [subscription, consumer]).fetchone()
    if acked != (len(ns),):
        # A lease has ended: what is not acknowledged was not processed.
        session.rollback()
        return
    if chance.random() < 0.1:
        # Somebody who changes its mind: all of it comes again.
        session.rollback()
    else:
        session.commit()


@dataclass
class Consumers:
    """The consumers of a story, by name."""

    dsn: str
    seed: int
    _running: dict[str, ForkServerProcess] = field(default_factory=dict)
    _started: int = 0

    def start(self, name: str, subscription: str, consumer: str | None = None) -> None:
        """Start a consumer, unless it runs; `*` in the name that it gives itself is another word each time."""
        if name not in self._running:
            self._started += 1
            seed = f"{self.seed}/{name}/{self._started}"
            known = consumer and consumer.replace("*", str(self._started))
            process = _METHOD.Process(target=consume, args=(self.dsn, subscription, known, seed), daemon=True)
            process.start()
            self._running[name] = process

    def kill(self, name: str) -> None:
        """Kill a consumer with SIGKILL, if it runs."""
        process = self._running.pop(name, None)
        if process is not None:
            process.kill()
            process.join()
            process.close()

    def kill_all(self) -> None:
        """Kill all of them."""
        for name in list(self._running):
            self.kill(name)
