"""What pgps.publish_load is given is checked before anything is written from it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, refused, rows, take

Name = Callable[..., str]


@pytest.mark.parametrize("attributes", [None, [], [None], ["n", None]])
def test_attributes_that_name_nothing_are_refused(
    admin: psycopg.Connection, name: Name, attributes: list[str | None] | None
) -> None:
    kind = name("kind")
    make_type(admin, kind, "n integer, b text")
    call(admin, "subscribe", kind, kind)
    load = name("load")
    table = call(admin, "begin_load", kind, load)
    rows(admin, f"insert into {table} (n, pgps_part) values (1, 'p')")
    query = "select pgps.publish_load(%s, %s, array['p'], %s::text[], 'job', 1)"
    with refused("22023", "attributes", load):
        rows(admin, query, [kind, load, attributes])
    # The number is free, and what was brought in is there.
    rows(admin, query, [kind, load, ["n"]])
    assert take(admin, kind) == [1]


def test_attributes_may_be_an_array_of_arrays(admin: psycopg.Connection, name: Name) -> None:
    kind, load = name("kind"), name("load")
    make_type(admin, kind, "n integer, b text")
    call(admin, "subscribe", kind, kind)
    rows(admin, f"insert into {call(admin, 'begin_load', kind, load)} (n, pgps_part) values (1, 'p')")
    call(admin, "publish_load", kind, load, ["p"], [["n"], ["b"]])
    assert take(admin, kind) == [1]
