"""pgps.find_exceptions and pgps.find_subscriptions: pages of what the views have, and of the caller's own."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.fix_broker import Rows, call, column, endpoint, make_type, refused, rows
from tests.fix_db import Connect

_VIEW = """
    select event_type, event_id, subscription, failed_at, attempts, sqlstate, error, state, payload
    from pgps.exceptions order by failed_at desc, event_id desc, subscription desc
"""
_PAGE = """
    select * from pgps.find_exceptions(event_type => %(event_type)s, subscription => %(subscription)s,
        sqlstate => %(sqlstate)s, containing => %(containing)s, before => %(before)s, before_event => %(event)s,
        before_subscription => %(name)s, max_rows => 3)
"""


def _all(connection: psycopg.Connection, **given: str) -> Rows:
    """Return what all pages together have."""
    place = dict.fromkeys(("event_type", "subscription", "sqlstate", "containing", "before", "event", "name"))
    found: Rows = []
    while page := rows(connection, _PAGE, {**place, **given}):
        assert len(page) <= 3
        found += page
        place |= {"before": page[-1][3], "event": page[-1][1], "name": page[-1][2]}
    return found


def test_pages_have_every_row_of_the_views_once_and_the_callers_own_only(
    connect: Connect, role: Callable[..., str], own_database: str
) -> None:
    admin, alice = connect(dsn=own_database), role("alice")
    make_type(admin, "tick")
    make_type(admin, "tock")
    own = connect(alice, dsn=own_database)
    rows(
        admin,
        "create function public.refuse(event record) returns void language plpgsql as "
        "$$ begin raise exception 'Not %', (event).n using errcode = 'P4711'; end $$",
    )
    for name, event_type, owner in (("a", "tick", admin), ("b", "tick", own), ("c", "tock", admin)):
        call(owner, "subscribe", name, event_type, execute="public.refuse", max_attempts=1)
    call(admin, "subscribe", "quiet", "tick")
    for event_type in ("tick", "tock"):
        rows(admin, f"insert into {endpoint(event_type)} (n) values (1), (2), (3), (4)")
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")
    expected = rows(admin, _VIEW)
    assert len(expected) == 12
    assert _all(admin) == expected
    assert _all(admin, event_type="tock") == [row for row in expected if row[0] == "tock"]
    assert _all(admin, subscription="b") == [row for row in expected if row[2] == "b"]
    assert _all(admin, containing="not 3") == [row for row in expected if row[6] == "Not 3"]
    assert _all(admin, sqlstate="P4711") == expected
    assert _all(admin, sqlstate="22012") == _all(admin, subscription="link nowhere") == []
    assert _all(own) == [row for row in expected if row[2] == "b"]
    with refused("42704", '"a"', "does not exist"):
        _all(own, subscription="a")
    with refused("42704", '"none"', "does not exist"):
        _all(admin, event_type="none")
    with refused("22023", "max_rows 0"):
        call(admin, "find_exceptions", max_rows=0)

    call(admin, "pause", "quiet")
    names = "select name from pgps.find_subscriptions({})"
    assert column(admin, names.format("")) == ["a", "b", "c", "quiet"]
    assert column(own, names.format("")) == ["b"]
    assert column(admin, names.format("after => 'a', max_rows => 2")) == ["b", "c"]
    assert column(admin, names.format("event_type => 'tick', state => 'active'")) == ["a", "b"]
    assert column(admin, names.format("containing => 'ui', state => 'paused'")) == ["quiet"]
    with refused("22023", "max_rows 1001"):
        call(admin, "find_subscriptions", max_rows=1001)
