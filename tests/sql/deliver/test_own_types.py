"""The event types that pgps makes for itself: a prefix stands for them only if it begins with pgps_, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.fix_broker import call, column, dispatch, make_type, publish, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect

_TYPES = "select name from pgps.event_types where name like 'pgps%' order by name"
_STATES = "select name, state, last_error from pgps.subscriptions order by name"
_REBUILD = Path(__file__).parents[3] / "sql/code/rebuild.sql"


@pytest.fixture
def admin(connect: Connect, own_database: str) -> psycopg.Connection:
    made = connect(dsn=own_database)
    make_type(made, "price", "n integer")
    rows(made, "grant select on pgps_event.price to public")
    return made


@pytest.fixture
def reader(connect: Connect, own_database: str, role: Callable[..., str]) -> psycopg.Connection:
    return connect(role("reader"), dsn=own_database)


def received(session: psycopg.Connection, subscription: str) -> list[str]:
    """Return the event types of what a subscription gets."""
    return column(session, "select event_type from pgps.receive(%s)", [subscription])


def make_own(admin: psycopg.Connection) -> None:
    """Have pgps make its own event types."""
    call(admin, "create_spool", "s")
    call(admin, "relay_services")
    assert column(admin, _TYPES) == ["pgps_spool", "pgps_uow"]


def use(admin: psycopg.Connection) -> None:
    publish(admin, "price", 1)
    assert call(admin, "spool", "s", 1, '"secret"') > 0
    for _ in range(3):
        dispatch(admin)
    rows(admin, "call pgps.run_lanes()")


@pytest.mark.parametrize("is_there", [True, False], ids=["before", "later"])
def test_a_subscription_to_a_prefix_gets_nothing_of_them(
    admin: psycopg.Connection, reader: psycopg.Connection, is_there: bool
) -> None:
    if is_there:
        make_own(admin)
    for session, who in ((admin, "a"), (reader, "r")):
        call(session, "subscribe", f"{who}_all", "*")
        call(session, "subscribe", f"{who}_prefix", "p*")
        call(session, "subscribe", f"{who}_filter", "pg*")
        call(session, "subscribe", f"{who}_some", "p*", filter="n <> 5")
    if not is_there:
        make_own(admin)
    use(admin)
    for session, who in ((admin, "a"), (reader, "r")):
        assert received(session, f"{who}_filter") == []
        for name in ("all", "prefix", "some"):
            assert received(session, f"{who}_{name}") == ["price"], (who, name)
    assert {tuple(row[1:]) for row in rows(admin, _STATES) if row[0][1] == "_"} == {("active", None)}


@pytest.mark.parametrize("is_there", [True, False], ids=["before", "later"])
def test_who_asks_for_them_gets_what_they_may_see(
    admin: psycopg.Connection, reader: psycopg.Connection, is_there: bool
) -> None:
    if is_there:
        make_own(admin)
    call(admin, "subscribe", "own", "pgps_*")
    call(reader, "subscribe", "others", "pgps_*", filter="verb <> 'x'")
    call(reader, "subscribe", "misfit", "pgps_*", filter="n <> 5")
    if not is_there:
        make_own(admin)
    use(admin)
    assert received(admin, "own") == ["pgps_spool"]
    assert received(reader, "others") == []
    # Nor is anything said of types that they may not see.
    assert {row[1:] for row in rows(reader, _STATES)} == {("active", None)}


@pytest.mark.parametrize("mode", ["queued", "direct"])
@pytest.mark.parametrize("is_there", [True, False], ids=["before", "later"])
def test_a_registration_for_a_prefix_stands_for_none_of_them(
    admin: psycopg.Connection, connect: Connect, own_database: str, mode: str, is_there: bool
) -> None:
    if is_there:
        make_own(admin)
    client = Client(connect(dsn=own_database), "desk")
    client.register("p*", mode)
    if not is_there:
        make_own(admin)
    rows(admin, "insert into pgps_internal.unmet (holders) values ('{}')")
    use(admin)
    names = "select t.name from pgps_internal.event_type t join pgps_internal.{} using (type_id)"
    assert column(admin, names.format("registration_type")) == ["price"]
    assert set(column(admin, names.format("member"))) <= {"price", "pgps_uow"}
    client.listen()
    use(admin)
    if mode == "direct":
        price = value(admin, "select type_id from pgps_internal.event_type where name = 'price'")
        assert {note.split()[0] for note in client.notes(waits=True)} == {str(price)}


def test_what_had_joined_them_leaves_them_when_the_code_is_applied(
    admin: psycopg.Connection, reader: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    make_own(admin)
    client = Client(connect(dsn=own_database), "desk")
    for mode in ("queued", "direct"):
        client.register({"queued": "p*", "direct": "pg*"}[mode], mode)
    rows(admin, "create function f(record) returns void language plpgsql as 'begin end'")
    call(admin, "subscribe", "kept", "pgps_*")
    call(admin, "subscribe", "one", "p*")
    call(admin, "subscribe", "shared", "*", handler="any")
    call(admin, "subscribe", "called", "*", execute="f(record)")
    call(reader, "subscribe", "filtered", "p*", filter="n <> 5")
    rows(
        admin,
        """
        select pgps_internal.join_type(s, t, 'now') from pgps_internal.subscription s, pgps_internal.event_type t
        where s.is_pattern and s.filter is null and s.name <> 'kept' and t.name = 'pgps_spool';
        insert into pgps_internal.registration_type
        select r.registration_id, t.type_id from pgps_internal.registration r, pgps_internal.event_type t
        where t.name = 'pgps_spool';
        select pgps_internal.add_feature(type_id, 'registration'), pgps_internal.refresh_direct(type_id)
        from pgps_internal.event_type where name = 'pgps_spool';
        select pgps_internal.expect_type(s, t) from pgps_internal.subscription s, pgps_internal.event_type t
        where s.name = 'filtered' and t.name = 'pgps_spool';
        update pgps_internal.subscription set last_error = 'event type "pgps_spool": column "n" does not exist'
        where name = 'filtered'
        """,
    )
    use(admin)
    rows(admin, _REBUILD.read_text())
    assert {row[1:] for row in rows(reader, _STATES)} == {("active", None)}
    for name in ("one", "shared"):
        assert received(admin, name) == ["price"]
    assert received(admin, "kept") == ["pgps_spool"]
    members = """
        select s.name from pgps_internal.{} m join pgps_internal.event_type t using (type_id)
        join pgps_internal.subscription s using (subscription_id) where t.name = 'pgps_spool'
    """
    assert column(admin, members.format("member")) == ["kept"]
    for table in ("joining", "share", "failure", "late_type"):
        assert column(admin, members.format(table)) == []
    assert value(admin, "select count(*) from pg_proc where proname ~ '^callback_[0-9]+_[0-9]+$'") == 1
    use(admin)
    assert received(admin, "one") == ["price", "price"]
    rows(admin, "call pgps.run_subscribers()")
    assert column(admin, "select count(*) from pgps.exceptions") == [0]
