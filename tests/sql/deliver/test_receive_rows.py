"""pgps_queue.<type>_receive gives what pgps.receive gives, as columns, and once for those who are at the same place."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import Rows, call, column, make_type, publish, refused, rows, value
from tests.fix_db import Connect

Name = Callable[..., str]

_ROWS = """
    select pgps_event_id, n, pgps_published_at, pgps_publisher, pgps_xid, pgps_origin, pgps_attempt, pgps_places
    from pgps_queue.{}_receive(%s, %s)
"""
_SCANS = """
    select sum(pg_stat_get_xact_numscans(i.indexrelid))::integer
    from pg_partition_tree('pgps_internal.control') t join pg_index i on i.indrelid = t.relid where t.isleaf
"""
_JSON = """
    select event_id, (payload ->> 'n')::integer, published_at, publisher, xid::text::bigint, origin, attempt
    from pgps.receive(%s, %s)
"""


def received(connection: psycopg.Connection, kind: str, names: list[str], most: int = 1000) -> Rows:
    return rows(connection, _ROWS.format(kind), [names, most])


def same(connection: psycopg.Connection, kind: str, name: str, most: int = 1000) -> list[int]:
    """Return attribute n of the next events, which both ways give alike."""
    with connection.transaction(force_rollback=True):
        told = rows(connection, _JSON, [name, most])
    found = received(connection, kind, [name], most)
    assert [row[:-1] for row in found] == told
    return [row[1] for row in found]


def test_an_attribute_may_have_the_name_of_an_argument(admin: psycopg.Connection, name: Name) -> None:
    made, mine = name(), name()
    make_type(admin, made, "n integer, consumer text, subscriptions text")
    call(admin, "subscribe", mine, made)
    rows(admin, f"insert into pgps_event.{made} values (1, 'Ann', 'two')")
    call(admin, "alter_event_type", made, add_attribute="max_events integer default 7")
    call(admin, "dispatch")
    found = f"select consumer, subscriptions, max_events from pgps_queue.{made}_receive(%s, 10)"
    assert rows(admin, found, [[mine]]) == [("Ann", "two", 7)]
    # An argument keeps its name where no attribute has it.
    call(admin, "alter_event_type", made, drop_attribute="consumer")
    named = "pgps_subscriptions => %s, pgps_max_events => 10, consumer => 'me'"
    assert rows(admin, f"select n from pgps_queue.{made}_receive({named})", [[mine]]) == [(1,)]


@pytest.fixture
def kind(admin: psycopg.Connection, name: Name) -> str:
    made = name()
    make_type(admin, made, "n integer, doc jsonb, l text")
    return made


def test_rows_are_those_of_receive_whatever_was_published_how(
    admin: psycopg.Connection, connect: Connect, kind: str, name: Name
) -> None:
    every, some = name("every"), name("some")
    call(admin, "subscribe", every, kind)
    call(admin, "subscribe", some, kind, filter="n % 7 in (1, 2, 5)")
    writers = [connect(autocommit=False) for _ in range(3)]
    dice = random.Random(7)  # transactions of several statements, their ids mixed
    for round_ in range(4):
        for n in range(12):
            publish(writers[dice.randrange(3)], kind, *range(100 * round_ + n, 100 * round_ + n + dice.randrange(1, 9)))
        for writer in writers:
            (writer.commit if dice.random() < 0.8 else writer.rollback)()
        rows(admin, "select pgps.dispatch()")
        for subscription in (every, some):
            for most in (5, 1, 1000):
                assert same(admin, kind, subscription, most)
            found = received(admin, kind, [subscription], 6)
            call(admin, "ack", subscription, found[dice.randrange(6)][0])
    while column(admin, "select pgps.ack(%s)", [every]) != [0]:
        same(admin, kind, every, 50)
    assert value(admin, "select depth from pgps.subscriptions where name = %s", [every]) == 0


def test_the_statement_of_an_event_is_looked_up_once(admin: psycopg.Connection, kind: str, name: Name) -> None:
    made = name()
    call(admin, "subscribe", made, kind)
    for n in range(20):
        publish(admin, kind, n)
    rows(admin, "select pgps.dispatch()")
    with admin.transaction():
        before = value(admin, _SCANS)
        assert len(received(admin, kind, [made])) == 20
        scans = value(admin, _SCANS) - before
    # A look-up scans the index of each of the four segments.
    assert 4 * 19 <= scans < 4 * 2 * 19


def test_a_run_that_goes_on_in_the_next_segment_is_whole(own_database: str, connect: Connect) -> None:
    connection = connect(dsn=own_database)
    make_type(connection, "t")
    call(connection, "subscribe", "s", "t")
    rows(connection, "insert into pgps_event.t (n) select n from generate_series(1, 66000) n")
    rows(connection, "select pgps.dispatch()")
    query = "select pgps_event_id, n from pgps_queue.t_receive(array['s'], 66000)"
    assert [n for _, n in rows(connection, query)] == list(range(1, 66001))


def test_subscriptions_at_the_same_place_share_their_rows_and_others_have_their_own(
    admin: psycopg.Connection, kind: str, name: Name
) -> None:
    names = [name("s") for _ in range(4)]
    for subscription in names:
        call(admin, "subscribe", subscription, kind)
    filtered = name("s")
    call(admin, "subscribe", filtered, kind, filter="n > 2")
    publish(admin, kind, 1, 2, 3)
    rows(admin, "select pgps.dispatch()")
    received(admin, kind, [names[3]])
    call(admin, "ack", names[3])
    publish(admin, kind, 4)
    rows(admin, "select pgps.dispatch()")
    found = received(admin, kind, [names[0], filtered, *names[1:]])
    assert [(row[1], row[-1]) for row in found if row[-1] == "{[1,2),[3,5)}"] == [
        (n, "{[1,2),[3,5)}") for n in (1, 2, 3, 4)
    ]
    assert [(row[1], row[-1]) for row in found if row[-1] != "{[1,2),[3,5)}"] == [
        (3, "{[2,3)}"), (4, "{[2,3)}"), (4, "{[5,6)}")
    ]  # fmt: skip
    acked = rows(admin, "select subscription, acked from pgps.ack_each(%s)", [[*names, filtered, names[0]]])
    assert acked == [*zip(names, (4, 4, 4, 1), strict=True), (filtered, 2), (names[0], 4)]
    assert received(admin, kind, names) == []


def test_what_takes_more_is_left_to_receive(admin: psycopg.Connection, kind: str, name: Name) -> None:
    put_back, shared = name("s"), name("any")
    call(admin, "subscribe", put_back, kind)
    call(admin, "subscribe", shared, kind, handler="any")
    rows(admin, f"insert into pgps_event.{kind} (n, doc, l) values (1, '{{\"a\": [1.50]}}', 'x'), (2, null, null)")
    rows(admin, "select pgps.dispatch()")
    received(admin, kind, [put_back])
    last = column(admin, f"select max(event_id) from pgps_queue.{kind}_in")[0]
    call(admin, "nack", put_back, last, "later")
    call(admin, "ack", put_back)
    assert [row[1] for row in received(admin, kind, [put_back])] == [2]
    found: list[Any] = rows(
        admin, f"select n, doc, l, pgps_places from pgps_queue.{kind}_receive(%s)", [[put_back, shared]]
    )
    assert found == [(2, None, None, "{[1,2)}"), (1, {"a": [1.5]}, "x", "{[2,3)}"), (2, None, None, "{[2,3)}")]
    assert rows(admin, "select acked from pgps.ack_each(%s)", [[shared, put_back]]) == [(2,), (1,)]


def test_policies_and_lost_rights_hold_for_rows(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], kind: str, name: Name
) -> None:
    alice, bob, mine = role("alice"), role("bob"), name("s")
    owner = connect(alice)
    call(owner, "subscribe", mine, kind)
    publish(admin, kind, 1, 2, 3)
    rows(admin, "select pgps.dispatch()")
    assert [row[1] for row in received(owner, kind, [mine])] == [1, 2, 3]
    with refused("42501", mine):
        received(connect(bob), kind, [mine])
    with refused("42501", mine):
        rows(connect(bob), "select pgps.ack_each(%s)", [[mine]])
    call(admin, "create_policy", kind, "odd", alice, "n % 2 = 1")
    assert [row[1] for row in received(owner, kind, [mine])] == [1, 3]
    rows(admin, f"revoke select on pgps_event.{kind} from public")
    with refused("42501", kind):
        received(owner, kind, [mine])


def test_wrong_use_is_refused(admin: psycopg.Connection, kind: str, name: Name) -> None:
    other, pattern, own = name(), name("p"), name("s")
    make_type(admin, other)
    call(admin, "subscribe", own, kind)
    call(admin, "subscribe", pattern, f"{kind}*")
    with refused("22023", own, other):
        received(admin, other, [own])
    with refused("22023", pattern):
        received(admin, kind, [pattern])
    with refused("42704", "nobody"):
        received(admin, kind, [own, "nobody"])
    with refused("42704", "nobody"):
        rows(admin, "select pgps.ack_each(array['nobody'])")
    with refused("22023", "max_events 0"):
        received(admin, kind, [own], 0)
    assert received(admin, kind, []) == []
    assert rows(admin, "select * from pgps.ack_each('{}')") == []
    assert received(admin, kind, [own]) == []


def test_two_sessions_that_want_the_same_subscriptions_in_another_order_both_get_through(
    admin: psycopg.Connection, connect: Connect, kind: str, name: Name
) -> None:
    one, two = name("s"), name("s")
    for subscription in (one, two):
        call(admin, "subscribe", subscription, kind)
    publish(admin, kind, 1)
    rows(admin, "select pgps.dispatch()")
    first, second = connect(autocommit=False), connect(autocommit=False)
    received(first, kind, [one, two])
    rows(second, "set local lock_timeout = '50ms'")
    with refused("55P03"):
        received(second, kind, [two, one])
    second.rollback()
    first.commit()
    assert [row[1] for row in received(second, kind, [two, one])] == [1]
    second.rollback()


def test_the_function_follows_its_type(admin: psycopg.Connection, kind: str, name: Name) -> None:
    mine = name("s")
    call(admin, "subscribe", mine, kind)
    publish(admin, kind, 1)
    rows(admin, "select pgps.dispatch()")
    call(admin, "alter_event_type", kind, add_attribute="more integer default 5")
    assert rows(admin, f"select n, more from pgps_queue.{kind}_receive(%s)", [[mine]]) in ([(1, 5)], [(1, None)])
    call(admin, "drop_event_type", kind, cascade=True)
    left = "select count(*) from pg_proc where proname = %s"
    assert value(admin, left, [f"{kind}_receive"]) == 0
