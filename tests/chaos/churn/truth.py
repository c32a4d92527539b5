"""Work out in Python what each subscription must have, from what was published and done when; compare with what it got.

Everything that is done has two times of the clock: it took effect somewhere between them. What lies clearly on one side
is judged, what lies between may have gone either way:

- An event that was committed after a subscription was there, until that was ended, must have come, if every filter that
  was in force since its commit wants it; it must not have come if none of them does.
- What is thrown away without being received (by a seek to now, or to an event that comes after it in the order of
  delivery, with a type that is dropped, with a subscription that ends) may be missing, unless something behind it, in
  the order of delivery, was received before.
- Nothing comes twice, unless the subscription was set back.
- Who alone consumes a subscription gets it in the order of batches, then of ids; but what was put back comes when it
  comes.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

FILTERS: dict[str, tuple[str | None, Callable[[int], bool]]] = {
    "any": (None, lambda m: True),
    "ge3": ("m >= 3", lambda m: m >= 3),
    "ge6": ("m >= 6", lambda m: m >= 6),
    "some": ("m in (1, 4, 7)", lambda m: m in {1, 4, 7}),
    "even": ("m % 2 = 0", lambda m: m % 2 == 0),
    "odd": ("m in (select o.v from churn.odd o)", lambda m: m % 2 == 1),
    "listed": ("exists (select from churn.odd o where o.v = m and m > 2)", lambda m: m % 2 == 1 and m > 2),
    "slow": ("churn.slow(m)", lambda m: m % 3 != 0),
}
"""Filters by name: over nothing, over the event, over a table, over a function that takes its time."""

IN_LANES = ("odd", "listed", "slow")


@dataclass(frozen=True, slots=True)
class Span:
    """When something was done: times of the clock before it was begun, and after it was committed."""

    began: float
    done: float


@dataclass(frozen=True, slots=True)
class Kind:
    """An event type: its name may be given again, its oid is not."""

    name: str
    oid: int


@dataclass(frozen=True, slots=True)
class Event:
    """An event that was committed between `span.began` and `span.done`, by a session as its `seq`-th."""

    n: int
    kind: Kind
    session: int
    seq: int
    m: int
    span: Span


@dataclass(frozen=True, slots=True)
class Got:
    """An event that was processed; n is None where the subscription was moved by seek instead."""

    n: int | None
    event_id: int = 0
    at: float = 0.0


@dataclass
class Life:
    """A subscription from subscribe to unsubscribe; `mode` is all, any or called."""

    number: int
    name: str
    pattern: str
    mode: str
    start: str
    owner: str
    made: Span = Span(float("inf"), float("inf"))
    filters: list[tuple[Span, str]] = field(default_factory=list)
    seeks: list[tuple[Span, str]] = field(default_factory=list)
    ended: Span | None = None
    put_back: set[int] = field(default_factory=set)
    got: list[Got] = field(default_factory=list)

    @property
    def is_there(self) -> bool:
        return self.made.done < float("inf") and self.ended is None

    @property
    def filter(self) -> str:
        """The filter that it has now."""
        return self.filters[-1][1]

    def covers(self, event: Event) -> bool:
        """Return whether it is of its types."""
        name = event.kind.name
        return name.startswith(self.pattern[:-1]) if self.pattern.endswith("*") else name == self.pattern

    def in_force(self, since: float, until: float) -> list[str]:
        """Return the filters that may have been asked about an event between two times."""
        begins = [span.began for span, _ in self.filters]
        ends = [span.done for span, _ in self.filters[1:]] + [float("inf")]
        return [
            name
            for (_, name), began, ended in zip(self.filters, begins, ends, strict=True)
            if began < until and ended >= since
        ]

    def wants(self, event: Event, until: float) -> bool:
        """Return whether all filters do that were in force between the event's commit and a time."""
        return all(FILTERS[name][1](event.m) for name in self.in_force(event.span.began, until))

    def refuses(self, event: Event, until: float) -> bool:
        """Return whether none of these filters wants it."""
        return not any(FILTERS[name][1](event.m) for name in self.in_force(event.span.began, until))

    def begins(self, before: float) -> float:
        """Return from when on it must have all, of what was done before a time."""
        skips = [span.done for span, start in self.seeks if start == "now" and span.began < before]
        return max([self.made.done, *skips])


@dataclass(frozen=True)
class Finding:
    """What is wrong: `kind` is missing, passed, early, unwanted, unknown, twice or disorder; `ns` are events."""

    kind: str
    life: int
    subscription: str
    type: str
    ns: tuple[int, ...]
    said: str = ""


@dataclass
class Truth:
    """All events, the types that were dropped, the place of each event in the order of delivery (batch and id)."""

    events: dict[int, Event] = field(default_factory=dict)
    dropped: dict[Kind, Span] = field(default_factory=dict)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    set_aside: set[str] = field(default_factory=set)
    """Event types that were set aside for a while: what came of them meanwhile came behind the others."""

    def check(self, life: Life) -> list[Finding]:
        """Compare what a subscription has with what it must have."""
        findings = [*self._strange(life), *self._missing(life)]
        if life.mode != "any":
            findings += self._passed(life)
            findings += self._disorder(life)
        return findings

    def about(self, n: int, life: Life, began: float) -> str:
        """Say what is known of an event, with times since the story began."""
        got = [f"{one.at - began:.2f}" for one in life.got if one.n == n]
        event = self.events.get(n)
        if event is None:
            return f"{n}: got at {got}"
        return (
            f"{n}: {event.kind.name} {event.kind.oid}, session {event.session} seq {event.seq}, m {event.m},"
            f" committed {event.span.began - began:.2f} to {event.span.done - began:.2f},"
            f" place {self.places.get(n)}, got at {got}"
        )

    def _told(self, kind: str, life: Life, ns: Iterable[int], said: str = "") -> Iterator[Finding]:
        """Yield a finding for each event type."""
        by_type: dict[str, list[int]] = defaultdict(list)
        for n in ns:
            by_type[self.events[n].kind.name if n in self.events else "?"].append(n)
        for name, found in by_type.items():
            yield Finding(kind, life.number, life.name, name, tuple(dict.fromkeys(found)), said)

    def _strange(self, life: Life) -> Iterator[Finding]:
        """Yield what nobody committed, what came too early, what it does not want, what it has too often."""
        got = [one for one in life.got if one.n is not None]
        known = [(one, self.events[one.n]) for one in got if one.n in self.events]
        back = [span for span, start in life.seeks if start != "now"]
        yield from self._told("unknown", life, [one.n for one in got if one.n is not None and one.n not in self.events])
        yield from self._told(
            "unwanted", life, [event.n for one, event in known if not life.covers(event) or life.refuses(event, one.at)]
        )
        if life.start == "now" and not back:
            yield from self._told(
                "early",
                life,
                [event.n for _, event in known if event.span.done < life.made.began],
                "before it was made",
            )
        first: dict[int, float] = {}
        for one, event in known:
            first.setdefault(event.n, one.at)
        times = Counter(event.n for _, event in known)
        twice = [n for n, count in times.items() if count > 1 + sum(span.done > first[n] for span in back)]
        yield from self._told("twice", life, twice)

    def _is_skipped(self, event: Event, life: Life, before: float) -> bool:
        """Return whether a subscription was set to an event behind this one before a time."""
        place = self.places.get(event.n)
        if place is None:
            return False
        starts = {int(start) for span, start in life.seeks if start not in {"now", "earliest"} and span.began < before}
        return any(place < start for start in self.places.values() if start[1] in starts)

    def _missing(self, life: Life) -> Iterator[Finding]:
        """Yield what must have come by the end, to who is there still, of types that are there still."""
        if not life.is_there:
            return
        got = {one.n for one in life.got}
        since = life.begins(float("inf"))
        yield from self._told(
            "missing",
            life,
            [
                event.n
                for event in self.events.values()
                if event.n not in got
                and event.span.began > since
                and event.kind not in self.dropped
                and life.covers(event)
                and life.wants(event, float("inf"))
                and not self._is_skipped(event, life, float("inf"))
            ],
        )

    def _passed(self, life: Life) -> Iterator[Finding]:
        """Yield what must have come since something behind it had come, before that could be another filter's doing."""
        moments = [span.began for span, _ in life.filters[1:]]
        moments += [life.ended.began] if life.ended else [float("inf")]
        moments += [span.began for span, start in life.seeks if start != "earliest"]
        moments += [span.began for span in self.dropped.values()]
        have = {one.n for one in life.got}
        lacks: set[int] = set()
        for moment in moments:
            seen = [self.places[one.n] for one in life.got if one.n in self.places and one.at < moment
                    and one.n not in life.put_back]  # fmt: skip
            if not seen:
                continue
            last, since = max(seen), life.begins(moment)
            lacks |= {
                event.n
                for event in self.events.values()
                if event.n not in have
                and event.n not in life.put_back
                and self.places.get(event.n, last) < last
                and event.span.began > since
                and life.covers(event)
                and life.wants(event, moment)
                and not (event.kind in self.dropped and self.dropped[event.kind].began < moment)
                and not self._is_skipped(event, life, moment)
            }
        still = {n for finding in self._missing(life) for n in finding.ns}
        yield from self._told("passed", life, sorted(lacks - still), "what lies behind it has come")

    def _disorder(self, life: Life) -> Iterator[Finding]:
        """Yield what came behind something that is later in the order of delivery, or of its session."""
        wrong: list[int] = []
        of_session: list[int] = []
        for is_seek, stretch in itertools.groupby(life.got, lambda one: one.n is None):
            if is_seek:
                continue
            ns = [one.n for one in stretch if one.n in self.events and one.n not in life.put_back]
            last: tuple[int, int] = (0, 0)
            newest: dict[tuple[int, str], int] = {}
            for n in ns:
                assert n is not None
                event = self.events[n]
                place = self.places.get(n, last)
                wrong += [n] * (place < last)
                last = max(last, place)
                # Across types it holds, too, unless one of them has been set aside.
                name = event.kind.name if event.kind.name in self.set_aside else ""
                of_session += [n] * (event.seq < newest.get((event.session, name), 0))
                newest[event.session, name] = max(event.seq, newest.get((event.session, name), 0))
        yield from self._told("disorder", life, wrong, "by batch and id")
        yield from self._told("disorder", life, of_session, "of one session")
