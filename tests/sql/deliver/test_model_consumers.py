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

# Who receives: a name; a name with a token, of which two live at once; or a name in a session of its own.
NAMES = {
    "one": ["a", "b", "c"],
    "tokens": ["a#1", "a#2", "b#1", "b"],
    "sessions": ["a@0", "a@1", "b@0", "b@1"],
}
SESSION = st.integers(0, 1)
MOST = st.sampled_from([1, 2, 3, 5, 9])
PLACE = st.integers(0, 4)


@dataclasses.dataclass
class Living:
    """A consumer process: what it has seen, and what its newest receive returned and it has not settled since."""

    seen: set[int] = dataclasses.field(default_factory=set)
    given: list[int] = dataclasses.field(default_factory=list)


class Consumers(RuleBasedStateMachine):
    """One subscription; any session serves any consumer, as behind a transaction pooler, unless it has one of its own.

    Several programs may live under one name; `newest` is the one whose receive returned something last, and that has
    not acknowledged as a whole since. The others have been overtaken.
    """

    sessions: list[psycopg.Connection]
    clock: Clock
    handler: str
    living_as: str
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
        self.newest: dict[str, str | None] = {}
        self.by: dict[str, int] = {}  # which session received under a name last
        self.overtaken: dict[str, set[int]] = {}  # sessions, of each name
        self.last: str | None = None  # of a subscription with one consumer: who received last
        self.paused = False

    def _call(self, who: str, session: int) -> tuple[psycopg.Connection, str]:
        """Return the session that serves a consumer, and the name that it gives."""
        name, _, own = who.partition("@")
        return self.sessions[int(own or session)], name

    def _overtake(self, who: str, session: int, newest: str | None) -> None:
        """Note who has received or taken something, or nothing although it held something."""
        name, served = _name(who), self._served(who, session)
        if self.newest.get(name) is not None or newest is not None:
            overtaken = self.overtaken.setdefault(name, set())
            overtaken.discard(served)
            if self.newest.get(name) is not None and self.by.get(name, served) != served:
                overtaken.add(self.by[name])
            self.by[name] = served
        self.newest[name] = newest

    def _served(self, who: str, session: int) -> int:
        return int(who.partition("@")[2] or session)

    def _refused(self, who: str, session: int) -> bool:
        """Tell whether an acknowledgement is refused, since what was received last went to somebody else.

        Sessions are told from each other under a name without a token: the broker cannot know whether two of them
        are two programs, or the processes of a pooler that serve one.
        """
        if self.handler == "all":
            return False
        if "#" not in who and self._served(who, session) in self.overtaken.get(_name(who), set()):
            return True
        newest = self.newest.get(_name(who))
        return newest is not None and newest.partition("@")[0] != who.partition("@")[0]

    def _next(self, who: str, most: int) -> list[int]:
        """Return what a receive must give."""
        if self.paused:
            return []
        if self.handler == "all":
            return self.waiting[:most]
        name = _name(who)
        mine = [one for one in self.waiting if self.holder.get(one, name) == name or one in self.expired]
        return mine[:most]

    def _settled(self, who: Living, gone: list[int]) -> None:
        assert set(gone) <= who.seen
        self.waiting = [one for one in self.waiting if one not in gone]
        for one in gone:
            self.holder.pop(one, None)
            self.expired.discard(one)
        who.given = [one for one in who.given if one not in gone]

    def _mine(self, who: str) -> list[int]:
        """Return what an ack of a consumer covers: what it was given last, as far as nobody else has it now."""
        given = self.living[who].given
        if self.handler == "all":
            return given if self.last == who else []
        if self.newest.get(_name(who)) != who:
            return []
        return [one for one in given if self.holder.get(one) == _name(who)]

    def _lost(self, who: str) -> bool:
        """Say whether others have some of what a consumer was given last and has not settled: its lease has ended."""
        is_newest = self.handler == "any" and self.newest.get(_name(who)) == who
        return is_newest and len(self._mine(who)) < len(self.living[who].given)

    @rule(count=st.integers(1, 6))
    def publish(self, count: int) -> None:
        publish(self.admin, "tick", *range(count))
        rows(self.admin, "select pgps.dispatch()")
        query = "select event_id from pgps_queue.tick_in order by event_id desc limit %s"
        self.waiting += sorted(column(self.admin, query, [count]))

    @rule(data=st.data(), most=MOST, session=SESSION)
    def receive(self, data: st.DataObject, most: int, session: int) -> None:
        self._receive(data.draw(st.sampled_from(NAMES[self.living_as])), most, session)

    def _receive(self, who: str, most: int, session: int) -> None:
        expected = self._next(who, most)
        connection, consumer = self._call(who, session)
        query = "select event_id from pgps.receive(%s, %s, %s)"
        assert column(connection, query, [self.name, most, consumer]) == expected
        living = self.living.setdefault(who, Living())
        living.given = expected
        living.seen |= set(expected)
        self._overtake(who, session, who if expected else None)
        if not expected:
            return
        self.last = who
        for one in expected:
            self.holder[one] = _name(who)
            self.expired.discard(one)

    @rule(data=st.data(), most=MOST, session=SESSION)
    def take(self, data: st.DataObject, most: int, session: int) -> None:
        who = data.draw(st.sampled_from(NAMES[self.living_as]))
        expected = self._next(who, most)
        connection, consumer = self._call(who, session)
        query = "select event_id from pgps.take(%s, %s, %s)"
        assert column(connection, query, [self.name, most, consumer]) == expected
        living = self.living.setdefault(who, Living())
        living.given = []
        living.seen |= set(expected)
        self._overtake(who, session, None)
        if expected and self.handler == "all":
            self.last = None
        self._settled(living, expected)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), session=SESSION, place=st.one_of(st.none(), PLACE))
    def ack(self, data: st.DataObject, session: int, place: int | None) -> None:
        who = data.draw(st.sampled_from(sorted(self.living)))
        living, mine = self.living[who], self._mine(who)
        connection, consumer = self._call(who, session)
        # In a session of its own a program acknowledges only what it has received.
        if (self.handler == "all" and self.last != who) or (self.living_as == "sessions" and not living.given):
            return
        if self._refused(who, session):
            with refused("55000", "received by", "Receive again"):
                call(connection, "ack", self.name, *living.given[:place][-1:], consumer=consumer)
        elif self._lost(who) and (not mine if place is None else place < len(mine)):
            # All that is acknowledged has to be held; without an event, all that is held is.
            with refused("55000", "the lease has ended", "Roll back"):
                call(connection, "ack", self.name, *[mine[place]] if place is not None else [], consumer=consumer)
        elif place is None:
            assert call(connection, "ack", self.name, consumer=consumer) == len(mine)
            self._settled(living, mine)
            living.given = []
            self.newest[_name(who)] = None
        elif place < len(mine):
            assert call(connection, "ack", self.name, mine[place], consumer=consumer) == place + 1
            self._settled(living, mine[: place + 1])
        else:
            for one in [one for one in self.waiting if one not in mine][:1]:
                with refused("55000", str(one)):
                    call(connection, "ack", self.name, one, consumer=consumer)

    @precondition(lambda self: self.handler == "any" and self.living)
    @rule(data=st.data(), session=SESSION, place=PLACE)
    def nack(self, data: st.DataObject, session: int, place: int) -> None:
        who = data.draw(st.sampled_from(sorted(self.living)))
        given, mine = self.living[who].given, self._mine(who)
        connection, consumer = self._call(who, session)
        if given and self._refused(who, session):
            with refused("55000", "received by"):
                call(connection, "nack", self.name, given[0], "no", "0", consumer=consumer)
        elif place < len(mine):
            call(connection, "nack", self.name, mine[place], "no", "0", consumer=consumer)
            self.holder.pop(mine[place])
            self.expired.discard(mine[place])
            self.living[who].given.remove(mine[place])

    @rule(data=st.data(), most=MOST, session=SESSION, acks=st.booleans())
    def die_in_a_transaction(self, data: st.DataObject, most: int, session: int, acks: bool) -> None:
        who = data.draw(st.sampled_from(NAMES[self.living_as]))
        connection, consumer = self._call(who, session)
        with connection.transaction(force_rollback=True):
            query = "select event_id from pgps.receive(%s, %s, %s)"
            found = column(connection, query, [self.name, most, consumer])
            assert found == self._next(who, most)
            if acks and found:
                assert call(connection, "ack", self.name, consumer=consumer) == len(found)
        self.living.pop(who, None)

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
            self._receive("last", 4, 0)
            assert call(self.admin, "ack", self.name, consumer="last") == len(self.living["last"].given)
            self._settled(self.living["last"], self.living["last"].given)
        self.nothing_is_gone_that_was_not_acknowledged()
        call(self.admin, "unsubscribe", self.name)


def _name(who: str) -> str:
    return who.partition("#")[0].partition("@")[0]


@pytest.mark.parametrize(
    ("handler", "living_as"), [("all", "one"), ("any", "one"), ("any", "tokens"), ("any", "sessions")]
)
def test_who_acknowledges_has_seen_it(own_database: str, connect: Connect, handler: str, living_as: str) -> None:
    sessions = [connect(dsn=own_database) for _ in range(2)]
    make_type(sessions[0], "tick")
    clock = Clock(sessions[0])
    clock.set(clock.now())  # it stands: no lease ends by itself
    told = {"sessions": sessions, "clock": clock, "handler": handler, "living_as": living_as}
    machine = type("Machine", (Consumers,), told)
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=30))
