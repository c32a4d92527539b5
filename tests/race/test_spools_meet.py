"""Calls about spools that meet others: what comes in between counts as of the moment when a call takes effect."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from tests.fix_broker import call, meanwhile, refused, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect
from tests.fix_spools import Member, Spool

Role = Callable[..., str]
Join = Callable[[str], Member]


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    return connect(dsn=own_database)


@pytest.fixture
def session(own_database: str, connect: Connect) -> psycopg.Connection:
    return connect(dsn=own_database)


@pytest.fixture
def holder(own_database: str, connect: Connect) -> psycopg.Connection:
    """A session whose transaction stays open."""
    return connect(dsn=own_database, autocommit=False)


@pytest.fixture
def spool(broker: psycopg.Connection) -> Spool:
    call(broker, "create_spool", "s")
    return Spool(broker, "s")


@pytest.fixture
def join(own_database: str, connect: Connect, spool: Spool) -> Join:
    """Make members of the group, each with a connection of its own."""
    return lambda name: Member(connect(dsn=own_database), spool, name)


@pytest.fixture
def sweden(broker: psycopg.Connection) -> str:
    """A network that is nowhere."""
    call(broker, "create_network", "sweden", ["host=127.0.0.1 port=1 dbname=none"])
    return "sweden"


def fill_and_discard(spool: Spool) -> list[int]:
    """Give reclaim something to do; return the ids of the messages."""
    messages = spool.spool(*range(40))
    spool.pointer(40)
    spool.discard()
    return messages


def test_a_network_is_not_dropped_while_reclaim_copies_what_waits_for_it(
    broker: psycopg.Connection, session: psycopg.Connection, holder: psycopg.Connection, spool: Spool, sweden: str
) -> None:
    spool.spool(1, 2, 3, network=sweden)
    fill_and_discard(spool)
    assert value(holder, "select pgps.reclaim()") > 0
    with (
        refused("2BP01", "3 messages", sweden),
        meanwhile(broker, session, lambda: call(session, "drop_network", sweden)),
    ):
        holder.commit()


def test_a_network_is_dropped_in_no_transaction_that_does_not_see_what_waits(
    holder: psycopg.Connection, spool: Spool, sweden: str
) -> None:
    rows(holder, "set transaction isolation level repeatable read")
    rows(holder, "select count(*) from pgps.networks")
    spool.spool(1, network=sweden)
    with refused("25001"):
        call(holder, "drop_network", sweden)


def test_two_who_alter_a_network_do_not_mix_its_contact_points(
    broker: psycopg.Connection, session: psycopg.Connection, holder: psycopg.Connection, sweden: str
) -> None:
    call(holder, "alter_network", sweden, ["dbname=a", "dbname=b"])
    with meanwhile(broker, session, lambda: call(session, "alter_network", sweden, ["dbname=c"])):
        holder.commit()
    assert value(broker, "select contacts from pgps.networks") == ["dbname=c"]


def test_members_see_what_was_stored_while_another_slot_was_made_the_next(
    broker: psycopg.Connection, session: psycopg.Connection, holder: psycopg.Connection, spool: Spool, join: Join
) -> None:
    spool.spool(1)
    m = join("m")
    rows(broker, "update pgps_internal.spool_slot set begun_in = null where slot = 8")
    rows(holder, "select from pgps_internal.spool_slot where slot = 8 for update")
    call(broker, "spool", "s", 1, "2")
    with meanwhile(broker, session, lambda: call(session, "dispatch")):
        # As pgps_internal.change_slots does when the slot that is written is full.
        rows(broker, "update pgps_internal.spool_store set logged_slot = 1")
        holder.commit()
    assert m.take() == [2]


def set_aside(session: psycopg.Connection, holder: psycopg.Connection) -> None:
    """Dispatch while the store is locked, as reclaim has it, for longer than the dispatcher waits."""
    rows(holder, "lock table pgps_internal.spool_slot in access exclusive mode")
    rows(session, "set lock_timeout = '200ms'")
    for _ in range(3):
        call(session, "dispatch", 1)
    assert value(session, "select count(*) from pgps_internal.set_aside where batch_id is null")
    holder.commit()


def test_what_was_set_aside_still_counts_as_asked_for(
    broker: psycopg.Connection, session: psycopg.Connection, holder: psycopg.Connection, spool: Spool
) -> None:
    spool.spool(1, 2)
    call(broker, "spool_set_replay_pointer", "s", 2)
    message = call(broker, "spool", "s", 1, "3")
    set_aside(session, holder)
    with refused("22023", "from 2 to 1"):
        call(broker, "spool_set_replay_pointer", "s", 1)
    assert (call(broker, "spool_getseqn", message), call(broker, "spool_inquire", message)) == (None, 0)
    assert call(broker, "spool_cancel", message)


def test_a_message_is_cancelled_that_was_set_aside_in_another_window(
    own_database: str,
    connect: Connect,
    broker: psycopg.Connection,
    session: psycopg.Connection,
    holder: psycopg.Connection,
    spool: Spool,
    join: Join,
) -> None:
    spool.spool(0)
    m = join("m")
    first = connect(dsn=own_database, autocommit=False)
    rows(first, "select pg_current_xact_id()")
    message = call(broker, "spool", "s", 1, "1")
    assert call(first, "spool_cancel", message)
    first.commit()
    set_aside(session, holder)
    call(broker, "resume_event_type", "pgps_spool")
    spool.dispatch()
    call(broker, "spool", "s", 1, "2")
    spool.dispatch()
    assert m.take() == [2]


@pytest.fixture
def user(broker: psycopg.Connection, role: Role, spool: Spool) -> str:
    """A role that may replay the spool."""
    made: str = role("user")
    call(broker, "grant_spool", "s", "replay", made)
    return made


@pytest.mark.parametrize("function", ["receive_spooled", "ack_spooled"])
def test_a_member_whose_right_is_taken_while_it_waits_gets_nothing(
    own_database: str, connect: Connect, broker: psycopg.Connection, spool: Spool, user: str, function: str
) -> None:
    first, second = connect(user, dsn=own_database, autocommit=False), connect(user, dsn=own_database)
    session = Client(first, "m").session
    call(first, "join_group", "s", "m")
    first.commit()
    spool.spool(1)
    rows(first, "select * from pgps.receive_spooled('s', 'm')")
    step = f"select pgps.{function}('s', 'm', session => {session}{', id => null' * (function == 'ack_spooled')})"
    with refused("42501", user), meanwhile(broker, second, lambda: rows(second, step)):
        call(broker, "revoke_spool", "s", "replay", user)
        first.commit()


def test_nobody_replays_whose_right_is_taken_meanwhile(
    own_database: str, connect: Connect, broker: psycopg.Connection, holder: psycopg.Connection, user: str
) -> None:
    second = connect(user, dsn=own_database)
    call(holder, "spool_replay", "s")
    with refused("42501", user), meanwhile(broker, second, lambda: call(second, "spool_replay", "s")):
        call(broker, "revoke_spool", "s", "replay", user)
        holder.commit()


def test_nobody_cancels_whose_right_is_taken_meanwhile(
    own_database: str,
    connect: Connect,
    broker: psycopg.Connection,
    holder: psycopg.Connection,
    spool: Spool,
    user: str,
    join: Join,
) -> None:
    join("m")
    one, other = spool.spool(1, 2)
    second = connect(user, dsn=own_database)
    assert call(holder, "spool_cancel", other)
    with refused("42501", user), meanwhile(broker, second, lambda: call(second, "spool_cancel", one)):
        call(broker, "revoke_spool", "s", "replay", user)
        holder.commit()


@pytest.mark.parametrize("function", ["leave_group", "group_ready"])
def test_a_program_does_not_move_the_member_of_the_one_that_took_over(
    broker: psycopg.Connection, session: psycopg.Connection, holder: psycopg.Connection, spool: Spool, function: str
) -> None:
    Member(session, spool, "m", ready=False)
    Member(holder, spool, "m", ready=False)
    with refused("08003", "m"), meanwhile(broker, session, lambda: call(session, function, "s", "m")):
        holder.commit()
    assert rows(broker, "select present, ready from pgps.group_members") == [(True, False)]


def test_a_replay_has_what_is_dispatched_while_it_begins(
    broker: psycopg.Connection, session: psycopg.Connection, holder: psycopg.Connection, spool: Spool, join: Join
) -> None:
    spool.spool(1, 2, 3)
    spool.pointer(1)
    m = join("m")
    call(broker, "spool_set_replay_pointer", "s", 3)
    repeated = []
    # The replay waits for its id.
    rows(holder, "alter sequence pgps_internal.event_id_seq cache 1")
    with meanwhile(broker, session, lambda: repeated.append(call(session, "spool_replay", "s"))):
        spool.dispatch()
        holder.rollback()
    spool.dispatch()
    assert (repeated, m.take()) == ([3], [[1], [2], [3], "|"])


def test_members_that_connect_during_a_transaction_are_present_for_it(
    own_database: str, connect: Connect, holder: psycopg.Connection, spool: Spool, join: Join
) -> None:
    spool.spool(1)
    spool.pointer(1)
    a = join("a")
    rows(holder, "select members from pgps.spools")
    b = join("b")
    [message] = spool.spool(2)
    assert a.take() == [2]
    assert call(holder, "spool_inquire", message) == 0
    call(holder, "spool_replay", "s")
    holder.commit()
    assert (a.take(), b.take()) == ([[1], "|"], [[1], "|", 2])
    rows(holder, "select members from pgps.spools")
    connected = connect(dsn=own_database)
    Client(connected, "c")
    with refused("55006", "c"):
        call(holder, "connect_client", "c")


def test_a_full_spool_counts_what_a_transaction_spooled_before_others_were_dispatched(
    broker: psycopg.Connection, holder: psycopg.Connection, spool: Spool
) -> None:
    call(broker, "spool_advise", "s", max_messages=2)
    call(broker, "create_spool", "other")
    spool.dispatch()
    for n in (1, 2):
        call(holder, "spool", "s", 1, str(n))
    call(broker, "spool", "other", 1, "1")
    spool.dispatch()
    with refused("54000", "2 messages of 2"):
        call(holder, "spool", "s", 1, "3")


def test_who_has_no_right_keeps_nothing_from_being_reclaimed(
    own_database: str, connect: Connect, broker: psycopg.Connection, spool: Spool, role: Role
) -> None:
    messages = fill_and_discard(spool)
    stranger = connect(role("stranger"), dsn=own_database, autocommit=False)
    assert call(stranger, "spool_getseqn", messages[0]) == 0
    assert call(stranger, "spool_inquire", messages[0]) is None
    held = "select count(*) from pg_locks l where l.pid = %s and l.relation = 'pgps_internal.spool_slot'::regclass"
    assert value(broker, held, [stranger.info.backend_pid]) == 0
    assert value(broker, "select pgps.reclaim()") > 0
    with suppress(psycopg.Error):
        stranger.rollback()


def test_a_message_is_cancelled_though_a_member_is_always_at_work(
    broker: psycopg.Connection, session: psycopg.Connection, spool: Spool, join: Join
) -> None:
    busy, idle = (join(name) for name in ("a", "b"))
    spool.spool(*range(100))
    *_, last = spool.spool(100)
    for m in (busy, idle):
        rows(m.connection, "set lock_timeout = '300ms'")
        m.received(1)
        m.connection.autocommit = False
    answers: list[bool] = []
    busy.received(1)
    with meanwhile(broker, session, lambda: answers.append(call(session, "spool_cancel", last))):
        for _ in range(40):
            # It begins before the other one ends, unless it has to wait for too long.
            try:
                idle.received(1)
            except psycopg.errors.LockNotAvailable:
                idle.connection.rollback()
            busy.connection.rollback()
            busy, idle = idle, busy
            if answers:
                break
        has_ended = bool(answers)
        for m in (busy, idle):
            m.connection.rollback()
    assert (has_ended, answers) == (True, [True])
