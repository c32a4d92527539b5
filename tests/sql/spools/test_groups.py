"""Members of a process group: play-through, each gets all, joining, leaving, crashing, coming back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.fix_broker import call, meanwhile, refused, rows, value
from tests.fix_db import Connect, wait_until
from tests.fix_spools import Member, Spool

Name = Callable[..., str]
Join = Callable[..., Member]


@pytest.fixture
def join(connect: Connect, spool: Spool, name: Name) -> Iterator[Join]:
    """Make members: `join(replay=True)`; a name given again is the same client, in a new session."""
    made: list[str] = []

    def joined(member: str | None = None, **options: object) -> Member:
        made.append(member or name("member"))
        return Member(connect(), spool, made[-1], **options)

    yield joined
    for client in set(made):
        rows(spool.connection, "delete from pgps_internal.client where name = %s", [client])


def crash(member: Member, spool: Spool) -> None:
    """End a member's session as a crash does, and wait until the server has noticed."""
    pid = member.connection.info.backend_pid
    rows(spool.connection, "select pg_terminate_backend(%s)", [pid])
    gone = "select not exists (select from pg_stat_activity where pid = %s)"
    wait_until(lambda: value(spool.connection, gone, [pid]))


def test_each_member_gets_all_in_order(spool: Spool, join: Join) -> None:
    members = [join() for _ in range(3)]
    spool.spool(1, 2)
    spool.spool(3)
    for member in members:
        assert member.received() == [(1, 1, False), (2, 2, False), (3, 3, False)]
        assert member.received(2) == [(1, 1, False), (2, 2, False)]
        assert member.take(2) == [1, 2]
        assert member.take() == [3]
        assert member.take() == []


def test_a_group_that_joins_without_replay_gets_what_is_spooled_from_then_on(spool: Spool, join: Join) -> None:
    spool.spool(1)
    member = join()
    assert member.take() == []
    spool.spool(2)
    assert member.take() == [2]
    later = join()
    spool.spool(3)
    assert later.take() == [3]
    assert member.take() == [3]


def test_a_group_is_operational_while_a_member_is_connected(spool: Spool, join: Join) -> None:
    state = ("members", "operational")
    assert spool.standing(*state) == (0, False)
    first, second = join(), join()
    assert spool.standing(*state) == (2, True)
    first.leave()
    assert spool.standing(*state) == (1, True)
    with refused("55000", "is not a member", "join_group"):
        first.take()
    crash(second, spool)
    assert spool.standing(*state) == (0, False)
    present = "select present from pgps.group_members where group_name = %s"
    assert rows(spool.connection, present, [spool.name]) == [(False,), (False,)]
    second = join(second.name)
    assert spool.standing(*state) == (1, True)
    second.connection.close()


def test_what_was_received_comes_again_until_it_is_acknowledged(spool: Spool, join: Join) -> None:
    member = join()
    spool.spool(1, 2, 3)
    first, second, third = member.ids()
    assert member.ack(second) == 2
    assert member.ack(first) == 0
    assert member.received() == [(3, 3, False)]
    assert member.ack() == 1
    assert member.ack(third) == 0
    (fourth,) = spool.spool(4)
    with refused("22023", str(fourth), "receive_spooled"):
        member.ack(fourth)
    with refused("22023", "12345678901"):
        member.ack(12345678901)
    assert member.take() == [4]


def test_an_acknowledgement_rolls_back_with_its_transaction(spool: Spool, join: Join) -> None:
    member = join()
    spool.spool(1)
    with member.connection.transaction(force_rollback=True):
        assert member.take() == [1]
    assert member.take() == [1]


def test_a_member_that_crashed_comes_back_with_what_it_had_not_acknowledged(spool: Spool, join: Join) -> None:
    member = join()
    spool.spool(1, 2, 3)
    assert member.take(1) == [1]
    assert len(member.received()) == 2
    crash(member, spool)
    spool.spool(4)
    again = join(member.name, replay=True)
    assert again.take() == ["|", 2, 3, 4]
    spool.pointer(1)
    crash(again, spool)
    once_more = join(member.name, replay=True)
    assert once_more.take() == [[1], "|"]


def test_a_member_that_comes_back_without_replay_begins_with_what_is_new(spool: Spool, join: Join) -> None:
    member = join()
    spool.spool(1)
    member.leave()
    spool.spool(2)
    member.join()
    spool.spool(3)
    assert member.take() == [3]
    # What it has passed over is not acknowledged.
    member.leave()
    member.join(replay=True)
    assert member.take() == ["|", 1, 2]


def test_play_through_waits_until_the_member_is_ready(spool: Spool, join: Join) -> None:
    spool.spool(1, 2)
    spool.pointer(1)
    member = join(replay=True, ready=False)
    assert member.take() == [[1], "|"]
    assert member.take() == []
    call(member.connection, "group_ready", spool.name, member.name)
    assert member.take() == [2]


def test_play_through_can_be_switched_off_and_on(spool: Spool, join: Join) -> None:
    member = join()
    spool.call("spool_play_through", False)
    spool.spool(1)
    assert member.take() == []
    spool.call("spool_play_through", True)
    assert member.take() == [1]
    with refused("22023", "null"):
        spool.call("spool_play_through", None)


def test_expired_messages_reach_nobody(spool: Spool, join: Join) -> None:
    member = join()
    spool.spool(1, expires="2000-01-01")
    spool.spool(2, expires="infinity")
    spool.spool(3)
    assert member.take() == [2, 3]
    assert list(spool.contents()) == [1, 2, 3]


def test_a_checkpoint_is_not_played_through(spool: Spool, join: Join) -> None:
    member = join()
    spool.spool(1)
    spool.checkpoint(2)
    spool.checkpoint(3, prepend=True)
    spool.spool(4)
    assert member.take() == [1, 4]


def test_only_members_that_are_clients_of_the_caller_receive(
    connect: Connect, role: Callable[..., str], spool: Spool, join: Join, name: Name
) -> None:
    member = join()
    alice = role("alice")
    other = connect(alice)
    with refused("42501", "may not replay"):
        call(other, "join_group", spool.name, member.name)
    call(spool.connection, "grant_spool", spool.name, "replay", alice)
    with refused("42501", "belongs to role"):
        call(other, "join_group", spool.name, member.name)
    with refused("42704", "does not exist"):
        call(other, "join_group", spool.name, name("nobody"))
    own = name("own")
    rows(other, "select * from pgps.connect_client(%s)", [own])
    with refused("55000", "is not a member", "join_group"):
        rows(other, "select * from pgps.receive_spooled(%s, %s)", [spool.name, own])
    with refused("55000", "is not a member"):
        call(other, "leave_group", spool.name, own)
    with refused("22023", "max_messages"):
        member.received(0)
    rows(other, "select pgps.drop_client(%s)", [own])


def test_behind_a_pooler_a_member_names_its_session(connect: Connect, spool: Spool, join: Join) -> None:
    member = join()
    spool.spool(1)
    other = connect()
    with refused("08003", "not connected in this database session"):
        rows(other, "select * from pgps.receive_spooled(%s, %s)", [spool.name, member.name])
    found = rows(
        other,
        "select id, message from pgps.receive_spooled(%s, %s, session => %s)",
        [spool.name, member.name, member.session],
    )
    assert [message for _, message in found] == [1]
    assert call(other, "ack_spooled", spool.name, member.name, found[0][0], session=member.session) == 1
    with refused("08003", "has ended"):
        call(other, "leave_group", spool.name, member.name, session=member.session - 1)
    call(other, "leave_group", spool.name, member.name, session=member.session)


def test_without_an_id_what_the_newest_call_returned_is_acknowledged(spool: Spool, join: Join) -> None:
    member = join()
    spool.spool(1, 2, 3, 4)
    ids = member.ids()
    assert member.ack(ids[0]) == 1
    assert [message for _, message, _ in member.received(1)] == [2]
    assert member.ack() == 1
    assert member.ack() == 0
    assert [message for _, message, _ in member.received()] == [3, 4]
    assert member.received(1) == [(3, 3, False)]
    # An id reaches all that was ever returned.
    assert member.ack(ids[3]) == 2
    assert member.ack() == 0
    spool.spool(5, 6)
    assert len(member.received(1)) == 1
    assert len(member.received()) == 2
    assert member.ack() == 2
    assert member.take() == []


def test_without_an_id_nothing_is_acknowledged_when_the_newest_call_returned_nothing(spool: Spool, join: Join) -> None:
    member = join()
    spool.spool(1, 2)
    ids = member.ids()
    spool.call("spool_play_through", False)
    assert member.received() == member.received() == []
    assert member.ack() == 0
    spool.call("spool_play_through", True)
    assert member.received(1) == [(1, 1, False)]
    spool.call("spool_play_through", False)
    assert member.received() == []
    assert member.ack() == 0
    assert member.ack(ids[0]) == 1
    spool.call("spool_play_through", True)
    assert member.take() == [2]


def test_without_an_id_a_part_of_a_replay_is_acknowledged(spool: Spool, join: Join) -> None:
    spool.spool(1, 2, 3)
    spool.pointer(2)
    member = join(replay=True)
    assert len(member.received()) == 4
    for count, left in ((1, 3), (2, 1)):
        assert len(member.received(count)) == count
        assert member.ack() == count
        assert len(member.received()) == left
    assert member.take() == [3]


def test_what_was_discarded_meanwhile_does_not_have_more_acknowledged(spool: Spool, join: Join) -> None:
    member = join()
    spool.spool(1, 2, 3, 4)
    assert len(member.received()) == 4
    assert len(member.received(2)) == 2
    spool.discard(seqn="[2,2]")
    spool.dispatch()
    assert member.ack() <= 2
    assert member.take() == [3, 4]


def test_two_calls_for_one_member_take_turns(connect: Connect, spool: Spool, join: Join) -> None:
    member = join()
    spool.spool(1, 2)
    other = connect()
    member.connection.autocommit = False
    assert len(member.received(1)) == 1

    def second() -> None:
        rows(
            other,
            "select * from pgps.receive_spooled(%s, %s, session => %s)",
            [spool.name, member.name, member.session],
        )

    with meanwhile(spool.connection, other, second):
        member.connection.commit()
    member.connection.autocommit = True


@pytest.mark.parametrize("ordering", ["fbcast", "cbcast", "abcast", "gbcast"])
def test_members_that_answer_each_other_see_one_order_with_answers_behind_questions(
    spool: Spool, join: Join, connect: Connect, ordering: str
) -> None:
    """Each member answers what it gets of round 0; all see everything in one order, causes before effects."""
    members = [join() for _ in range(3)]
    seen: list[list[tuple[str, int, int]]] = [[] for _ in members]
    sender = connect()

    def run(place: int) -> None:
        member = members[place]
        while len(seen[place]) < 5 + 5 * len(members):
            query = "select message, id from pgps.receive_spooled(%s, %s, 3)"
            with member.connection.transaction():
                for message, delivery in rows(member.connection, query, [spool.name, member.name]):
                    who, number, cause = message
                    seen[place].append((who, number, cause))
                    member.ack(delivery)
                    if who == "source":
                        answer = f'["{place}", {number}, {number}]'
                        call(member.connection, "spool", spool.name, 1, answer, ordering=ordering)
            rows(member.connection, "select pgps.dispatch()")

    for n in range(5):
        call(sender, "spool", spool.name, 1, f'["source", {n}, -1]', ordering=ordering)
    with ThreadPoolExecutor(len(members)) as pool:
        list(pool.map(run, range(len(members))))
    assert seen[0] == seen[1] == seen[2]
    for who in ("source", "0", "1", "2"):
        assert [number for sent_by, number, _ in seen[0] if sent_by == who] == list(range(5))
    for place, (_, _, cause) in enumerate(seen[0]):
        assert cause == -1 or ("source", cause, -1) in seen[0][:place]


def test_members_are_told(spool: Spool, join: Join, admin: psycopg.Connection) -> None:
    member = join()
    channel = value(admin, "select channel from pgps.spools where name = %s", [spool.name])
    member.connection.execute(f"listen {channel}".encode())
    spool.spool(1)
    assert list(member.connection.notifies(timeout=60, stop_after=1))
