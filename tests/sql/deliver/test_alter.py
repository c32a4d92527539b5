"""Changing a subscription where it stands."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.fix_broker import (
    WAYS,
    call,
    column,
    dispatch,
    make_type,
    meanwhile,
    numbers,
    publish,
    refused,
    rows,
    sink,
    sunk,
    take,
    value,
)
from tests.fix_db import Connect


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    return connection


def alter(connection: psycopg.Connection, **changes: Any) -> None:
    call(connection, "alter_subscription", "s", **changes)


@pytest.mark.parametrize("start", ["now", "earliest"])
def test_what_waits_is_matched_anew_from_the_position_on(broker: psycopg.Connection, start: str) -> None:
    call(broker, "subscribe", "s", "tick", "n % 2 = 0", start=start)
    publish(broker, "tick", *range(6))
    publish(broker, "tick", *range(6, 12))
    rows(broker, "select pgps.dispatch()")
    assert [row[2]["n"] for row in rows(broker, "select * from pgps.take('s', 2)")] == [0, 2]
    alter(broker, filter="n % 3 = 0")
    assert numbers(broker, "s", 1) == [3], "what is behind the position"
    alter(broker, filter="")
    assert take(broker, "s") == list(range(3, 12)), "what was received and not acknowledged again"
    alter(broker, filter="n > 100")
    publish(broker, "tick", 5, 500)
    assert take(broker, "s") == [500]
    assert value(broker, "select count(*) from pgps_internal.class") == 1, "nothing is left of the old filters"


def test_a_suspended_subscription_goes_on_with_another_filter(broker: psycopg.Connection) -> None:
    rows(broker, "create function public.shaky(n integer) returns boolean language sql as 'select n > 2'")
    call(broker, "subscribe", "s", "tick", "public.shaky(n)")
    publish(broker, "tick", 1)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "drop function public.shaky")
    publish(broker, "tick", 2, 3)
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select state from pgps.subscriptions") == "suspended"
    hint = value(broker, "select hint from pgps.trouble_counts() where subscription = 's'")
    assert "pgps.alter_subscription('s', filter =>" in hint
    publish(broker, "tick", 4)
    rows(broker, "select pgps.dispatch()")
    alter(broker, filter="n > 1")
    assert rows(broker, "select state, last_error from pgps.subscriptions") == [("active", None)]
    publish(broker, "tick", 5)
    found = take(broker, "s")
    failed = [n for (n,) in rows(broker, "select n from pgps_queue.tick_exception where subscription = 's'")]
    assert sorted(found + failed) == [2, 3, 4, 5]
    assert found[-2:] == [4, 5]


def test_competing_consumers_keep_what_still_matches(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick", "n < 10", handler="any")
    publish(broker, "tick", *range(20))
    rows(broker, "select pgps.dispatch()")
    assert len(rows(broker, "select * from pgps.take('s', 4)")) == 4
    alter(broker, filter="n % 2 = 0")
    publish(broker, "tick", 20, 21)
    assert take(broker, "s") == [4, 6, 8, 20]


@pytest.mark.parametrize("handler", ["all", "any"])
def test_what_has_failed_comes_again_whatever_the_filter_is_meanwhile(broker: psycopg.Connection, handler: str) -> None:
    call(broker, "subscribe", "s", "tick", handler=handler, max_attempts=2)
    publish(broker, "tick", 1, 2, 3)
    rows(broker, "select pgps.dispatch()")
    for _ in range(2):
        first, second, _third = column(broker, "select event_id from pgps.receive('s') order by event_id")
        call(broker, "nack", "s", first, "no")
    rows(broker, "select pgps.receive('s')")
    call(broker, "nack", "s", second, "not now")
    assert rows(broker, "select n, state from pgps_queue.tick_exception where state = 'failed'") == [(1, "failed")]
    assert call(broker, "retry_exception", "tick") == 1
    alter(broker, filter="n > 2")
    alter(broker, filter="n > 100")
    alter(broker, filter="n <> 3")
    assert sorted(take(broker, "s")) == [1, 2]
    alter(broker, filter="")
    publish(broker, "tick", 4)
    assert sorted(take(broker, "s")) == ([3, 4] if handler == "all" else [4]), "what has been matched anew"
    assert rows(broker, "select from pgps_internal.failure where state <> 'settled'") == []


def test_callbacks_and_prefixes_have_their_filter_changed(broker: psycopg.Connection) -> None:
    make_type(broker, "tock")
    table = sink(broker, "tick")
    call(broker, "subscribe", "s", "tick", "n = 1", execute=table)
    call(broker, "subscribe", "both", "t*", "n = 1")
    publish(broker, "tick", 1, 2)
    publish(broker, "tock", 1, 2)
    rows(broker, "select pgps.dispatch()")
    alter(broker, filter="n = 2", priority=7, max_attempts=2)
    call(broker, "alter_subscription", "both", filter="n = 2")
    rows(broker, "call pgps.run_subscribers()")
    assert sunk(broker, table) == [2]
    assert take(broker, "both") == [2, 2]
    assert rows(broker, "select priority, max_attempts from pgps_internal.subscription where name = 's'") == [(7, 2)]


def test_a_filter_is_its_owners_to_give(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Any
) -> None:
    owner, other, boss = (connect(role("r", *groups), dsn=own_database) for groups in ([], [], ["pgps_admin"]))
    call(owner, "subscribe", "s", "tick", "n > 5")
    with refused("42501", "s"):
        alter(other, filter="n > 1")
    with refused("42501", "s"):
        alter(other, priority=1)
    with refused("42501", "s"):
        alter(boss, filter="true")
    alter(boss, priority=3)
    with refused("42703"):
        alter(owner, filter="no_such > 1")
    with refused("22023", "0"):
        alter(owner, max_attempts=0)
    with refused("42704", "none"):
        call(owner, "alter_subscription", "none", priority=1)
    alter(owner)
    assert rows(broker, "select filter, priority from pgps_internal.subscription") == [("n > 5", 3)]


@pytest.mark.parametrize("handler", ["all", "any", "callback"])
@pytest.mark.parametrize("predicate", [None, "n > 0", "n in (select w.n from public.wanted w)"])
def test_what_belonged_to_a_role_that_was_dropped_is_given_away_and_goes_on_where_it_was(
    broker: psycopg.Connection, connect: Connect, role: Any, own_database: str, handler: str, predicate: str | None
) -> None:
    gone, heir, admin, other = role("gone"), role("heir"), role("chief", "pgps_admin"), role("other")
    rows(broker, f"grant {heir} to {admin}; create table public.wanted as select generate_series(1, 9) as n")
    rows(broker, f"grant select on public.wanted to {heir}")
    table = sink(broker, "tick")
    rows(broker, f"grant all on {table} to public; grant all on all sequences in schema public to public")
    leaver = connect(gone, dsn=own_database)
    more = {"execute": table} if handler == "callback" else {"handler": handler}
    if predicate is not None and "wanted" in predicate:
        rows(broker, f"grant select on public.wanted to {gone}")
    call(leaver, "subscribe", "s", "tick", filter=predicate, **more)
    publish(broker, "tick", 1, 2)
    rows(broker, "select pgps.dispatch()")
    if handler == "callback":
        rows(broker, "call pgps.run_subscribers()")
    else:
        assert [row[0]["n"] for row in rows(leaver, "select payload from pgps.take('s', 1)")] == [1]
    leaver.close()
    rows(broker, f"drop owned by {gone} cascade; drop role {gone}; create role {gone}")
    publish(broker, "tick", 3)
    rows(broker, "select pgps.dispatch()")
    chief, stranger = connect(admin, dsn=own_database), connect(other, dsn=own_database)
    with refused("55000", "owner => "):
        rows(connect(heir, dsn=own_database), "select * from pgps.receive('s')")
    for connection, target in ((stranger, other), (chief, other), (chief, "postgres"), (chief, "nobody_at_all")):
        with refused("42704" if target == "nobody_at_all" else "55000" if connection is stranger else "42501"):
            call(connection, "alter_subscription", "s", owner=target)
    call(chief, "alter_subscription", "s", owner=heir)
    publish(broker, "tick", 4)
    rows(broker, "select pgps.dispatch()")
    assert rows(broker, "select owner::text, state from pgps.subscriptions") == [(heir, "active")]
    if handler == "callback":
        rows(broker, "call pgps.run_subscribers()")
        assert sunk(broker, table) == [1, 2, 3, 4]
    else:
        assert numbers(connect(heir, dsn=own_database), "s") == [2, 3, 4]


def test_nobody_gives_his_filter_the_rights_of_a_role_that_he_is_not_in(
    broker: psycopg.Connection, connect: Connect, role: Any, own_database: str
) -> None:
    owner, friend = role("owner"), role("friend")
    session = connect(owner, dsn=own_database)
    call(session, "subscribe", "s", "tick", filter="n > 1")
    for target in (friend, "pgps_admin", "postgres"):
        with refused("42501", target):
            call(session, "alter_subscription", "s", owner=target)
    admin = connect(role("chief", "pgps_admin", friend), dsn=own_database)
    with refused("42501", owner):
        call(admin, "alter_subscription", "s", owner=friend)
    rows(broker, f"grant {friend} to {owner}; revoke select on pgps_event.tick from public")
    rows(broker, f"grant select on pgps_event.tick to {owner}")
    with refused("42501", "grant select on pgps_event.tick"):
        call(session, "alter_subscription", "s", owner=friend)
    rows(broker, f"grant select on pgps_event.tick to {friend}")
    call(session, "alter_subscription", "s", owner=friend)
    publish(broker, "tick", 1, 2)
    rows(broker, "select pgps.dispatch()")
    assert numbers(connect(friend, dsn=own_database), "s") == [2]


@pytest.mark.parametrize("change", ["filter", "owner"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("way", WAYS)
def test_a_change_that_is_not_committed_holds_up_neither_dispatch_nor_anybody_else(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Any, change: str, end: str, way: str
) -> None:
    call(broker, "subscribe", "s", "tick", "n < 1000", handler="any")
    call(broker, "subscribe", "other", "tick", handler="any")
    publish(broker, "tick", *range(10))
    dispatch(broker, way)
    taken = [row[0]["n"] for row in rows(broker, "select payload from pgps.take('s', 4)")]
    changing = connect(dsn=own_database)
    changing.autocommit = False
    alter(changing, **({"filter": "n % 2 = 0"} if change == "filter" else {"owner": role("heir")}))

    rows(broker, "set lock_timeout = '20s'")
    publish(broker, "tick", *range(10, 20))
    # It does not wait.
    dispatch(broker, way)
    assert take(broker, "other", way=way) == list(range(20))
    taken += [row[0]["n"] for row in rows(broker, "select payload from pgps.take('s', 3)")]
    publish(broker, "tick", *range(20, 30))
    dispatch(broker, way)
    rows(broker, "select pgps.reclaim()")

    (changing.commit if end == "commit" else changing.rollback)()
    publish(broker, "tick", *range(30, 40))
    dispatch(broker, way)
    later = [row[0]["n"] for row in rows(broker, "select payload from pgps.take('s', 1000)")]
    assert sorted(taken + later) == sorted(set(taken + later)), "nothing comes twice"
    wanted = {n for n in range(40) if n % 2 == 0 or change == "owner" or end == "rollback"}
    assert wanted - set(taken) == set(later), "what was not taken before, as the filter in force says"
    assert rows(broker, "select * from pgps_internal.unshared") == []


@pytest.mark.parametrize("way", WAYS)
def test_a_position_that_is_moved_meanwhile_gets_each_event_once(
    broker: psycopg.Connection, connect: Connect, own_database: str, way: str
) -> None:
    call(broker, "subscribe", "s", "tick", handler="any")
    publish(broker, "tick", 1, 2)
    rows(broker, "select pgps.dispatch()")
    moving = connect(dsn=own_database)
    moving.autocommit = False
    call(moving, "seek", "s", "now")
    rows(broker, "set lock_timeout = '20s'")
    publish(broker, "tick", 3, 4)
    dispatch(broker, way)
    moving.commit()
    publish(broker, "tick", 5)
    assert take(broker, "s", way=way) == [3, 4, 5]
    assert rows(broker, "select * from pgps_internal.unshared") == []


@pytest.mark.parametrize("function", ["receive", "take"])
def test_who_has_looked_for_events_and_waits_for_the_change_gets_those_of_the_new_filter(
    broker: psycopg.Connection, connect: Connect, own_database: str, function: str
) -> None:
    call(broker, "subscribe", "s", "tick", "n = 2")
    publish(broker, "tick", 1, 2)
    rows(broker, "select pgps.dispatch()")
    changing, consumer = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    alter(changing, filter="n = 1")
    found: list[int] = []
    query = f"select (payload ->> 'n')::integer from pgps.{function}('s')"
    with meanwhile(broker, consumer, lambda: found.extend(column(consumer, query))):
        changing.commit()
    assert found in ([], [1]), "2 does not match the filter in force"
    call(consumer, "ack", "s")
    rows(broker, "select pgps.dispatch()")
    assert found + column(consumer, query) == [1]


def test_the_filter_of_a_prefix_is_about_what_its_owner_may_see(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Any
) -> None:
    """Of the others nothing is said, and they come when the right comes."""
    make_type(broker, "tick_hidden")
    make_type(broker, "tick_odd", "word text")
    for hidden in ("tick_hidden", "tick_odd"):
        rows(broker, f"revoke select on pgps_event.{hidden} from public")
    reader = role("reader")
    own = connect(reader, dsn=own_database)
    call(own, "subscribe", "s", "tick*")
    call(own, "alter_subscription", "s", filter="n > 1")
    for name in ("tick", "tick_hidden"):
        publish(broker, name, 1, 2)
    rows(broker, "insert into pgps_event.tick_odd values ('x')")
    rows(broker, "select pgps.dispatch()")
    assert numbers(own, "s") == [2]
    call(own, "ack", "s")
    rows(broker, f"grant select on pgps_event.tick_hidden to {reader}")
    publish(broker, "tick_hidden", 1, 3)
    rows(broker, "insert into pgps_event.tick_odd values ('y')")
    rows(broker, "select pgps.dispatch()")
    assert numbers(own, "s") == [3]
    call(own, "ack", "s")
    assert rows(own, "select state, last_error from pgps.subscriptions") == [("active", None)]
    other = role("other")
    rows(broker, f"grant {other} to {reader}")
    call(own, "alter_subscription", "s", owner=other)
    publish(broker, "tick", 7)
    publish(broker, "tick_hidden", 8)
    rows(broker, "select pgps.dispatch()")
    assert numbers(connect(other, dsn=own_database), "s") == [7], "of a prefix a role gets what it may see"


def test_exceptions_that_are_passed_already_are_no_burden_afterwards(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick", max_attempts=1)
    for n in range(5):
        publish(broker, "tick", n)
        rows(broker, "select pgps.dispatch()")
        for (event_id,) in rows(broker, "select event_id from pgps.receive('s')"):
            call(broker, "nack", "s", event_id, "no")
    publish(broker, "tick", 5, 6)
    rows(broker, "select pgps.dispatch()")
    assert column(broker, "select (payload ->> 'n')::integer from pgps.receive('s', 1)") == [5]
    call(broker, "ack", "s")
    alter(broker, filter="n >= 0")
    assert value(broker, "select skip::text from pgps_internal.member") == "{}"
    assert numbers(broker, "s") == [6]
    assert value(broker, "select count(*) from pgps.exceptions") == 5
