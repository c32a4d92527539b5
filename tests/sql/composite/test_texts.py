"""Filter and attributes are checked when they are given; who creates a composite event goes on announcing it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, refused, rows
from tests.fix_db import Connect
from tests.sql.composite.test_definitions import create


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "quote", "symbol text not null, price numeric, at timestamptz")
    make_type(connection, "news", "ticker text not null, kind text")
    return connection


def test_an_error_in_a_text_has_its_place_in_that_text(broker: psycopg.Connection) -> None:
    for options, place in (
        ({"filter": "a.price > 1 and b.colour = 'red'"}, "At character 17 of the filter"),
        ({"attributes": "p numeric = a.price, c text = b.colour"}, "At character 31 of the attributes"),
    ):
        with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
            create(broker, "quote a ; news b", **options)
        assert place in str(caught.value.diag.message_detail)
        assert "There are: a (symbol text" in str(caught.value.diag.message_hint)
    # What PostgreSQL would store in a column of the type is good for an attribute of it.
    fine = "a text = a.price, b integer = a.price, c numeric = 5, d date = a.at, e integer = '7', f text = null"
    create(broker, "quote a ; news b", attributes=fine)
    call(broker, "alter_composite_event", "it", filter="b.kind = 'x'")
    with refused("42804", "boolean"):
        call(broker, "alter_composite_event", "it", filter="b.kind")
    with refused("22023", "max_open 0"):
        call(broker, "alter_composite_event", "it", max_open=0)


def test_its_creator_may_advertise_it_again_and_sees_the_quota(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    alice = role("alice")
    hers = connect(alice, dsn=own_database)
    create(hers, "quote ; news")
    call(hers, "unadvertise", "it")
    call(hers, "advertise", "it")
    call(hers, "subscribe", "mine", "it")
    with refused("42501", "permission denied"):
        rows(hers, "insert into pgps_event.it (starts_at) values (now())")
    shown = "select name from pgps.settings where name in ('composite_events_per_role', 'tick_interval', 'loopback')"
    assert sorted(name for (name,) in rows(hers, shown)) == ["composite_events_per_role", "tick_interval"]


def test_an_attribute_of_a_composite_event_has_no_reserved_name(broker: psycopg.Connection) -> None:
    for attribute in ("event_id", '"$1"', '"$12"'):
        with refused("42939", f'"{attribute.strip(chr(34))}"', "choose another"):
            create(broker, "quote a ; news b", attributes=f"{attribute} text = a.symbol")


def test_a_text_may_say_of_which_schema_a_type_an_operator_and_a_collation_are(broker: psycopg.Connection) -> None:
    rows(broker, 'create schema a; create domain a.cents as numeric; create collation a.plain from "C"')
    filter_ = "b.kind collate a.plain operator(pg_catalog.>) 'a' and cast(a.price as a.cents) > 1::pg_catalog.int4"
    create(broker, "quote a ; news b", filter=filter_, attributes="cents numeric = (a.price * 100)::a.cents")
    rows(broker, "insert into pgps_event.quote (symbol, price) values ('A', 2)")
    rows(broker, "insert into pgps_event.news values ('A', 'good')")
    rows(broker, "select pgps.dispatch()")
    assert rows(broker, "select cents from pgps_queue.it_in") == [(200,)]
