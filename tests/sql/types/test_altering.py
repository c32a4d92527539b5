"""Changing event types and their queues: what waits, filters, callbacks and publishers meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import (
    call,
    endpoint,
    make_type,
    numbers,
    publish,
    receive,
    refused,
    rows,
    sink,
    sunk,
    take,
    value,
)
from tests.fix_db import Connect

Name = Callable[..., str]


def test_an_added_attribute_has_its_default_or_null_in_queued_events(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made)
    publish(admin, made, 1)
    rows(admin, "select pgps.dispatch()")
    publish(admin, made, 2)
    call(admin, "alter_event_type", made, "b text")
    call(admin, "alter_event_type", made, "c integer not null default 7 check (c < 10)")
    published = rows(admin, f"insert into {endpoint(made)} values (3, 'x', 9) returning *")
    assert published == [(3, "x", 9, None, None)], "the producer's columns stay last"
    rows(admin, "select pgps.dispatch()")
    assert receive(admin, made) == [
        {"n": 1, "b": None, "c": 7},
        {"n": 2, "b": None, "c": 7},
        {"n": 3, "b": "x", "c": 9},
    ]
    with refused("23514"):
        rows(admin, f"insert into {endpoint(made)} (n, c) values (4, 10)")
    with refused("23502"):
        rows(admin, f"insert into {endpoint(made)} (n, c) values (4, null)")


@pytest.mark.parametrize(
    ("domain", "attribute", "given"),
    [
        ("not null check (value > 0)", "default 5", {5}),
        ("not null check (value > 0)", "default (1 + random() * 2)::integer", {1, 2, 3}),
        ("not null", "not null default 5", {5}),
        ("default 7 not null check (value > 0)", "", {7}),
        ("default 7 check (value > 0)", "default 5", {5}),
        ("default 7 check (value > 0)", "default null", {None}),
        ("default (1 + random() * 2)::integer", "", {1, 2, 3}),
        ("check (value > 0)", "", {None}),
    ],
)
def test_queued_events_have_what_a_domain_asks_for(
    admin: psycopg.Connection, name: Name, domain: str, attribute: str, given: set[int | None]
) -> None:
    made, number = name(), f"public.{name('number')}"
    rows(admin, f"create domain {number} as integer {domain}")
    make_type(admin, made)
    call(admin, "subscribe", made, made)
    publish(admin, made, 1)
    rows(admin, "select pgps.dispatch()")
    publish(admin, made, 2)
    call(admin, "alter_event_type", made, f"d {number} {attribute}")
    publish(admin, made, 3)
    rows(admin, f"insert into {endpoint(made)} values (4, 9)")
    rows(admin, "select pgps.dispatch()")
    found = receive(admin, made)
    assert [event["n"] for event in found] == [1, 2, 3, 4]
    assert {event["d"] for event in found[:3]} <= given
    assert found[3]["d"] == 9
    if "check" in domain:
        with refused("23514"):
            rows(admin, f"insert into {endpoint(made)} values (5, 0)")
    if "not null" in domain:
        with refused("23502"):
            rows(admin, f"insert into {endpoint(made)} values (5, null)")


@pytest.mark.parametrize(
    ("domain", "attribute", "sqlstate"),
    [("not null", "", "23502"), ("check (value > 0)", "default 0", "23514"), ("not null", "default null", "23502")],
)
def test_an_attribute_of_a_domain_that_queued_events_cannot_have_is_refused(
    admin: psycopg.Connection, name: Name, domain: str, attribute: str, sqlstate: str
) -> None:
    made, number = name(), f"public.{name('number')}"
    rows(admin, f"create domain {number} as integer {domain}")
    make_type(admin, made)
    publish(admin, made, 1)
    with refused(sqlstate, "give it a default that they can have"):
        call(admin, "alter_event_type", made, f"d {number} {attribute}")


def test_an_attribute_that_a_rule_fills_is_not_dropped(admin: psycopg.Connection, name: Name) -> None:
    made, table, filling = name(), name("t"), name("r")
    make_type(admin, made, "a text, n integer, b text")
    call(admin, "subscribe", made, made)
    rows(admin, f"create table public.{table} (v integer)")
    call(admin, "create_rule", filling, f"public.{table}", "insert", made, ["'x'", "new.v"])
    for attribute in ("a", "n"):
        with refused("2BP01", attribute, filling, "drop_rule"):
            call(admin, "alter_event_type", made, drop_attribute=attribute)
    call(admin, "alter_event_type", made, drop_attribute="b")
    call(admin, "alter_event_type", made, add_attribute="c text")
    call(admin, "alter_event_type", made, drop_attribute="c")
    rows(admin, f"insert into public.{table} values (1)")
    rows(admin, "select pgps.dispatch()")
    assert receive(admin, made) == [{"a": "x", "n": 1}]
    call(admin, "drop_rule", filling)
    call(admin, "alter_event_type", made, drop_attribute="n")
    rows(admin, f"drop table public.{table}")


def test_a_dropped_attribute_is_gone_from_queued_events(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    make_type(admin, made, "a text, n integer, b text")
    call(admin, "subscribe", made, made, filter="n < 3")
    rows(admin, f"insert into {endpoint(made)} values ('x', 1, 'y')")
    rows(admin, "select pgps.dispatch()")
    rows(admin, f"insert into {endpoint(made)} values ('x', 2, 'y'), ('x', 3, 'y')")
    call(admin, "alter_event_type", made, drop_attribute="a")
    rows(admin, f"insert into {endpoint(made)} (n, b) values (0, 'z')")
    rows(admin, "select pgps.dispatch()")
    with refused("0A000"):
        rows(admin, f"insert into {endpoint(made)} (n) values (5) returning n")
    assert receive(admin, made) == [{"n": 1, "b": "y"}, {"n": 2, "b": "y"}, {"n": 0, "b": "z"}]


def test_altering_keeps_callbacks_producers_and_a_share_working(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    make_type(admin, made)
    table = sink(admin, made)
    call(admin, "subscribe", made, made, execute=table, filter="n > 0")
    call(admin, "alter_event_type", made, "b integer default 5")
    rows(
        admin,
        f"insert into {endpoint(made)} (n, _producer, _producer_seq) values (1, 'p', 1), (1, 'p', 1), (2, 'p', 2)",
    )
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")
    assert sunk(admin, table) == [1, 2]


def test_an_attribute_that_a_filter_uses_is_not_dropped(admin: psycopg.Connection, name: Name) -> None:
    made, subscription = name(), name("s")
    make_type(admin, made, 'n integer, "Big N" integer, b text')
    call(admin, "subscribe", subscription, made, filter='"Big N" > 1')
    with refused("2BP01", subscription, "unsubscribe"):
        call(admin, "alter_event_type", made, drop_attribute="Big N")
    call(admin, "alter_event_type", made, drop_attribute="b")


@pytest.mark.parametrize(
    ("attribute", "given"),
    [("price", "PRICE"), ("vol", '"vol"'), ('"Sym"', '"Sym"'), ('"a ""b"""', '"a ""b"""'), ('"a b"', "a b")],
)
def test_an_attribute_to_be_dropped_is_named_as_in_sql(
    admin: psycopg.Connection, name: Name, attribute: str, given: str
) -> None:
    made = name()
    make_type(admin, made, f"n integer, {attribute} integer")
    call(admin, "alter_event_type", made, drop_attribute=given)
    left = value(admin, "select attributes from pgps.event_types where name = %s", [made])
    assert [one["name"] for one in left] == ["n"]


def test_without_quotes_no_capitals_are_meant_of_an_attribute_to_be_dropped(
    admin: psycopg.Connection, name: Name
) -> None:
    made = name()
    make_type(admin, made, 'n integer, "Sym" integer')
    with refused("42703", '"sym"', "attributes of pgps.event_types"):
        call(admin, "alter_event_type", made, drop_attribute="Sym")


@pytest.mark.parametrize(
    ("change", "sqlstate"),
    [
        ({}, "22023"),
        ({"drop_attribute": "nope"}, "42703"),
        ({"add_attribute": "n text"}, "42701"),
        ({"add_attribute": "b nonsense"}, "42704"),
        ({"add_attribute": "b integer); drop table x; --"}, "42601"),
        ({"add_attribute": "b integer not null"}, "23502"),
        ({"add_attribute": "b integer); create table public.more (n integer"}, "42601"),
        ({"add_attribute": "like pg_catalog.pg_class"}, "0A000"),
        ({"add_attribute": "_producer text"}, "42701"),
        ({"add_attribute": " -- nothing"}, "22023"),
    ],
)
def test_a_bad_change_is_refused_and_changes_nothing(
    admin: psycopg.Connection, name: Name, change: dict[str, Any], sqlstate: str
) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made)
    publish(admin, made, 1)
    with refused(sqlstate):
        call(admin, "alter_event_type", made, **change)
    assert take(admin, made) == [1]


def test_altering_waits_for_a_publisher_and_loses_nothing(
    connect: Connect, admin: psycopg.Connection, name: Name
) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made)
    publisher = connect(autocommit=False)
    publish(publisher, made, 1)
    other = connect(autocommit=False)
    other.execute("set local lock_timeout = '100ms'")
    with refused("55P03"):
        call(other, "alter_event_type", made, "b text")
    other.rollback()
    publisher.commit()
    call(other, "alter_event_type", made, "b text")
    other.commit()
    assert take(admin, made) == [1]
    assert numbers(admin, made) == []


def test_queues_are_altered_by_name(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made)
    publish(admin, made, 1)
    call(admin, "alter_queue", f"{made}_in", auditable=True, retention="1 day")
    call(admin, "alter_queue", f"{made}_in")
    query = "select auditable, retention::text, persistent from pgps.queues where queue = %s"
    assert rows(admin, query, [f"{made}_in"]) == [(True, "1 day", True)]
    call(admin, "alter_queue", f"{made}_out", persistent=False)
    assert rows(admin, query, [f"{made}_in"]) == [(True, "1 day", False)]
    call(admin, "alter_queue", f"{made}_out", persistent=True)
    assert take(admin, made) == [1], "rewriting keeps what waits"
    with refused("42704", "no_queue"):
        call(admin, "alter_queue", "no_queue", True)
    with refused("22023"):
        call(admin, "alter_queue", f"{made}_in", retention="-1 day")
    with refused("22023", "1000 years"):
        call(admin, "alter_queue", f"{made}_in", retention="10000 years")
    with refused("22023", "1000 years"):
        call(admin, "alter_event_type", made, dedupe_retention="10000 years")


def test_a_non_guaranteed_type_is_never_persistent(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    make_type(admin, made, reliability="non-guaranteed", persistent=False)
    with refused("55000", made):
        call(admin, "alter_queue", f"{made}_in", persistent=True)
    call(admin, "subscribe", made, made)
    publish(admin, made, 1)
    assert take(admin, made) == [1]
