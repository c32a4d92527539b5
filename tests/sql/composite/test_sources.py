"""Logical names of applications: who may give them, what is refused, and which events leaves with a source take."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, meanwhile, refused, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect
from tests.links.conftest import brokers  # noqa: F401 - a fixture
from tests.links.rig import Broker, linked, settle

SOURCES = "select name, broker, client, owner from pgps.sources order by name"


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    call(connection, "configure", "broker", "here")
    make_type(connection, "rain", "n integer", auditable=True)
    return connection


def detected(connection: psycopg.Connection, name: str = "it") -> list[int]:
    """Return attribute n of the constituents of what has been detected, in order."""
    queue = f"select (c -> 'payload' ->> 'n')::int from pgps_queue.{name}_in q, jsonb_array_elements(q.constituents) c"
    return column(connection, f"{queue} order by q.event_id, c ->> 'event_id'")


def test_a_source_is_created_moved_and_dropped(broker: psycopg.Connection) -> None:
    me = value(broker, "select current_user")
    call(broker, "create_source", "juice__app1", "here", "juice")
    call(broker, "create_source", '"Host__App"', "there")
    assert rows(broker, SOURCES) == [("Host__App", "there", None, me), ("juice__app1", "here", "juice", me)]
    call(broker, "alter_source", "JUICE__app1", broker="there")
    call(broker, "alter_source", '"Host__App"', client="apples")
    assert rows(broker, SOURCES) == [("Host__App", "there", "apples", me), ("juice__app1", "there", "juice", me)]
    call(broker, "alter_source", '"Host__App"', client="")
    assert rows(broker, SOURCES)[0] == ("Host__App", "there", None, me)
    call(broker, "drop_source", "juice__app1")
    assert column(broker, "select name from pgps.sources") == ["Host__App"]


def test_a_source_is_not_dropped_while_a_composite_event_that_names_it_is_being_created(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    """Its leaf would take events from everywhere."""
    one, other = (connect(dsn=own_database, autocommit=False) for _ in range(2))
    for name in ("app", "late"):
        call(broker, "create_source", name, "here")
    call(one, "create_composite_event", "it", "rain@app")
    with (
        pytest.raises(psycopg.errors.DependentObjectsStillExist, match='composite event "it" names it'),
        meanwhile(broker, other, lambda: call(other, "drop_source", "app")),
    ):
        one.commit()
    other.rollback()
    call(other, "drop_source", "late")
    with (
        pytest.raises(psycopg.errors.UndefinedObject, match='source "late" does not exist'),
        meanwhile(broker, one, lambda: call(one, "create_composite_event", "more", "rain@late")),
    ):
        other.commit()
    assert column(broker, "select name from pgps.composite_events") == ["it"]


@pytest.mark.parametrize(
    ("function", "arguments", "sqlstate", "said"),
    [
        ("create_source", ("app", "here"), "42710", 'source "app" exists already'),
        ("create_source", ("APP", "there"), "42710", 'source "app" exists already'),
        ("create_source", ("other", ""), "22023", 'source "other" has no broker'),
        ("create_source", ("other", None), "22023", 'source "other" has no broker'),
        ("create_source", ("", "here"), "42602", "invalid source name"),
        ("create_source", (None, "here"), "22023", "a name is missing"),
        ("alter_source", ("nobody", "here"), "42704", 'source "nobody" does not exist'),
        ("alter_source", (None, "here"), "22023", "a name is missing"),
        ("alter_source", ("app", ""), "22023", 'source "app" has no broker'),
        ("alter_source", ("app",), "22023", 'nothing to alter in source "app"'),
        ("drop_source", ("nobody",), "42704", 'source "nobody" does not exist'),
        ("drop_source", (None,), "22023", "a name is missing"),
    ],
)
def test_what_makes_no_sense_is_refused(
    broker: psycopg.Connection, function: str, arguments: tuple[str | None, ...], sqlstate: str, said: str
) -> None:
    call(broker, "create_source", "app", "here")
    with refused(sqlstate, said):
        call(broker, function, *arguments)
    assert [row[:3] for row in rows(broker, SOURCES)] == [("app", "here", None)]


def test_only_administrators_change_sources_and_everybody_sees_them(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    call(broker, "create_source", "app", "here")
    alice = connect(role("alice"), dsn=own_database)
    for function, arguments in (
        ("create_source", ("other", "here")),
        ("alter_source", ("app", "there")),
        ("alter_source", ("nobody", "there")),
        ("drop_source", ("app",)),
    ):
        with refused("42501", "sources"):
            call(alice, function, *arguments)
    assert [row[:3] for row in rows(alice, SOURCES)] == [("app", "here", None)]
    call(alice, "create_composite_event", "hers", "rain@app")


@pytest.mark.parametrize("leaf", ["rain@app", "rain::APP", 'rain@"app" (n > 0)', "rain::app a"])
def test_a_leaf_with_a_source_takes_what_comes_from_it_alone(
    broker: psycopg.Connection, connect: Connect, own_database: str, leaf: str
) -> None:
    call(broker, "create_source", "app", "here", "juice")
    call(broker, "create_composite_event", "it", leaf, auditable=True)
    juice = Client(connect(dsn=own_database), "juice")
    apples = Client(connect(dsn=own_database), "apples")
    insert = "insert into pgps_event.rain values (%s)"
    rows(juice.connection, insert, [1])
    rows(apples.connection, insert, [2])
    rows(broker, insert, [3])
    call(broker, "dispatch")
    call(broker, "dispatch")
    assert detected(broker) == [1]
    # The application moves: the definition stays as it is.
    call(broker, "alter_source", "app", client="apples")
    rows(juice.connection, insert, [4])
    rows(apples.connection, insert, [5])
    call(broker, "dispatch")
    call(broker, "dispatch")
    assert detected(broker) == [1, 5]
    call(broker, "alter_source", "app", client="")
    rows(juice.connection, insert, [6])
    rows(broker, insert, [7])
    call(broker, "dispatch")
    call(broker, "alter_source", "app", broker="there")
    rows(broker, insert, [8])
    call(broker, "dispatch")
    call(broker, "dispatch")
    assert detected(broker) == [1, 5, 6, 7]


def test_what_somebody_else_publishes_in_the_name_of_a_client_is_not_of_that_source(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    call(broker, "create_source", "app", "here", "juice")
    call(broker, "create_composite_event", "it", "rain@app b", auditable=True)
    juice = Client(connect(dsn=own_database), "juice")
    mallory = connect(role("mallory"), dsn=own_database)
    call(mallory, "advertise", "rain")
    number = value(juice.connection, "select current_setting('pgps.client')")
    rows(mallory, "select set_config('pgps.client', %s, false)", [number])
    rows(mallory, "insert into pgps_event.rain values (1)")
    rows(juice.connection, "insert into pgps_event.rain values (2)")
    call(broker, "dispatch")
    call(broker, "dispatch")
    assert detected(broker) == [2]


def test_the_papers_spelling_keeps_its_case_in_quotes(broker: psycopg.Connection) -> None:
    call(broker, "create_source", '"Host__App"', "here")
    with refused("42704", 'source "host__app" does not exist'):
        call(broker, "create_composite_event", "it", "rain::Host__App")
    call(broker, "create_composite_event", "it", 'rain::"Host__App" a ; rain@"Host__App" b', auditable=True)
    assert value(broker, "select expression from pgps.composite_events") == 'rain@"Host__App" a ; rain@"Host__App" b'
    call(broker, "create_source", "host__app", "there")
    call(broker, "create_composite_event", "other", "rain::Host__App", auditable=True)
    rows(broker, "insert into pgps_event.rain values (1)")
    rows(broker, "insert into pgps_event.rain values (2)")
    call(broker, "dispatch")
    call(broker, "dispatch")
    assert detected(broker) == [1, 2]
    assert detected(broker, "other") == []


def test_a_source_that_is_named_stays(broker: psycopg.Connection) -> None:
    call(broker, "create_source", "app", "here")
    call(broker, "create_composite_event", "it", "rain ; rain@app b")
    with refused("2BP01", 'source "app" cannot be dropped: composite event "it" names it'):
        call(broker, "drop_source", "app")
    call(broker, "drop_event_type", "it")
    call(broker, "drop_source", "app")
    assert rows(broker, SOURCES) == []


def test_a_trial_and_an_explanation_know_sources(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    call(broker, "create_source", "app", "here", "juice")
    call(broker, "create_source", "away", "there")
    call(broker, "create_composite_event", "it", "rain@app a ; rain b")
    juice = Client(connect(dsn=own_database), "juice")
    rows(broker, "insert into pgps_event.rain values (1)")
    rows(juice.connection, "insert into pgps_event.rain values (2)")
    rows(broker, "insert into pgps_event.rain values (3)")
    call(broker, "dispatch")
    for expression, expected in (("rain@app a", [[2]]), ("rain@away a", []), ("rain@app a ; rain b", [[2, 3]])):
        tried = column(broker, "select pgps.try_composite_event(%s)", [expression])
        assert [[part["payload"]["n"] for part in one["constituents"]] for one in tried] == expected
    ids = column(broker, "select event_id from pgps_queue.rain_in order by event_id")
    explain = "select step, outcome from pgps.explain_composite_event('it', %s)"
    first = [outcome for step, outcome in rows(broker, explain, [ids[0]]) if step == "matched"]
    assert first == ["rain b"]
    assert ("matched", "rain@app a") in rows(broker, explain, [ids[1]])


def test_a_source_may_be_another_broker(brokers: Callable[[int], list[Broker]]) -> None:  # noqa: F811
    a, b = brokers(2)
    make_type(a.admin, "rain", "n integer")
    make_type(b.admin, "rain", "n integer")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "create_source", "hilltop", "a")
        call(b.admin, "create_composite_event", "it", "rain@hilltop", scope="global", auditable=True)
        settle([a, b], links)
        rows(a.admin, "insert into pgps_event.rain values (1)")
        rows(b.admin, "insert into pgps_event.rain values (2)")
        settle([a, b], links)
        assert detected(b.admin) == [1]
        call(b.admin, "alter_source", "hilltop", broker="b")
        rows(a.admin, "insert into pgps_event.rain values (3)")
        rows(b.admin, "insert into pgps_event.rain values (4)")
        settle([a, b], links)
        assert detected(b.admin) == [1, 4]
