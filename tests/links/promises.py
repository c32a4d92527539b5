"""Random networks in which event types are promised, taken back, dropped and made again, and filters come and go.

What must arrive is worked out apart from the brokers: whatever is published by somebody whose promise has stood since
the network last rested, for a subscription whose filters since then all want it. What may arrive is what a filter of
the subscription has wanted; nothing comes twice, or in another order than that of its origin.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import psycopg

from tests.fix_broker import call, rows, value
from tests.links.rig import Broker, Link, open_link, received, settle

Pair = tuple[int, int]
KINDS = ("tick", "tock")
FILTERS = ("", "m >= 2", "m >= 5", "m >= 7", "m in (1, 8)", "m % 3 = 1", "m % 9 = 1", "m >= 2 and m in (2, 5, 8)")


def wants(text: str, m: int) -> bool:
    """What a filter says of an event."""
    return bool(eval(text.replace(" = ", " == "), {"m": m})) if text else True


@dataclass
class Event:
    """What was published: `n` numbers all events, `m` is what filters ask for."""

    n: int
    m: int
    origin: str
    kind: str


@dataclass
class Subscription:
    """A global subscription: its filter comes last in `filters`, behind those that it has had since the last rest.

    `must`: the origins from which it must get what is published now; `due`: what it must get yet.
    """

    place: int
    name: str
    kind: str
    filters: list[str]
    had: set[str]
    must: set[int] = field(default_factory=set)
    due: list[Event] = field(default_factory=list)
    got: list[int] = field(default_factory=list)

    def is_sure_of(self, event: Event) -> bool:
        return all(wants(text, event.m) for text in self.filters)


class Story:
    """Brokers, the links among them, what is promised where, and the subscriptions."""

    def __init__(self, brokers: list[Broker], seed: int, *, chords: int) -> None:
        self.random = random.Random(seed)
        self.brokers = brokers
        count = len(brokers)
        self.pairs: list[Pair] = sorted({(min(i, (i + 1) % count), max(i, (i + 1) % count)) for i in range(count)})
        others = [(low, high) for high in range(count) for low in range(high) if (low, high) not in self.pairs]
        self.pairs += self.random.sample(others, min(chords, len(others)))
        self.up: dict[Pair, Link] = {}
        self.draining: set[Pair] = set()
        self.promised: set[tuple[int, str]] = set()
        self.lacking: set[tuple[int, str]] = set()
        self.subscriptions: list[Subscription] = []
        self.events: dict[int, Event] = {}
        self.made = 0
        self.checked = 0
        self.said: list[str] = []
        for place, kind in ((0, "tick"), (count // 2, "tock")):
            self.make(place, kind)
            self.promise(place, kind)
        for pair in self.pairs:
            self.define(pair)

    def say(self, what: str, *about: object) -> None:
        self.said.append(f"{what} {' '.join(map(str, about))}")

    # Links

    def define(self, pair: Pair) -> None:
        low, high = (self.brokers[place] for place in pair)
        call(low.admin, "create_link", f"to_{high.name}", high.dsn)
        self.raise_link(pair)

    def raise_link(self, pair: Pair) -> None:
        low, high = (self.brokers[place] for place in pair)
        link = self.up[pair] = open_link(low, high, f"to_{high.name}")
        # Some batches are small ones, some go by COPY.
        link.out.with_rows, link.back.with_rows = 32 * (pair[0] % 2), 32 * (pair[1] % 2)

    def cut(self, pair: Pair) -> None:
        self.up.pop(pair).close()

    def is_connected_without(self, gone: Pair) -> bool:
        seen, todo = {0}, [0]
        while todo:
            place = todo.pop()
            for pair in set(self.pairs) - {gone} - self.draining:
                if place in pair and (other := sum(pair) - place) not in seen:
                    seen.add(other)
                    todo.append(other)
        return len(seen) == len(self.brokers)

    def drop_or_cut(self) -> None:
        """Cut a link or raise it; or drop one, if the others still join all brokers."""
        pair = self.random.choice(self.pairs)
        if pair not in self.up:
            self.say("raise", pair)
            self.raise_link(pair)
        elif pair in self.draining or self.random.random() < 0.6 or not self.is_connected_without(pair):
            self.say("cut", pair)
            self.cut(pair)
        else:
            self.say("drop link", pair)
            call(self.brokers[pair[0]].admin, "drop_link", f"to_{self.brokers[pair[1]].name}")
            self.draining.add(pair)

    def move(self) -> None:
        pair = self.random.choice(sorted(self.up))
        link = self.up[pair]
        lane = self.random.choice([link.out, link.back])
        if self.random.random() < 0.05:
            # The sender's session is lost between the commit at the receiver and its confirmation.
            lane.move()
            self.cut(pair)
            self.raise_link(pair)
            return
        try:
            lane.move(max_events=self.random.choice([1, 3, 100]))
        except psycopg.errors.ObjectNotInPrerequisiteState:
            # The receiver lacks the type just now: its worker opens the link again, and tries again.
            self.say("refused", pair)
            self.cut(pair)
            self.raise_link(pair)
            return
        if pair in self.draining and link.drained:
            self.make_anew(pair)

    def make_anew(self, pair: Pair) -> None:
        """Do what workers do with a drained link, and define it again."""
        self.say("make link", pair)
        self.up[pair].remove()
        self.cut(pair)
        self.draining.discard(pair)
        self.define(pair)

    # Types and promises

    def make(self, place: int, kind: str) -> None:
        broker = self.brokers[place]
        if value(broker.admin, "select to_regclass(%s) is null", [f"pgps_event.{kind}"]):
            call(broker.admin, "create_event_type", kind, "n integer, m integer")
        self.lacking.discard((place, kind))

    def promise(self, place: int, kind: str) -> None:
        self.make(place, kind)
        call(self.brokers[place].admin, "advertise", kind)
        self.promised.add((place, kind))
        self.say("promise", place, kind)

    def take_back(self, place: int, kind: str) -> None:
        self.promised.discard((place, kind))
        for subscription in self.subscriptions:
            if subscription.kind == kind:
                subscription.must.discard(place)
        self.say("take back", place, kind)

    def change_promise(self) -> None:
        place, kind = self.random.randrange(len(self.brokers)), self.random.choice(KINDS)
        if (place, kind) not in self.promised:
            self.promise(place, kind)
            return
        call(self.brokers[place].admin, "unadvertise", kind)
        self.take_back(place, kind)
        if self.random.random() < 0.3:
            self.promise(place, kind)

    def drop_type(self) -> None:
        """Drop a type where nobody subscribes to it, if nothing waits; it is made again at once, or some time later."""
        place, kind = self.random.randrange(len(self.brokers)), self.random.choice(KINDS)
        if (place, kind) in self.lacking:
            self.make(place, kind)
            self.say("make type", place, kind)
            return
        if any((s.place, s.kind) == (place, kind) for s in self.subscriptions):
            return
        try:
            call(self.brokers[place].admin, "drop_event_type", kind)
        except (psycopg.errors.DependentObjectsStillExist, psycopg.errors.UndefinedObject):
            return
        self.say("drop type", place, kind)
        self.take_back(place, kind)
        self.lacking.add((place, kind))
        if self.random.random() < 0.3:
            self.promise(place, kind)

    # Events and filters

    def publish(self, place: int, kind: str) -> None:
        broker = self.brokers[place]
        self.made += 1
        event = Event(self.made, self.random.randrange(10), broker.name, kind)
        rows(broker.admin, f"insert into pgps_event.{kind} values (%s, %s)", [event.n, event.m])
        self.events[event.n] = event
        for subscription in self.subscriptions:
            if subscription.kind == kind and place in subscription.must and subscription.is_sure_of(event):
                subscription.due.append(event)

    def subscribe(self) -> None:
        place, kind = self.random.randrange(len(self.brokers)), self.random.choice(KINDS)
        text, name = self.random.choice(FILTERS), f"s{len(self.said)}"
        try:
            call(self.brokers[place].admin, "subscribe", name, kind, filter=text or None, scope="global")
        except (psycopg.errors.UndefinedObject, psycopg.errors.ObjectNotInPrerequisiteState):
            return
        self.subscriptions.append(Subscription(place, name, kind, [text], {text}, {place}))
        self.say("subscribe", name, place, kind, repr(text))

    def change_filter(self) -> None:
        if not self.subscriptions:
            return
        subscription = self.random.choice(self.subscriptions)
        if self.random.random() < 0.4:
            self.receive(subscription)
            call(self.brokers[subscription.place].admin, "unsubscribe", subscription.name)
            self.subscriptions.remove(subscription)
            self.say("unsubscribe", subscription.name)
            return
        self.receive(subscription)
        text = self.random.choice(FILTERS)
        call(self.brokers[subscription.place].admin, "alter_subscription", subscription.name, filter=text)
        subscription.filters.append(text)
        subscription.had.add(text)
        subscription.due = [event for event in subscription.due if wants(text, event.m)]
        self.say("alter", subscription.name, repr(text))

    def receive(self, subscription: Subscription) -> None:
        """Take what there is, and compare it with what may have come."""
        broker = self.brokers[subscription.place]
        for origin, n in received(broker, subscription.name):
            event, about = self.events[n], f"{subscription} {n} of {origin}\n" + "\n".join(self.said[-60:])
            assert (event.origin, event.kind) == (origin, subscription.kind), about
            assert any(wants(text, event.m) for text in subscription.had), f"not wanted: {about}"
            before = [m for m in subscription.got if self.events[m].origin == origin]
            assert not before or n > max(before), f"repeated or out of order: {about}"
            subscription.got.append(n)
        got = set(subscription.got)
        self.checked += len(subscription.due)
        subscription.due = [event for event in subscription.due if event.n not in got]
        self.checked -= len(subscription.due)

    # The story

    def step(self) -> None:
        """Do one thing at random."""
        what = self.random.random()
        if what < 0.15:
            if self.promised:
                self.publish(*self.random.choice(sorted(self.promised)))
        elif what < 0.17:
            self.subscribe()
        elif what < 0.2:
            self.change_filter()
        elif what < 0.225:
            self.change_promise()
        elif what < 0.245:
            self.drop_type()
        elif what < 0.265:
            self.drop_or_cut()
        elif what < 0.45:
            self.random.choice(self.brokers).settle()
        elif self.up:
            self.move()

    def rest(self) -> None:
        """Make and raise everything, let it arrive, and check it."""
        for place, kind in sorted(self.lacking):
            self.make(place, kind)
        for pair in self.pairs:
            if pair not in self.up:
                self.raise_link(pair)
        settle(self.brokers, list(self.up.values()), rounds=300)
        while drained := [pair for pair in sorted(self.draining) if self.up[pair].drained]:
            for pair in drained:
                self.make_anew(pair)
            settle(self.brokers, list(self.up.values()), rounds=300)
        assert not self.draining, self.said[-60:]
        for subscription in self.subscriptions:
            self.receive(subscription)
            assert not subscription.due, f"lost: {subscription}\n" + "\n".join(self.said[-60:])
            subscription.filters = subscription.filters[-1:]
            subscription.must = {place for place, kind in self.promised if kind == subscription.kind}
        self.say("rest")

    def close(self) -> None:
        for pair in list(self.up):
            self.cut(pair)


def play(story: Story, steps: int, rests: int) -> int:
    """Play a random story with rests in between; return how many events had to arrive, and did."""
    try:
        story.rest()
        for _ in range(2 * len(story.brokers)):
            story.subscribe()
        for _ in range(rests):
            story.rest()
            # What nobody promises, or is on no path, shows at once after a rest.
            for place, kind in sorted(story.promised):
                story.publish(place, kind)
            for _ in range(steps):
                story.step()
        story.rest()
        return story.checked
    finally:
        story.close()
