"""Numbers of producers: an event of one number is taken once, however often and by whomever it is published."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import (
    call,
    endpoint,
    make_type,
    numbers,
    refused,
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


def test_a_producer_may_leave_thousands_of_gaps_that_are_filled_later(admin: psycopg.Connection, tick: str) -> None:
    publish = f"""
        insert into {endpoint(tick)} (n, _producer, _producer_seq)
        select n, 'p', n from generate_series(%s::integer, %s, %s) n
    """
    for first, last, step in ((0, 5000, 2), (5002, 10_000, 2), (0, 10_000, 5)):
        rows(admin, publish, [first, last, step])
        call(admin, "dispatch")
    assert value(admin, "select repeats from pgps.activity where event_type = %s", [tick]) == 1001
    rows(admin, publish, [0, 10_000, 1])
    call(admin, "dispatch")
    rows(admin, publish, [0, 10_000, 1])
    call(admin, "dispatch")
    assert sorted(numbers(admin, tick, 20_000)) == list(range(10_001))


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


@pytest.mark.parametrize("visibility", ["deferred", "immediate"])
def test_events_of_an_array_have_consecutive_numbers(
    connect: Connect, admin: psycopg.Connection, tick: str, visibility: str
) -> None:
    def send(connection: psycopg.Connection, first: int, *numbers: int) -> int | None:
        payload = json.dumps([{"n": n} for n in numbers])
        found: int | None = call(connection, "publish", tick, payload, visibility, producer="p", producer_seq=first)
        return found

    last = send(admin, 10, 1, 2, 3)
    assert send(connect(), 10, 1, 2, 3) == last, "nothing, and the id that was given the first time"
    assert send(admin, 10, 1, 2) == (last or 0) - 1
    assert call(admin, "publish", tick, '{"n": 9}', producer="p", producer_seq=11) == (last or 0) - 1
    beyond = send(admin, 11, 2, 3, 4)
    assert beyond is not None
    assert last is not None
    assert beyond > last
    assert send(admin, 12, 3, 4) == beyond
    assert send(admin, 9, 0, 1) == last - 2, "the last of it was published before"
    assert send(admin, 20) is None
    rows(admin, f"insert into {endpoint(tick)} (n, _producer, _producer_seq) values (5, 'p', 13), (6, 'p', 14)")
    assert take(admin, tick) == [1, 2, 3, 4, 0, 6]


def test_numbers_of_interleaved_publications_have_their_own_ids(
    connect: Connect, admin: psycopg.Connection, tick: str
) -> None:
    first, second = connect(autocommit=False), connect(autocommit=False)
    options = [{"producer": "p", "producer_seq": 1}, {"producer": "q", "producer_seq": 1}]
    given = [
        call(session, "publish", tick, json.dumps([{"n": n}, {"n": n + 1}]), **option)
        for session, option, n in (
            (first, options[0], 1),
            (second, options[1], 3),
            (first, options[0] | {"producer_seq": 3}, 5),
        )
    ]
    second.rollback()
    first.commit()
    assert call(admin, "publish", tick, '{"n": 0}', producer="p", producer_seq=1) == given[0] - 1
    assert call(admin, "publish", tick, '{"n": 0}', producer="p", producer_seq=4) == given[2]
    assert call(admin, "publish", tick, '{"n": 7}', producer="q", producer_seq=2) > given[2]
    assert take(admin, tick) == [1, 2, 5, 6, 7]


def test_a_number_of_an_immediate_event_stays_taken(connect: Connect, admin: psycopg.Connection, tick: str) -> None:
    session = connect(autocommit=False)
    options = {"visibility": "immediate", "producer": "p", "producer_seq": 1}
    first = call(session, "publish", tick, '{"n": 1}', **options)
    session.rollback()
    assert call(session, "publish", tick, '{"n": 1}', **options) == first
    assert call(admin, "publish", tick, '{"n": 1}', **options | {"visibility": "deferred"}) == first
    session.rollback()
    assert take(admin, tick) == [1]


@pytest.mark.parametrize("visibility", ["deferred", "immediate"])
@pytest.mark.parametrize(("column", "said"), [("_producer", "'7'"), ("_producer_seq", "7")])
def test_half_a_number_is_refused(
    admin: psycopg.Connection, name: Name, visibility: str, column: str, said: str
) -> None:
    made = name()
    make_type(admin, made, visibility=visibility)
    with refused("22023", "_producer and _producer_seq belong together", said, "Give both or neither"):
        rows(admin, f"insert into {endpoint(made)} (n, {column}) values (1, null), (2, '7')")
    assert column in "_producer_seq"
    rows(admin, f"insert into {endpoint(made)} (n, _producer, _producer_seq) values (1, 'p', 1), (2, null, null)")
    call(admin, "subscribe", made, made, start="earliest")
    assert take(admin, made) == [1, 2]


def claims(session: psycopg.Connection, tick: str, n: int) -> bool:
    """Claim a number, and publish an event when it was free."""
    if not call(session, "claim", tick, "p", n):
        return False
    rows(session, f"insert into {endpoint(tick)} (n, b) values (%s, 'claim')", [n])
    return True


def inserts(session: psycopg.Connection, tick: str, n: int) -> None:
    rows(
        session, f"insert into {endpoint(tick)} (n, b, _producer, _producer_seq) values (%s, 'insert', 'p', %s)", [n, n]
    )


@pytest.mark.parametrize("is_dispatched", [False, True])
def test_a_claim_and_an_insert_of_one_number_publish_it_once(
    admin: psycopg.Connection, tick: str, is_dispatched: bool
) -> None:
    got: list[int] = []
    for n in (1, 2):
        inserts(admin, tick, n)
    if is_dispatched:
        got += take(admin, tick)
    assert not claims(admin, tick, 1)
    assert claims(admin, tick, 3)
    if is_dispatched:
        got += take(admin, tick)
    inserts(admin, tick, 3)
    inserts(admin, tick, 4)
    assert got + take(admin, tick) == [1, 2, 3, 4]
    assert value(admin, "select repeats from pgps.activity where event_type = %s", [tick]) == 1
    # Another role's are its own, and so is the same number of another producer.
    assert call(admin, "claim", tick, "q", 1)


def test_a_claim_of_an_open_transaction_counts_when_it_commits(
    connect: Connect, admin: psycopg.Connection, tick: str
) -> None:
    first, second = connect(autocommit=False), connect(autocommit=False)
    assert claims(first, tick, 1)
    inserts(second, tick, 1)
    second.rollback()
    first.rollback()
    assert claims(first, tick, 1)
    inserts(second, tick, 1)
    second.commit()
    first.commit()
    assert take(admin, tick) == [1]
    # The insert of a transaction that is open may be taken back: it keeps nobody from claiming.
    inserts(second, tick, 2)
    assert claims(first, tick, 2)
    first.commit()
    second.commit()
    assert take(admin, tick) == [2]
    assert value(admin, "select repeats from pgps.activity where event_type = %s", [tick]) == 2


def test_what_a_transaction_publishes_under_the_number_that_it_has_claimed_is_no_repeat(
    admin: psycopg.Connection, tick: str
) -> None:
    with admin.transaction():
        assert call(admin, "claim", tick, "p", 1)
        inserts(admin, tick, 1)
    inserts(admin, tick, 1)
    assert value(admin, "select pgps.publish(%s, '{\"n\": 1}', producer => 'p', producer_seq => 1)", [tick]) is None
    assert take(admin, tick) == [1]
