"""Subscriptions: filters are checked, starts are right, changes take effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import (
    call,
    endpoint,
    ids,
    make_type,
    meanwhile,
    numbers,
    publish,
    queue,
    quoted,
    refused,
    rows,
    sink,
    sunk,
    take,
    take_as,
    value,
)
from tests.fix_db import Connect

Name = Callable[..., str]


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    made = name("tick")
    make_type(admin, made, "n integer, b text")
    return made


@pytest.mark.parametrize(
    ("condition", "sqlstate"),
    [
        ("", "22023"),
        ("n =", "42601"),
        ("n = 1; drop table x", "42601"),
        ("n = 1) or (true", "42601"),
        ("n = 1 -- comment\n) or (true", "42601"),
        ("nope = 1", "42703"),
        ("n", "42804"),
        ("n = 'x'", "22P02"),
        ("b = 1", "42883"),
        ("no_such(n)", "42883"),
        ("n in (select n from no_such_table)", "42P01"),
        ("count(*) > 1", "42803"),
    ],
)
def test_a_bad_filter_is_refused_with_postgresqls_own_error(
    admin: psycopg.Connection, tick: str, condition: str, sqlstate: str
) -> None:
    with refused(sqlstate):
        call(admin, "subscribe", tick, tick, filter=condition)
    assert value(admin, "select count(*) from pgps.subscriptions where name = %s", [tick]) == 0


@pytest.mark.parametrize(
    ("changes", "sqlstate"),
    [
        ({"name": None}, "22023"),
        ({"name": ""}, "42602"),
        ({"name": "x" * 41}, "42622"),
        ({"event_type": "no_such"}, "42704"),
        ({"event_type": None}, "22023"),
        ({"scope": "world"}, "22023"),
        ({"scope": None}, "22023"),
        ({"max_attempts": 0}, "22023"),
        ({"max_attempts": None}, "22023"),
        ({"handler": "some"}, "22023"),
        ({"start": "tomorrow"}, "22023"),
        ({"execute": "no_such_function"}, "42883"),
    ],
)
def test_a_bad_subscription_is_refused(
    admin: psycopg.Connection, tick: str, changes: dict[str, Any], sqlstate: str
) -> None:
    with refused(sqlstate):
        call(admin, "subscribe", **{"name": tick, "event_type": tick, **changes})


def test_two_subscriptions_of_one_name_are_refused(admin: psycopg.Connection, tick: str) -> None:
    call(admin, "subscribe", tick, tick)
    with refused("42710", tick, "unsubscribe"):
        call(admin, "subscribe", tick, tick)
    call(admin, "unsubscribe", tick)
    with refused("42704", tick):
        call(admin, "unsubscribe", tick)


def test_what_a_dropped_role_has_advertised_is_advertised_by_nobody(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], name: Name
) -> None:
    made, gone = name(), role("gone")
    call(admin, "create_event_type", made, "n integer")
    rows(admin, f"grant insert on {endpoint(made)} to {quoted(gone)}")
    session = connect(gone)
    call(session, "advertise", made)
    session.close()
    rows(admin, f"drop owned by {quoted(gone)}; drop role {quoted(gone)}")
    try:
        with refused("55000", made, "advertise"):
            call(admin, "subscribe", name("s"), made)
    finally:
        rows(admin, f"create role {quoted(gone)}")  # for its fixture to drop


def test_an_unadvertised_type_cannot_be_subscribed_to(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    call(admin, "create_event_type", made, "n integer")
    with refused("55000", made, "advertise"):
        call(admin, "subscribe", made, made)


def test_subscribing_needs_select_and_a_filter_the_subscribers_rights(
    admin: psycopg.Connection, connect: Connect, role: Any, tick: str
) -> None:
    reader = role("reader")
    session = connect(reader)
    rows(admin, f"create table public.secret_{tick} (n integer)")
    with refused("42501"):
        call(session, "subscribe", tick, tick, filter=f"n in (select n from secret_{tick})")
    rows(admin, f"revoke select on {endpoint(tick)} from public")
    with refused("42501", tick):
        call(session, "subscribe", tick, tick)


def test_now_is_what_commits_from_now_on(admin: psycopg.Connection, connect: Connect, tick: str) -> None:
    late = connect(autocommit=False)
    publish(late, tick, 1)
    publish(admin, tick, 2)
    call(admin, "subscribe", "a" + tick, tick)
    rows(admin, "select pgps.dispatch()")
    publish(admin, tick, 3)
    call(admin, "subscribe", "b" + tick, tick)
    late.commit()
    publish(admin, tick, 4)
    assert take(admin, "a" + tick) == [1, 3, 4]
    assert take(admin, "b" + tick) == [1, 4]


@pytest.mark.parametrize("condition", [None, "n <> 2", "n in (select 1 union select 3 union select 4)"])
def test_earliest_and_an_event_id_begin_in_the_past(
    admin: psycopg.Connection, tick: str, condition: str | None
) -> None:
    call(admin, "subscribe", "now" + tick, tick)
    publish(admin, tick, 1, 2)
    rows(admin, "select pgps.dispatch()")
    publish(admin, tick, 3)
    rows(admin, "select pgps.dispatch()")
    publish(admin, tick, 4)
    event = ids(admin, "now" + tick)[2]
    expected = [n for n in (1, 2, 3, 4) if condition is None or n != 2]
    call(admin, "subscribe", "first" + tick, tick, filter=condition, start="earliest")
    call(admin, "subscribe", "third" + tick, tick, filter=condition, start=str(event))
    assert take(admin, "first" + tick) == expected
    assert take(admin, "third" + tick) == [3, 4]


def test_what_is_matched_again_is_noted_as_ranges(admin: psycopg.Connection, tick: str) -> None:
    call(admin, "subscribe", tick, tick)
    publish(admin, tick, *range(100))
    # A number that nobody has.
    rows(admin, "select nextval('pgps_internal.event_id_seq')")
    publish(admin, tick, *range(100, 200))
    rows(admin, "select pgps.dispatch()")
    query = (
        "select d.events, d.event_ids, d.ids from pgps_internal.delivery d join pgps_internal.member m using (class_id)"
    )
    query += " join pgps_internal.subscription s using (subscription_id) where s.name = %s"
    (noted,) = rows(admin, query, [tick])
    assert noted[:2] == (200, None)
    call(admin, "seek", tick, "earliest")
    assert rows(admin, query, [tick]) == [noted]
    assert take(admin, tick) == list(range(200))


@pytest.mark.parametrize("handler", ["all", "any"])
@pytest.mark.parametrize("condition", [None, "n > 0"])
def test_an_event_id_is_a_place_in_delivery_order(
    admin: psycopg.Connection, connect: Connect, name: Any, handler: str, condition: str | None
) -> None:
    """Who committed late comes behind those that were first, although its events have lower ids."""
    made = name()
    for kind in "ab":
        make_type(admin, made + kind)
    for sub, kind in ((made, "a"), (made + "all", "*")):
        call(admin, "subscribe", sub, made + kind, filter=condition, handler=handler)
    late = connect(autocommit=False)
    publish(late, made + "a", 1, 2)
    publish(late, made + "b", 3)
    publish(admin, made + "a", 4, 5, 6)
    rows(admin, "select pgps.dispatch()")
    late.commit()
    publish(admin, made + "b", 7)
    waiting = connect(autocommit=False)
    publish(waiting, made + "a", 8)
    rows(admin, "select pgps.dispatch()")
    publish(admin, made + "a", 9)
    waiting.commit()
    id_of = {n: one for kind in "ab" for one, n in rows(admin, f"select event_id, n from {queue(made + kind, 'log')}")}
    in_order = [4, 5, 6, 1, 2, 3, 7, 8, 9]
    for sub, wanted in ((made, [1, 2, 4, 5, 6, 8, 9]), (made + "all", in_order)):
        for n in wanted:
            call(admin, "seek", sub, str(id_of[n]))
            began = name("began")
            call(admin, "subscribe", began, made + ("a" if sub == made else "*"), filter=condition, start=str(id_of[n]))
            # What nobody has been given yet is after every event that somebody was.
            after = in_order[7:] if n in (8, 9) else in_order[in_order.index(n) :]
            rest = [one for one in after if one in wanted]
            assert numbers(admin, began, 100) == [one for one in rest if one < 8], (sub, n)
            assert explained(admin, began, id_of[in_order[0]]) == (n != 4)
            call(admin, "unsubscribe", began)
            assert numbers(admin, sub, 100) == [one for one in rest if one < 8], (sub, n)
        call(admin, "seek", sub, str(id_of[9]))
    assert take(admin, made) == take(admin, made + "all") == [8, 9]
    for gone in (name("gone"), name("beyond")):
        call(admin, "subscribe", gone, made + "*", start="0" if gone.startswith("gone") else "9" * 18)
        assert numbers(admin, gone, 100) == ([] if gone.startswith("beyond") else in_order)
        call(admin, "unsubscribe", gone)
    for sub in (made, made + "all"):
        call(admin, "unsubscribe", sub)


def explained(connection: psycopg.Connection, subscription: str, event_id: int) -> bool:
    """Whether pgps.explain says that an event came before the start of a subscription."""
    query = "select coalesce(bool_or(step = 'start'), false) from pgps.explain(%s, %s)"
    return bool(value(connection, query, [subscription, event_id]))


@pytest.mark.parametrize("handler", ["all", "any"])
def test_seek_moves_back_and_forth(admin: psycopg.Connection, tick: str, handler: str) -> None:
    call(admin, "subscribe", tick, tick, filter="n > 0", handler=handler)
    publish(admin, tick, 1, 2, 3)
    rows(admin, "select pgps.dispatch()")
    second = ids(admin, tick)[1]
    call(admin, "ack", tick)
    call(admin, "seek", tick, "earliest")
    assert take(admin, tick) == [1, 2, 3]
    call(admin, "seek", tick, str(second))
    assert take(admin, tick) == [2, 3]
    publish(admin, tick, 4)
    rows(admin, "select pgps.dispatch()")
    publish(admin, tick, 5)
    call(admin, "seek", tick, "now")
    publish(admin, tick, 6)
    assert take(admin, tick) == [6]
    with refused("22023", "never"):
        call(admin, "seek", tick, "never")
    with refused("42704"):
        call(admin, "seek", "no_such", "now")


@pytest.mark.parametrize("condition", [None, "n > 0", "n > 0 and exists (select)"])
def test_now_is_the_moment_of_the_commit(
    admin: psycopg.Connection, connect: Connect, tick: str, name: Any, condition: str | None
) -> None:
    """What was committed before is skipped, dispatched or not; what is open then and commits later comes."""
    late, never = connect(autocommit=False), connect(autocommit=False)
    call(admin, "subscribe", tick, tick, filter=condition)
    publish(late, tick, 1)
    publish(never, tick, 2)
    publish(admin, tick, 3)
    rows(admin, "select pgps.dispatch()")
    publish(admin, tick, 4)
    call(admin, "seek", tick, "now")
    other = name("other")
    call(admin, "subscribe", other, tick, filter=condition)
    late.commit()
    publish(admin, tick, 5)
    never.rollback()
    assert take(admin, tick) == take(admin, other) == [1, 5]


def test_a_paused_subscription_gets_its_events_when_it_resumes(
    admin: psycopg.Connection, connect: Connect, role: Any, tick: str
) -> None:
    call(admin, "subscribe", tick, tick)
    call(admin, "pause", tick)
    publish(admin, tick, 1)
    assert take(admin, tick) == []
    assert value(admin, "select state from pgps.subscriptions where name = %s", [tick]) == "paused"
    for function in ("pause", "resume", "unsubscribe"):
        with refused("42501", tick):
            call(connect(role("other")), function, tick)
        with refused("42704"):
            call(admin, function, "no_such")
    call(connect(role("chief", "pgps_admin")), "resume", tick)
    assert take(admin, tick) == [1]


def test_sessions_that_subscribe_alike_at_once_wait_for_each_other(
    admin: psycopg.Connection, connect: Connect, role: Any, tick: str
) -> None:
    owner = role("owner")
    first, second = connect(owner, autocommit=False), connect(owner)
    call(first, "subscribe", "a" + tick, tick, filter="n > 1")
    with meanwhile(admin, second, lambda: call(second, "subscribe", "b" + tick, tick, filter="n > 2")):
        first.commit()
    publish(admin, tick, 2, 3)
    assert take_as(admin, second, "a" + tick) == [2, 3]
    assert take_as(admin, second, "b" + tick) == [3]
    call(first, "unsubscribe", "a" + tick)
    with meanwhile(admin, second, lambda: call(second, "subscribe", "c" + tick, tick, filter="n > 1")):
        first.commit()
    call(first, "subscribe", "d" + tick, tick, filter="n > 1")
    with meanwhile(admin, second, lambda: call(second, "unsubscribe", "c" + tick)):
        first.commit()
    publish(admin, tick, 2)
    assert take_as(admin, second, "d" + tick) == [2]


def test_a_callback_may_be_a_competing_consumer(admin: psycopg.Connection, tick: str) -> None:
    table = sink(admin, tick)
    call(admin, "subscribe", tick, tick, execute=table, handler="any")
    publish(admin, tick, 1, 2)
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")
    assert sunk(admin, table) == [1, 2]
    assert value(admin, "select depth from pgps.subscriptions where name = %s", [tick]) == 0
    query = (
        "select count(*) from pgps_internal.share s join pgps_internal.event_type t using (type_id) where t.name = %s"
    )
    assert value(admin, query, [tick]) == 0, "or its segments would be kept for ever"


@pytest.mark.parametrize("what", ["receive", "take", "ack", "seek", "ack_stream"])
def test_who_waits_for_the_end_of_a_subscription_is_told_its_name(
    admin: psycopg.Connection, connect: Connect, own_database: str, name: Name, what: str
) -> None:
    connection = connect(dsn=own_database)
    make_type(connection, "ended")
    call(connection, "subscribe", "ended", "ended")
    for _ in range(2):
        publish(connection, "ended", 1)
        rows(connection, "select pgps.dispatch()")
        rows(connection, "select * from pgps.receive('ended', 1)")
    statements = {
        "receive": "select * from pgps.receive('ended')",
        "take": "select * from pgps.take('ended')",
        "ack": "select pgps.ack('ended')",
        "seek": "select pgps.seek('ended', 'earliest')",
        "ack_stream": "select pgps.ack_stream('ended', 1, 1)",
    }
    with connect(dsn=own_database, autocommit=False) as dropper:
        call(dropper, "unsubscribe", "ended")
        with (
            refused("42704", 'subscription "ended" does not exist'),
            meanwhile(admin, connection, lambda: rows(connection, statements[what])),
        ):
            dropper.commit()
