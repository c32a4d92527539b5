"""Composite events: who may define what, what is refused and how, and what the catalogue shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, refused, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "quote", "symbol text not null, price numeric, at timestamptz")
    make_type(connection, "news", "ticker text not null, kind text")
    make_type(connection, "count", "n integer")
    return connection


def create(connection: psycopg.Connection, expression: str, name: str = "it", **options: Any) -> None:
    call(connection, "create_composite_event", name, expression, **options)


@pytest.mark.parametrize(
    ("expression", "options", "sqlstate", "said"),
    [
        ("quote ; nothing", {}, "42704", 'event type "nothing" does not exist'),
        ("quote ;", {}, "42601", "at the end of the expression"),
        ("quote a ; news a", {}, "42710", "a"),
        ("quote a ; news b", {"filter": "c.price > 1"}, "42704", "alias c"),
        ("quote a ; news b", {"filter": "a.colour = 'red'"}, "42703", "colour"),
        ("quote a ; news b", {"filter": "a.price"}, "42804", "boolean"),
        ("quote a ; news b", {"filter": "b.kind = 'x' and a.symbol"}, "42804", "boolean"),
        ("quote a ; news b", {"filter": "generate_series(1, 2) > 1"}, "0A000", "set-returning"),
        ("quote a ; news b", {"attributes": "n integer = a.symbol"}, "42804", "is of type integer but"),
        ("quote a ; news b", {"attributes": "n integer = generate_series(1, 3)"}, "0A000", "set-returning"),
        ("quote a ; news b", {"attributes": "n bigint = row_number() over ()"}, "42P20", "window"),
        ("quote a ; news b", {"attributes": "n bigint = count(a)"}, "42803", "aggregate"),
        ("every('9 ms')", {}, "22023", "tick_interval"),
        ("P(quote a, '0.000001 s', news b)", {}, "22023", "tick_interval"),
        ("quote a ; news b", {"attributes": "x no_such_type = a.price"}, "42704", "no_such_type"),
        ("quote a ; news b", {"attributes": "starts_at text = a.symbol"}, "42701", "starts_at"),
        ("quote (price >) a ; news b", {}, "42601", "syntax error"),
        ("quote (colour = 'red') a ; news b", {}, "42703", "colour"),
        ("quote a ; news b", {"partition_by": "symbol"}, "42703", "symbol"),
        ("quote a ; count b", {"partition_by": "symbol, n"}, "42804", "partition keys of several types"),
        ("quote ; news", {"context": "chronicle"}, "22023", "for ever"),
        ("quote ; news", {"context": "sometimes"}, "22023", "sometimes"),
        ("quote ; news", {"within": "1 month"}, "22023", "no fixed length"),
        ("quote ; news", {"max_open": 0}, "22023", "max_open 0"),
        ("quote ; news", {"scope": "wide"}, "22023", "wide"),
        ("quote ; news", {"start": "then"}, "22023", "then"),
        ("quote ; news", {"time_basis": "event"}, "22023", "no time attribute"),
        ("quote ; news", {"time_basis": "arrival", "lateness": "1 s"}, "22023", "lateness"),
        ("quote ; it", {}, "22023", "made of itself"),
        ("quote@juice ; news", {}, "42704", 'source "juice" does not exist'),
        ("repeat(quote a, 2) ; news b", {"filter": "a.price > 1"}, "42803", "GROUP BY"),
    ],
)
def test_what_makes_no_sense_is_refused(
    broker: psycopg.Connection, expression: str, options: dict[str, Any], sqlstate: str, said: str
) -> None:
    with refused(sqlstate, said):
        create(broker, expression, **options)
    assert value(broker, "select count(*) from pgps.composite_events") == 0
    assert value(broker, "select count(*) from pgps.event_types where name = 'it'") == 0


def test_a_definition_is_shown_in_its_normal_form(broker: psycopg.Connection) -> None:
    create(
        broker, "QUOTE (price>5) a  <<  news b", context="recent", within="10 minutes", partition_by="symbol, ticker"
    )
    found = rows(broker, "select name, expression, partition_by, within::text, scope, state from pgps.composite_events")
    assert found == [("it", "quote (price > 5) a ; news b", "symbol, ticker", "00:10:00", "local", "active")]
    names = [a["name"] for a in value(broker, "select attributes from pgps.event_types where name = 'it'")]
    assert names == ["starts_at", "ends_at", "detected_at", "constituents"]


def test_what_is_made_of_a_type_goes_with_it(broker: psycopg.Connection) -> None:
    create(broker, "quote ; news", "inner")
    create(broker, "inner ; count", "outer")
    with refused("2BP01", 'composite event "inner" is made of it'):
        call(broker, "drop_event_type", "quote")
    with refused("2BP01", 'composite event "outer" is made of it'):
        call(broker, "drop_event_type", "inner")
    call(broker, "drop_event_type", "quote", True)
    assert value(broker, "select count(*) from pgps.composite_events") == 0
    assert value(broker, "select count(*) from pgps_internal.subscription where kind = 'composite'") == 0
    left = "select count(*) from pg_proc p where p.proname ~ '^composite_(test|make)_\\d'"
    assert value(broker, left) == 0


def test_a_role_creates_in_its_own_name_what_it_may_subscribe_to(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    alice, bob = role("alice"), role("bob")
    hers, his = connect(alice, dsn=own_database), connect(bob, dsn=own_database)
    rows(broker, "revoke select on pgps_event.news from public")
    with refused("42501", "news"):
        create(hers, "quote ; news")
    create(hers, "quote a ; quote b", filter="b.price > a.price", attributes="rise numeric = b.price - a.price")
    assert (
        rows(broker, "select owner, can_publish from pgps.composite_events join pgps.event_types using (name, owner)")[
            0
        ][0]
        == alice
    )
    with refused("42501", "belongs to role"):
        call(his, "alter_composite_event", "it", enabled=False)
    with refused("42501", "belongs to role"):
        call(his, "reset_composite_event", "it")
    with refused("42501", "drop event types"):
        call(his, "drop_event_type", "it")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        rows(hers, "insert into pgps_event.it (rise) values (1)")
    assert rows(his, "select * from pgps.composite_events") == []
    rows(hers, f"grant select on pgps_event.it to {bob}")
    assert len(rows(his, "select * from pgps.composite_events")) == 1
    call(broker, "configure", "composite_events_per_role", "1")
    with refused("54000", "1 composite events"):
        create(hers, "quote", "another")
    call(hers, "drop_event_type", "it")
    create(hers, "quote", "another")


def test_detection_sees_what_its_owners_policies_show(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    alice = role("alice")
    rows(broker, "select pgps.create_policy('quote', 'cheap', %s, 'price < 100')", [alice])
    hers = connect(alice, dsn=own_database)
    create(hers, "quote a ; quote b")
    rows(broker, "insert into pgps_event.quote values ('A', 10), ('A', 1000), ('B', 20)")
    rows(broker, "select pgps.dispatch()")
    parts = value(broker, "select constituents from pgps_queue.it_in")
    assert [part["payload"]["price"] for part in parts] == [10, 20]


def test_conditions_and_attributes_run_with_the_owners_rights(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    alice = role("alice")
    rows(broker, "create table public.secret (n integer); insert into public.secret values (7)")
    hers = connect(alice, dsn=own_database)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        create(hers, "count a ; count b", filter="a.n in (select n from public.secret)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        create(hers, "count a ; count b", attributes="x integer = (select max(n) from public.secret) + a.n")
    create(hers, "count a ; count b", attributes="who text = current_user::text || a.n")
    rows(broker, "insert into pgps_event.count values (1), (2)")
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select who from pgps_queue.it_in") == f"{alice}1"


def test_an_attribute_that_raises_fails_alone(broker: psycopg.Connection) -> None:
    create(broker, "count a ; count b", context="chronicle", max_open=10, attributes="ratio integer = b.n / a.n")
    rows(broker, "insert into pgps_event.count values (1), (5), (0), (6), (2), (8)")
    rows(broker, "select pgps.dispatch()")
    assert [row[0] for row in rows(broker, "select ratio from pgps_queue.it_in order by event_id")] == [5, 0, 0, 4]
    failed = rows(broker, "select sqlstate, error, constituents from pgps_queue.it_exception")
    assert [(state, error) for state, error, _ in failed] == [("22012", "division by zero")]
    assert [part["payload"]["n"] for part in failed[0][2]] == [0, 6]
    assert "division by zero" in value(broker, "select last_error from pgps.composite_events")


def test_a_detection_that_failed_is_tried_again(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    """By its owner, when what raised has been mended; with what the names stood for, sets too."""
    alice = role("alice")
    rows(broker, "create table public.scale (by integer); insert into public.scale values (0)")
    rows(broker, f"grant select on public.scale to {alice}")
    hers = connect(alice, dsn=own_database)
    create(
        hers, "A*(count (n > 9) a, count (n < 0) b, count (n = 0) c)", context="chronicle", max_open=10,
        attributes="first integer = a.n / (select by from public.scale), sum bigint = sum(b.n)",
    )  # fmt: skip
    call(broker, "subscribe", "all", "it")
    rows(broker, "insert into pgps_event.count values (10), (-1), (-2), (0), (20), (-3), (0)")
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select count(*) from pgps_queue.it_exception") == 2
    assert call(hers, "retry_exception", "it") == 0
    failed = rows(broker, "select attempts, state from pgps.exceptions where event_type = 'it'")
    assert failed == [(2, "failed"), (2, "failed")]
    rows(broker, "update public.scale set by = 5")
    first = value(broker, "select min(event_id) from pgps_queue.it_exception")
    assert call(hers, "retry_exception", "it", first) == 1
    assert call(hers, "discard_exception", "it") == 1
    assert value(broker, "select count(*) from pgps_queue.it_exception") == 0
    rows(broker, "select pgps.dispatch()")
    query = "select payload ->> 'first', payload ->> 'sum', jsonb_array_length(payload -> 'constituents')"
    assert rows(broker, f"{query} from pgps.receive('all')") == [("2", "-3", 4)]


def test_a_tick_whose_attributes_raise_is_tried_again(broker: psycopg.Connection, clock: Clock) -> None:
    """What the clock alone makes happen has no leaf, in whose name it would fail; a function that is gone raises."""
    clock.set("2026-03-01 12:00:00.5+00")
    make = "create function public.stamp(text) returns text language sql as 'select $1'"
    rows(broker, make)
    create(broker, "every('1 s')", attributes="made text = public.stamp('now')")
    create(broker, "every('1 s')", "other", auditable=True)
    rows(broker, "drop function public.stamp(text)")
    rows(broker, "select pgps.dispatch()")
    clock.advance("2 seconds")
    for _ in range(2):
        rows(broker, "select pgps.dispatch()")
    assert rows(broker, "select sqlstate from pgps_queue.it_exception") == [("42883",), ("42883",)]
    assert value(broker, "select count(*) from pgps_queue.other_in") == 2
    rows(broker, make)
    assert call(broker, "retry_exception", "it") == 2
    assert rows(broker, "select made from pgps_queue.it_in") == [("now",), ("now",)]
    call(broker, "drop_event_type", "it", True)
    assert rows(broker, "select name from pgps_internal.subscription") == []


def test_a_condition_that_raises_is_no_candidate_and_is_told(broker: psycopg.Connection) -> None:
    create(broker, "count a ; count b", filter="b.n / a.n > 1")
    rows(broker, "insert into pgps_event.count values (0), (5)")
    rows(broker, "select pgps.dispatch()")
    rows(broker, "insert into pgps_event.count values (15)")
    rows(broker, "select pgps.dispatch()")
    found = rows(broker, "select constituents from pgps_queue.it_in")
    assert [[part["payload"]["n"] for part in row[0]] for row in found] == [[5, 15]]
    assert "division by zero" in value(broker, "select last_error from pgps.composite_events")


def test_sets_are_aggregated(broker: psycopg.Connection) -> None:
    create(
        broker, "count (n > 0) a ; count (n = 0) b", context="cumulative", max_open=100,
        filter="count(a) >= 2 and sum(a.n) > 3", attributes="many bigint = count(a), sum bigint = sum(a.n) + count(b)",
    )  # fmt: skip
    for numbers in ("(1), (2), (0)", "(3), (4), (0)", "(9), (0)"):
        rows(broker, f"insert into pgps_event.count values {numbers}")
    rows(broker, "select pgps.dispatch()")
    found = rows(broker, "select many, sum, jsonb_array_length(constituents) from pgps_queue.it_in order by event_id")
    # 1 + 2 are not more than 3: they stay, and are together with what comes.
    assert found == [(4, 11, 5)]


def test_a_reset_forgets_what_is_open(broker: psycopg.Connection) -> None:
    create(broker, "quote (price > 10) a ; quote (price < 5) b", partition_by="symbol")
    rows(broker, "insert into pgps_event.quote values ('A', 20), ('B', 30)")
    rows(broker, "select pgps.dispatch()")
    assert rows(broker, "select partition_key, event_id is not null from pgps.open_occurrences order by 1") == [
        (["A"], True), (["B"], True),
    ]  # fmt: skip
    assert call(broker, "reset_composite_event", "it", '"A"') == 1
    assert rows(broker, "select partition_key from pgps.open_occurrences") == [(["B"],)]
    rows(broker, "insert into pgps_event.quote values ('A', 1), ('B', 1)")
    rows(broker, "select pgps.dispatch()")
    assert [row[0][0]["payload"]["symbol"] for row in rows(broker, "select constituents from pgps_queue.it_in")] == [
        "B"
    ]
    assert call(broker, "reset_composite_event", "it") == 1
    assert value(broker, "select open from pgps.composite_events") == 0


def test_an_altered_filter_goes_on_with_what_is_open(broker: psycopg.Connection) -> None:
    create(broker, "count a ; count b", filter="b.n > a.n + 100")
    rows(broker, "insert into pgps_event.count values (1)")
    rows(broker, "select pgps.dispatch()")
    call(broker, "alter_composite_event", "it", filter="b.n > a.n", max_open=5)
    rows(broker, "insert into pgps_event.count values (2)")
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select jsonb_array_length(constituents) from pgps_queue.it_in") == 2
    with refused("22023", "nothing to alter"):
        call(broker, "alter_composite_event", "it")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        call(broker, "alter_composite_event", "it", filter="b.colour > a.n")


def test_a_paused_one_goes_on_where_it_was(broker: psycopg.Connection) -> None:
    create(broker, "count a ; count b")
    rows(broker, "insert into pgps_event.count values (1)")
    rows(broker, "select pgps.dispatch()")
    call(broker, "alter_composite_event", "it", enabled=False)
    rows(broker, "insert into pgps_event.count values (2)")
    rows(broker, "select pgps.dispatch()")
    assert rows(broker, "select state, lag, detected from pgps.composite_events") == [("paused", 2, 0)]
    call(broker, "alter_composite_event", "it", enabled=True)
    rows(broker, "select pgps.dispatch()")
    assert rows(broker, "select state, lag, detected from pgps.composite_events") == [("active", 0, 1)]


def test_one_with_more_ticks_than_an_occurrence_may_have_is_an_exception_and_the_others_go_on(
    broker: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2026-03-01 12:00+00")
    create(broker, "P*(count (n = 1) a, '1 us', count (n = 2) b)", "ticks")
    create(broker, "count (n = 1) a ; count (n = 2) b", "pair", auditable=True)
    rows(broker, "insert into pgps_event.count values (1)")
    rows(broker, "select pgps.dispatch()")
    clock.advance("1 second")
    rows(broker, "insert into pgps_event.count values (2)")
    rows(broker, "select pgps.dispatch()")
    found: dict[str, str] = dict(rows(broker, "select name, state from pgps.composite_events"))
    assert found == {"ticks": "active", "pair": "active"}
    assert "constituents" in value(broker, "select error from pgps.exceptions")
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select count(*) from pgps_queue.pair_in") == 1


def test_earliest_takes_what_the_queues_still_hold(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "keeps", "count")
    rows(broker, "insert into pgps_event.count values (1)")
    rows(broker, "select pgps.dispatch()")
    rows(broker, "insert into pgps_event.count values (2)")
    create(broker, "count a ; count b", "early", start="earliest")
    create(broker, "count a ; count b", "late")
    rows(broker, "select pgps.dispatch()")
    rows(broker, "select pgps.dispatch()")
    assert rows(broker, "select name, detected from pgps.composite_events order by name") == [("early", 1), ("late", 0)]


def test_what_is_open_names_the_part_and_the_event_that_opened_it(broker: psycopg.Connection) -> None:
    create(broker, "(quote (price > 10) a ; news b) ; count c", partition_by=None)
    shown = "select node, role, event_type, event_id is null from pgps.open_occurrences order by 1, 2"
    rows(broker, "insert into pgps_event.quote values ('A', 20)")
    rows(broker, "select pgps.dispatch()")
    assert rows(broker, shown) == [("quote (price > 10) a ; news b", "operand 1", "quote", False)]
    rows(broker, "insert into pgps_event.news values ('A', 'good')")
    rows(broker, "select pgps.dispatch()")
    assert ("quote (price > 10) a ; news b ; count c", "operand 1", "quote", True) in rows(broker, shown)
    # What is open gets the names of the altered definition, and is shown under them.
    call(broker, "alter_composite_event", "it", max_open=5)
    assert ("quote (price > 10) a ; news b ; count c", "operand 1", "quote", True) in rows(broker, shown)


def test_an_event_that_waits_for_the_watermark_has_its_type(broker: psycopg.Connection) -> None:
    call(broker, "alter_event_type", "quote", time_attribute="at")
    create(broker, "quote a ; quote b", time_basis="event", lateness="1 hour")
    rows(broker, "insert into pgps_event.quote values ('A', 20, now())")
    rows(broker, "select pgps.dispatch()")
    assert rows(broker, "select distinct role, event_type, event_id is null from pgps.open_occurrences") == [
        ("waits for the watermark", "quote", False)
    ]


def test_the_attributes_of_a_composite_event_are_those_of_its_definition(broker: psycopg.Connection) -> None:
    create(broker, "quote a ; news b", attributes="symbol text = a.symbol")
    for change in ({"add_attribute": "more text"}, {"drop_attribute": "symbol"}, {"drop_attribute": "starts_at"}):
        with refused("42809", 'the attributes of composite event "it" are those of its definition'):
            call(broker, "alter_event_type", "it", **change)
    names = [a["name"] for a in value(broker, "select attributes from pgps.event_types where name = 'it'")]
    assert names == ["symbol", "starts_at", "ends_at", "detected_at", "constituents"]
    call(broker, "subscribe", "all", "it")
    rows(broker, "insert into pgps_event.quote values ('A', 20)")
    rows(broker, "insert into pgps_event.news values ('A', 'good')")
    for _ in range(2):
        rows(broker, "select pgps.dispatch()")
    assert value(broker, "select payload ->> 'symbol' from pgps.receive('all')") == "A"


def test_an_attribute_that_a_composite_event_uses_is_not_dropped(broker: psycopg.Connection) -> None:
    uses: dict[str, tuple[str, dict[str, Any], str]] = {
        "key": ("quote a ; quote b", {"partition_by": "symbol"}, "symbol"),
        "predicate": ("quote (price > 10) a ; news b", {"partition_by": None}, "price"),
        "condition": ("quote a ; news b", {"partition_by": None, "filter": "a.price > 5 and b.kind <> ''"}, "price"),
        "made": ("quote a ; news b", {"partition_by": None, "attributes": "p integer = a.price"}, "price"),
    }
    for kind, (expression, options, attribute) in uses.items():
        create(broker, expression, **options)
        with refused("2BP01", f'attribute "{attribute}" of event type "quote" is used by composite event "it"'):
            call(broker, "alter_event_type", "quote", drop_attribute=attribute)
        if kind != "made":
            call(broker, "drop_event_type", "it")
    # What it does not use goes, and it goes on.
    call(broker, "alter_event_type", "quote", drop_attribute="at")
    rows(broker, "insert into pgps_event.quote values ('A', 20)")
    rows(broker, "insert into pgps_event.news values ('A', 'good')")
    rows(broker, "select pgps.dispatch()")
    assert rows(broker, "select state, detected from pgps.composite_events") == [("active", 1)]


def test_what_filters_and_attributes_set_for_the_session_is_taken_back(broker: psycopg.Connection) -> None:
    rows(
        broker,
        "create function public.leak(n integer) returns boolean language plpgsql as $$ begin "
        "perform set_config('pgps.visibility', 'immediate', false); return true; end $$",
    )
    create(broker, "count a ; count b", filter="public.leak(a.n)")
    create(broker, "count a ; count b", name="other", attributes="leaks boolean = public.leak(a.n)")
    rows(broker, "insert into pgps_event.count values (1), (2)")
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select coalesce(current_setting('pgps.visibility', true), '')") == ""
    found = rows(broker, "select name, state, detected from pgps.composite_events order by name")
    assert found == [("it", "active", 1), ("other", "active", 1)]
    assert column(broker, "select leaks from pgps_queue.other_in") == [True]
