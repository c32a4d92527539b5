"""Who had a message, when those are gone who did: clients that were dropped, contact points that were left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from pgps.testing.clock import Clock
from tests.fix_broker import call, refused, rows, value
from tests.fix_db import Connect
from tests.fix_spools import Member, Spool
from tests.links.conftest import brokers  # noqa: F401 - a fixture
from tests.links.rig import Broker
from tests.sql.spools.test_long_haul import Brokers, Haul, contents, dispatch

Role = Callable[..., str]

_NOWHERE = "host=127.0.0.1 port=1 dbname=none"


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    return connect(dsn=own_database)


@pytest.fixture
def own(broker: psycopg.Connection) -> Spool:
    call(broker, "create_spool", "s")
    return Spool(broker, "s")


def outlived_marks(connection: psycopg.Connection) -> None:
    """Reclaim the segments of the ledgers in which the marks are that were written so far."""
    for ledger in ("spool_mark", "network_mark"):
        rows(connection, f"select setval('pgps_internal.{ledger}_id_seq', 16384 * 2)")
    value(connection, "select pgps.reclaim(100)")
    for ledger in ("spool_mark", "network_mark"):
        assert value(connection, f"select count(*) from pgps_internal.{ledger}_0") == 0


def test_what_a_member_had_is_not_taken_back_when_its_client_was_dropped(
    own_database: str, connect: Connect, own: Spool
) -> None:
    members = [Member(connect(dsn=own_database), own, name) for name in ("a", "b", "c")]
    first, second, third = own.spool(1, 2, 3)
    assert members[1].take(1) == [1]
    assert len(members[0].received(2)) == 2
    for member in members:
        call(own.connection, "disconnect_client", member.name, session=member.session)
        call(own.connection, "drop_client", member.name)
    outlived_marks(own.connection)
    assert [call(own.connection, "spool_cancel", made) for made in (first, second, third)] == [False, False, True]
    own.dispatch()
    # What follows is another matter, also for a client of that name.
    (later,) = own.spool(4)
    again = Member(connect(dsn=own_database), own, "a", replay=True)
    assert call(own.connection, "spool_cancel", later) is True
    assert again.take() == ["|", 1, 2]


def test_a_spool_that_is_dropped_leaves_no_mark_of_its_members(own_database: str, connect: Connect, own: Spool) -> None:
    member = Member(connect(dsn=own_database), own, "a")
    own.spool(1)
    assert member.take() == [1]
    call(own.connection, "drop_client", "a")
    call(own.connection, "drop_spool", "s")
    outlived_marks(own.connection)
    assert value(own.connection, "select count(*) from pgps_internal.spool_mark") == 0


@pytest.fixture
def norway(brokers: Brokers) -> Broker:  # noqa: F811
    return brokers(1)[0]


@pytest.fixture
def sif(brokers: Brokers, norway: Broker) -> Broker:  # noqa: F811
    """A contact point of network "sweden", which norway knows."""
    made = brokers(1)[0]
    call(norway.admin, "create_network", "sweden", [made.dsn, _NOWHERE])
    return made


def test_what_a_contact_point_had_is_not_taken_back_when_it_was_left_out(norway: Broker, sif: Broker) -> None:
    had = call(norway.admin, "spool", "checker", 1, "1", network="sweden")
    haul = Haul(norway.admin, sif.admin)
    assert haul.open()
    haul.carry()
    assert contents(sif.admin) == [(1, 1)]
    waits = call(norway.admin, "spool", "checker", 1, "2", network="sweden")
    dispatch(norway.admin)
    call(norway.admin, "alter_network", "sweden", [_NOWHERE])
    outlived_marks(norway.admin)
    assert [call(norway.admin, "spool_cancel", made) for made in (had, waits)] == [False, True]


@pytest.fixture
def clock(norway: Broker) -> Iterator[Clock]:
    made = Clock(norway.admin)
    made.set("2026-03-01 12:00+00")
    yield made
    made.close()


def test_what_expired_on_the_way_has_not_arrived(norway: Broker, sif: Broker, clock: Clock) -> None:
    at_one = clock.now().replace(hour=13)
    haul = Haul(norway.admin, sif.admin)
    assert haul.open()
    in_time = call(norway.admin, "spool", "checker", 1, "1", network="sweden", expires=at_one)
    haul.carry()
    late = call(norway.admin, "spool", "checker", 1, "2", network="sweden", expires=at_one)
    dispatch(norway.admin)
    assert [call(norway.admin, "spool_inquire", made) for made in (in_time, late)] == [1, 0]
    clock.advance("1 hour")
    assert call(norway.admin, "spool_inquire", late) is None
    call(norway.admin, "spool", "checker", 1, "3", network="sweden")
    haul.carry()
    assert [seqn for seqn, _ in contents(norway.admin, "checker")] == []
    assert [message for _, message in contents(sif.admin)][-1] == 3
    assert [call(norway.admin, "spool_inquire", made) for made in (in_time, late)] == [1, None]


@pytest.mark.parametrize("network", [None, "sweden"])
@pytest.mark.parametrize("is_dispatched", [False, True])
def test_a_role_of_the_same_name_takes_nothing_back_that_a_dropped_one_has_spooled(
    own_database: str, connect: Connect, own: Spool, role: Role, network: str | None, is_dispatched: bool
) -> None:
    call(own.connection, "create_network", "sweden", [_NOWHERE])
    alice = role("alice")
    call(own.connection, "grant_spool", "s", "spool", alice)
    session = connect(alice, dsn=own_database)
    taken, left = (call(session, "spool", "s", 1, "1", network=network) for _ in range(2))
    if is_dispatched:
        own.dispatch()
    assert call(session, "spool_cancel", taken) is True
    assert call(session, "spool_inquire", left) == 0
    session.close()
    rows(own.connection, f"drop role {alice}")
    rows(own.connection, f"create role {alice}")
    namesake = connect(dsn=own_database)
    rows(namesake, f"set role {alice}")
    with refused("42501", alice):
        call(namesake, "spool_cancel", left)
    assert call(namesake, "spool_inquire", left) is None
    assert call(own.connection, "spool_cancel", left) is True
