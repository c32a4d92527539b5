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
