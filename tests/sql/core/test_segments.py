"""The sizes of segments: the tables are cut as the list of ledgers says."""

from __future__ import annotations

import psycopg

from tests.fix_broker import rows

CUT = """
    select c.relname::text, m.part[1], m.part[2]::bigint, (select count(*) from pg_inherits i where i.inhparent = c.oid)
    from pg_partitioned_table t join pg_class c on c.oid = t.partrelid
    left join lateral regexp_match(pg_get_partkeydef(c.oid), '^LIST \\(+(\\w+) / (?:\\()?(\\d+)') m(part) on true
    where c.relnamespace = 'pgps_internal'::regnamespace and c.relname not like '%\\_log'
    order by 1
"""


def test_every_ledger_is_cut_as_the_list_says(admin: psycopg.Connection) -> None:
    cut = rows(admin, CUT)
    assert len(cut) > 10
    assert cut == rows(admin, "select ledger, key, size, 4::bigint from pgps_internal.ledgers() order by ledger")
