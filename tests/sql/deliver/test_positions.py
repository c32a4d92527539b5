"""How far a subscription is, and what comes next."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import Connect

Name = Callable[..., str]
# From each place that a position can have, a few and many at a time.
COMPARED = """
with it as (select s.subscription_id as id from pgps_internal.subscription s where s.name = %s),
events as materialized (select n.* from it, pgps_internal.next_events(it.id, -1, 0, 1000) n),
places as (select -1::bigint as batch_id, 0::bigint as event_id union all select e.batch_id, e.event_id from events e)
select count(*), count(*) filter (where found is not distinct from expected)
from it, places p, unnest(array[0, 1, 2, 4, 1000]) most
cross join lateral pgps_internal.next_received(it.id,
    row(0, it.id, p.batch_id, p.event_id, p.batch_id, p.event_id + 1, 0, 0, null, null, null,
        null)::pgps_internal.position,
    most, false) found
cross join lateral (
    select array_agg((n.batch_id, n.event_id, n.type_id,
        case when (n.batch_id, n.event_id) <= (p.batch_id, p.event_id + 1) then 2 else 1 end)::pgps_internal.received
        order by n.batch_id, n.event_id) as expected
    from pgps_internal.next_events(it.id, p.batch_id, p.event_id, most) n
) e
"""


@pytest.mark.parametrize("pattern", ["a", "*"])
@pytest.mark.parametrize(("definition", "earlier"), [({}, ()), ({}, (1, 2)), ({"filter": "n % 2 = 0"}, ())])
def test_what_is_handed_out_is_what_comes_next_from_every_place(
    admin: psycopg.Connection, name: Name, pattern: str, definition: dict[str, str], earlier: tuple[int, ...]
) -> None:
    made = name("place")
    for suffix in "ab":
        make_type(admin, made + suffix)
    publish(admin, made + "a", *earlier)
    call(admin, "subscribe", made, made + pattern, **definition)
    for batch in ([2], [3, 4], [], [6, 7, 8, 10], [12, 14], range(40), range(60), [2]):
        publish(admin, made + "a", *batch)
        publish(admin, made + "b", *batch[:2])
        rows(admin, "select pgps.dispatch()")
    ((compared, equal),) = rows(admin, COMPARED, [made])
    assert compared == equal > 250
    assert value(admin, "select count(*) from pgps.take(%s, 1000)", [made]) * 5 + 5 == compared


def test_what_was_skipped_once_does_not_make_each_later_take_longer(admin: psycopg.Connection, name: Name) -> None:
    made = name("skip")
    make_type(admin, made)
    publish(admin, made, 1, 2)
    call(admin, "subscribe", made, made)
    publish(admin, made, 3)
    rows(admin, "select pgps.dispatch()")
    assert rows(admin, "select (payload ->> 'n')::integer from pgps.take(%s)", [made]) == [(3,)]
    publish(admin, made, 4)
    rows(admin, "select pgps.dispatch()")
    admin.execute("set track_functions = 'all'")
    # What was counted in this session and is not handed over yet would be listed, too.
    rows(admin, "select pg_stat_force_next_flush()")
    with admin.transaction():
        assert rows(admin, "select (payload ->> 'n')::integer from pgps.take(%s)", [made]) == [(4,)]
        called = {function for (function,) in rows(admin, "select funcname from pg_stat_xact_user_functions")}
    assert "next_received" in called
    assert not called & {"next_events", "next_unskipped"}


def test_an_event_that_commits_late_is_handed_out_though_later_numbers_are_skipped(
    admin: psycopg.Connection, connect: Connect, name: Name
) -> None:
    made = name("late")
    make_type(admin, made)
    late = connect()
    with late.transaction():
        publish(late, made, 1)
        publish(admin, made, 2)
        call(admin, "subscribe", made, made)
    publish(admin, made, 3)
    rows(admin, "select pgps.dispatch()")
    assert rows(admin, "select (payload ->> 'n')::integer from pgps.take(%s)", [made]) == [(1,), (3,)]
