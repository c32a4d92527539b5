"""What there seldom is: the sequence of an identity column says that there never was a row (decision 70)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgps._resources import sql_dir
from pgps.embedded import find_binaries
from tests.fix_broker import call, ids, make_type, numbers, publish, rows, value

_ASKED = re.compile(r"pg_sequence_last_value\('pgps_internal\.(\w+)'::regclass\)\)? is (?:not )?null")


def asked() -> set[str]:
    """The sequences of which somebody asks whether they have ever been used."""
    return {name for path in (sql_dir() / "code").rglob("*.sql") for name in _ASKED.findall(path.read_text())}


def test_no_row_comes_into_such_a_table_without_its_sequence(admin: psycopg.Connection) -> None:
    """It is the one of a column that is always generated, or the table's rows take their numbers from it."""
    owned = (
        "select format('%%s.%%s', a.attrelid::regclass, a.attname) from pg_depend d"
        " join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid"
        " where d.objid = ('pgps_internal.' || %s)::regclass and d.deptype = 'i' and a.attidentity = 'a'"
    )
    of_columns = {name for name in asked() if rows(admin, owned, [name])}
    # A partition can have no identity column: the default of the ledger, whose rows are inserted nowhere else.
    default = "select pg_get_expr(adbin, adrelid) from pg_attrdef where adrelid = 'pgps_internal.arrival'::regclass"
    assert "nextval('pgps_internal.arrival_id_seq'::regclass)" in [expression for (expression,) in rows(admin, default)]
    # Composite events, and entries at the place of an earlier one, take theirs before they write anything.
    assert asked() - of_columns == {"arrival_id_seq", "composite_state_seq", "units_placed_seq"}
    assert {"broken_type_place_seq", "failure_place_seq", "lane_lane_id_seq", "to_skip_skip_id_seq"} <= of_columns


@pytest.fixture
def put_back(own_database: str) -> Iterator[psycopg.Connection]:
    """A broker where the consumer of `all` has put back the first of three events."""
    with psycopg.connect(own_database, autocommit=True) as admin:
        make_type(admin, "tick")
        call(admin, "subscribe", "all", "tick")
        publish(admin, "tick", 1, 2, 3)
        rows(admin, "select pgps.dispatch()")
        assert value(admin, "select pg_sequence_last_value('pgps_internal.failure_place_seq'::regclass)") is None
        call(admin, "nack", "all", ids(admin, "all")[0])
        yield admin


def test_a_dump_that_is_restored_knows_what_was_put_back(
    put_back: psycopg.Connection, own_database: str, empty_database: str, tmp_path: Path
) -> None:
    programs = find_binaries().directory
    file = str(tmp_path / "dump")
    subprocess.run([programs / "pg_dump", "-Fc", "-f", file, "-d", own_database], check=True)
    subprocess.run([programs / "pg_restore", "-e", "-d", empty_database, file], check=True)
    with psycopg.connect(empty_database, autocommit=True) as restored:
        for broker in (put_back, restored):
            assert sorted(numbers(broker, "all", 2)) == [1, 2]
            assert value(broker, "select pg_sequence_last_value('pgps_internal.failure_place_seq'::regclass)") == 1


def test_a_failure_is_heeded_by_sessions_that_have_asked_before_there_was_one(
    put_back: psycopg.Connection, own_database: str
) -> None:
    """A sequence is seen at once, by plans that are kept, too."""
    call(put_back, "ack", "all")
    with psycopg.connect(own_database, autocommit=True) as other:
        for number in range(4, 12):
            publish(put_back, "tick", number)
            rows(put_back, "select pgps.dispatch()")
            assert number in numbers(other, "all")
            call(other, "ack", "all")
        publish(put_back, "tick", 20, 21)
        rows(put_back, "select pgps.dispatch()")
        assert numbers(other, "all") == [20, 21]
        call(put_back, "nack", "all", ids(put_back, "all")[0])
        assert sorted(numbers(other, "all")) == [20, 21]
