"""Numbers of producers: an event of one number is taken once, however often and by whomever it is published."""

from __future__ import annotations

import random
from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import (
    call,
    endpoint,
    make_type,
    rows,
    take,
    value,
)
from tests.fix_db import Connect

Name = Callable[..., str]


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    """A type and a subscription of one name."""
    made = name("tick")
    make_type(admin, made, "n integer, b text default 'x'")
    call(admin, "subscribe", made, made)
    return made


def test_repeats_are_dropped_whoever_sends_them_in_any_order_and_with_gaps(
    connect: Connect, admin: psycopg.Connection, tick: str
) -> None:
    chance = random.Random(5)
    sent = [n for n in range(1, 60) if n % 7] * 3
    chance.shuffle(sent)
    sessions = [connect(autocommit=False) for _ in range(3)]
    got: list[int] = []
    for count, n in enumerate(sent):
        session = chance.choice(sessions)
        rows(session, f"insert into {endpoint(tick)} (n, _producer, _producer_seq) values (%s, 'p', %s)", [n, n])
        if chance.random() < 0.3:
            session.commit()
        if count % 9 == 0:
            got += take(admin, tick)
    for session in sessions:
        session.commit()
    got += take(admin, tick)
    assert sorted(got) == sorted(set(sent))
    assert value(admin, "select repeats from pgps.activity where event_type = %s", [tick]) == len(sent) - len(set(sent))


def test_a_number_of_a_rolled_back_publication_is_free(connect: Connect, admin: psycopg.Connection, tick: str) -> None:
    session = connect(autocommit=False)
    into = f"insert into {endpoint(tick)} (n, _producer, _producer_seq) values (%s, %s, 1)"
    rows(session, into, [1, "p"])
    session.rollback()
    rows(session, into, [2, "p"])
    rows(session, into, [3, "other"])
    session.commit()
    assert take(admin, tick) == [2, 3]


def test_a_repeated_call_of_publish_returns_the_first_id(
    connect: Connect, admin: psycopg.Connection, tick: str
) -> None:
    options = {"producer": "p", "producer_seq": 7}
    first = call(admin, "publish", tick, '{"n": 1}', **options)
    assert call(admin, "publish", tick, '{"n": 1}', **options) == first
    other = connect()
    assert call(other, "publish", tick, '{"n": 2}', **options) == first
    rows(other, f"insert into {endpoint(tick)} (n, _producer, _producer_seq) values (3, 'p', 7)")
    assert take(admin, tick) == [1]


def test_two_sessions_that_publish_one_number_at_once_publish_it_once(
    connect: Connect, admin: psycopg.Connection, tick: str
) -> None:
    options = {"producer": "p", "producer_seq": 1}
    first, second = connect(autocommit=False), connect()
    call(first, "publish", tick, '{"n": 1}', **options)
    second.execute("set lock_timeout = '50ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        call(second, "publish", tick, '{"n": 2}', **options)
    first.rollback()
    call(second, "publish", tick, '{"n": 3}', **options)
    assert take(admin, tick) == [3]
