"""Subscriptions to a prefix, and policies: what a role gets of types of now and later, and what it does not see."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import (
    call,
    endpoint,
    make_type,
    publish,
    refused,
    rows,
    take,
    take_as,
    value,
)
from tests.fix_db import Connect, wait_until

Name = Callable[..., str]


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    made = name("tick")
    make_type(admin, made, "n integer, b text")
    return made


def test_a_wildcard_takes_types_of_now_and_later(admin: psycopg.Connection, name: Name) -> None:
    prefix = name("sec")
    types = [name(f"{prefix}_{n}") for n in range(3)]
    make_type(admin, types[0])
    subscription = "all" + prefix
    call(admin, "subscribe", subscription, f"{prefix}*", filter="n > 1")
    make_type(admin, types[1], "b text, n integer")
    make_type(admin, types[2], "b text")
    for number, made in enumerate(types[:2]):
        publish(admin, made, 1, number + 2)
    rows(admin, "select pgps.dispatch()")
    found = rows(admin, "select event_type, payload -> 'n' from pgps.receive(%s) order by 1", [subscription])
    assert found == [(types[0], 2), (types[1], 3)]
    assert call(admin, "ack", subscription) == 2
    error = value(admin, "select last_error from pgps.subscriptions where name = %s", [subscription])
    assert types[2] in error, "its filter means nothing there"
    call(admin, "drop_event_type", types[0], True)
    publish(admin, types[1], 5)
    assert take(admin, subscription) == [5]
    call(admin, "unsubscribe", subscription)


def test_a_wildcard_takes_only_what_the_role_may_see(
    admin: psycopg.Connection, connect: Connect, role: Any, name: Name
) -> None:
    prefix = name("sec")
    seen, hidden, later = (name(f"{prefix}_{n}") for n in range(3))
    make_type(admin, seen)
    make_type(admin, hidden)
    rows(admin, f"revoke select on {endpoint(hidden)} from public")
    session = connect(role("reader"))
    call(session, "subscribe", "r" + prefix, f"{prefix}*")
    call(admin, "create_event_type", later, "n integer")
    call(admin, "advertise", later)
    for made in (seen, hidden, later):
        publish(admin, made, 1)
    assert take_as(admin, session, "r" + prefix) == [1]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_wildcard_joins_a_type_later_that_is_being_changed_and_that_it_may_not_see_yet(
    admin: psycopg.Connection, connect: Connect, role: Any, name: Name, end: str
) -> None:
    prefix = name("sec")
    seen, hidden = (name(f"{prefix}_{n}") for n in range(2))
    make_type(admin, seen)
    make_type(admin, hidden)
    rows(admin, f"revoke select on {endpoint(hidden)} from public")
    reader = role("reader")
    session = connect(reader)
    rows(session, "set lock_timeout = '100ms'")
    with connect(autocommit=False) as other:
        rows(other, f"select pgps.alter_event_type('{hidden}', add_attribute => 'm integer')")
        call(session, "subscribe", f"r{prefix}", f"{prefix}*", filter="n > 0")
        getattr(other, end)()
    publish(admin, seen, 1)
    publish(admin, hidden, 2)
    assert take_as(admin, session, f"r{prefix}") == [1]
    rows(admin, f"grant select on {endpoint(hidden)} to {reader}")
    publish(admin, hidden, 3)
    assert take_as(admin, session, f"r{prefix}") == [3]


def test_policies_decide_what_a_role_receives_and_sees(
    admin: psycopg.Connection, connect: Connect, role: Any, tick: str
) -> None:
    alice, bob, carol = role("alice"), role("bob"), role("carol")
    sessions = {each: connect(each) for each in (alice, bob, carol)}
    call(admin, "create_policy", tick, "low", alice, "n < 10")
    call(admin, "create_policy", tick, "x", alice, "b = 'x'")
    call(admin, "create_policy", tick, "high", bob, "n >= 10")
    for each, session in sessions.items():
        call(session, "subscribe", each, tick, filter="n > 1")
        call(session, "subscribe", f"i_{each}", tick)
    rows(admin, f"insert into {endpoint(tick)} values (1, 'y'), (2, 'y'), (11, 'y'), (12, 'x')")
    expected = {alice: [2, 12], bob: [11, 12], carol: []}
    for each, session in sessions.items():
        rows(admin, "select pgps.dispatch()")
        seen = [n for (n,) in rows(session, f"select distinct n from pgps_queue.{tick}_in order by n")]
        assert seen == sorted({*expected[each], *([1] if each == alice else [])})
        assert take_as(admin, session, each) == expected[each]
        assert take_as(admin, session, f"i_{each}") == [*([1] if each == alice else []), *expected[each]]
    call(admin, "drop_policy", tick, "low")
    call(admin, "drop_policy", tick, "x")
    call(admin, "drop_policy", tick, "high")
    publish(admin, tick, 3)
    assert take_as(admin, sessions[carol], carol) == [3]
    for function, args in (("drop_policy", (tick, "low")), ("create_policy", (tick, "p", "no_such_role", "true"))):
        with refused("42704"):
            call(admin, function, *args)
        with refused("42501"):
            call(sessions[alice], function, *args)


@pytest.mark.parametrize("definition", [{}, {"filter": "n > 0"}, {"handler": "any"}])
def test_a_subscription_to_a_prefix_gains_a_type_when_its_right_comes(
    admin: psycopg.Connection, connect: Connect, role: Any, name: Name, definition: dict[str, str]
) -> None:
    made, reader = name(), role("reader")
    for kind in "ab":
        make_type(admin, made + kind)
    make_type(admin, made + "c", "other text")
    rows(admin, f"revoke all on {endpoint(made + 'b')}, {endpoint(made + 'c')} from public")
    session = connect(reader)
    call(session, "subscribe", made, made + "*", **definition)
    publish(admin, made + "a", 1)
    publish(admin, made + "b", 2)
    assert take(admin, made) == [1]
    rows(admin, f"grant select on {endpoint(made + 'b')} to {reader}")
    publish(admin, made + "a", 3)
    publish(admin, made + "b", 4)
    rows(admin, f"insert into {endpoint(made + 'c')} values ('x')")
    assert take(admin, made) == [3, 4]
    rows(admin, f"revoke select on {endpoint(made + 'b')} from {reader}")
    publish(admin, made + "b", 5)
    assert take(admin, made) == []
    call(session, "unsubscribe", made)


def test_what_is_left_out_is_not_looked_for_event_by_event(
    connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    """60,000 events took a pattern, and a reader with a policy, fourteen times as long as a plain subscription."""
    admin, reader = connect(dsn=own_database), role("reader")
    for made in ("pa", "pb"):
        make_type(admin, made)
    call(admin, "create_policy", "pa", "shown", reader, "n > 1")
    session = connect(reader, dsn=own_database)
    for connection, subscription, wanted in ((admin, "plain", "pa"), (admin, "all", "p*"), (session, "shown", "pa")):
        call(connection, "subscribe", subscription, wanted)
    rows(admin, "insert into pgps_event.pa select generate_series(1, 60000)")
    publish(admin, "pb", 1)
    rows(admin, "select pgps.dispatch()")

    def seconds(connection: psycopg.Connection, subscription: str, events: int) -> float:
        before = time.perf_counter()
        assert value(connection, "select count(*) from pgps.receive(%s, 100000)", [subscription]) == events
        return time.perf_counter() - before

    plain: list[float] = []

    def compare(connection: psycopg.Connection, subscription: str, events: int) -> None:
        taken: list[float] = []

        def is_quick() -> bool:
            # The shortest times: what a busy machine adds counts for neither.
            taken.append(seconds(connection, subscription, events))
            plain.append(seconds(admin, "plain", 60000))
            return min(taken) < 5 * min(plain)

        wait_until(is_quick, what=f"{subscription} takes no more than five times as long")

    compare(admin, "all", 60001)
    compare(session, "shown", 59999)
