"""Who published an event, and whose numbers are taken: neither can be another role's doing."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, endpoint, make_type, numbers, rows, take, value
from tests.fix_db import Connect

NUMBERED = "(n, _producer, _producer_seq) values"


@pytest.fixture
def tick(admin: psycopg.Connection, name: Callable[..., str]) -> str:
    made = name("tick")
    make_type(admin, made)
    call(admin, "subscribe", made, made)
    return made


@pytest.fixture
def mallory(connect: Connect, role: Callable[..., str], tick: str) -> psycopg.Connection:
    connection = connect(role("mallory"))
    call(connection, "advertise", tick)
    return connection


def test_numbers_that_another_role_took_are_free(
    admin: psycopg.Connection, mallory: psycopg.Connection, tick: str
) -> None:
    rows(mallory, f"insert into {endpoint(tick)} {NUMBERED} (-1, 'till-7', 1), (-2, 'till-7', 2)")
    for producer_seq in (3, 4):
        call(mallory, "publish", tick, "{}", producer="till-7", producer_seq=producer_seq)
    assert take(admin, tick) == [-1, -2, None, None]
    rows(admin, f"insert into {endpoint(tick)} {NUMBERED} (1, 'till-7', 1), (2, 'till-7', 2)")
    published = call(admin, "publish", tick, '{"n": 3}', producer="till-7", producer_seq=3)
    assert take(admin, tick) == [1, 2, 3]
    assert call(admin, "publish", tick, '{"n": 9}', producer="till-7", producer_seq=3) == published
    again = "(9, 'till-7', 1), (9, 'till-7', 2), (9, 'till-7', 3), (4, 'till-7', 4)"
    rows(admin, f"insert into {endpoint(tick)} {NUMBERED} {again}")
    assert take(admin, tick) == [4]
    assert value(admin, "select repeats from pgps.activity where event_type = %s", [tick]) == 3


def test_numbers_in_one_batch_count_for_each_role(
    admin: psycopg.Connection, mallory: psycopg.Connection, tick: str
) -> None:
    for connection, n in ((mallory, -1), (admin, 1), (mallory, -2), (admin, 2)):
        rows(connection, f"insert into {endpoint(tick)} {NUMBERED} ({n}, 'till-7', 1)")
    assert take(admin, tick) == [-1, 1]


def test_events_of_a_statement_and_of_one_inside_it_have_their_own_publishers(
    admin: psycopg.Connection, mallory: psycopg.Connection, tick: str
) -> None:
    """A definer's function publishes in the midst of another's INSERT: before, between and after its rows."""
    function = f"public.{tick}_doubles"
    rows(
        admin,
        f"create function {function}(n integer) returns integer language plpgsql security definer as "
        f"$$ begin insert into {endpoint(tick)} (n) values (n * 100); return n; end $$",
    )
    rows(mallory, f"insert into {endpoint(tick)} (n) select {function}(n) from generate_series(1, 3) n")
    mine, theirs = mallory.info.user, admin.info.user
    wanted = {1: mine, 2: mine, 3: mine, 100: theirs, 200: theirs, 300: theirs}
    shown = f"select n, publisher from pgps_queue.{tick}_in"
    assert dict(rows(admin, shown)) == wanted
    rows(admin, "select pgps.dispatch()")
    received = "select (payload ->> 'n')::integer, publisher, event_id from pgps.receive(%s)"
    got = rows(admin, received, [tick])
    assert {n: publisher for n, publisher, _ in got} == wanted
    for *_, event_id in got:
        call(admin, "nack", tick, event_id)
    kept = f"select n, pgps_publisher::text from pgps_internal.{tick}_kept"
    assert dict(rows(admin, kept)) == wanted
    assert sorted(numbers(admin, tick)) == sorted(wanted)
    explained = "select outcome from pgps.explain(%s, %s) where step = 'published'"
    for n, publisher, event_id in got:
        assert f" by {publisher} " in column(admin, explained, [tick, event_id])[0], n
    rows(admin, f"drop function {function}")
