"""Who changes or drops an event type and does not commit holds up nobody who subscribes to a prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg
import pytest

from tests.fix_broker import WAYS, call, dispatch, make_type, publish, refused, rows, take, value
from tests.fix_db import Connect

_ALTERS = "select pgps.alter_event_type('hb', add_attribute => 'm integer')"
Changing = Callable[..., AbstractContextManager[None]]

_LATE = "select count(*) from pgps_internal.late_type"


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Who dispatches: somebody by hand, or a worker."""
    return str(request.param)


@pytest.fixture
def admin(connect: Connect, own_database: str) -> psycopg.Connection:
    session = connect(dsn=own_database)
    for name in ("ha", "hb"):
        make_type(session, name)
    # Nobody waits for longer; what does fails.
    rows(session, "set lock_timeout = '5s'")
    return session


@pytest.fixture
def changing(connect: Connect, own_database: str) -> Changing:
    @contextmanager
    def made(statement: str = _ALTERS, role: str | None = None, end: str = "rollback") -> Iterator[None]:
        session = connect(role, dsn=own_database, autocommit=False)
        rows(session, statement)
        yield
        rows(session, end)

    return made


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_plain_role_that_drops_its_composite_event_holds_up_no_subscription_to_all(
    admin: psycopg.Connection,
    connect: Connect,
    own_database: str,
    role: Callable[..., str],
    changing: Changing,
    end: str,
    way: str,
) -> None:
    alice, bob = role("alice"), connect(role("bob"), dsn=own_database)
    call(connect(alice, dsn=own_database), "create_composite_event", "hers", "ha a ; ha b")
    rows(bob, "set lock_timeout = '5s'")
    with changing("select pgps.drop_event_type('hers', cascade => true)", alice, end):
        call(bob, "subscribe", "all", "*")
        call(bob, "subscribe", "some", "h*", "n > 1")
        publish(admin, "ha", 1, 2)
        assert take_of(admin, bob, "all", way) == [1, 2]
        assert take_of(admin, bob, "some", way) == [2]
    publish(admin, "ha", 3)
    assert take_of(admin, bob, "all", way) == [3]
    assert take_of(admin, bob, "some", way) == [3]
    assert value(admin, _LATE) == 0


def take_of(admin: psycopg.Connection, session: psycopg.Connection, subscription: str, way: str) -> list[int]:
    dispatch(admin, way)
    return [payload["n"] for (payload,) in rows(session, "select payload from pgps.take(%s, 1000)", [subscription])]


@pytest.mark.parametrize("condition", [None, "n > 0"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("is_dispatched", [True, False])
def test_what_is_committed_after_the_subscription_comes_and_nothing_before(
    admin: psycopg.Connection, changing: Changing, end: str, condition: str | None, way: str, *, is_dispatched: bool
) -> None:
    publish(admin, "hb", 1)
    with changing(end=end):
        call(admin, "subscribe", "s", "h*", condition)
        publish(admin, "ha", 2)
        if is_dispatched:
            assert take(admin, "s", way=way) == [2]
    publish(admin, "hb", 3)
    publish(admin, "ha", 4)
    assert take(admin, "s", way=way) == ([3, 4] if is_dispatched else [2, 3, 4])
    assert value(admin, _LATE) == 0
    publish(admin, "hb", 5)
    assert take(admin, "s", way=way) == [5]


@pytest.mark.parametrize("condition", [None, "n > 0"])
def test_nothing_is_lost_when_the_event_type_is_changed_again_before_it_was_joined(
    admin: psycopg.Connection, changing: Changing, condition: str | None, way: str
) -> None:
    with changing():
        call(admin, "subscribe", "s", "h*", condition)
    publish(admin, "hb", 1)
    with changing():
        publish(admin, "ha", 2)
        assert take(admin, "s", way=way) == [2]
    publish(admin, "hb", 3)
    assert take(admin, "s", way=way) == [1, 3]
    assert value(admin, "select count(*) from pgps_internal.broken_type") == 0


def test_an_internal_and_a_shared_subscription_join_late_too(
    admin: psycopg.Connection, changing: Changing, way: str
) -> None:
    rows(admin, "create table public.seen (n integer)")
    rows(
        admin,
        "create function public.note(e record) returns void language plpgsql as"
        " 'begin insert into public.seen values (e.n); end'",
    )
    with changing():
        call(admin, "subscribe", "internal", "h*", execute="public.note(record)")
        call(admin, "subscribe", "shared", "h*", handler="any")
    publish(admin, "hb", 1)
    assert take(admin, "shared", way=way) == [1]
    rows(admin, "call pgps.run_subscribers()")
    assert rows(admin, "select n from public.seen") == [(1,)]


def test_a_subscription_to_what_was_before_is_refused_at_once(
    admin: psycopg.Connection, changing: Changing, way: str
) -> None:
    publish(admin, "hb", 1)
    with changing(), refused("55P03", '"hb" is being changed or dropped'):
        call(admin, "subscribe", "s", "h*", start="earliest")
    call(admin, "subscribe", "s", "h*", start="earliest")
    assert take(admin, "s", way=way) == [1]


def test_a_subscription_that_is_dropped_before_it_has_joined_leaves_nothing(
    admin: psycopg.Connection, changing: Changing, way: str
) -> None:
    with changing():
        call(admin, "subscribe", "s", "h*")
        call(admin, "unsubscribe", "s")
    publish(admin, "hb", 1)
    dispatch(admin, way)
    assert value(admin, _LATE) == 0
