"""What pgps.publish_load is given is checked before anything is written from it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, rows, take

Name = Callable[..., str]


@pytest.mark.parametrize("attributes", [None, [], [None], ["n", None], [["n"], ["b"]]])
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
    if attributes == [["n"], ["b"]]:
        rows(admin, query, [kind, load, attributes])
        assert take(admin, kind) == [1]
        return
    with pytest.raises(psycopg.Error) as raised:
        rows(admin, query, [kind, load, attributes])
    assert raised.value.sqlstate == "22023"
    assert "attributes" in str(raised.value.diag.message_primary)
    assert raised.value.diag.message_hint is not None
    # The number is free, and what was brought in is there.
    rows(admin, query, [kind, load, ["n"]])
    assert take(admin, kind) == [1]
