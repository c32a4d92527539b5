"""Set up what every broker of a storm has from the beginning; and helpers for several brokers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg

from tests.fix_broker import call, rows
from tests.links.storm import trace
from tests.links.storm.traffic import ATTRIBUTES, BASE_TYPES, SCHEMA
from tests.links.storm.truth import Subscription


def furnish(connection: psycopg.Connection) -> None:
    """Give a database what every broker has: tables, the event types that are there from the beginning, callbacks."""
    for statement in SCHEMA.split(";\n"):
        if statement.strip():
            rows(connection, statement)
    for kind in BASE_TYPES:
        make_type(connection, kind)
        rows(
            connection,
            f"create function storm.keep_{kind}(e pgps_event.{kind}[]) returns void begin atomic"
            " insert into storm.got (subscription, n) select 'called', x.n from unnest(e) x; end",
        )
    trace.lay(connection)


def make_type(connection: psycopg.Connection, kind: str) -> None:
    """Make an event type, unless a link has created it already, and advertise it."""
    with contextlib.suppress(psycopg.errors.DuplicateObject):
        call(connection, "create_event_type", kind, ATTRIBUTES)
    rows(connection, f"grant insert, select on pgps_event.{kind} to public")
    call(connection, "alter_queue", f"{kind}_in", auditable=True)
    call(connection, "advertise", kind)


def together(*actions: Callable[[], Any]) -> None:
    """Do several things at the same time; raise the first error."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(actions))

    def run(action: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            action()
        except psycopg.Error as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def copied(subscriptions: list[Subscription], broker: str) -> list[Subscription]:
    """Return copies of subscriptions, as they are at a copy of their broker or at the same broker after a restore."""
    return [replace(one, broker=broker, sure=dict(one.sure), got=[]) for one in subscriptions]
