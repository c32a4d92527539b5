"""An attribute of an event type is added or dropped while composite events are made of it, in sessions that go on."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, rows
from tests.fix_db import Connect


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "quote", "symbol text, price numeric, spare integer", auditable=True)
    return connection


def publish(connection: psycopg.Connection, *prices: int) -> None:
    for price in prices:
        rows(connection, "insert into pgps_event.quote (symbol, price) values ('A', %s)", [price])
    rows(connection, "select pgps.dispatch()")


# A plan for all values is kept from the sixth time on.
OFTEN = 7
CHANGES = [{"drop_attribute": "spare"}, {"add_attribute": "more integer"}, {"drop_attribute": "more"}]


def test_conditions_and_attributes_go_on(broker: psycopg.Connection) -> None:
    arguments = {"filter": "b.price > a.price", "attributes": "rise numeric = b.price - a.price"}
    call(broker, "create_composite_event", "it", "quote a ; quote b", auditable=True, **arguments)
    call(broker, "create_composite_event", "sets", "repeat(quote a, 2)", filter="count(a.symbol) > 1")
    publish(broker, 1, 2)
    for place, change in enumerate(CHANGES, 1):
        call(broker, "alter_event_type", "quote", **change)
        publish(broker, 2 + place)
    assert rows(broker, "select name, detected, last_error from pgps.composite_events order by name") == [
        ("it", 4, None),
        ("sets", 4, None),
    ]
    assert column(broker, "select rise::integer from pgps_queue.it_in order by event_id") == [1, 1, 1, 1]


def test_a_condition_over_whole_events_sees_the_attributes_that_there_are(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "it", "quote a", attributes="row jsonb = to_jsonb(a)", auditable=True)
    for change in [None, *CHANGES]:
        if change is not None:
            call(broker, "alter_event_type", "quote", **change)
        for _ in range(OFTEN):
            publish(broker, 1)
    names = "select array(select jsonb_object_keys(row) order by 1) from pgps_queue.it_in order by event_id"
    ever = ["_producer", "_producer_seq", "price"]
    seen = [[name for name in one if name not in ever] for one in column(broker, names)][::OFTEN]
    assert seen == [["spare", "symbol"], ["symbol"], ["more", "symbol"], ["symbol"]]


def test_rules_in_the_publishers_transaction_go_on(broker: psycopg.Connection) -> None:
    rows(broker, "create table risen (by numeric)")
    rows(broker, "create function note(n numeric) returns void language sql as 'insert into risen values ($1)'")
    arguments = {"filter": "b.price > a.price", "attributes": "rise numeric = b.price - a.price"}
    call(broker, "create_composite_event", "it", "quote a ; quote b", **arguments)
    call(broker, "subscribe", "now", "it", execute="note(rise)", coupling="immediate")
    statement = "insert into pgps_event.quote (symbol, price) values ('A', 1), ('A', 3)"
    for change in [None, *CHANGES]:
        if change is not None:
            call(broker, "alter_event_type", "quote", **change)
        for _ in range(OFTEN):
            rows(broker, statement)
    assert column(broker, "select by::integer from risen") == [2] * OFTEN * 4


def test_trials_and_explanations_go_on(broker: psycopg.Connection) -> None:
    arguments = "'quote a ; quote b', filter => 'b.price > a.price', attributes => 'rise numeric = b.price - a.price'"
    rows(broker, f"select pgps.create_composite_event('it', {arguments})")
    publish(broker, 1, 2)
    tried = f"select (o -> 'rise')::integer from pgps.try_composite_event({arguments}) o"
    told = (
        "select step from pgps.explain_composite_event('it', (select max(event_id) from pgps_queue.quote_in)) "
        "where step <> 'expired'"
    )
    for _ in range(OFTEN):
        before = column(broker, tried), column(broker, told)
    assert before == ([1], ["matched", "paired", "detected", "opened"])
    for change in CHANGES:
        call(broker, "alter_event_type", "quote", **change)
        for _ in range(OFTEN):
            assert (column(broker, tried), column(broker, told)) == before
