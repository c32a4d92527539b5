"""A random story: brokers on several servers, and everything that can happen to them, one thing after the other."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.fix_broker import call, rows, value
from tests.links.fleet import Fleet, InterruptedCarry, Member, Site, close_link, open_both
from tests.links.oracle import Event, Oracle, Subscription, gaps_of
from tests.links.rig import Lane, Link

Pair = tuple[str, str]
SEGMENT = 65536
TYPES = ("tick", "tock")


@dataclass(frozen=True)
class Plan:
    """What a story may do, and how often; weights are relative."""

    brokers: int = 5
    redundant: int = 3
    steps: int = 200
    crashes: int = 1
    physical: int = 1
    restores: int = 2
    clones: int = 1
    trims: int = 0


@dataclass
class Backup:
    """A broker as it was: a copy of its database, what its subscriptions had, the last batch in it."""

    database: str
    subscriptions: list[Subscription]
    epoch: int
    last_batch: int


class Story:
    """Brokers, links that are defined and those that are up, and the oracle."""

    def __init__(self, fleet: Fleet, seed: int, plan: Plan) -> None:
        self.seed, self.plan, self.fleet = seed, plan, fleet
        self.random = random.Random(seed)
        self.oracle = Oracle()
        self.members: dict[str, Member] = {}
        self.names: dict[str, str] = {}
        self.pairs: list[Pair] = []
        self.up: dict[Pair, Link] = {}
        self.paused: set[Pair] = set()
        self.open: dict[str, tuple[psycopg.Connection, list[int]]] = {}
        self.backups: dict[str, Backup] = {}
        self.site_backup: tuple[Site, dict[str, Backup]] | None = None
        self.old: dict[Pair, list[dict[str, Any]]] = {}
        self.left = Counter(
            crash=plan.crashes, physical=plan.physical, restore=plan.restores, clone=plan.clones, trim=plan.trims
        )
        self.done: Counter[str] = Counter()
        self.serial = 0
        for letter in "abcdefg"[: plan.brokers]:
            self.add(fleet.broker(letter))
        names = list(self.members)
        pairs = {(names[self.random.randrange(i)], names[i]) for i in range(1, len(names))}
        others = [(low, high) for i, high in enumerate(names) for low in names[:i] if (low, high) not in pairs]
        pairs.update(self.random.sample(others, min(plan.redundant, len(others))))
        for pair in sorted(pairs):
            self.define(pair)
            self.raise_link(pair)

    # Brokers

    def add(self, member: Member) -> None:
        self.members[member.name] = member
        self.identify(member)
        # However busy the machine is, lanes are not left to a worker: there is none.
        call(member.admin, "configure", "dispatch_lane_timeout", "1 hour")
        for name in TYPES:
            call(member.admin, "create_event_type", name, "n integer, m integer")
            rows(member.admin, f"grant insert, select on pgps_event.{name} to public")
            call(member.admin, "advertise", name)
        rows(member.admin, "create table public.kept as select v from generate_series(1, 9, 2) v")

    def identify(self, member: Member) -> None:
        broker_id = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        member.identify(broker_id)
        self.names[broker_id] = member.name

    def some(self) -> Member:
        return self.members[self.random.choice(sorted(self.members))]

    def settle(self, member: Member) -> None:
        rows(member.admin, "select pgps.dispatch()")
        self.oracle.note(member)

    # Links

    def define(self, pair: Pair) -> None:
        low, high = (self.members[name] for name in pair)
        if not value(low.admin, "select count(*) from pgps_internal.link where name = %s", [f"to_{high.name}"]):
            call(low.admin, "create_link", f"to_{high.name}", high.dsn)
        if pair not in self.pairs:
            self.pairs.append(pair)

    def raise_link(self, pair: Pair) -> None:
        low, high = (self.members[name] for name in pair)
        link = self.up[pair] = open_both(low, high, f"to_{high.name}")
        # Some batches are small ones, some go by COPY.
        link.out.with_rows, link.back.with_rows = 32 * (ord(low.name[-1]) % 2), 32 * (ord(high.name[-1]) % 2)

    def cut(self, pair: Pair) -> None:
        close_link(self.up.pop(pair))

    def cut_all(self, *names: str) -> None:
        for pair in [pair for pair in self.up if set(pair) & set(names)]:
            self.cut(pair)

    # Steps

    def step(self) -> None:
        """Do one thing at random."""
        choices: dict[str, float] = {
            "publish": 16, "interleave": 3, "subscribe": 3, "unsubscribe": 2, "flap": 4, "redefine": 0.5,
            "dispatch": 20, "move": 45, "interrupt": 3, "repeat": 2, "skip": 1, "resync": 0.5, "backup": 1,
            "crash": 0.6, "physical": 0.4, "restore": 1.2, "clone": 0.6, "trim": 1.5,
        }  # fmt: skip
        possible = [name for name in choices if self.left.get(name, 1) > 0]
        name = self.random.choices(possible, [choices[p] for p in possible])[0]
        self.done[name] += 1
        getattr(self, f"do_{name}")()

    def do_publish(self) -> None:
        member = self.some()
        for _ in range(self.random.randint(1, 3)):
            with member.admin.transaction():
                self.publish(member.admin)

    def publish(self, connection: psycopg.Connection) -> list[int]:
        """Publish some events, of both types as it comes, in the transaction of a connection."""
        self.serial += 1
        numbers: list[int] = []
        for _ in range(self.random.choice([1, 1, 2, 3])):
            name = self.random.choice(TYPES)
            made = []
            for _ in range(self.random.choice([1, 1, 3])):
                n = len(self.oracle.events) + 1
                self.oracle.events[n] = Event(n, self.random.randrange(10), name, self.serial)
                made.append(n)
            places = ", ".join("(%s, %s)" for _ in made)
            values = [v for n in made for v in (n, self.oracle.events[n].m)]
            rows(connection, f"insert into pgps_event.{name} (n, m) values {places}", values)
            numbers += made
        return numbers

    def do_interleave(self) -> None:
        """Begin a transaction that commits later than those that come behind it; or end it."""
        member = self.some()
        if member.name in self.open:
            self.end_open(member.name, commit=self.random.random() < 0.8)
            return
        connection = member.connect()
        connection.autocommit = False
        self.open[member.name] = connection, self.publish(connection)

    def end_open(self, name: str, *, commit: bool) -> None:
        if name in self.open:
            connection, _ = self.open.pop(name)
            if commit:
                connection.commit()
            connection.close()

    def do_subscribe(self, member: Member | None = None) -> None:
        member = member or self.some()
        k = self.random.randrange(8)
        text, wants = self.random.choice(
            [
                (None, lambda e: True),
                (f"m >= {k}", lambda e: e.m >= k),
                (f"m >= {k}", lambda e: e.m >= k),
                (f"m = {k}", lambda e: e.m == k),
                (f"m >= {k} and m <= {k + 3}", lambda e: k <= e.m <= k + 3),
                (f"m >= {k} and m in (select v from public.kept)", lambda e: e.m >= k and e.m % 2 == 1),
            ]
        )
        self.serial += 1
        made = Subscription(
            member.name,
            f"s{self.serial}",
            self.random.choice(["tick", "tick", "tock", "t*"]),
            text,
            wants,
            self.serial,
        )
        call(member.admin, "subscribe", made.name, made.pattern, filter=text, scope="global")
        self.oracle.subscriptions.append(made)

    def do_unsubscribe(self) -> None:
        if self.oracle.subscriptions:
            gone = self.random.choice(self.oracle.subscriptions)
            member = self.members[gone.broker]
            self.settle(member)
            self.oracle.receive(member, gone)
            self.oracle.check(gone, gaps_of(member, self.names), final=False)
            call(member.admin, "unsubscribe", gone.name)
            self.oracle.subscriptions.remove(gone)

    def do_flap(self) -> None:
        pair = self.random.choice(self.pairs)
        if pair in self.up:
            self.cut(pair)
        else:
            self.raise_link(pair)

    def do_redefine(self) -> None:
        """Drop a link on both sides, with what waits for it, and define it again."""
        pair = self.random.choice(self.pairs)
        self.cut_all_of(pair)
        low, high = (self.members[name] for name in pair)
        call(low.admin, "drop_link", f"to_{high.name}", True)
        if value(high.admin, "select count(*) from pgps_internal.neighbour where name = %s", [low.name]):
            call(high.admin, "drop_link", low.name, True)
        self.old.pop(pair, None)
        self.define(pair)
        self.raise_link(pair)

    def cut_all_of(self, pair: Pair) -> None:
        if pair in self.up:
            self.cut(pair)

    def do_dispatch(self) -> None:
        self.settle(self.some())

    def lane(self) -> tuple[Pair, Lane] | None:
        if not self.up:
            return None
        pair = self.random.choice(sorted(self.up))
        return pair, self.random.choice([self.up[pair].out, self.up[pair].back])

    def do_move(self) -> None:
        found = self.lane()
        if found:
            pair, lane = found
            batch = self.next(lane)
            if batch["items"]:
                lane.carry(batch)
                if lane is self.up[pair].out:
                    self.old.setdefault(pair, []).append(batch)

    def next(self, lane: Lane) -> dict[str, Any]:
        batch = lane.next(self.random.choice([1, 3, 1000]), refresh=self.random.random() < 0.8)
        lane.mark = None
        return batch

    def do_interrupt(self) -> None:
        """Kill what carries a batch before one of its steps; both ways begin again."""
        found = self.lane()
        if found is None:
            return
        pair, lane = found
        point = self.random.choice(["begin", "copy", "apply", "commit", "confirm"])

        def at(step: str) -> None:
            if step == point:
                lane.target.close()
                raise InterruptedCarry

        self.carry_until(lane, at)
        self.cut(pair)
        self.raise_link(pair)

    def carry_until(self, lane: Lane, at: Any) -> None:
        batch = self.next(lane)
        try:
            if batch["items"]:
                lane.carry(batch, at=at)
        except InterruptedCarry:
            pass

    def do_repeat(self) -> None:
        """Bring a batch that was received before: it is known, and nothing is done with it."""
        pair = self.random.choice(self.pairs)
        if pair in self.up and self.old.get(pair):
            lane = self.up[pair].out
            with lane.target.transaction():
                begun = value(
                    lane.target, "select pgps.link_begin(%s::jsonb)", [_text(self.random.choice(self.old[pair]))]
                )
            assert "copies" not in begun, begun

    def do_skip(self) -> None:
        """Bring a batch before the one that precedes it: it is refused, and nothing is done with it."""
        found = self.lane()
        if found is None:
            return
        _, lane = found
        batch = lane.next(1000)
        lane.mark = None
        if batch["items"]:
            early = {**batch, "after": batch["after"] + 1}
            try:
                value(lane.target, "select pgps.link_begin(%s::jsonb)", [_text(early)])
            except psycopg.errors.ObjectNotInPrerequisiteState:
                return
            raise AssertionError("a batch was taken though the one before it is missing")

    def do_resync(self) -> None:
        pair = self.random.choice(sorted(self.up)) if self.up else None
        if pair:
            call(self.members[pair[0]].admin, "resync_link", f"to_{pair[1]}")

    def close(self) -> None:
        for name in list(self.open):
            self.end_open(name, commit=False)
        for pair in list(self.up):
            link = self.up.pop(pair)
            for lane in (link.out, link.back):
                lane.source.close()
                lane.target.close()


def _text(batch: dict[str, Any]) -> str:
    import json

    return json.dumps(batch)
