"""Kinds of subscriptions, and what takes part in an event type, in a database that an earlier release has made."""

from __future__ import annotations

import psycopg

from pgps import _resources
from tests.fix_broker import call, make_type, rows
from tests.fix_clients import Client
from tests.fix_db import Connect

BEFORE = """
    alter table pgps_internal.subscription drop column is_hidden cascade;
    alter table pgps_internal.subscription drop constraint subscription_scope_check;
    update pgps_internal.subscription set scope = 'link' where kind in ('confirm', 'link');
    alter table pgps_internal.subscription drop column kind cascade,
        add constraint subscription_scope_check check (scope in ('local', 'global', 'link'));
    drop table pgps_internal.feature cascade;
"""
KINDS = """
    select regexp_replace(name, '[0-9].*', ''), kind, is_hidden, scope
    from pgps_internal.subscription order by subscription_id
"""


def features(connection: psycopg.Connection) -> dict[str, list[str]]:
    query = """
        select t.name, array(select f.name from pgps_internal.feature f where f.type_id = t.type_id)
        from pgps_internal.event_type t
    """
    return dict(rows(connection, query))


def test_subscriptions_of_an_earlier_release_get_their_kind_and_types_their_features(
    own_database: str, connect: Connect
) -> None:
    admin = connect(dsn=own_database)
    for name in ("plain", "original", "watched", "shared", "looked_up"):
        make_type(admin, name)
    make_type(admin, "outcome", "id bigint, committed boolean")
    call(admin, "subscribe", "pulled", "plain", filter="n > 1", scope="global")
    call(admin, "subscribe", "pushed", "plain", execute="pg_catalog.abs(n)")
    call(admin, "subscribe", "both", "shared", handler="any")
    rows(admin, "create table public.wanted (n integer)")
    call(admin, "subscribe", "table", "looked_up", filter="n in (select w.n from public.wanted w)")
    call(admin, "link_confirm_event", "outcome", "original")
    Client(admin, "somebody").register("watched")
    rows(
        admin,
        """
        insert into pgps_internal.subscription
            (name, owner, event_type, is_pattern, environment, kind, scope, priority, max_attempts, handler)
        values ('link*1', current_user::regrole, '*', true, '{}', 'link', 'local', 0, 1, 'all')
        """,
    )
    kinds, flags = rows(admin, KINDS), features(admin)
    assert kinds == [
        ("pulled", "external", False, "global"),
        ("pushed", "internal", False, "local"),
        ("both", "external", False, "local"),
        ("table", "external", False, "local"),
        ("confirm*", "confirm", True, "local"),
        ("pgps_registration_", "registration", False, "local"),
        ("link*", "link", True, "local"),
    ]
    assert flags == {
        "plain": [],
        "original": ["confirm"],
        "watched": ["registration"],
        "shared": ["share"],
        "looked_up": ["lane"],
        "outcome": [],
    }
    for statement in BEFORE.split(";\n"):
        rows(admin, statement)
    (script,) = _resources.sql_dir().glob("schema/0013_*.sql")
    rows(admin, script.read_text())
    assert rows(admin, KINDS) == kinds
    assert features(admin) == flags
