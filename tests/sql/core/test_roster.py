"""Who takes part in what: a new room is a line in the roster, and event types have features."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from pgps import _resources
from tests.fix_broker import call, column, make_type, publish, rows, take, value
from tests.fix_clients import Client
from tests.fix_db import Connect

FEATURES = """
    select distinct f.name from pgps_internal.feature f join pgps_internal.event_type t using (type_id)
    where t.name = %s order by 1
"""
NOTE = """
    create table public.noted (hook text, detail text);
    create function public.note(hook text, detail text) returns void language sql as
        'insert into public.noted values ($1, $2)';
    create function public.low(type_id integer) returns bigint language sql as 'select 0::bigint';
    create function public.reclaimed() returns bigint language sql as
        'select public.note(''reclaim_rooms'', ''''); select 0::bigint';
"""
LINES = """
    ('after_match', 'visitor', 'public.note(''after_match'', (event_type).name || '' '' || ids::text)'),
    ('needs_feature', 'visitor', 'false'),
    ('low_batch', 'visitor', 'public.low(low_batch.type_id)'),
    ('reclaim_rooms', 'visitor', 'public.reclaimed()'),
    ('sweep', 'visitor', 'public.note(''sweep'', '''')'),
    ('join_rooms', 'visitor', 'public.note(''join_rooms'', (event_type).name)'),
    ('what_needs', 'visitor', 'case (event_type).name when ''kept'' then ''a visitor looks at it'' end'),
    ('drop_from_rooms', 'visitor', 'public.note(''drop_from_rooms'', (event_type).name)'),
"""


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    return connect(dsn=own_database)


def taken(connection: psycopg.Connection, subscription: str) -> list[int]:
    return column(connection, "select (payload ->> 'n')::integer from pgps.take(%s)", [subscription])


def with_lines(broker: psycopg.Connection, lines: str) -> None:
    """Apply the roster with more lines, as a release with one more room would."""
    roster, hooks = ((_resources.sql_dir() / "code" / name).read_text() for name in ("roster.sql", "hooks.sql"))
    assert roster.count("    values\n") == 5, "one for each part of the roster"
    broker.execute((roster.replace("    values\n", f"    values{lines}\n", 1) + hooks).encode())


def noted(broker: psycopg.Connection, hook: str) -> list[str]:
    return column(broker, "delete from public.noted where hook = %s returning detail", [hook])


def test_a_new_room_is_a_line_for_each_hook(broker: psycopg.Connection) -> None:
    make_type(broker, "tick")
    for statement in NOTE.split(";\n"):
        broker.execute(statement.encode())
    with_lines(broker, LINES)
    make_type(broker, "kept")
    assert noted(broker, "join_rooms") == ["kept"]

    call(broker, "subscribe", "all", "tick")
    publish(broker, "tick", 1)
    rows(broker, "select pgps.dispatch()")
    assert noted(broker, "after_match") == [], "it does not take part in this type"
    rows(
        broker, "select pgps_internal.add_feature(type_id, 'visitor') from pgps_internal.event_type where name = 'tick'"
    )
    publish(broker, "tick", 2)
    rows(broker, "select pgps.dispatch()")
    (said,) = noted(broker, "after_match")
    assert said.startswith("tick {[")
    assert take(broker, "all") == [1, 2]

    assert value(broker, "select pgps_internal.low_batch()") == 0, "it needs everything"
    rows(broker, "select pgps.reclaim()")
    assert noted(broker, "reclaim_rooms") == noted(broker, "sweep") == [""]
    assert column(broker, FEATURES, ["tick"]) == [], "nothing needs it, says its line"

    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="a visitor looks at it"):
        call(broker, "drop_event_type", "kept")
    call(broker, "drop_event_type", "kept", True)
    assert noted(broker, "drop_from_rooms") == ["kept"]


def test_a_type_has_the_features_of_what_is_defined_on_it_until_they_are_unused(
    broker: psycopg.Connection,
) -> None:
    for name in ("plain", "busy"):
        make_type(broker, name)
        call(broker, "subscribe", name, name, filter="n > 0")
    make_type(broker, "outcome", "id bigint, committed boolean")
    call(broker, "subscribe", "shared", "busy", handler="any")
    rows(broker, "create table public.wanted (n integer)")
    call(broker, "subscribe", "lane", "busy", filter="n in (select w.n from public.wanted w)")
    call(broker, "link_confirm_event", "outcome", "busy")
    client = Client(broker, "somebody")
    client.register("busy")
    publish(broker, "busy", 1)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "select pgps.reclaim()")
    assert column(broker, FEATURES, ["busy"]) == ["confirm", "lane", "registration", "share"]
    assert column(broker, FEATURES, ["plain"]) == []

    call(broker, "unsubscribe", "shared")
    client.call("unregister_for_event", "busy")
    call(broker, "drop_confirm_event", "outcome", "busy")
    rows(broker, "select pgps.reclaim()")
    assert column(broker, FEATURES, ["busy"]) == ["lane"]
    call(broker, "unsubscribe", "lane")
    rows(broker, "select pgps.reclaim()")
    assert column(broker, FEATURES, ["busy"]) == []


def test_who_adds_a_feature_waits_for_nobody_and_loses_it_to_nobody(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    make_type(broker, "tick")
    one, other = role("first"), role("second")
    rows(broker, f"grant select on pgps_event.tick to {one}, {other}")
    type_id = value(broker, "select type_id from pgps_internal.event_type where name = 'tick'")
    call(broker, "subscribe", "one", "tick", handler="any")
    publish(broker, "tick", 1)
    rows(broker, "select pgps.dispatch()")
    first, second = connect(one, dsn=own_database, autocommit=False), connect(other, dsn=own_database, autocommit=False)
    for connection in (first, second, broker):
        rows(connection, "set lock_timeout = '60s'")
        connection.commit()
    for connection, name in ((first, "former"), (second, "latter")):
        # The first subscription of a role makes code that is numbered; that others wait for.
        call(connection, "subscribe", name, "tick")
        connection.commit()
    # Both rely on the row that is there; the only subscription that needed it goes meanwhile.
    call(first, "subscribe", "two", "tick", handler="any")
    call(second, "subscribe", "three", "tick", handler="any")
    call(broker, "unsubscribe", "one")
    rows(broker, "select pgps.reclaim()")
    assert value(broker, "select count(*) from pgps_internal.feature where type_id = %s", [type_id]) == 1
    first.rollback()
    second.commit()
    rows(broker, "select pgps.reclaim()")
    publish(broker, "tick", 2)
    rows(broker, "select pgps.dispatch()")
    assert taken(second, "three") == [2]
    second.commit()
    # None is there: each adds its own, and waits for nobody.
    call(second, "unsubscribe", "three")
    second.commit()
    rows(broker, "select pgps.reclaim()")
    assert value(broker, "select count(*) from pgps_internal.feature where type_id = %s", [type_id]) == 0
    call(first, "subscribe", "two", "tick", handler="any")
    call(second, "subscribe", "three", "tick", handler="any")
    first.commit()
    second.rollback()
    publish(broker, "tick", 3)
    rows(broker, "select pgps.dispatch()")
    assert taken(first, "two") == [3]


def test_every_line_of_the_roster_is_run_by_a_hook(broker: psycopg.Connection) -> None:
    lines = rows(broker, "select hook, name, call from pgps_internal.roster()")
    assert len({(hook, name) for hook, name, _ in lines}) == len(lines), "each once"
    for hook, _, text in lines:
        sources = column(
            broker,
            "select prosrc from pg_proc where proname = %s and pronamespace = 'pgps_internal'::regnamespace",
            [hook],
        )
        assert len(sources) == 1, f"there is no hook {hook}"
        assert text in sources[0]
