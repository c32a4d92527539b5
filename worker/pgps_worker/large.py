"""Dispatches a transaction too large for one statement: in parts, which become visible together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from pgps_worker import calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgps_worker.wire import Wire

__all__ = ["dispatch_large"]

# A statement over more events than this gets a multiple of the dispatch timeout. Parts are smaller, except for one that
# has to be a single statement, of which registered clients get a single occurrence.
_EVENTS_A_TIMEOUT = 100_000


def dispatch_large(wire: Wire, events: int, *, timeout: float, progress: Callable[[], None]) -> calls.Batch:
    """Dispatch one transaction of about `events` events; `progress` is called after each part. Blocks.

    Each part may take `timeout` seconds, longer if it is larger than usual: a
    filter that hangs is noticed as soon as in a small batch. Nothing is
    dispatched when the wire is interrupted. Raises psycopg.Error, with
    everything rolled back.
    """
    done, woken = 0, 0
    try:
        largest = calls.begin_large(wire, _limit(timeout, events))
        calls.limit_statements(wire, _limit(timeout, largest))
        while (part := calls.dispatch_next_part(wire)) is not None:
            done, woken = done + part.events, part.woken
            progress()
            if wire.interrupted:
                wire.command("rollback")
                return calls.Batch(0, 0)
        wire.command("commit")
    except psycopg.Error:
        if not wire.connection.closed:
            wire.command("rollback")
        raise
    return calls.Batch(done, woken)


def _limit(timeout: float, events: int) -> float:
    return timeout * max(1.0, events / _EVENTS_A_TIMEOUT)
