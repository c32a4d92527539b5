"""Sessions of the superuser that tests of one process use one after the other.

A new session parses and plans all of pgps that it calls, which takes as long as what a test does in it. So one that a
test has left is put in order, as a pooler does it, and serves the next test. Closed is what would not be new again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import psycopg
from psycopg.rows import tuple_row

# A session gets slower and larger with each event type that is made in it: it keeps the plans of what is dropped.
_TESTS = 10
# All of DISCARD ALL, except for the plans; and the connection by which it has published events of immediate visibility.
_IN_ORDER = """
close all; set session authorization default; reset all; deallocate all; unlisten *; discard temp; discard sequences;
select pgps_internal.close_loopback()
"""
# Whose process is written down somewhere, or who holds a lock, is not yet gone for the broker.
_WHERE_NOTED = """
select format('exists (select from %s t where %s)', a.attrelid::regclass,
    case a.attname when 'pid' then 't.pid = pg_backend_pid()' else 't.holder ^@ (pg_backend_pid() || ''@'')' end)
from pg_attribute a join pg_class c on c.oid = a.attrelid
where a.attname in ('pid', 'holder') and c.relnamespace = 'pgps_internal'::regnamespace and c.relkind in ('r', 'p')
"""
_HOLDS_LOCKS = "exists (select from pg_locks l where l.pid = pg_backend_pid() and l.locktype = 'advisory')"
# What it was notified of may not have arrived yet, and would reach the next test.
_LISTENS = "exists (select from pg_listening_channels())"


class Session(psycopg.Connection[Any]):
    """A connection that knows how many tests it has served, and whether one has listened to it."""

    served = 0
    has_handlers = False

    def add_notice_handler(self, callback: Callable[[psycopg.errors.Diagnostic], None]) -> None:
        self.has_handlers = True
        super().add_notice_handler(callback)

    def add_notify_handler(self, callback: Callable[[psycopg.Notify], None]) -> None:
        self.has_handlers = True
        super().add_notify_handler(callback)

    def notifies(self, *, timeout: float | None = None, stop_after: int | None = None) -> Generator[psycopg.Notify]:
        self.has_handlers = True  # some may not have arrived yet, and would reach the next test
        return super().notifies(timeout=timeout, stop_after=stop_after)

    def is_as_it_came(self) -> bool:
        """True unless a test has changed what no statement puts in order."""
        settings = (self.isolation_level, self.read_only, self.deferrable)
        return not self.has_handlers and settings == (None, None, None) and self.row_factory is tuple_row


class Sessions:
    """The sessions of one database that wait for the next test."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._idle: list[Session] = []
        self._is_noted = ""

    def take(self) -> Session:
        """Return a session of the superuser, with autocommit."""
        while self._idle:
            session = self._idle.pop()
            try:
                session.execute("select")
            except psycopg.OperationalError:
                session.close()  # a test has ended it
            else:
                return session
        # The statements that psycopg would prepare by itself would be forgotten by the server between two tests.
        return Session.connect(self._dsn, autocommit=True, prepare_threshold=None)

    def give_back(self, session: Session) -> None:
        """Keep what `take` gave, whatever has become of it, for the next test, or close it."""
        session.served += 1
        try:
            if session.served < _TESTS and not session.closed and self._put_in_order(session):
                self._idle.append(session)
                return
        except psycopg.Error:
            pass  # it cannot be put in order, so it is closed
        session.close()

    def _put_in_order(self, session: Session) -> bool:
        session.rollback()
        if not session.is_as_it_came():
            return False
        session.autocommit = True
        if session.execute(f"select {_LISTENS}".encode()).fetchone() == (True,):
            return False
        session.execute(_IN_ORDER)
        if not self._is_noted:
            noted = [condition for (condition,) in session.execute(_WHERE_NOTED)]
            self._is_noted = f"select {' or '.join([_HOLDS_LOCKS, *noted])}"
        return session.execute(self._is_noted.encode()).fetchone() == (False,)

    def pids(self) -> list[int]:
        """The processes of those that wait."""
        return [session.info.backend_pid for session in self._idle if not session.closed]

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
