"""Members of process groups as processes of their own, so that they can be killed: what they note, what they answer and
what they acknowledge is one transaction, so each message has to be noted once."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from typing import Any

import psycopg

_METHOD = multiprocessing.get_context("forkserver")
_METHOD.set_forkserver_preload(["tests.chaos.kills.members"])

SCHEMA = """
create schema siege;
create table siege.sent (spool text, entry integer, request bigint, who text);
create table siege.cancelled (request bigint);
create table siege.got (place bigint generated always as identity, spool text, member text, life text, seqn bigint,
    entry integer, message jsonb, in_replay boolean);
"""

QUESTION, ANSWER, CHECKPOINT = 1, 2, 3
"""The entries of messages: members answer questions."""

_RECEIVE = "select seqn, entry, message, in_replay, id from pgps.receive_spooled(%s, %s, %s)"
_NOTE = (
    "insert into siege.got (spool, member, life, seqn, entry, message, in_replay) values (%s, %s, %s, %s, %s, %s, %s)"
)
SENT = "insert into siege.sent (spool, entry, request, who) values (%s, %s, %s, %s)"


def take_part(dsn: str, spool: str, member: str, life: int, seed: str) -> None:
    """Be a member until killed; whatever goes wrong is tried again in a new session."""
    chance, joined = random.Random(seed), 0
    while True:
        try:
            with psycopg.connect(dsn, options="-c statement_timeout=20s", autocommit=True) as session:
                session.execute("select pgps.connect_client(%s, take_over => true)", [member])
                session.execute("select pgps.join_group(%s, %s, replay => true)", [spool, member])
                joined += 1
                while True:
                    if not _portion(session, spool, member, f"{life}.{joined}", chance):
                        time.sleep(0.05)  # until there may be messages again
        except psycopg.Error:
            time.sleep(0.05)  # so long the killed server is left alone


def _portion(
    session: psycopg.Connection[Any], spool: str, member: str, life: str, chance: random.Random
) -> list[tuple[Any, ...]]:
    """Process a part of what comes next; sometimes change one's mind."""
    with session.transaction(force_rollback=chance.random() < 0.1):
        batch = session.execute(_RECEIVE, [spool, member, chance.choice([1, 3, 20, 100])]).fetchall()
        processed = batch[: chance.choice([1, 5, 100])]
        for seqn, entry, message, in_replay, _ in processed:
            session.execute(_NOTE, [spool, member, life, seqn, entry, json.dumps(message), in_replay])
            if entry == QUESTION and not in_replay:
                _answer(session, spool, member, message)
        if processed:
            session.execute("select pgps.ack_spooled(%s, %s, %s)", [spool, member, processed[-1][4]])
        if chance.random() < 0.05:
            time.sleep(0.2)  # a member that is slow, in an open transaction
    return batch


def _answer(session: psycopg.Connection[Any], spool: str, member: str, message: dict[str, Any]) -> None:
    """Spool an answer, in the ordering of the question, behind which every member has to get it."""
    who = f"{member}>{message['who']}"
    answer = json.dumps({"who": who, "to": message["who"]})
    query = "select pgps.spool(%s, %s, %s, ordering => %s, keywords => '{answer}')"
    found = session.execute(query, [spool, ANSWER, answer, message["ordering"]]).fetchone()
    assert found is not None
    session.execute(SENT, [spool, ANSWER, found[0], who])


@dataclass
class Members:
    """The members of a story's groups, by spool and name."""

    dsn: str
    seed: int
    lives: dict[tuple[str, str], int] = field(default_factory=dict)
    _running: dict[tuple[str, str], ForkServerProcess] = field(default_factory=dict)

    def start(self, spool: str, member: str) -> None:
        """Start a member, unless it runs."""
        at = spool, member
        if at not in self._running:
            self.lives[at] = self.lives.get(at, 0) + 1
            seed = f"{self.seed}/{spool}/{member}/{self.lives[at]}"
            arguments = (self.dsn, spool, member, self.lives[at], seed)
            process = _METHOD.Process(target=take_part, args=arguments, daemon=True)
            process.start()
            self._running[at] = process

    def kill(self, spool: str, member: str) -> None:
        """Kill a member with SIGKILL, if it runs."""
        process = self._running.pop((spool, member), None)
        if process is not None:
            process.kill()
            process.join()
            process.close()

    def kill_all(self) -> None:
        """Kill all of them."""
        for spool, member in list(self._running):
            self.kill(spool, member)
