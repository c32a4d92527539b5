"""Work out in Python which events each subscription must have from what publishers committed; compare with what it has.

A publisher writes each event a second time, in the same transaction, into a table of its own, the journal: after a kill
nothing else tells what was committed. The order of an origin is that in which its own broker hands its events out to a
subscription that wants all of them. Everything else is worked out without asking a broker.

From one moment on, a subscription must have all events that it wants of each origin and event type. A broker that was
restored begins a new *era* of its events. For a subscription that was in force before publishing began, the moment is
known. For a later one it is the first event that it got, or the end of the story, when the network was at rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.links.storm.script import FILTERS


@dataclass(frozen=True)
class Event:
    """An event that was committed; `at`: the clock when it was inserted."""

    n: int
    type: str
    home: str
    producer: int
    seq: int
    m: int
    at: float


@dataclass
class Subscription:
    """A global subscription and what it has got; `got` is filled in when it is read.

    `made_at` and `ended_at` are times of the clock, None from the beginning and to the end. `sure` says from when on it
    must have all events of a home and type. Events of the home in `apart`, up to its time, are left out: they are from
    before the broker was copied, and the copy has them as its own.
    """

    broker: str
    name: str
    pattern: str
    filter: str
    is_called: bool = False
    made_at: float | None = None
    ended_at: float | None = None
    sure: dict[tuple[str, str], float] = field(default_factory=dict)
    apart: tuple[str, float] | None = None
    got: list[int] = field(default_factory=list)

    def wants(self, event: Event) -> bool:
        """Return whether an event is of one of its types and matches its filter."""
        named = event.type.startswith(self.pattern[:-1]) if self.pattern.endswith("*") else event.type == self.pattern
        return named and FILTERS[self.filter][1](event.m) and not self.leaves_out(event)

    def leaves_out(self, event: Event) -> bool:
        return self.apart is not None and event.home == self.apart[0] and event.at <= self.apart[1]

    def be_sure(self, homes: Iterable[str], types: Iterable[str], at: float) -> None:
        """Record that it must have everything from a time on, unless an earlier time is recorded."""
        for key in [(home, kind) for home in homes for kind in types]:
            self.sure.setdefault(key, at)


@dataclass(frozen=True)
class Finding:
    """What is wrong with a subscription: `kind` is missing, twice, disorder, unwanted or unknown; `ns` are events."""

    kind: str
    broker: str
    subscription: str
    home: str
    type: str
    ns: tuple[int, ...]
    said: str = ""


@dataclass
class Truth:
    """All events, and in which order each broker handed out its own; `order` has a list for each era of a home."""

    events: dict[int, Event] = field(default_factory=dict)
    order: dict[str, list[list[int]]] = field(default_factory=lambda: defaultdict(lambda: [[]]))
    lost: set[int] = field(default_factory=set)
    """What a restored broker has forgotten of its own: others may have it, or not."""

    def note(self, events: Iterable[Event]) -> None:
        """Record the events of a journal."""
        for event in events:
            self.events[event.n] = event

    def note_order(self, home: str, ns: list[int]) -> None:
        """Record the order in which a broker hands out its own events; what is recorded already is passed over."""
        known = {n for era in self.order[home] for n in era}
        self.order[home][-1] += [n for n in ns if n not in known]

    def begin_era(self, home: str) -> None:
        """Begin a new era of a broker that was restored."""
        self.order[home].append([])

    def set_apart(self, home: str, ns: set[int]) -> None:
        """Record which events a restored broker counts as of its new epoch: their order among others is not promised.

        What it had handed out shortly before the backup may be among them.
        """
        for era in [*self.order[home]]:
            apart = [n for n in era if n in ns]
            if apart and len(apart) < len(era):
                era[:] = [n for n in era if n not in ns]
                self.order[home].insert(0, apart)

    def never_handed_out(self) -> list[Finding]:
        """Return the events that were committed and that their own broker has not handed out."""
        handed = {n for eras in self.order.values() for era in eras for n in era}
        left: dict[tuple[str, str], list[int]] = defaultdict(list)
        for event in self.events.values():
            if event.n not in handed and event.n not in self.lost:
                left[event.home, event.type].append(event.n)
        return [
            Finding("missing", home, f"{home}_own", home, kind, tuple(ns), "never handed out at home")
            for (home, kind), ns in left.items()
        ]

    def check(self, subscription: Subscription) -> list[Finding]:
        """Compare what a subscription has with what it must have."""
        found = self._strange(subscription)
        got = [n for n in subscription.got if n in self.events and not subscription.leaves_out(self.events[n])]
        for home, eras in self.order.items():
            for era in eras:
                found += self._missing(subscription, home, era, set(got))
                found += self._disorder(subscription, home, era, got)
        return found + self.disorder_of_producers(subscription, got)

    def _strange(self, subscription: Subscription) -> list[Finding]:
        """Return findings of events that nobody committed, that it does not want, or that it has twice."""

        def one(kind: str, home: str, type_: str, ns: list[int]) -> Finding:
            return Finding(kind, subscription.broker, subscription.name, home, type_, tuple(ns))

        unknown = [n for n in subscription.got if n not in self.events]
        found = [one("unknown", "?", "?", unknown)] if unknown else []
        grouped: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for n, times in Counter(subscription.got).items():
            event = self.events.get(n)
            if event is None or subscription.leaves_out(event):
                continue
            if times > 1:
                grouped["twice", event.home, event.type].append(n)
            if not subscription.wants(event):
                grouped["unwanted", event.home, event.type].append(n)
        return found + [one(*key, ns) for key, ns in grouped.items()]

    def _missing(self, subscription: Subscription, home: str, era: list[int], got: set[int]) -> list[Finding]:
        found = []
        wanted: dict[str, list[Event]] = defaultdict(list)
        for n in era:
            if subscription.wants(event := self.events[n]):
                wanted[event.type].append(event)
        for kind, events in wanted.items():
            places = [place for place, event in enumerate(events) if event.n in got]
            first = places[0] if places else len(events)
            last = len(events) - 1
            if subscription.ended_at is not None:
                last = places[-1] if places else -1
            sure = subscription.sure.get((home, kind))
            lacks = [
                event
                for place, event in enumerate(events)
                if event.n not in got
                and event.n not in self.lost
                and place <= last
                and (place > first or (sure is not None and event.at > sure))
                # At home, an event that was inserted before the subscription and committed after it may come or not.
                and not (home == subscription.broker and event.at <= (subscription.made_at or 0.0))
            ]
            if lacks:
                said = f"of {len(events)} wanted, got {len(places)}"
                if places:
                    said += f", the first of them n {events[first].n}, the last n {events[places[-1]].n}"
                found.append(
                    Finding("missing", subscription.broker, subscription.name, home, kind,
                            tuple(event.n for event in lacks), said)
                )  # fmt: skip
        return found

    def _disorder(self, subscription: Subscription, home: str, era: list[int], got: list[int]) -> list[Finding]:
        """Return findings about events out of the order in which their own broker handed them out."""
        place = {n: i for i, n in enumerate(era)}
        last, wrong = -1, []
        for n in got:
            if n in place:
                if place[n] < last:
                    wrong.append(n)
                last = max(last, place[n])
        if not wrong:
            return []
        return [Finding("disorder", subscription.broker, subscription.name, home, "*", tuple(wrong))]

    def disorder_of_producers(self, subscription: Subscription, got: list[int]) -> list[Finding]:
        """Return findings about events out of the order in which one session published them."""
        last: dict[int, int] = {}
        wrong: dict[tuple[str, str], list[int]] = defaultdict(list)
        for n in got:
            event = self.events[n]
            if event.seq < last.get(event.producer, 0):
                wrong[event.home, event.type].append(n)
            last[event.producer] = max(event.seq, last.get(event.producer, 0))
        return [
            Finding("disorder", subscription.broker, subscription.name, home, kind, tuple(ns), "of one producer")
            for (home, kind), ns in wrong.items()
        ]
