"""The sizes of segments: the tables are cut as the list of ledgers says."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import rows, value

CUT = """
    select c.relname::text, m.part[1], m.part[2]::bigint, (select count(*) from pg_inherits i where i.inhparent = c.oid)
    from pg_partitioned_table t join pg_class c on c.oid = t.partrelid
    cross join lateral regexp_match(pg_get_partkeydef(c.oid), '^LIST \\(+(\\w+) / (?:\\()?(\\d+)') m(part)
    -- What is cut otherwise than by a number is no ledger.
    where c.relnamespace = 'pgps_internal'::regnamespace and c.relname not like '%\\_log' and m.part is not null
    order by 1
"""


def test_every_ledger_is_cut_as_the_list_says(admin: psycopg.Connection) -> None:
    cut = rows(admin, CUT)
    assert len(cut) > 10
    assert cut == rows(admin, "select ledger, key, size, 4::bigint from pgps_internal.ledgers() order by ledger")


@pytest.mark.parametrize(
    ("name", "ledger"),
    [
        ("log", "control"),
        ("batch", "batch"),
        ("position", "position"),
        ("arrival", "arrival"),
        ("lane_step", "lane_step"),
    ],
)
def test_the_functions_and_the_text_say_the_same_as_the_list(admin: psycopg.Connection, name: str, ledger: str) -> None:
    size = value(admin, "select pgps_internal.segment_size(%s)", [ledger])
    text = value(admin, "select pgps_internal.segment_of('n', %s)", [ledger]).replace("%", "%%")
    for number in (0, size - 1, size, 4 * size - 1, 4 * size, 9 * size + 7):
        query = f"""
            select pgps_internal.{name}_segment(n), {text}, pgps_internal.{name}_segment_start(n)
            from (select %s::bigint as n) x
        """
        segment = number // size % 4
        assert rows(admin, query, [number]) == [(segment, segment, number // size * size)]


@pytest.mark.parametrize("span", [1, 60_000, 70_000, 140_000, 200_000, 400_000])
def test_the_text_for_a_span_names_its_segments_and_no_other(admin: psycopg.Connection, span: int) -> None:
    size = value(admin, "select pgps_internal.segment_size('control')")
    text = value(admin, "select pgps_internal.in_log_segments('n', 'lo', 'hi')").replace("%", "%%")
    for lo in (0, 5 * size - 10, 7 * size):
        query = f"""
            select array_agg(n / {size} order by n) from generate_series(0, 3 * {size}, {size}) n,
                (select %s::bigint as lo, %s::bigint as hi) x where {text}
        """
        wanted = {number // size % 4 for number in (lo, *range(lo, lo + span, size), lo + span - 1)}
        assert value(admin, query, [lo, lo + span - 1]) == sorted(wanted)


def test_only_the_segment_of_a_number_is_planned(admin: psycopg.Connection) -> None:
    query = """
        explain (costs off) select from pgps_internal.control c
        where pgps_internal.log_segment(c.hi) = pgps_internal.log_segment(65536) and c.hi >= 65536
    """
    plan = "\n".join(line for (line,) in rows(admin, query))
    assert "control_1" in plan
    assert not any(f"control_{n}" in plan for n in (0, 2, 3))
