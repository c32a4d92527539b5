"""However many forms of filters a role has, the dispatcher asks a few of them; the others are asked in its lane."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, rows, value
from tests.fix_db import Connect

_FORMS = [
    "n > 0",
    "n + 0 > 0",
    "n + n > 0",
    "n * 2 > 0",
    "n - 1 > 0",
    "n % 2 = 0",
    "n between 0 and 9",
    "n is not null",
]
_PLACES = "select asked_in, count(*) from pgps.classes where subscription like %s group by 1 order by 1"


@pytest.fixture
def admin(connect: Connect, own_database: str) -> psycopg.Connection:
    session = connect(dsn=own_database)
    make_type(session, "tick")
    call(session, "configure", "dispatch_filters", "3")
    return session


def subscribe(session: psycopg.Connection, prefix: str) -> None:
    for place, form in enumerate(_FORMS):
        call(session, "subscribe", f"{prefix}{place}", "tick", filter=form)


def received(session: psycopg.Connection, prefix: str) -> list[list[int]]:
    return [
        column(session, "select (payload -> 'n')::integer from pgps.take(%s)", [f"{prefix}{place}"])
        for place in range(len(_FORMS))
    ]


def test_beyond_some_forms_filters_are_asked_in_the_lane_of_their_role(
    admin: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    alice = connect(role("alice"), dsn=own_database)
    subscribe(alice, "hers")
    assert rows(admin, _PLACES, ["hers%"]) == [("dispatch", 3), ("lane", 5)]
    call(admin, "subscribe", "his", "tick", filter="n * 3 > 0")
    assert rows(admin, _PLACES, ["his"]) == [("dispatch", 1)], "each role has as many"
    call(alice, "subscribe", "same", "tick", filter="n > 7")
    call(alice, "subscribe", "again", "tick", filter="n is not null")
    assert rows(admin, _PLACES, ["same"]) == [("dispatch", 1)], "a filter of a form that is asked there costs nothing"
    assert rows(admin, "select classes, subscriptions from pgps.classes where subscription = 'again'") == [(1, 2)]
    publish(admin, "tick", 1, 2)
    rows(admin, "select pgps.dispatch()")
    assert received(alice, "hers") == [[1, 2], [1, 2], [1, 2], [1, 2], [2], [2], [1, 2], [1, 2]]
    asked = "select cardinality(d.signatures) from pgps_internal.dispatched_type d join pgps_internal.event_type t"
    assert value(admin, asked + " using (type_id) where t.name = 'tick'") == 4
    assert value(admin, "select filters from pgps.lanes") == 5
    for place in range(3):
        call(alice, "unsubscribe", f"hers{place}")
    call(alice, "subscribe", "new", "tick", filter="n + 5 > 0")
    assert rows(admin, _PLACES, ["new"]) == [("dispatch", 1)], "there is room again"


def test_filters_are_moved_when_there_may_be_fewer_and_nothing_comes_twice_or_never(
    admin: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    alice = connect(role("alice"), dsn=own_database)
    call(admin, "configure", "dispatch_filters", "100")
    subscribe(alice, "hers")
    assert rows(admin, _PLACES, ["hers%"]) == [("dispatch", 8)]
    publish(admin, "tick", 1, 2)
    rows(admin, "select pgps.dispatch()")
    publish(admin, "tick", 3, 4)
    call(admin, "configure", "dispatch_filters", "2")
    with connect(dsn=own_database, autocommit=False) as dispatcher:
        rows(dispatcher, "lock table only pgps_internal.batch in share row exclusive mode")
        call(admin, "reclaim")
        assert rows(admin, _PLACES, ["hers%"]) == [("dispatch", 8)], "it does not wait for a dispatcher"
        dispatcher.rollback()
    call(admin, "reclaim")
    assert rows(admin, _PLACES, ["hers%"]) == [("dispatch", 2), ("lane", 6)]
    publish(admin, "tick", 5, 6)
    rows(admin, "select pgps.dispatch()")
    everything = list(range(1, 7))
    assert received(alice, "hers") == [*[everything] * 4, [2, 3, 4, 5, 6], [2, 4, 6], everything, everything]


_ORDER = """
    select l.owner::text from unnest(pgps_internal.lanes_with_work(0, %s)) with ordinality w(lane_id, place)
    join pgps_internal.lane l using (lane_id) order by w.place
"""


def test_of_many_lanes_the_one_that_has_waited_longest_is_asked_first(
    admin: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    """Not the one that is furthest behind, which is the one that takes long."""
    rows(admin, "create table public.wanted as select 1 as n; grant select on public.wanted to public")
    alice, bob = (role(name) for name in ("alice", "bob"))
    for name in (alice, bob):
        condition = "n in (select w.n from public.wanted w)"
        call(connect(name, dsn=own_database), "subscribe", name, "tick", filter=condition)
    step = "insert into pgps_internal.lane_step (lane_id, batch_id) select lane_id, %s from pgps_internal.lane"
    for _ in range(9):
        publish(admin, "tick", 1)
        rows(admin, "select pgps.dispatch_batch(1)")
    rows(admin, step + " where owner = %s::regrole", [8, bob])
    rows(admin, step + " where owner = %s::regrole", [3, alice])
    assert column(admin, _ORDER, [False]) == [bob, alice]
    rows(admin, step + " where owner = %s::regrole", [8, bob])
    assert column(admin, _ORDER, [False]) == [alice, bob]


def test_a_lane_that_takes_long_while_others_wait_is_slow(
    admin: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    rows(
        admin, "create function public.takes_long(n integer) returns boolean language plpgsql as "
        "$$ begin perform pg_sleep(0.3); return true; end $$"
    )  # fmt: skip
    names = [role("alice"), role("bob")]
    for name, condition in zip(names, ("public.takes_long(n)", "n in (select 1 from public.wanted)"), strict=True):
        rows(admin, "create table if not exists public.wanted (); grant select on public.wanted to public")
        call(connect(name, dsn=own_database), "subscribe", name, "tick", filter=condition)
    publish(admin, "tick", 1)
    rows(admin, "select pgps.dispatch_batch(1)")
    slow = "select owner::text from pgps_internal.lane where is_slow"
    rows(admin, "call pgps.run_lanes(slow => false)")
    assert column(admin, slow) == [names[0]]
    assert "0.25 s" in value(admin, "select last_error from pgps.lanes where role = %s", [names[0]])
