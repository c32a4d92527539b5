"""Consumers crash and come back, by the same name or another: who acknowledges has seen it, and it ends once."""

from __future__ import annotations

import dataclasses
import itertools

import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.fix_broker import call, column, make_type, publish, refused, rows
from tests.fix_clock import Clock
from tests.fix_db import Connect

NAMES = st.sampled_from(["a", "b", "c"])
SESSION = st.integers(0, 1)
MOST = st.sampled_from([1, 2, 3, 5, 9])
PLACE = st.integers(0, 4)


@dataclasses.dataclass
class Living:
    """A consumer process: what it has seen, and what its newest receive returned and it has not settled since."""

    seen: set[int] = dataclasses.field(default_factory=set)
    given: list[int] = dataclasses.field(default_factory=list)


class Consumers(RuleBasedStateMachine):
    """One subscription; any session serves any consumer, as behind a transaction pooler."""

    sessions: list[psycopg.Connection]
    clock: Clock
    handler: str
    _number = itertools.count(1)

    def __init__(self) -> None:
        super().__init__()
        self.name = f"{self.handler}{next(Consumers._number)}"
        self.admin = self.sessions[0]
        call(self.admin, "subscribe", self.name, "tick", handler=self.handler, max_attempts=1_000_000)
        self.waiting: list[int] = []  # in delivery order
        self.holder: dict[int, str] = {}  # whose lease an event has, or had when nobody has taken it since
        self.expired: set[int] = set()
        self.living: dict[str, Living] = {}
        self.last: str | None = None  # of a subscription with one consumer: who received last
        self.paused = False

    def _next(self, name: str, most: int) -> list[int]:
        """Return what a receive must give."""
        if self.paused:
            return []
        if self.handler == "all":
            return self.waiting[:most]
        mine = [one for one in self.waiting if self.holder.get(one, name) == name or one in self.expired]
        return mine[:most]

    def _settled(self, who: Living, gone: list[int]) -> None:
        assert set(gone) <= who.seen
        self.waiting = [one for one in self.waiting if one not in gone]
        for one in gone:
            self.holder.pop(one, None)
            self.expired.discard(one)
        who.given = [one for one in who.given if one not in gone]

    def _mine(self, name: str) -> list[int]:
        """Return what an ack of a consumer covers: what it was given last, as far as nobody else has it now."""
        given = self.living[name].given
        if self.handler == "all":
            return given if self.last == name else []
        return [one for one in given if self.holder.get(one) == name]

    @rule(count=st.integers(1, 6))
    def publish(self, count: int) -> None:
        publish(self.admin, "tick", *range(count))
        rows(self.admin, "select pgps.dispatch()")
        query = "select event_id from pgps_queue.tick_in order by event_id desc limit %s"
        self.waiting += sorted(column(self.admin, query, [count]))

    @rule(name=NAMES, most=MOST, session=SESSION)
    def receive(self, name: str, most: int, session: int) -> None:
        expected = self._next(name, most)
        query = "select event_id from pgps.receive(%s, %s, %s)"
        assert column(self.sessions[session], query, [self.name, most, name]) == expected
        who = self.living.setdefault(name, Living())
        who.given = expected
        who.seen |= set(expected)
        if not expected:
            return
        self.last = name
        for one in expected:
            self.holder[one] = name
            self.expired.discard(one)

    @rule(name=NAMES, most=MOST, session=SESSION)
    def take(self, name: str, most: int, session: int) -> None:
        expected = self._next(name, most)
        query = "select event_id from pgps.take(%s, %s, %s)"
        assert column(self.sessions[session], query, [self.name, most, name]) == expected
        who = self.living.setdefault(name, Living())
        who.given = []
        who.seen |= set(expected)
        if expected and self.handler == "all":
            self.last = None
        self._settled(who, expected)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), session=SESSION, place=st.one_of(st.none(), PLACE))
    def ack(self, data: st.DataObject, session: int, place: int | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.living)))
        who, mine = self.living[name], self._mine(name)
        if self.handler == "all" and self.last != name:
            return
        if place is None:
            assert call(self.sessions[session], "ack", self.name, consumer=name) == len(mine)
            self._settled(who, mine)
            who.given = []
        elif place < len(mine):
            assert call(self.sessions[session], "ack", self.name, mine[place], consumer=name) == place + 1
            self._settled(who, mine[: place + 1])
        else:
            for one in [one for one in self.waiting if one not in mine][:1]:
                with refused("55000", str(one)):
                    call(self.sessions[session], "ack", self.name, one, consumer=name)

    @precondition(lambda self: self.handler == "any" and self.living)
    @rule(data=st.data(), session=SESSION, place=PLACE)
    def nack(self, data: st.DataObject, session: int, place: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.living)))
        who, mine = self.living[name], self._mine(name)
        if place < len(mine):
            call(self.sessions[session], "nack", self.name, mine[place], "no", "0", consumer=name)
            self.holder.pop(mine[place])
            self.expired.discard(mine[place])
            who.given.remove(mine[place])

    @rule(name=NAMES, most=MOST, session=SESSION, acks=st.booleans())
    def die_in_a_transaction(self, name: str, most: int, session: int, acks: bool) -> None:
        with self.sessions[session].transaction(force_rollback=True):
            query = "select event_id from pgps.receive(%s, %s, %s)"
            found = column(self.sessions[session], query, [self.name, most, name])
            assert found == self._next(name, most)
            if acks and found:
                assert call(self.sessions[session], "ack", self.name, consumer=name) == len(found)
        self.living.pop(name, None)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """What comes back by this name has seen nothing, and receives before it acknowledges."""
        self.living.pop(data.draw(st.sampled_from(sorted(self.living))))

    @rule()
    def let_leases_end(self) -> None:
        self.clock.advance("2 minutes")
        self.expired |= set(self.holder)

    @rule()
    def pause_or_resume(self) -> None:
        call(self.admin, "resume" if self.paused else "pause", self.name)
        self.paused = not self.paused

    @invariant()
    def nothing_is_gone_that_was_not_acknowledged(self) -> None:
        query = "select event_id from pgps_queue.tick_out where subscription = %s order by event_id"
        assert column(self.admin, query, [self.name]) == sorted(self.waiting)

    def teardown(self) -> None:
        if self.paused:
            self.pause_or_resume()
        self.let_leases_end()
        while self.waiting:
            self.receive("last", 4, 0)
            assert call(self.admin, "ack", self.name, consumer="last") == len(self.living["last"].given)
            self._settled(self.living["last"], self.living["last"].given)
        self.nothing_is_gone_that_was_not_acknowledged()
        call(self.admin, "unsubscribe", self.name)


@pytest.mark.parametrize("handler", ["all", "any"])
def test_who_acknowledges_has_seen_it(own_database: str, connect: Connect, handler: str) -> None:
    sessions = [connect(dsn=own_database) for _ in range(2)]
    make_type(sessions[0], "tick")
    clock = Clock(sessions[0])
    clock.set(clock.now())  # it stands: no lease ends by itself
    machine = type("Machine", (Consumers,), {"sessions": sessions, "clock": clock, "handler": handler})
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=30))
