"""What a session has made under the names of pgps's own temporary tables is neither read nor written."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, make_type, refused, rows, value
from tests.fix_db import Connect

Name = Callable[..., str]
VIEW = """
create temp view {stage} as
select 1::bigint as pgps_id, 1::bigint as pgps_item, 5::bigint as pgps_event, 1 as n where public.{whose}()
"""


@pytest.fixture
def trap(admin: psycopg.Connection, name: Name) -> str:
    """A function that remembers with whose rights it ran."""
    made = name("whose")
    rows(admin, f"create sequence public.{made}_runs; grant all on sequence public.{made}_runs to public")
    rows(
        admin,
        f"create function public.{made}() returns boolean language plpgsql as $$ begin "
        f"if current_user <> session_user then perform nextval('public.{made}_runs'); end if; return true; end $$",
    )
    return made


def has_run(admin: psycopg.Connection, trap: str) -> bool:
    return bool(value(admin, f"select is_called from public.{trap}_runs"))


def opened(admin: psycopg.Connection, session: psycopg.Connection) -> None:
    """Have a session open a link, as a broker that is met for the first time."""
    peer = value(admin, "select pgps.link_identity()")
    call(session, "link_open", Jsonb(peer | {"broker": str(uuid.uuid4()), "name": uuid.uuid4().hex[:6]}), "receive")


def batch(kind: str, **attribute: Any) -> Jsonb:
    given = {"name": "n", "type": "integer", "as_text": False} | attribute
    return Jsonb({"after": 0, "upto": 1, "last": 0, "items": [], "types": [{"name": kind, "attributes": [given]}]})


@pytest.fixture
def link(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], name: Name
) -> tuple[psycopg.Connection, str, str]:
    """A session that has opened a link, a type that it may publish, and the name of its staging table."""
    kind, neighbour = name(), role("neighbour", "pgps_link")
    make_type(admin, kind, "n integer")
    rows(admin, f"grant select, insert on pgps_event.{kind} to {neighbour}")
    session = connect(neighbour)
    opened(admin, session)
    stage = value(admin, "select 'pgps_stage_' || type_id from pgps_internal.event_type where name = %s", [kind])
    return session, kind, stage


def test_a_view_in_place_of_a_staging_table_is_not_read(
    admin: psycopg.Connection, link: tuple[psycopg.Connection, str, str], trap: str
) -> None:
    session, kind, stage = link
    rows(session, VIEW.format(stage=stage, whose=trap))
    for staged in (False, True):
        with session.transaction(), refused("42501", stage, "Drop"):
            call(session, "link_apply", batch(kind))
        if staged:
            with session.transaction(), refused("42501", stage):
                call(session, "link_begin", batch(kind), True)
    assert not has_run(admin, trap)


def test_a_batch_that_was_not_begun_is_refused(link: tuple[psycopg.Connection, str, str]) -> None:
    session, kind, _ = link
    with refused("55000", kind, "link_begin"):
        call(session, "link_apply", batch(kind))


@pytest.mark.parametrize("forged", [{"type": "integer from (select public.{}()) x --"}, {"name": "m"}])
def test_what_a_batch_says_of_its_types_is_compared_when_it_is_applied(
    admin: psycopg.Connection, link: tuple[psycopg.Connection, str, str], trap: str, forged: dict[str, str]
) -> None:
    session, kind, _ = link
    given = {key: text.format(trap) for key, text in forged.items()}
    session.autocommit = False
    call(session, "link_begin", batch(kind), True)
    with refused("55000", kind, "alter_event_type"):
        call(session, "link_apply", batch(kind, as_text=True, **given))
    session.rollback()
    assert not has_run(admin, trap)


def test_a_view_in_place_of_the_table_of_a_new_epoch_is_not_written(
    own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "tick", "n integer")
    rows(admin, "insert into pgps_event.tick values (1)")
    rows(admin, "select pgps.dispatch()")
    rows(admin, "update pgps_internal.batch set incarnation = 'another'")
    worker = connect(role("worker", "pgps_worker"), dsn=own_database)
    rows(worker, "create temp view pgps_rebaseline as select 1 as type_id")
    with refused("42501", "pgps_rebaseline", "Drop"):
        rows(worker, "select pgps.dispatch()")
    rows(worker, "drop view pgps_rebaseline")
    rows(worker, "select pgps.dispatch()")
