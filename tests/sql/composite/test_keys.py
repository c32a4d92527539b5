"""Partition keys of a single text, and the order of events that lie apart or close together."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, make_type, rows
from tests.fix_db import Connect

KEYS = [None, "", "x", '"', '["x"]', "null", "é\U0001f600", "\x01\n\\", "long" * 400, "long" * 400 + "er"]


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "a", "k text, n integer")
    make_type(connection, "b", "n integer, k text")
    return connection


def publish(connection: psycopg.Connection, kind: str, first: int) -> None:
    rows(
        connection,
        f"insert into pgps_event.{kind} (k, n) select k, %s + o from unnest(%s::text[]) with ordinality x(k, o)",
        [first, KEYS],
    )


def pairs(connection: psycopg.Connection, name: str) -> list[tuple[str | None, str | None, int, int]]:
    """Return the keys of both constituents of what was detected, and their numbers."""
    return rows(
        connection,
        f"""select constituents -> 0 -> 'payload' ->> 'k', constituents -> 1 -> 'payload' ->> 'k',
            (constituents -> 0 -> 'payload' ->> 'n')::int, (constituents -> 1 -> 'payload' ->> 'n')::int
        from pgps_internal.{name}_log order by 4, 3""",
    )


def test_a_key_of_one_text_pairs_what_is_equal(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "one", "a ; b", partition_by="k")
    call(broker, "create_composite_event", "walked", "a ; (b or b)", partition_by="k")
    for kind in ("a", "b", "b"):
        publish(broker, kind, 0)
        rows(broker, "select pgps.dispatch()")
    wanted = [(key, key, number, number) for number, key in enumerate(KEYS, 1) for _ in "bb"]
    assert pairs(broker, "one") == pairs(broker, "walked") == wanted


def test_events_that_lie_apart_and_close_together_come_in_order(broker: psycopg.Connection) -> None:
    options = {"context": "chronicle", "partition_by": "k", "max_open": 10_000}
    call(broker, "create_composite_event", "one", "a (n > 0) ; b (n > 0)", **options)
    # Runs of events that match, and single ones between many that do not.
    matching = "g % 100 < 30 or g % 13 = 0"
    for kind in "ab":
        rows(
            broker,
            f"insert into pgps_event.{kind} (k, n) select 'k', case when {matching} then g else -g end"
            " from generate_series(1, 3000) g",
        )
    rows(broker, "select pgps.dispatch()")
    assert pairs(broker, "one") == [("k", "k", n, n) for n in range(1, 3001) if n % 100 < 30 or n % 13 == 0]


ODD_KEYS = {
    "numeric[]": ["{1.5}", "{1.50,NULL}", "{123456789012345678901234567890.1}", "{123456789012345678901234567890.2}"],
    "float8[]": ["{0.1}", "{0.30000000000000004}", "{0.3}"],
    "jsonb": ["1.5", '{"a": [1.50, {"b": 1e3}]}', "9" * 5000, "[" * 3000 + "1.5" + "]" * 3000, '"x"'],
    "numeric": ["0.12345678901234567890123456789", "0.12345678901234567890123456780", "9" * 5000, "NaN"],
    "float8": ["0.30000000000000004", "0.3", "Infinity"],
    "bytea": ["\\x00ff", "\\x41"],
}


@pytest.mark.parametrize("kind", ODD_KEYS)
def test_whatever_value_is_a_key_is_detected_for_itself(connect: Connect, own_database: str, kind: str) -> None:
    broker = connect(dsn=own_database)
    for name in ("c", "d"):
        make_type(broker, name, f"k {kind}, n integer")
    call(broker, "create_composite_event", "pair", "c x ; d y", partition_by="k", attributes="n integer = x.n")
    numbers = range(len(ODD_KEYS[kind]))
    for name in ("c", "d"):
        # Who detects by hand may have these set, and a worker not: what has been stored under a key is found again.
        query = f"insert into pgps_event.{name} select unnest(%s::text[])::{kind}, unnest(%s::integer[])"
        rows(broker, query, [ODD_KEYS[kind], [*numbers]])
        rows(broker, "select pgps.dispatch()")
        rows(broker, "set extra_float_digits = -12; set bytea_output = 'escape'")
    assert rows(broker, "select last_error from pgps.composite_events") == [(None,)]
    found = "select n, (constituents -> 1 -> 'payload' ->> 'n')::integer from pgps_internal.pair_log order by 1, 2"
    assert rows(broker, found) == [(n, n) for n in numbers]
    tried = (
        "select (t -> 'n')::integer from pgps.try_composite_event('c x ; d y', partition_by => 'k',"
        " attributes => 'n integer = x.n') t order by 1"
    )
    assert [n for (n,) in rows(broker, tried)] == [*numbers]


@pytest.mark.parametrize("kind", ODD_KEYS)
def test_so_it_is_in_the_transaction_of_the_publisher(connect: Connect, own_database: str, kind: str) -> None:
    broker = connect(dsn=own_database)
    for name in ("c", "d"):
        make_type(broker, name, f"k {kind}, n integer")
    call(broker, "create_composite_event", "pair", "c x ; d y", partition_by="k", attributes="m integer = x.n + y.n")
    rows(broker, "create table public.told (m integer)")
    tell = "create function public.tell(m integer) returns void language sql as 'insert into public.told values (m)'"
    rows(broker, tell)
    call(broker, "subscribe", "rule", "pair", execute="public.tell(m)", coupling="immediate")
    numbers = [*range(len(ODD_KEYS[kind]))]
    with broker.transaction():
        for name in ("c", "d"):
            query = f"insert into pgps_event.{name} select unnest(%s::text[])::{kind}, unnest(%s::integer[])"
            rows(broker, query, [ODD_KEYS[kind], numbers])
            rows(broker, "set extra_float_digits = -12; set bytea_output = 'escape'")
    assert rows(broker, "select m from public.told order by 1") == [(2 * n,) for n in numbers]
