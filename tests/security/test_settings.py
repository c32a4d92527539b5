"""Settings named pgps.* belong to whoever has the session: forged, they hurt nobody but the forger."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, endpoint, publish, queue, quoted, refused, rows, value
from tests.fix_db import Connect
from tests.security.conftest import Mallory


@pytest.fixture
def publisher(mallory: Mallory) -> psycopg.Connection:
    """Mallory as a publisher of the event type."""
    call(mallory.connection, "advertise", quoted(mallory.event_type))
    return mallory.connection


def log_of(mallory: Mallory) -> int:
    return int(
        value(
            mallory.admin, "select log::oid::bigint from pgps_internal.event_type where name = %s", [mallory.event_type]
        )
    )


def received(mallory: Mallory, subscription: str) -> list[int]:
    """Dispatch; return what a subscription of the superuser gets."""
    rows(mallory.admin, "select pgps.dispatch()")
    return [p["n"] for p in column(mallory.admin, "select payload from pgps.receive(%s)", [subscription])]


@pytest.mark.parametrize("setting", ["pgps.publisher", "pgps.act_as"])
def test_nobody_publishes_in_the_name_of_another(mallory: Mallory, publisher: psycopg.Connection, setting: str) -> None:
    for local in (False, True):
        rows(publisher, "begin")
        rows(publisher, "select set_config(%s, %s, %s)", [setting, "postgres", local])
        publish(publisher, mallory.event_type, 1)
        rows(publisher, "commit")
    assert set(column(mallory.admin, f"select publisher from {queue(mallory.event_type, 'in')}")) == {mallory.role}


def test_a_forged_publisher_does_not_stand_in_for_an_advertisement(mallory: Mallory) -> None:
    rows(mallory.connection, "set pgps.publisher = 'postgres'; set pgps.act_as = 'postgres'")
    with refused("55000", "advertised"):
        publish(mallory.connection, mallory.event_type, 1)


def test_forged_settings_of_one_session_change_no_other(
    mallory: Mallory, publisher: psycopg.Connection, name: Callable[..., str]
) -> None:
    found = name("s")
    call(mallory.admin, "subscribe", found, quoted(mallory.event_type))
    for setting in (
        "pgps.sealed",
        "pgps.reliability",
        "pgps.raiser",
        "pgps.incarnation",
        "pgps.publisher",
        "pgps.act_as",
    ):
        rows(publisher, "select set_config(%s, '1', false)", [setting])
    publish(publisher, mallory.event_type, 1)
    publish(mallory.admin, mallory.event_type, 2)
    assert received(mallory, found) == [1, 2]
    assert received(mallory, found) == [1, 2]


def test_a_forged_incarnation_repeats_and_loses_nothing(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    found, worker = name("s"), connect(role("worker", "pgps_worker"))
    call(mallory.admin, "subscribe", found, quoted(mallory.event_type))
    for number in (1, 2, 3):
        publish(mallory.admin, mallory.event_type, number)
        rows(worker, "select set_config('pgps.incarnation', %s, false)", [str(number)])
        rows(worker, "select pgps.dispatch()")
    assert received(mallory, found) == [1, 2, 3]
    assert value(mallory.admin, "select count(distinct incarnation) from pgps_internal.batch") == 1


def test_extreme_numbers_of_a_producer_do_not_stop_dispatch(
    mallory: Mallory, publisher: psycopg.Connection, name: Callable[..., str]
) -> None:
    found = name("s")
    call(mallory.admin, "subscribe", found, quoted(mallory.event_type))
    numbers = [9223372036854775807, -9223372036854775808, 0, 9223372036854775807, 9223372036854775806]
    for place, number in enumerate(numbers):
        rows(
            publisher,
            f"insert into {endpoint(mallory.event_type)} (n, _producer, _producer_seq) values (%s, 'p', %s)",
            [place, number],
        )
    publish(mallory.admin, mallory.event_type, 9)
    assert received(mallory, found) == [0, 1, 2, 4, 9]
    rows(
        publisher,
        f"insert into {endpoint(mallory.event_type)} (n, _producer, _producer_seq) values (5, 'p', %s)",
        [numbers[0]],
    )
    assert received(mallory, found) == [0, 1, 2, 4, 9]


def test_used_up_event_ids_harm_nobody(mallory: Mallory, name: Callable[..., str]) -> None:
    found = name("s")
    call(mallory.admin, "subscribe", found, quoted(mallory.event_type))
    oid = value(mallory.admin, "select 'pgps_internal.event_id_seq'::regclass::oid")
    publish(mallory.admin, mallory.event_type, 1)
    rows(mallory.connection, f"select max(nextval({oid}::regclass)) from generate_series(1, 70000)")
    publish(mallory.admin, mallory.event_type, 2)
    assert received(mallory, found) == [1, 2]
    with refused("42501"):
        rows(mallory.connection, f"select setval({oid}::regclass, 1)")
