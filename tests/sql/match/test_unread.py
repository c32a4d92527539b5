"""Filters in lanes read the attributes that they name: what is stored out of line of the others stays there."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, make_type, rows, value
from tests.fix_db import Connect

FILTERS = {
    "few": "k in (select k from public.wanted)",
    "qualified": "doc.k in (select k from public.wanted)",
    "body": "k in (select k from public.wanted) and length(body) = 320000",
    "row": "k in (select k from public.wanted) and to_jsonb(doc) ->> 'body' like '%a%'",
    "all": "k in (select k from public.wanted) and to_jsonb((doc.*)) ->> 'body' > ''",
    "null": "k in (select k from public.wanted) and body is not null",
    "quoted": 'k in (select k from public.wanted) and "body" is not null',
    "lateral": "exists (select from public.wanted w, lateral (select doc) d where w.k = (d.doc).k)",
    "upper": "K in (select k from public.wanted) and BODY is not null",
}
READ = """
select coalesce(sum(toast_blks_read + toast_blks_hit), 0)
from pg_statio_all_tables where schemaname like 'pgps\\_log\\_%' and relname = 'doc'
"""


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    rows(connection, "create domain public.filled as text not null")
    make_type(connection, "doc", "k integer, body text, more public.filled")
    rows(connection, "create table public.wanted as select 2 as k")
    return connection


def publish_large(broker: psycopg.Connection) -> None:
    rows(
        broker,
        "insert into pgps_event.doc (k, body, more) select k, (select string_agg(md5(n::text || k), '')"
        " from generate_series(1, 10000) n), 'more' from generate_series(1, 5) k",
    )


def blocks(broker: psycopg.Connection) -> int:
    rows(broker, "select pg_stat_force_next_flush()")
    return int(value(broker, READ))


def test_a_filter_over_a_small_attribute_does_not_read_the_large_ones(broker: psycopg.Connection) -> None:
    for name in ("few", "qualified"):
        call(broker, "subscribe", name, "doc", FILTERS[name])
    publish_large(broker)
    before = blocks(broker)
    assert before > 0
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select min(lag_batches) from pgps.lanes") == 0
    assert blocks(broker) == before
    call(broker, "subscribe", "body", "doc", FILTERS["body"])
    publish_large(broker)
    before = blocks(broker)
    rows(broker, "select pgps.dispatch()")
    assert blocks(broker) > before


@pytest.mark.parametrize("name", FILTERS)
def test_whatever_a_filter_names_it_is_given(broker: psycopg.Connection, name: str) -> None:
    call(broker, "subscribe", name, "doc", FILTERS[name])
    publish_large(broker)
    rows(broker, "select pgps.dispatch()")
    assert [event["k"] for (event,) in rows(broker, "select payload from pgps.receive(%s)", [name])] == [2]
