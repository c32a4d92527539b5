"""Deliveries equal a plain evaluation of each filter for each event."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_db import Connect

NUMBERS = st.sampled_from(["0", "1", "2", "3", "-1", "1.5", "null"])
TEXTS = st.sampled_from(["'a'", "'b'", "'ab'", "'it''s'", "null", "$$a$$"])
COMPARE = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "is distinct from"])
ATOMS = st.one_of(
    st.builds(
        "{} {} {}".format, st.sampled_from(["n", "p", "n + 1", "p * n", "-n", "coalesce(p, n)"]), COMPARE, NUMBERS
    ),
    st.builds("s {} {}".format, COMPARE, TEXTS),
    st.builds("n between {} and {}".format, NUMBERS, NUMBERS),
    st.builds("n {} ({}, {})".format, st.sampled_from(["in", "not in"]), NUMBERS, NUMBERS),
    st.builds("{} is {}null".format, st.sampled_from(["n", "p", "s"]), st.sampled_from(["", "not "])),
    st.builds("s like {}".format, st.sampled_from(["'a%'", "'%b'", "'_'", "null"])),
    st.builds("s in (select s from wanted where k = {})".format, NUMBERS),
    st.builds("exists (select from wanted w where w.k = tick.n and w.s <> {})".format, TEXTS),
    st.builds("n > (select max(k) from wanted where s = {})".format, TEXTS),
    st.sampled_from(["true", "false", "null", "upper(s) = 'A'", "odd(n)", "s || 'b' = 'ab'", "length(s) > 1"]),
)
FILTERS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("(not ({}))".format, inner),
        st.builds("case when {} then {} else {} end".format, inner, inner, inner),
    ),
    max_leaves=5,
)
EVENTS = st.lists(st.tuples(NUMBERS.filter(lambda n: n != "1.5"), NUMBERS, TEXTS), min_size=1, max_size=12)


@pytest.fixture
def market(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "tick", "n integer, p numeric, s text")
    rows(connection, "create table wanted (k integer, s text)")
    rows(connection, "insert into wanted values (1, 'a'), (1, 'b'), (2, 'ab'), (2, null), (null, 'a')")
    make_type(connection, "other")
    rows(connection, "create function odd(n integer) returns boolean language sql as 'select n % 2 = 1'")
    return connection


def expected(connection: psycopg.Connection, condition: str) -> list[int]:
    """Evaluate a filter row by row over what was published last."""
    query = f"select id from (select id, n, p, s from published) tick where ({condition}\n) order by id"
    return column(connection, query)


def published(connection: psycopg.Connection, events: list[tuple[str, str, str]]) -> None:
    """Publish events as one batch; keep them, numbered by their event ids, in a table."""
    values = ", ".join(f"({n}::integer, {p}::numeric, {s}::text)" for n, p, s in events)
    rows(connection, f"insert into pgps_event.tick (n, p, s) values {values}")
    rows(connection, "drop table if exists published")
    last = value(connection, "select last_value from pgps_internal.event_id_seq")
    rows(
        connection,
        "create table published as select event_id as id, n, p, s from pgps_internal.tick_log "
        f"where event_id > {last - len(events)}",
    )
    rows(connection, "select pgps.dispatch()")


def delivered(connection: psycopg.Connection, subscription: str) -> list[int]:
    found = column(connection, "select event_id from pgps.receive(%s)", [subscription])
    call(connection, "ack", subscription)
    return found


@settings(max_examples=25)
@given(filters=st.lists(FILTERS, min_size=1, max_size=6), events=EVENTS, more=EVENTS)
def test_deliveries_equal_an_evaluation_row_by_row(
    market: psycopg.Connection, filters: list[str], events: Any, more: Any
) -> None:
    names = [f"s{n}" for n in range(len(filters))]
    for name, condition in zip(names, filters, strict=True):
        call(market, "subscribe", name, "tick", filter=condition)
    try:
        for batch in (events, more):
            published(market, batch)
            for name, condition in zip(names, filters, strict=True):
                assert delivered(market, name) == expected(market, condition), condition
    finally:
        for name in names:
            call(market, "unsubscribe", name)


SHAPES = [
    "s = '{s}' and p > {p}",
    "n = {n}",
    "n >= {n} and n - 2 < {n}",
    "s in ('{s}', 'zz') or p = {p}",
    "n = {n} and s = '{s}'",
    "p between {n} and {p}",
    "s in (select w.s from wanted w where w.k = {n})",
]


@pytest.mark.parametrize("shape", SHAPES)
def test_many_filters_of_one_shape_share_a_table_and_mean_the_same(market: psycopg.Connection, shape: str) -> None:
    conditions = {f"s{i}": shape.format(s="ab"[i % 2], p=(i % 7) / 2, n=i % 5) for i in range(110)}
    for name, condition in conditions.items():
        call(market, "subscribe", name, "tick", filter=condition)
    if "select" not in shape:
        call(market, "configure", "table_threshold", "8")
        for i in range(110, 130):
            conditions[f"s{i}"] = shape.format(s=f"x{i}", p=i, n=i)
            call(market, "subscribe", f"s{i}", "tick", filter=conditions[f"s{i}"])
        assert value(market, "select bool_or(has_table) from pgps_internal.signature")
    events = [
        (str(n), str(p), s) for n in (0, 1, 4, "null") for p in (0, 1.5, 3, "null") for s in ("'a'", "'b'", "null")
    ]
    published(market, events)
    for name in list(conditions)[::2]:
        call(market, "unsubscribe", name)
        del conditions[name]
    for name, condition in conditions.items():
        assert delivered(market, name) == expected(market, condition), condition
    published(market, events)
    for name, condition in conditions.items():
        assert delivered(market, name) == expected(market, condition), condition


@pytest.mark.parametrize("shape", [*SHAPES, "p > {p}"])
@pytest.mark.parametrize("threshold", [1000, 8])
def test_many_events_at_once_mean_the_same(market: psycopg.Connection, shape: str, threshold: int) -> None:
    """What is asked about more than 200 events is planned for them; here in ranges of ids, in two segments."""
    call(market, "configure", "table_threshold", str(threshold))
    conditions = {f"s{i}": shape.format(s="ab"[i % 2], p=(i % 7) / 2, n=i % 5) for i in range(12)}
    for name, condition in conditions.items():
        call(market, "subscribe", name, "tick", filter=condition)
    events = [(n, p, s) for n in (None, 0, 4, 1) for p in (None, 0, 1.5, 3) for s in (None, "b", "a")]
    size = value(market, "select pgps_internal.segment_size('control')")
    rows(market, "select setval('pgps_internal.event_id_seq', %s)", [3 * size - 200])
    for _ in range(10):
        # Ids of another type in between.
        rows(market, "insert into pgps_event.other (n) values (1)")
        market.cursor().executemany("insert into pgps_event.tick (n, p, s) values (%s, %s, %s)", events)
    assert call(market, "dispatch") == 10 * (len(events) + 1)
    assert value(
        market,
        "select bool_or(numrange(lower(ids), upper(ids)) @> %s::numeric) from pgps_internal.batch_type",
        [3 * size],
    )
    rows(market, "drop table if exists published")
    rows(market, "create table published as select event_id as id, n, p, s from pgps_internal.tick_log")
    for name, condition in conditions.items():
        found = column(market, "select event_id from pgps.receive(%s, 1000)", [name])
        assert found == expected(market, condition), condition
