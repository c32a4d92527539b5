"""Names that pgps needs for itself: nobody takes one beforehand, and who had one before keeps nobody from anything."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, refused, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect
from tests.links.conftest import brokers
from tests.links.rig import Broker
from tests.links.test_hostile_neighbours import Stranger

__all__ = ["brokers"]

Brokers = Callable[[int], list[Broker]]
Role = Callable[..., str]
SPOOLED = (
    "spool_id integer, verb text, entry integer, message jsonb, keys jsonb, keywords text[], expires timestamptz, "
    "sender text, spooler text, spooled_at timestamptz, value bigint, pattern jsonb"
)
RELAYED = (
    "to_broker text, verb text, client_broker text, conversation bigint, unit bigint, body jsonb, messages bytea[]"
)


@pytest.fixture
def here(brokers: Brokers) -> Broker:
    (made,) = brokers(1)
    make_type(made.admin, "tick")
    rows(made.admin, "grant select on pgps_event.tick to public")
    return made


@pytest.fixture
def mallory(here: Broker, connect: Connect, role: Role) -> psycopg.Connection:
    """Somebody who may make event types, and no superuser."""
    return connect(role("mallory", "pgps_admin"), dsn=here.dsn)


def in_the_way(here: Broker) -> list[tuple[str, str]]:
    found = value(here.admin, "select pgps.health() -> 'in_the_way'")
    return [(one["kind"], one["name"]) for one in found]


def taken_before(here: Broker, kind: str, name: str) -> None:
    """Give something of the administrator's a name, as somebody had it before such names were refused."""
    rows(here.admin, f"update pgps_internal.{kind} set name = %s where name = 'early'", [name])


def described(name: str, attributes: str) -> dict[str, object]:
    told = [dict(zip(("name", "type"), one.strip().split(" ", 1), strict=True)) for one in attributes.split(",")]
    return {"kind": "type", "body": {"name": name, "attributes": told}}


def test_nobody_takes_a_name_that_pgps_needs(here: Broker, mallory: psycopg.Connection, connect: Connect) -> None:
    for name in ("pgps_registration_1", "PGPS_uow", '"pgps_anything"'):
        with refused("42939", "pgps_", "another name"):
            call(mallory, "subscribe", name, "tick")
    for name, attributes in (("pgps_spool", SPOOLED), ("pgps_uow", RELAYED)):
        with refused("42939", "pgps_"):
            call(mallory, "create_event_type", name, attributes)
    with refused("42939", "pgps_"):
        call(mallory, "create_composite_event", "pgps_spool", "tick ; tick")
    call(mallory, "subscribe", "my_pgps_view", "tick")
    call(mallory, "subscribe", "p", "pgps_*")
    # pgps itself takes them.
    call(mallory, "create_spool", "s")
    call(mallory, "relay_services")
    client = Client(connect(dsn=here.dsn), "client")
    assert client.register("tick")["subscription"].startswith("pgps_registration_")
    assert in_the_way(here) == []


def test_who_had_the_names_of_registrations_keeps_nobody_from_registering(here: Broker, connect: Connect) -> None:
    for n in (1, 2, 4):
        call(here.admin, "subscribe", "early", "tick")
        taken_before(here, "subscription", f"pgps_registration_{n}")
    assert in_the_way(here) == [("subscription", f"pgps_registration_{n}") for n in (1, 2, 4)]
    for n in range(2):
        client = Client(connect(dsn=here.dsn), f"client {n}")
        assert client.register("tick")["subscription"] == f"pgps_registration_{(3, 5)[n]}"


def test_who_had_the_type_of_spools_gets_no_messages(here: Broker, mallory: psycopg.Connection) -> None:
    # A superuser may; what makes it the type of spools is more than its name.
    call(here.admin, "create_event_type", "pgps_spool", SPOOLED)
    with refused("42710", "needs for itself", "drop_event_type"):
        call(mallory, "create_spool", "s")
    assert in_the_way(here) == [("event type", "pgps_spool")]
    call(mallory, "drop_event_type", "pgps_spool", cascade=True)
    call(mallory, "create_spool", "s")
    assert call(mallory, "spool", "s", 1, "1") > 0
    assert in_the_way(here) == []


def test_who_had_the_subscription_to_units_keeps_and_loses_nothing(here: Broker, mallory: psycopg.Connection) -> None:
    call(mallory, "subscribe", "early", "tick")
    taken_before(here, "subscription", "pgps_uow")
    assert in_the_way(here) == [("subscription", "pgps_uow")]
    assert value(here.admin, "select pgps.relay_units()") is None
    with refused("42710", "needs for itself", "unsubscribe"):
        call(here.admin, "relay_services")
    call(here.admin, "unsubscribe", "pgps_uow")
    call(here.admin, "relay_services")
    assert in_the_way(here) == []


def test_a_neighbour_brings_no_type_that_pgps_makes_by_itself(here: Broker, connect: Connect, role: Role) -> None:
    stranger = Stranger(here, connect, role("linker", "pgps_link"))
    stranger.take(described("pgps_spool", SPOOLED), described("pgps_uow", SPOOLED), described("pgps_else", RELAYED))
    made = "select t.name from pgps_internal.event_type t where t.name ~ '^pgps_' order by 1"
    assert column(here.admin, made) == []
    why = "select distinct f.difference from pgps_internal.foreign_type f"
    assert all("is for pgps itself" in said for said in column(here.admin, why))
    # What links carry for units of work may pass through, and parts of composite events.
    part = f"pgps_part_{uuid4().hex[:20]}"
    stranger.take(described("pgps_uow", RELAYED), described(part, "n integer"))
    assert column(here.admin, made) == [part, "pgps_uow"]
    warned: list[str] = []
    here.admin.add_notice_handler(lambda notice: warned.append(notice.message_primary or ""))
    call(here.admin, "relay_services")
    assert [str(value(stranger.session, "select session_user")) in one for one in warned] == [True]
    assert in_the_way(here) == []


def test_an_event_type_that_exists_already_says_whom_a_neighbour_has_let_in(
    here: Broker, connect: Connect, role: Role
) -> None:
    linker = role("linker", "pgps_link")
    Stranger(here, connect, linker).take(described("reading", "n integer"))
    with refused("42710", "exists already", linker):
        call(here.admin, "create_event_type", "reading", "n integer")
