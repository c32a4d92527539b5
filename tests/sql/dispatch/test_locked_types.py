"""An event type that somebody alters or drops in an open transaction: the dispatcher goes on with all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, numbers, publish, refused, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect

CHANGES = {
    "altered": "select pgps.alter_event_type('held', add_attribute => 'm integer')",
    "dropped": "select pgps.drop_event_type('held', cascade => true)",
}
# As a worker does, and by hand.
WAYS = {"worker": "select pgps.dispatch_batch()", "hand": "select pgps.dispatch()"}


@dataclass(frozen=True, slots=True)
class Scene:
    """Event types `held` and `free`, a subscription to each and to both, and a session that dispatches."""

    admin: psycopg.Connection
    dispatcher: psycopg.Connection
    way: str

    def dispatch(self) -> None:
        while rows(self.dispatcher, WAYS[self.way])[0][0] > 0:
            pass

    def has(self, subscription: str) -> list[int]:
        return numbers(self.admin, subscription)

    def left(self) -> tuple[int, int]:
        """How many types are set aside, and how many parts wait."""
        aside = value(self.admin, "select count(*) from pgps_internal.broken_type")
        return aside, value(self.admin, "select count(*) from pgps_internal.set_aside where batch_id is null")


@pytest.fixture
def make(own_database: str, connect: Connect) -> Callable[[str], Scene]:
    def made(way: str) -> Scene:
        scene = Scene(connect(dsn=own_database), connect(dsn=own_database), way)
        for event_type in ("held", "free"):
            make_type(scene.admin, event_type)
            call(scene.admin, "subscribe", event_type, event_type)
        # What worker and test wait for somebody who has a lock.
        rows(scene.dispatcher, "set lock_timeout = '200ms'")
        return scene

    return made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("change", CHANGES)
def test_who_alters_or_drops_a_type_and_does_not_commit_holds_up_no_other(
    make: Callable[[str], Scene], connect: Connect, own_database: str, change: str, end: str, way: str
) -> None:
    scene = make(way)
    publish(scene.admin, "held", 1, 2)
    publish(scene.admin, "free", 3)
    with connect(dsn=own_database, autocommit=False) as session:
        rows(session, CHANGES[change])
        scene.dispatch()
        assert scene.has("free") == [3]
        assert scene.left() == (1, 1)
        (held,) = rows(scene.admin, "select state, last_error, hint from pgps.event_types where name = 'held'")
        assert held[0] == "set aside"
        assert "in a transaction that is open" in held[1]
        assert "goes on by itself" in held[2]
        # It is not waited for again.
        rows(scene.dispatcher, "set lock_timeout = '2min'; set statement_timeout = '1min'")
        publish(scene.admin, "free", 4)
        scene.dispatch()
        assert scene.has("free") == [3, 4]
        getattr(session, end)()
    is_gone = (change, end) == ("dropped", "commit")
    if not is_gone:
        publish(scene.admin, "held", 5)
    publish(scene.admin, "free", 6)
    scene.dispatch()
    scene.dispatch()
    assert scene.has("free") == [3, 4, 6]
    assert scene.left() == (0, 0)
    if not is_gone:
        assert scene.has("held") == [1, 2, 5]
        assert value(scene.admin, "select state from pgps.event_types where name = 'held'") == "active"
    rows(scene.admin, "select pgps.reclaim()")
    assert value(scene.admin, "select count(*) from pgps_internal.set_aside") == (0 if is_gone else 1)


def test_a_type_that_is_altered_once_more_waits_once_more(
    make: Callable[[str], Scene], connect: Connect, own_database: str
) -> None:
    scene = make("hand")
    for number in range(3):
        publish(scene.admin, "held", number)
        publish(scene.admin, "free", number)
        with connect(dsn=own_database, autocommit=False) as session:
            rows(session, f"select pgps.alter_event_type('held', add_attribute => 'm{number} integer')")
            scene.dispatch()
            assert scene.has("free") == list(range(number + 1))
            session.commit()
        assert scene.has("held") == list(range(number))
        scene.dispatch()
        assert scene.has("held") == list(range(number + 1))


def test_a_lock_that_is_none_of_a_types_is_an_error(
    make: Callable[[str], Scene], connect: Connect, own_database: str
) -> None:
    scene = make("hand")
    publish(scene.admin, "free", 1)
    with connect(dsn=own_database, autocommit=False) as session:
        rows(session, "lock table only pgps_internal.batch in share row exclusive mode")
        with refused("55P03"):
            scene.dispatch()
    scene.dispatch()
    assert scene.has("free") == [1]
    assert scene.left() == (0, 0)


LOCKED = {
    "a segment of the log": "select inhrelid::regclass::text from pg_inherits "
    "where inhparent = 'pgps_internal.held_log'::regclass",
    "constants of filters": "select format('%I.%I', schemaname, tablename) from pg_tables "
    "where schemaname = 'pgps_internal' and tablename ~ '^const_[0-9]'",
}


@pytest.mark.parametrize("locked", LOCKED)
def test_a_lock_that_somebody_else_has_is_no_fault_of_a_filter(
    make: Callable[[str], Scene], connect: Connect, own_database: str, clock: Clock, locked: str
) -> None:
    scene = make("hand")
    call(scene.admin, "configure", "table_threshold", "1")
    for number in range(3):
        call(scene.admin, "subscribe", f"above_{number}", "held", filter=f"n > {number}")
    publish(scene.admin, "held", 1, 2)
    publish(scene.admin, "free", 3)
    with connect(dsn=own_database, autocommit=False) as session:
        rows(session, f"lock table {', '.join(column(session, LOCKED[locked]))} in access exclusive mode")
        scene.dispatch()
        assert scene.has("free") == [3]
        assert scene.left() == (1, 1)
    # The log itself is free, so that it has been tried again.
    clock.advance("10 seconds")
    scene.dispatch()
    assert [scene.has(f"above_{number}") for number in range(3)] == [[1, 2], [2], []]
    assert rows(scene.admin, "select distinct state from pgps.subscriptions") == [("active",)]
    assert value(scene.admin, "select count(*) from pgps.exceptions") == 0


def subscribed_with_policy(scene: Scene, own: psycopg.Connection) -> psycopg.Connection:
    """Let a role subscribe to `held` under a policy that reads a table; return its session."""
    rows(scene.admin, "create table public.secrets (n integer); grant select on public.secrets to public")
    policy = "n not in (select s.n from public.secrets s)"
    call(scene.admin, "create_policy", "held", "no_secrets", own.info.user, policy)
    call(own, "subscribe", "readers", "held")
    return own


def test_a_policy_that_waits_for_a_lock_suspends_nobody(
    make: Callable[[str], Scene], connect: Connect, own_database: str, role: Callable[..., str], clock: Clock
) -> None:
    scene = make("hand")
    own = subscribed_with_policy(scene, connect(role("reader"), dsn=own_database))
    publish(scene.admin, "held", 1, 2)
    publish(scene.admin, "free", 3)
    with connect(dsn=own_database, autocommit=False) as session:
        rows(session, "lock table public.secrets in access exclusive mode")
        scene.dispatch()
        assert scene.has("free") == [3]
    clock.advance("10 seconds")
    scene.dispatch()
    assert numbers(own, "readers") == [1, 2]
    assert scene.has("held") == [1, 2]
    assert value(own, "select state from pgps.subscriptions where name = 'readers'") == "active"


@pytest.mark.parametrize("way", WAYS)
def test_a_subscription_that_is_resumed_catches_up_when_its_type_is_free(
    make: Callable[[str], Scene], connect: Connect, own_database: str, role: Callable[..., str], way: str
) -> None:
    scene = make(way)
    reader = role("reader")
    rows(scene.admin, "create table public.divisor as select 0 as d; grant select on public.divisor to public")
    call(scene.admin, "create_policy", "held", "fails", reader, "10 / (select x.d from public.divisor x) > 0")
    own = connect(reader, dsn=own_database)
    call(own, "subscribe", "failing", "held")
    state = "select state from pgps.subscriptions where name = 'failing'"
    publish(scene.admin, "held", 1, 2)
    scene.dispatch()
    assert value(own, state) == "suspended"
    rows(scene.admin, "update public.divisor set d = 1")
    # Not the owner: the dispatcher is to match what came meanwhile.
    call(scene.admin, "resume", "failing")
    publish(scene.admin, "free", 3)
    with connect(dsn=own_database, autocommit=False) as session:
        rows(session, CHANGES["altered"])
        scene.dispatch()
        assert scene.has("free") == [3]
        session.commit()
    scene.dispatch()
    assert value(own, state) == "active"
    assert numbers(own, "failing") == [1, 2]


def test_a_table_of_a_policy_that_stays_locked_is_tried_ever_less_often(
    make: Callable[[str], Scene], connect: Connect, own_database: str, role: Callable[..., str], clock: Clock
) -> None:
    scene = make("hand")
    own = subscribed_with_policy(scene, connect(role("reader"), dsn=own_database))
    publish(scene.admin, "held", 1)
    clock.set(clock.now())
    with connect(dsn=own_database, autocommit=False) as session:
        rows(session, "lock table public.secrets in access exclusive mode")
        for pause in ("0", "0", "11 seconds", "21 seconds"):
            clock.advance(pause)
            # It is tried, which the limit ends.
            scene.dispatch()
            # Now it is left alone: nobody waits.
            rows(scene.dispatcher, "set lock_timeout = '2min'; set statement_timeout = '1min'")
            if pause != "0":
                publish(scene.admin, "free", 1)
                scene.dispatch()
            rows(scene.dispatcher, "set lock_timeout = '200ms'; reset statement_timeout")
        assert scene.has("free") == [1, 1]
        assert scene.has("held") == []
    clock.advance("1 minute")
    scene.dispatch()
    assert numbers(own, "readers") == [1]
    assert scene.has("held") == [1]
    assert scene.left() == (0, 0)


def test_nobody_waits_for_a_log_that_has_been_dropped(make: Callable[[str], Scene]) -> None:
    """Its type was read before that was committed."""
    scene = make("hand")
    log = value(scene.admin, "select 'pgps_internal.held_log'::regclass::oid")
    rows(scene.admin, "select pgps.drop_event_type('held', cascade => true)")
    assert value(scene.admin, "select pgps_internal.try_lock(%s::oid, 'access share')", [log]) is False
