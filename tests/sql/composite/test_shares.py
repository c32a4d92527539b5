"""Sessions that detect share out composite events and their keys: each key is detected by one, in order."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_db import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    from tests.fix_clock import Clock
    from tests.fix_db import Connect

KEYS = range(20)
SHARED = "select pgps.detect(shared => true)"


class Stage:
    """A database in which each number `a` of a key is paired with the next number `b` of that key."""

    def __init__(self, connect: Connect, dsn: str) -> None:
        self.admin = connect(dsn=dsn)
        self._connect, self._dsn = connect, dsn
        # Who leads dispatches, and detects nothing.
        assert value(self.admin, "select pgps.try_lead()")
        for name in "ab":
            make_type(self.admin, name, "key integer not null, n integer not null")
        call(
            self.admin, "create_composite_event", "pair", "a ; b", context="chronicle", max_open=100,
            partition_by="key", attributes="key integer = a.key, first integer = a.n, second integer = b.n",
        )  # fmt: skip

    def open(self) -> psycopg.Connection:
        return self._connect(dsn=self._dsn)

    def publish(self, kind: str, *numbers: int, keys: Iterable[int] = KEYS) -> None:
        rows(
            self.admin,
            f"insert into pgps_event.{kind} select k, n from unnest(%s::integer[]) n, unnest(%s::integer[]) k",
            [list(numbers), list(keys)],
        )
        rows(self.admin, "select pgps.dispatch()")

    def seated(self, count: int) -> list[psycopg.Connection]:
        """Return sessions that detect."""
        sessions = [self.open() for _ in range(count)]
        for session in sessions:
            rows(session, SHARED)
        wait_until(lambda: self.divided(sessions), what=f"{count} shares")
        return sessions

    def divided(self, sessions: list[psycopg.Connection]) -> bool:
        """Let sessions detect; tell whether each has a share."""
        for session in sessions:
            rows(session, SHARED)
        shares = "select array_agg(share order by share) from pgps_internal.composite_share group by composite_id"
        return all(each == list(range(len(sessions))) for each in column(self.admin, shares))

    def found(self) -> list[tuple[int, int, int]]:
        return rows(self.admin, "select key, first, second from pgps_internal.pair_log order by key, event_id")


@pytest.fixture
def stage(connect: Connect, own_database: str) -> Stage:
    return Stage(connect, own_database)


def paired(*pairs: tuple[int, int]) -> list[tuple[int, int, int]]:
    return [(key, *pair) for key in KEYS for pair in pairs]


def test_each_session_detects_keys_of_its_own(stage: Stage, clock: Clock) -> None:
    one, two = stage.seated(2)
    # However long it takes, nothing has been left undone for long.
    clock.set(clock.now())
    stage.publish("a", 1, 2)
    stage.publish("b", 11)
    rows(one, SHARED)
    first = stage.found()
    rows(one, SHARED)
    assert stage.found() == first
    rows(two, SHARED)
    assert 0 < len(first) < len(KEYS)
    assert stage.found() == paired((1, 11))
    shown = rows(stage.admin, "select detected, open, keys, lag from pgps.composite_events")
    assert shown == [(len(KEYS), len(KEYS), len(KEYS), 0)]
    stage.publish("b", 12)
    rows(two, SHARED)
    rows(one, SHARED)
    assert stage.found() == paired((1, 11), (2, 12))


def test_what_a_session_leaves_goes_to_the_others_where_it_was(stage: Stage) -> None:
    sessions = stage.seated(3)
    stage.publish("a", 1, 2, 3)
    rows(sessions[1], SHARED)
    stage.publish("b", 11)
    rows(sessions[2], SHARED)
    sessions.pop(0).close()
    wait_until(lambda: stage.divided(sessions), what="two shares")
    assert stage.found() == paired((1, 11))
    sessions.pop().close()
    stage.publish("b", 12)
    wait_until(lambda: stage.divided(sessions), what="one share")
    assert stage.found() == paired((1, 11), (2, 12))
    # Who dispatches without a worker does it all.
    sessions.pop().close()
    stage.publish("b", 13)
    rows(stage.open(), "select pgps.detect()")
    assert stage.found() == paired((1, 11), (2, 12), (3, 13))


def test_what_a_session_does_not_do_in_time_another_one_does(stage: Stage, clock: Clock) -> None:
    one, _ = stage.seated(2)
    # Until it is to be late.
    clock.set(clock.now())
    stage.publish("a", 1)
    stage.publish("b", 11)
    rows(one, SHARED)
    assert 0 < len(stage.found()) < len(KEYS)
    clock.advance("1 minute")
    rows(one, SHARED)
    assert stage.found() == paired((1, 11))


def test_a_reset_and_an_alteration_hold_for_all_shares(stage: Stage) -> None:
    one, two = stage.seated(2)
    stage.publish("a", 1)
    for session in (one, two):
        rows(session, SHARED)
    assert call(stage.admin, "reset_composite_event", "pair") == len(KEYS)
    stage.publish("a", 2)
    for session in (one, two):
        rows(session, SHARED)
    call(stage.admin, "alter_composite_event", "pair", filter="b.n > 10")
    stage.publish("b", 3, 11)
    for session in (one, two):
        rows(session, SHARED)
    assert stage.found() == paired((2, 11))
    assert rows(stage.admin, "select open, keys from pgps.composite_events") == [(0, 0)]


def test_timers_of_each_share_fire_once(stage: Stage, clock: Clock) -> None:
    clock.set(clock.now())
    call(
        stage.admin, "create_composite_event", "missing", "not(b)[a, + '1 s']", context="chronicle", max_open=10,
        partition_by="key", attributes="key integer = a.key",
    )  # fmt: skip
    sessions = stage.seated(2)
    stage.publish("a", 1)
    for session in sessions:
        rows(session, SHARED)
    stage.publish("b", 2, keys=range(10))
    clock.advance("2 seconds")
    stage.publish("a", 3, keys=range(5))
    for _ in range(2):
        for session in sessions:
            rows(session, SHARED)
    missing = "select key from pgps_internal.missing_log order by 1"
    assert column(stage.admin, missing) == list(range(10, 20))
    clock.advance("2 seconds")
    rows(stage.admin, "select pgps.dispatch()")
    for _ in range(2):
        for session in sessions:
            rows(session, SHARED)
    assert column(stage.admin, missing) == sorted([*range(10, 20), *range(5)])


def test_a_share_that_makes_too_much_goes_less_far_or_stops_its_composite_event(stage: Stage) -> None:
    everything = {"context": "unrestricted", "max_open": 1000, "partition_by": "key"}
    # The pairs are made, and wait for another event: writing them would take longer than making them.
    call(stage.admin, "create_composite_event", "waiting", "(a ; b) ; a", **everything)
    sessions = stage.seated(2)
    shown = "select state, detected from pgps.composite_events where name = %s"

    def taken(name: str) -> bool:
        for session in sessions:
            rows(session, SHARED)
        return bool(value(stage.admin, "select lag = 0 from pgps.composite_events where name = %s", [name]))

    stage.publish("a", *range(450), keys=[1])
    # What one batch may make, two may not make in one step.
    for _ in range(2):
        stage.publish("b", *range(250), keys=[1])
    wait_until(lambda: taken("waiting"), what="shorter steps of a share")
    stage.publish("a", 1, keys=[1])
    wait_until(lambda: taken("waiting"), what="the event that all pairs wait for")
    assert rows(stage.admin, shown, ["waiting"]) == [("active", 1000)]
    call(stage.admin, "alter_composite_event", "waiting", enabled=False)
    call(stage.admin, "reset_composite_event", "pair")
    # One batch that makes too much, in the share of each of two sessions that detect at the same time.
    call(stage.admin, "create_composite_event", "every_pair", "a ; b", **everything)
    wait_until(lambda: stage.divided(sessions), what="two shares of each")
    stage.publish("a", *range(150), keys=range(40))
    stage.publish("b", *range(150), keys=range(40))
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(rows, session, SHARED) for session in sessions]:
            done.result()
    wait_until(lambda: taken("pair"), what="what goes on")
    assert value(stage.admin, "select count(*) from pgps_internal.pair_log where key = 2") == 100
    assert rows(stage.admin, shown, ["every_pair"]) == [("suspended", 0)]
    reason = value(stage.admin, "select last_error from pgps.composite_events where name = 'every_pair'")
    assert "the events of one batch make more than" in reason
    # What is forgotten is not taken again; from there it goes on.
    call(stage.admin, "reset_composite_event", "every_pair")
    call(stage.admin, "alter_composite_event", "every_pair", enabled=True)
    stage.publish("a", 1, keys=[3])
    stage.publish("b", 2, keys=[3])
    wait_until(lambda: taken("every_pair"), what="what was suspended goes on")
    assert rows(stage.admin, shown, ["every_pair"]) == [("active", 1)]


@pytest.mark.parametrize("seed", range(3))
def test_sessions_that_come_and_go_change_nothing(stage: Stage, seed: int) -> None:
    chance = random.Random(seed)
    waiting: dict[int, list[int]] = {key: [] for key in KEYS}
    expected: list[tuple[int, int, int]] = []
    sessions = [stage.open()]
    for n in range(60):
        kind, keys = chance.choice("ab"), chance.sample(KEYS, 7)
        stage.publish(kind, n, keys=keys)
        for key in keys:
            if kind == "a":
                waiting[key].append(n)
            elif waiting[key]:
                expected.append((key, waiting[key].pop(0), n))
        for session in chance.choices(sessions, k=chance.randint(0, 2)):
            rows(session, SHARED)
        if len(sessions) > 1 and chance.random() < 0.15:
            sessions.pop(chance.randrange(len(sessions))).close()
        elif len(sessions) < 4 and chance.random() < 0.2:
            sessions.append(stage.open())
    wait_until(lambda: stage.divided(sessions), what="a share for each")
    for session in sessions:
        rows(session, SHARED)
    assert stage.found() == sorted(expected, key=lambda pair: (pair[0], pair[2]))
    assert value(stage.admin, "select open from pgps.composite_events") == sum(map(len, waiting.values()))


def test_a_worker_is_told_whether_there_is_more_to_do_and_when(stage: Stage, clock: Clock) -> None:
    worker = stage.open()
    clock.set(clock.now())
    told = "select steps, more, timer from pgps.detect_share()"
    assert rows(worker, told) == [(0, False, None)]
    stage.publish("a", 1)
    assert rows(worker, told) == [(1, False, None)]
    call(stage.admin, "create_composite_event", "hour_later", "a + '1 hour'", max_open=100, context="chronicle")
    stage.publish("a", 2, keys=[1])
    assert rows(worker, told) == [(2, False, 3600.0)]
    clock.advance("59 minutes")
    assert rows(worker, told) == [(0, False, 60.0)]
    clock.advance("2 minutes")
    assert rows(worker, told) == [(1, False, None)]
