"""Histories played through the broker: published at set times, dispatched when a test says, and what was detected."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from composite.definition import define
from composite.detector import State, detect
from composite.graph import build
from composite.matching import Matcher
from composite.occurrences import constituents
from composite.points import Event, time_of
from tests.fix_broker import call, make_type, rows

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    from tests.fix_clock import Clock

BASE = datetime(2026, 3, 1, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# What was detected: when, its interval, and its constituents as (as, name of the event or time of the tick).
Detected = tuple[int, int, int, list[tuple[str, Any]]]


def read(text: str) -> list[tuple[str, str, int]]:
    """Return type, name and microseconds of `a1@0 b1@3`."""
    return [
        (word.split("@")[0].rstrip("0123456789"), word.split("@")[0], int(word.split("@")[1])) for word in text.split()
    ]


class Player:
    """Plays histories in one database; each begins where the time of the one before has ended."""

    def __init__(self, connection: psycopg.Connection, clock: Clock, types: Collection[str] = "abc") -> None:
        self.connection = connection
        self.clock = clock
        self.base = BASE
        self.clock.set(self.base)
        call(connection, "configure", "tick_interval", "0 seconds")
        for name in types:
            make_type(connection, name, "name text, k integer")

    def at(self, microseconds: int) -> None:
        """Set the clock."""
        self.clock.set(self.base + timedelta(microseconds=microseconds))

    def publish(self, kind: str, name: str, at: int, k: int | None = None) -> None:
        """Publish one event."""
        self.at(at)
        rows(self.connection, f"insert into pgps_event.{kind} (name, k) values (%s, %s)", [name, k])

    def dispatch(self) -> None:
        rows(self.connection, "select pgps.dispatch()")

    def play(self, text: str, now: int | None = None, cuts: Collection[int] | None = None) -> None:
        """Publish a history; dispatch behind the events whose places are in cuts (None: at the end), and at now."""
        events = read(text)
        for place, (kind, name, at) in enumerate(events):
            self.publish(kind, name, at)
            if cuts is not None and place in cuts:
                self.dispatch()
        if now is not None:
            self.at(now)
        self.dispatch()

    def found(self, composite: str) -> list[Detected]:
        """Return what was detected, in the order in which it was published."""
        self.dispatch()
        query = f"select detected_at, starts_at, ends_at, constituents from pgps_entry.log_{self.type_id(composite)} "
        return [
            (self.offset(detected), self.offset(starts), self.offset(ends), [self.part(one) for one in parts])
            for detected, starts, ends, parts in rows(self.connection, query + "order by pgps_event_id")
        ]

    def type_id(self, name: str) -> int:
        return int(rows(self.connection, "select type_id from pgps_internal.event_type where name = %s", [name])[0][0])

    def offset(self, moment: datetime) -> int:
        return (moment - self.base) // timedelta(microseconds=1)

    def part(self, one: dict[str, Any]) -> tuple[str, Any]:
        if "tick" in one:
            return one["as"], self.offset(datetime.fromisoformat(one["tick"]))
        return one["as"], one["payload"].get("name") if "payload" in one else None

    def go_on(self, microseconds: int) -> None:
        """Begin the next history later."""
        self.base += timedelta(microseconds=microseconds)
        self.clock.set(self.base)

    def create(self, name: str, expression: str, **options: Any) -> None:
        call(self.connection, "create_composite_event", name, expression, **options)

    def drop(self, name: str) -> None:
        call(self.connection, "drop_event_type", name, True)


def expected(expression: str, text: str, base: datetime, now: int | None = None, **arguments: Any) -> list[Detected]:
    """Return what the detector alone makes of a whole history at once."""
    definition = define("it", expression, **arguments)
    (graph,) = build([definition])
    state = State(graph, matcher=Matcher(graph, {}))
    zero = (base - EPOCH) // timedelta(microseconds=1)
    state.start(zero)
    history = [
        Event(place, zero + at, kind, json.dumps({"name": name}), id=place)
        for place, (kind, name, at) in enumerate(read(text), 1)
    ]
    _, found = detect(state, history, None if now is None else zero + now)

    def part(one: dict[str, Any]) -> tuple[str, Any]:
        if "tick" in one:
            return one["as"], one["tick"] - zero
        return one["as"], json.loads(one["payload"])["name"] if "payload" in one else None

    return [
        (
            time_of(one.point) - zero,
            time_of(one.occurrence[1]) - zero,
            time_of(one.occurrence[2]) - zero,
            [part(told) for told in constituents(definition, one.occurrence)],
        )
        for one in found
    ]
