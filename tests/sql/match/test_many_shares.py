"""However many subscriptions with competing consumers a role has, the dispatcher shares out to a few of them."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import Connect

_PLACES = "select asked_in, count(*) from pgps.classes where subscription like %s group by 1 order by 1 nulls first"


@pytest.fixture
def admin(connect: Connect, own_database: str) -> psycopg.Connection:
    session = connect(dsn=own_database)
    make_type(session, "tick")
    call(session, "configure", "dispatch_shares", "3")
    return session


@pytest.fixture
def alice(role: Callable[..., str]) -> str:
    return role("alice")


def competes(session: psycopg.Connection, prefix: str, count: int, **options: str) -> None:
    for place in range(count):
        call(session, "subscribe", f"{prefix}{place}", "tick", handler="any", **options)


def taken(session: psycopg.Connection, subscription: str) -> list[int]:
    """Return what two consumers get, each event one of them, acknowledged."""
    found = []
    for consumer in ("one", "two", "one"):
        query = "select (payload -> 'n')::integer from pgps.receive(%s, 2, %s)"
        found += [n for (n,) in rows(session, query, [subscription, consumer])]
        call(session, "ack", subscription, None, consumer)
    return sorted(found)


def shared(session: psycopg.Connection) -> int:
    return int(value(session, "select count(*) from pgps_internal.share"))


def test_beyond_some_of_a_role_its_lane_shares_out(
    admin: psycopg.Connection, connect: Connect, own_database: str, alice: str
) -> None:
    hers = connect(alice, dsn=own_database)
    competes(hers, "all", 5)
    competes(hers, "some", 2, filter="n > 1")
    competes(admin, "his", 1)
    assert rows(admin, _PLACES, ["all%"]) == [(None, 3), ("lane", 2)]
    assert rows(admin, _PLACES, ["some%"]) == [("lane", 2)]
    assert rows(admin, _PLACES, ["his%"]) == [(None, 1)], "each role has as many"
    publish(admin, "tick", 1, 2, 3)
    rows(admin, "select pgps.dispatch_batch()")
    assert shared(admin) == (3 + 1) * 3, "the dispatcher, which everybody waits for, does no more"
    rows(admin, "call pgps.run_lanes()")
    assert shared(admin) == (5 + 1) * 3 + 2 * 2
    assert [taken(hers, f"all{place}") for place in range(5)] == [[1, 2, 3]] * 5
    assert [taken(hers, f"some{place}") for place in range(2)] == [[2, 3]] * 2
    assert taken(admin, "his0") == [1, 2, 3]
    assert shared(admin) == 0


def test_neither_a_new_filter_nor_a_start_in_the_past_nor_another_owner_is_a_way_around(
    admin: psycopg.Connection, connect: Connect, own_database: str, alice: str, role: Callable[..., str]
) -> None:
    hers = connect(alice, dsn=own_database)
    publish(admin, "tick", 1, 2)
    rows(admin, "select pgps.dispatch()")
    competes(hers, "hers", 3)
    competes(hers, "past", 1, start="earliest")
    competes(hers, "late", 1, filter="n > 2")
    call(hers, "alter_subscription", "late0", filter="n > 1")
    call(hers, "alter_subscription", "hers0", filter="n > 1")
    bob = role("bob")
    rows(admin, f"grant {alice} to {bob}")
    given = connect(bob, dsn=own_database)
    call(given, "subscribe", "given", "tick", handler="any")
    call(given, "alter_subscription", "given", owner=alice)
    places = "select subscription, asked_in from pgps.classes where asked_in = 'lane' order by 1"
    assert rows(admin, places) == [("given", "lane"), ("late0", "lane"), ("past0", "lane")]
    assert rows(admin, "select asked_in from pgps.classes where subscription = 'hers0'") == [("dispatch",)]
    publish(admin, "tick", 3)
    rows(admin, "select pgps.dispatch()")
    found = {name: taken(hers, name) for name in ("hers0", "hers1", "past0", "late0", "given")}
    assert found == {"hers0": [3], "hers1": [3], "past0": [1, 2, 3], "late0": [3], "given": [3]}


def test_patterns_count_on_each_event_type_and_there_is_room_again(
    admin: psycopg.Connection, connect: Connect, own_database: str, alice: str
) -> None:
    hers = connect(alice, dsn=own_database)
    for place in range(4):
        call(hers, "subscribe", f"every{place}", "t*", handler="any")
    make_type(admin, "tock")
    rows(admin, "select pgps.dispatch()")
    counts = "select event_type, asked_in, count(*) from pgps.classes group by 1, 2 order by 1, 2 nulls first"
    assert rows(admin, counts) == [
        ("tick", None, 3),
        ("tick", "lane", 1),
        ("tock", None, 3),
        ("tock", "lane", 1),
    ]
    publish(admin, "tick", 1)
    publish(admin, "tock", 2)
    rows(admin, "select pgps.dispatch()")
    assert [taken(hers, f"every{place}") for place in range(4)] == [[1, 2]] * 4
    call(hers, "unsubscribe", "every0")
    call(hers, "subscribe", "new", "tick", handler="any")
    assert rows(admin, "select asked_in from pgps.classes where subscription = 'new'") == [(None,)]


def test_those_that_are_there_go_on_and_one_for_all_consumers_does_not_count(
    admin: psycopg.Connection, connect: Connect, own_database: str, alice: str
) -> None:
    hers = connect(alice, dsn=own_database)
    call(admin, "configure", "dispatch_shares", "100")
    competes(hers, "old", 5)
    call(admin, "configure", "dispatch_shares", "3")
    for place in range(4):
        call(hers, "subscribe", f"whole{place}", "tick")
    assert rows(admin, _PLACES, ["old%"]) == [(None, 5)]
    assert rows(admin, _PLACES, ["whole%"]) == [(None, 4)]
    publish(admin, "tick", 1)
    rows(admin, "select pgps.dispatch_batch()")
    assert [taken(hers, f"old{place}") for place in range(5)] == [[1]] * 5


def test_who_joins_late_in_the_lane_and_finds_room_with_the_dispatcher_misses_nothing(
    admin: psycopg.Connection, connect: Connect, own_database: str, alice: str
) -> None:
    hers = connect(alice, dsn=own_database)
    call(admin, "configure", "dispatch_shares", "1")
    competes(hers, "all", 1)
    call(hers, "subscribe", "whole", "tick")
    with connect(dsn=own_database, autocommit=False) as changing:
        rows(changing, "select pgps.alter_event_type('tick', add_attribute => 'm integer')")
        call(hers, "subscribe", "late", "t*", handler="any")
        changing.rollback()
    publish(admin, "tick", 1)
    rows(admin, "select pgps.dispatch_batch()")
    assert rows(admin, "select count(*) from pgps_internal.joining") == [(1,)]
    call(hers, "unsubscribe", "all0")
    publish(admin, "tick", 2)
    rows(admin, "select pgps.dispatch_batch()")
    rows(admin, "call pgps.run_lanes()")
    publish(admin, "tick", 3)
    rows(admin, "select pgps.dispatch()")
    assert rows(admin, _PLACES, ["late"]) == [(None, 1)]
    assert taken(hers, "late") == [1, 2, 3]


def test_the_subscriptions_of_others_are_not_read_to_count_ones_own(
    admin: psycopg.Connection, connect: Connect, own_database: str, alice: str
) -> None:
    hers = connect(alice, dsn=own_database)
    competes(hers, "hers", 200)
    # What it has read is counted now, and not when it has been idle for some seconds.
    rows(hers, "select pg_stat_force_next_flush()")
    rows(admin, "analyze pgps_internal.subscription, pgps_internal.member, pgps_internal.class")

    def read() -> int:
        rows(admin, "select pg_stat_force_next_flush()")
        of = "pg_stat_user_tables where relid = 'pgps_internal.member'::regclass"
        return int(value(admin, f"select seq_tup_read + idx_tup_fetch from {of}"))

    query = (
        "select pgps_internal.shares_many(s, t.type_id) from pgps_internal.subscription s, pgps_internal.event_type t "
        "where s.name = 'his0' and t.name = 'tick'"
    )
    # As in the functions through which users come in.
    rows(admin, "set enable_seqscan = off")
    competes(admin, "his", 1)
    before = read()
    assert value(admin, query) is False
    assert read() - before < 50
