"""What would be detected, and what became of an event."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, refused, rows
from tests.fix_db import Connect


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "quote", "symbol text not null, price numeric", auditable=True)
    return connection


def quotes(connection: psycopg.Connection, *values: str) -> None:
    for one in values:
        rows(connection, f"insert into pgps_event.quote values {one}")
    rows(connection, "select pgps.dispatch()")


def became(connection: psycopg.Connection, place: int) -> list[str]:
    """Return the steps of the event that was published at a place, counted from 1."""
    event = rows(connection, "select event_id from pgps_queue.quote_in order by event_id")[place - 1][0]
    return [step for step, _ in rows(connection, "select * from pgps.explain_composite_event('it', %s)", [event])]


def test_a_trial_finds_what_the_definition_would(broker: psycopg.Connection) -> None:
    quotes(broker, "('A', 1), ('B', 5)", "('A', 2.50), ('B', 4)", "('A', 3)")
    options = {
        "partition_by": "symbol",
        "filter": "b.price > a.price",
        "attributes": "symbol text = a.symbol, by numeric = b.price - a.price",
    }
    arguments = ", ".join(f"{name} => %s" for name in options)
    query = f"select o ->> 'symbol', o ->> 'by', o from pgps.try_composite_event('quote a ; quote b', {arguments}) o"
    found = rows(broker, query, list(options.values()))
    assert [row[:2] for row in found] == [("A", "1.50"), ("A", "0.50")]
    assert set(found[0][2]) == {"symbol", "by", "starts_at", "ends_at", "detected_at", "constituents"}
    call(broker, "create_composite_event", "it", "quote a ; quote b", start="earliest", **options)
    rows(broker, "select pgps.dispatch()")
    published = rows(broker, "select symbol, by::text from pgps_queue.it_in order by event_id")
    assert published == [("A", "1.50"), ("A", "0.50")]


def test_an_attribute_may_have_the_name_of_its_type_or_of_what_a_trial_names_itself(broker: psycopg.Connection) -> None:
    make_type(broker, "price", "price numeric, m text")
    rows(broker, "insert into pgps_event.price values (1, 'x'), (2, 'y')")
    rows(broker, "select pgps.dispatch()")
    trial = "pgps.try_composite_event('price a ; price b', attributes => 'm text = b.m')"
    ((said, parts),) = rows(broker, f"select o -> 'm', o -> 'constituents' from {trial} o")
    assert said == "y"
    assert [part["payload"] for part in parts] == [{"price": 1, "m": "x"}, {"price": 2, "m": "y"}]


def test_a_trial_sees_what_its_caller_may_see(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    alice = role("alice")
    rows(broker, "select pgps.create_policy('quote', 'cheap', %s, 'price < 100')", [alice])
    quotes(broker, "('A', 1), ('A', 1000), ('A', 2)")
    hers = connect(alice, dsn=own_database)
    found = rows(hers, "select o -> 'constituents' from pgps.try_composite_event('quote a ; quote b') o")
    assert [[part["payload"]["price"] for part in row[0]] for row in found] == [[1, 2]]
    rows(broker, "revoke select on pgps_event.quote from public")
    with refused("42501", "quote"):
        rows(hers, "select * from pgps.try_composite_event('quote a ; quote b')")


def test_what_became_of_an_event_is_told(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "it", "quote (price > 0) a ; quote (price > 10) b", partition_by="symbol",
         filter="b.price > a.price")  # fmt: skip
    quotes(broker, "('A', 5)", "('A', 20)", "('A', -1)", "('A', 15)")
    assert became(broker, 1) == [
        "matched", "opened", "paired", "detected", "replaced",
    ]  # fmt: skip
    assert became(broker, 3) == ["matched"]
    assert "failed the filter, or takes too long" in became(broker, 4)
    with refused("42704", "nothing"):
        rows(broker, "select * from pgps.explain_composite_event('nothing', 1)")


def test_explain_takes_composite_events_too(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "it", "quote a ; quote b", context="chronicle", max_open=10)
    call(broker, "subscribe", "mine", "it")
    quotes(broker, "('A', 1)", "('B', 2)")
    rows(broker, "select pgps.dispatch()")
    first, second = (event for (event,) in rows(broker, "select event_id from pgps_queue.quote_in order by event_id"))

    def told(name: str, event: int) -> list[tuple[str, str]]:
        return rows(broker, "select * from pgps.explain(%s, %s)", [name, event])

    alone = rows(broker, "select * from pgps.explain_composite_event('it', %s)", [first])
    assert told("it", first) == alone
    assert [step for step, _ in alone][:2] == ["matched", "opened"]
    # Of a subscription that is about what is made of it.
    assert told("mine", first)[-len(alone) :] == alone
    assert ("type", 'the subscription is about "it", not "quote"') in told("mine", first)
    made = rows(broker, "select event_id from pgps.receive('mine')")[0][0]
    steps = dict(told("mine", made))
    assert steps["detected"].endswith(f"of event {first} (a), event {second} (b)")
    assert steps["delivery"] == "received, not acknowledged"
    with refused("42704", "nothing"):
        told("nothing", first)


def test_explain_says_why_an_event_was_not_taken(broker: psycopg.Connection) -> None:
    call(broker, "create_source", "elsewhere", "nowhere")
    call(broker, "create_composite_event", "it", "quote@elsewhere a ; quote@elsewhere b")
    quotes(broker, "('A', 1)")
    assert became(broker, 1) == ["matched"]
    event = rows(broker, "select event_id from pgps_queue.quote_in")[0][0]
    said = rows(broker, "select outcome from pgps.explain_composite_event('it', %s)", [event])
    assert "source" in said[0][0]


def test_a_trial_of_ticks_alone_tells_them(broker: psycopg.Connection) -> None:
    query = "select count(*) from pgps.try_composite_event('every(''5 min'')', since => pgps._clock() - interval '1 h')"
    assert rows(broker, query) == [(12,)]
    quotes(broker, "('A', 1)")
    assert rows(broker, "select count(*) from pgps.try_composite_event('at(''2020-01-01 00:00+00'')')") == [(0,)]
