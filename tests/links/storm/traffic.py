"""Publish events: one thread for each server, a few sessions at each of its brokers, and a journal in each database."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import psycopg

from tests.fix_broker import rows
from tests.links.fleet import Member
from tests.links.storm.truth import Event

ATTRIBUTES = "n bigint, home text, producer bigint, seq integer, m integer"
BASE_TYPES = ("tick", "tock")

SCHEMA = """
create schema storm;
create table storm.journal (
    n bigint primary key, type text, home text, producer bigint, seq integer, m integer,
    at timestamptz default clock_timestamp()
);
create table storm.odd as select v from generate_series(1, 9, 2) v;
create table storm.got (place bigint generated always as identity, subscription text, n bigint);
grant usage on schema storm to public;
"""

_numbers = itertools.count(1)
_producers = itertools.count(1)


@dataclass
class Session:
    """A connection that publishes as one producer with numbered events."""

    member: Member
    connection: psycopg.Connection
    producer: int = field(default_factory=lambda: next(_producers))
    seq: int = 0
    open_until: float = 0.0

    def publish(self, kinds: Iterable[tuple[str, list[int]]]) -> None:
        """Publish events of given types and values of m, and write them into the journal, in one transaction."""
        for kind, values in kinds:
            written: list[object] = []
            for m in values:
                self.seq += 1
                written += [next(_numbers), self.member.name, self.producer, self.seq, m]
            columns, places = "n, home, producer, seq, m", ", ".join(["(%s, %s, %s, %s, %s)"] * len(values))
            rows(self.connection, f"insert into pgps_event.{kind} ({columns}) values {places}", written)
            places = places.replace("(", f"('{kind}', ")
            rows(self.connection, f"insert into storm.journal (type, {columns}) values {places}", written)


def open_session(member: Member) -> Session:
    """Open a session that publishes at a broker."""
    connection = psycopg.connect(member.dsn, autocommit=True, options="-c statement_timeout=20s")
    return Session(member, connection)


def read_journal(member: Member) -> list[Event]:
    """Return the events that were published at a broker and committed."""
    query = "select n, type, home, producer, seq, m, extract(epoch from at)::float8 from storm.journal order by n"
    return [Event(*row) for row in rows(member.admin, query)]


class Publishers(threading.Thread):
    """Publishes at the brokers of one server, in small transactions, some of which commit late or not at all."""

    def __init__(self, members: list[Member], seed: str, per_second: float) -> None:
        super().__init__(name=f"publishers-{seed}", daemon=True)
        self.members = members
        self.random = random.Random(seed)
        self.pause = 2.6 / per_second if per_second else 0.0
        self.kinds = {member.name: list(BASE_TYPES) for member in members}
        self.published = 0
        self.errors: dict[str, int] = {}
        self._sessions: dict[str, list[Session]] = {}
        self._locks = {member.name: threading.Lock() for member in members}
        self._ending = threading.Event()

    @property
    def failed(self) -> int:
        """How often a transaction could not be made."""
        return sum(self.errors.values())

    def run(self) -> None:
        due = time.monotonic()
        while self.members and not self._ending.wait(max(0.0, due - time.monotonic())):
            # Transactions that are behind the schedule are caught up on, unless this thread was held up for long.
            due = max(due + self.random.expovariate(1 / self.pause), time.monotonic() - 1.0)
            member = self.random.choice(self.members)
            if self._locks[member.name].acquire(blocking=False):
                try:
                    self._publish(member)
                finally:
                    self._locks[member.name].release()

    def _publish(self, member: Member) -> None:
        try:
            if member.name not in self._sessions:
                self._sessions[member.name] = [open_session(member), open_session(member)]
            late, session = sorted(self._sessions[member.name], key=lambda one: -one.open_until)
            if late.open_until and time.monotonic() >= late.open_until:
                self._end(late, commit=self.random.random() < 0.8)
            rows(session.connection, "begin")
            session.publish(self._some(member))
            if not late.open_until and self.random.random() < 0.06:
                session.open_until = time.monotonic() + self.random.uniform(0.05, 1.2)
            else:
                self._end(session, commit=True)
        except psycopg.Error as error:
            self.errors[error.sqlstate or "connection"] = self.errors.get(error.sqlstate or "connection", 0) + 1
            self._forget(member, error)

    def _some(self, member: Member) -> list[tuple[str, list[int]]]:
        chance = self.random
        made = [
            (chance.choice(self.kinds[member.name]), [chance.randrange(10) for _ in range(chance.choice([1, 1, 2, 4]))])
            for _ in range(chance.choice([1, 1, 2]))
        ]
        self.published += sum(len(values) for _, values in made)
        return made

    def _end(self, session: Session, *, commit: bool) -> None:
        session.open_until = 0.0
        rows(session.connection, "commit" if commit else "rollback")

    def _forget(self, member: Member, error: psycopg.Error) -> None:
        """Close the sessions of a broker after an error; an event type that does not exist is no longer published."""
        for session in self._sessions.pop(member.name, []):
            with contextlib.suppress(psycopg.Error):
                session.connection.close()
        if error.sqlstate in {"42P01", "55000", "42501"} and len(self.kinds[member.name]) > len(BASE_TYPES):
            self.kinds[member.name].pop()

    @contextlib.contextmanager
    def held(self, *names: str) -> Iterator[None]:
        """Publish nothing at the given brokers until the block ends; open transactions there are committed first."""
        with contextlib.ExitStack() as stack:
            for name in names:
                if name in self._locks:
                    stack.enter_context(self._locks[name])
                    self._finish(name)
            yield

    def _finish(self, name: str) -> None:
        for session in self._sessions.pop(name, []):
            with contextlib.suppress(psycopg.Error):
                if session.open_until:
                    self._end(session, commit=True)
            session.connection.close()

    def end(self) -> None:
        """Stop publishing; open transactions are committed."""
        self._ending.set()
        if self.is_alive():
            self.join(60)
        for name in list(self._sessions):
            self._finish(name)
