"""Lanes against a model: whatever is subscribed, paused and published, each gets what it wants, once and in order."""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fix_broker import call, make_type, publish, rows
from tests.fix_db import Connect
from tests.sql.match.lane_steps import cut, run_lanes, take_only

PATTERNS = ["pattern", "twin", "crowd"]
WANTED: dict[str, Callable[[str, int], bool]] = {
    "safe": lambda t, n: t == "pa" and n > 3,
    "lane": lambda t, n: t == "pa" and n % 2 == 0,
    **dict.fromkeys(PATTERNS, lambda t, n: n % 2 == 0),
    "wild": lambda t, n: True,
    "shared": lambda t, n: t == "pb" and n % 2 == 0,
}
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 4), st.integers(1, 3), st.booleans()),
        st.sampled_from([("cut",), ("add_type",), ("add_type",), ("lanes",), ("dispatch",)]),
        st.tuples(st.just("step"), st.booleans()),
        st.tuples(st.just("take"), st.sampled_from(list(WANTED)), st.integers(1, 4)),
        st.tuples(st.sampled_from(["alter", "begin_now", "begin_again"]), st.sampled_from(PATTERNS)),
    ),
    min_size=10,
    max_size=40,
)


@pytest.fixture
def server_database(own_database: str, connect: Connect) -> psycopg.Connection:
    """A broker that all examples of one test share."""
    return connect(dsn=own_database)


@dataclass
class World:
    """A broker, what was published to it, and what each subscription should have got and has."""

    broker: psycopg.Connection
    types: list[str] = field(default_factory=list)
    published: list[tuple[str, int]] = field(default_factory=list)
    expected: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in WANTED})
    seen: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in WANTED})
    forms: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def begin(self) -> None:
        rows(self.broker, "select pgps.drop_event_type(name, true) from pgps.event_types")
        rows(self.broker, "select pgps.unsubscribe(name) from pgps.subscriptions")
        rows(self.broker, "create or replace function public.even(n integer) returns boolean return n % 2 = 0")
        self.add_type()
        self.add_type()
        call(self.broker, "subscribe", "safe", "pa", "n > 3")
        call(self.broker, "subscribe", "lane", "pa", "public.even(n)")
        call(self.broker, "subscribe", "wild", "p*")
        call(self.broker, "subscribe", "shared", "pb", "public.even(n)", handler="any")
        for who in PATTERNS:
            self._subscribe(who, "now")

    def _subscribe(self, who: str, start: str) -> None:
        handler = "any" if who == "crowd" else "all"
        call(self.broker, "subscribe", who, "p*", "public.even(n)", start=start, handler=handler)

    def publish(self, place: int, many: int, is_cut: bool) -> None:
        name = self.types[place % len(self.types)]
        fresh = list(range(len(self.published) + 1, len(self.published) + many + 1))
        self.published += [(name, n) for n in fresh]
        publish(self.broker, name, *fresh)
        for who, wants in WANTED.items():
            self.expected[who] += [n for n in fresh if wants(name, n)]
        if is_cut:
            self.cut()

    def cut(self) -> None:
        cut(self.broker)

    def lanes(self) -> None:
        run_lanes(self.broker)

    def dispatch(self) -> None:
        rows(self.broker, "select pgps.dispatch()")

    def step(self, is_read: bool) -> None:
        """Let the lane do the least that it does in one transaction, as one that is slow for more than two events."""
        rows(self.broker, "update pgps_internal.lane set is_slow = true, slow_until = 'infinity'")
        rows(
            self.broker,
            "insert into pgps_internal.lane_part (lane_id, events) select lane_id, 2 from pgps_internal.lane"
            " on conflict on constraint lane_part_pkey do update set events = 2",
        )
        rows(self.broker, "select pgps.run_slow_lane(lane_id) from pgps_internal.lane")
        for who in WANTED if is_read else []:
            self.take(who)

    def add_type(self) -> None:
        self.types.append(f"p{string.ascii_lowercase[len(self.types)]}")
        make_type(self.broker, self.types[-1])

    def take(self, who: str, many: int = 1000) -> None:
        self.seen[who] += take_only(self.broker, who, many)

    def alter(self, who: str) -> None:
        """Give a subscription another form of the same filter."""
        call(self.broker, "alter_subscription", who, filter=f"public.even(n) and n > {-next(self.forms)}")

    def begin_now(self, who: str) -> None:
        rows(self.broker, "select pgps.unsubscribe(%s)", [who])
        self._subscribe(who, "now")
        self.seen[who], self.expected[who] = [], []

    def begin_again(self, who: str) -> None:
        rows(self.broker, "select pgps.unsubscribe(%s)", [who])
        self._subscribe(who, "earliest")
        self.seen[who], self.expected[who] = [], [n for t, n in self.published if WANTED[who](t, n)]

    def end(self) -> None:
        self.cut()
        self.lanes()
        for who in WANTED:
            self.take(who)
        # Of competing consumers each event goes to one, in no order.
        for order in (self.seen, self.expected):
            order["crowd"].sort()


@pytest.mark.timeout(600)
@settings(max_examples=60)
@given(actions=ACTIONS)
def test_each_subscription_gets_what_it_wants_in_order_and_once(
    server_database: psycopg.Connection, actions: list[tuple[Any, ...]]
) -> None:
    world = World(server_database)
    world.begin()
    for name, *args in actions:
        getattr(world, name)(*args)
    world.end()
    assert world.seen == world.expected
