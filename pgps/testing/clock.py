"""A broker's clock that a test sets: nothing waits for a lease or a retry, and no row is moved into the past.

The functions that tell the time are replaced, in one database and by its owner, by two that read a table (see
sql/code/core/clock.sql). Every session sees the change with its next statement; a worker, or whoever waits for
something to become due, when it looks again. What is measured, such as the time a filter takes, goes on as ever.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg

__all__ = ["Clock"]

_FACES = ("pgps_internal.clock()", "pgps._clock()")
_TABLE = """
create schema if not exists pgps_test;
create table if not exists pgps_test.clock (stands_at timestamptz, ahead interval not null);
insert into pgps_test.clock select null, '0' where not exists (select from pgps_test.clock)
"""
# With the rights of who made it, since the table is no business of whoever asks.
_READS_TABLE = """
create or replace function {} returns timestamptz language sql volatile parallel safe security definer
set search_path = pg_catalog, pg_temp
as $$ select coalesce(c.stands_at, clock_timestamp() + c.ahead) from pgps_test.clock c $$
"""
_AS_INSTALLED = """
create or replace function {} returns timestamptz language sql volatile parallel safe
as $$ select pg_catalog.clock_timestamp() $$
"""


class Clock:
    """The clock of one broker; it runs with the server's until it is set or moved.

    The time never goes back by itself: what `advance` has added stays until the test is over.
    """

    def __init__(self, connection: psycopg.Connection) -> None:
        """Take over the clock of a database; the connection is the superuser's, in autocommit."""
        self._connection = connection
        connection.execute("set client_min_messages = warning")
        connection.execute(_TABLE.encode())
        for face in _FACES:
            connection.execute(_READS_TABLE.format(face).encode())

    def now(self) -> datetime:
        """Return the broker's time."""
        row = self._connection.execute("select pgps_internal.clock()").fetchone()
        assert row is not None
        at: datetime = row[0]
        return at.astimezone(UTC)

    def set(self, moment: datetime | str) -> datetime:
        """Stop the clock at a moment, also of the past, until it is set again or moved; return the moment.

        A text is read as PostgreSQL reads a timestamptz: "2026-03-01 12:00+00".
        """
        self._connection.execute("update pgps_test.clock set stands_at = %s::timestamptz", [moment])
        return self.now()

    def advance(self, by: timedelta | str) -> datetime:
        """Move the clock on, one that stands or one that runs, by "2 hours" or "-1 minute"; return its time."""
        self._connection.execute(
            "update pgps_test.clock set stands_at = stands_at + %(by)s::interval, ahead = ahead + %(by)s::interval",
            {"by": by},
        )
        return self.now()

    def run(self) -> None:
        """Let a clock that stands run on from where it stands."""
        self._connection.execute(
            "update pgps_test.clock set ahead = coalesce(stands_at - clock_timestamp(), ahead), stands_at = null"
        )

    def close(self) -> None:
        """Put the server's clock back; the table stays, a session that has read it may hold its lock."""
        for face in _FACES:
            self._connection.execute(_AS_INSTALLED.format(face).encode())
        self._connection.execute("update pgps_test.clock set stands_at = null, ahead = '0'")
