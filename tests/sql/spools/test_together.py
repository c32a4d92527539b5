"""Calls that meet: replays, cancellations, members that are busy, rights that go, requests that are not dispatched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, column, meanwhile, refused, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.fix_spools import Member, Spool, pattern_call

Name = Callable[..., str]
Join = Callable[..., Member]


@pytest.fixture
def join(connect: Connect, spool: Spool, name: Name) -> Iterator[Join]:
    """Make members: `join(replay=True)`."""
    made: list[str] = []

    def joined(**options: object) -> Member:
        made.append(name("member"))
        return Member(connect(), spool, made[-1], **options)

    yield joined
    for client in made:
        rows(spool.connection, "delete from pgps_internal.client where name = %s", [client])


def seen(member: Member) -> list[tuple[int, bool]]:
    return [(seqn, in_replay) for seqn, _, in_replay in member.received()]


def test_a_replay_takes_effect_with_the_pointer_that_was_set_before(spool: Spool, join: Join) -> None:
    spool.spool(1, 2, 3, 4)
    call(spool.connection, "spool_set_replay_pointer", spool.name, 2)
    member = join(replay=True)
    assert seen(member) == [], "not before the pointer is set"
    spool.dispatch()
    assert seen(member) == [(1, True), (2, True), (0, False), (3, False), (4, False)]
    member.ack()
    with spool.connection.transaction():
        call(spool.connection, "spool_set_replay_pointer", spool.name, 3)
        call(spool.connection, "spool_set_checkpoint_pointer", spool.name, 2)
        assert spool.replay() == 2
    spool.dispatch()
    assert seen(member) == [(2, True), (3, True), (0, False)]
    member.ack()
    with spool.connection.transaction():
        call(spool.connection, "spool_and_discard", spool.name, 2, '"checkpoint"')
        assert spool.replay() == 1
        call(spool.connection, "spool", spool.name, 1, "6")
    spool.dispatch()
    assert seen(member) == [(5, True), (0, False), (6, False)]


def test_a_replay_that_waits_knows_what_was_there_when_it_was_asked_for(spool: Spool, join: Join) -> None:
    spool.spool(1)
    with spool.connection.transaction():
        call(spool.connection, "spool_set_checkpoint_pointer", spool.name, 1)
        member = join(replay=True)
        assert spool.replay(keywords=["none"]) == 0
        call(spool.connection, "spool_and_discard", spool.name, 2, '"later"')
    spool.dispatch()
    assert member.take() == ["|"], "and the other replay comes next"
    assert seen(member) == [(0, False), (1, False)]


def test_replays_are_handed_out_one_after_the_other(spool: Spool, join: Join) -> None:
    spool.spool(1, 2, 3)
    spool.call("spool_set_replay_pointer", 2)
    member = join()
    assert (spool.replay(seqn="[1,1]"), spool.replay(seqn="[2,2]")) == (1, 1)
    assert seen(member) == [(1, True), (0, False)]
    assert member.ack() == 2
    assert seen(member) == [(2, True), (0, False), (3, False)]


def test_the_replay_of_another_does_not_shorten_that_of_a_member_that_recovers(spool: Spool, join: Join) -> None:
    spool.spool(1, 2, 3, 4)
    spool.call("spool_set_replay_pointer", 3)
    member = join(replay=True)
    assert member.take(1) == [[1]]
    assert spool.replay(seqn="[3,3]") == 1
    assert seen(member) == [(2, True), (3, True), (0, False)]
    member.ack()
    assert seen(member) == [(3, True), (0, False), (4, False)]


def test_what_was_received_before_a_replay_began_comes_again_after_it(spool: Spool, join: Join) -> None:
    spool.spool(1)
    spool.call("spool_set_replay_pointer", 1)
    member = join()
    spool.spool(2)
    ((seqn, _, _),) = member.received()
    had = value(spool.connection, "select id from pgps.spooled_messages where spool = %s and seqn = 2", [spool.name])
    spool.replay()
    assert seqn == 2
    assert len(member.received(1)) == 1
    assert member.ack(had) == 0
    assert seen(member) == [(1, True), (0, False), (2, False)]
    assert member.ack() == 3


def test_a_replay_waits_for_no_member(spool: Spool, join: Join) -> None:
    spool.spool(1, 2)
    spool.call("spool_set_replay_pointer", 1)
    members = [join(replay=True) for _ in range(2)]
    spool.connection.execute("set lock_timeout = '10s'")
    with members[0].connection.transaction(), members[1].connection.transaction():
        for member in members:
            assert len(member.received()) == 3
        assert spool.replay() == 1
        assert pattern_call(members[0].connection, "spool_replay", spool.name) == 1
    spool.connection.execute("reset lock_timeout")


def test_a_cancellation_that_waits_for_a_member_holds_no_other_up(spool: Spool, join: Join, connect: Connect) -> None:
    members = [join() for _ in range(2)]
    (_, second) = spool.spool(1, 2)
    for busy, other in (members, members[::-1]):
        canceller, answers = connect(), []
        busy.connection.autocommit = False
        assert len(busy.received(1)) == 1
        cancel = lambda: answers.append(call(canceller, "spool_cancel", second))  # noqa: B023, E731
        with meanwhile(spool.connection, canceller, cancel):
            other.connection.execute("set lock_timeout = '20s'")
            assert other.received(1)[0][0] == 1
            other.connection.execute("reset lock_timeout")
            busy.connection.rollback()
        busy.connection.autocommit = True
        assert answers == [busy is members[0]]


def test_a_message_that_nobody_can_see_is_cancelled_without_waiting(spool: Spool, join: Join, connect: Connect) -> None:
    member = join()
    spool.spool(1)
    sender = connect(autocommit=False)
    assert call(sender, "spool_cancel", call(sender, "spool", spool.name, 1, "2"))
    member.connection.execute("set lock_timeout = '10s'")
    assert member.take() == [1]
    sender.commit()
    spool.dispatch()
    assert member.take() == []


def test_whoever_may_see_a_spool_sees_whether_its_group_is_there(
    spool: Spool, join: Join, connect: Connect, role: Callable[..., str], admin: psycopg.Connection
) -> None:
    sender, administrator = role("sender"), role("administrator", "pgps_admin")
    call(admin, "grant_spool", spool.name, "spool", sender)
    query = "select members, operational from pgps.spools where name = %s"
    member = join()
    for who in (sender, administrator):
        assert rows(connect(who), query, [spool.name]) == [(1, True)]
    present = "select present from pgps.group_members where group_name = %s"
    assert rows(connect(administrator), present, [spool.name]) == [(True,)]
    call(member.connection, "leave_group", spool.name, member.name)
    assert rows(connect(sender), query, [spool.name]) == [(0, False)]


def test_a_member_without_the_right_is_not_waited_for_and_may_leave(
    spool: Spool, join: Join, connect: Connect, role: Callable[..., str], name: Name, admin: psycopg.Connection
) -> None:
    who = role("member")
    call(admin, "grant_spool", spool.name, "replay", who)
    connection, client = connect(who), name("client")
    rows(connection, "select * from pgps.connect_client(%s)", [client])
    call(connection, "join_group", spool.name, client)
    other = join()
    (request,) = spool.spool(1)
    assert other.take() == [1]
    assert call(admin, "spool_inquire", request) == 0
    call(admin, "revoke_spool", spool.name, "replay", who)
    assert call(admin, "spool_inquire", request) == 1
    with refused("42501", spool.name):
        call(connection, "receive_spooled", spool.name, client)
    call(connection, "leave_group", spool.name, client)
    with refused("42501", spool.name):
        call(connection, "leave_group", spool.name, client)
    rows(admin, "delete from pgps_internal.client where name = %s", [client])


def test_a_message_that_is_too_old_is_delivered_to_nobody_though_nothing_has_discarded_it(
    admin: psycopg.Connection, name: Name, connect: Connect, clock: Clock
) -> None:
    made, client = name("spool"), name("client")
    call(admin, "create_spool", made, retention="1 hour")
    spool = Spool(admin, made)
    spool.spool(1)
    clock.advance("2 hours")
    spool.spool(2)
    member = Member(connect(), spool, client, replay=True)
    assert seen(member) == [(0, False), (2, False)]
    rows(admin, "delete from pgps_internal.client where name = %s", [client])
    call(admin, "drop_spool", made)


def test_bad_arguments_of_messages_are_refused_in_words(spool: Spool, name: Name, admin: psycopg.Connection) -> None:
    nested: Any = [["a", "b"], ["c", "d"]]
    with refused("22023", "keywords"):
        call(admin, "spool", spool.name, 1, "1", None, nested)
    made = name("small")
    call(admin, "create_spool", made, max_bytes=100, on_limit="drop_oldest")
    small = Spool(admin, made)
    small.spool(1)
    for verb in ("spool", "spool_many"):
        big = f'"{"x" * 200}"'
        with refused("54000", "too large"):
            if verb == "spool":
                call(admin, "spool", made, 1, big)
            else:
                call(admin, "spool_many", made, f'[{{"entry": 1, "message": {big}}}]')
    assert value(admin, "select count(*) from pgps.spooled_messages where spool = %s", [made]) == 1
    call(admin, "drop_spool", made)


def test_slots_that_were_rewritten_are_read_by_the_numbers(spool: Spool, join: Join) -> None:
    for n in range(4):
        spool.spool(n, keys=f'{{"K": {n % 2}}}')
    spool.call("spool_set_replay_pointer", 4)
    member = join()
    slots = rows(spool.connection, "select slot, begun_in from pgps_internal.spool_slot where begun_in is not null")
    # As after a dump and a restore: the places of messages mean nothing.
    spool.connection.execute("update pgps_internal.spool_slot set begun_in = 'elsewhere' where begun_in is not null")
    assert spool.replay(keys='{"K": [1, 1]}') == 2
    assert seen(member) == [(2, True), (4, True), (0, False)]
    for slot, begun_in in slots:
        rows(spool.connection, "update pgps_internal.spool_slot set begun_in = %s where slot = %s", [begun_in, slot])


def test_what_was_acknowledged_before_a_replay_begins_is_not_new_after_it(spool: Spool, join: Join) -> None:
    spool.spool(1, 2, 3, 4)
    spool.call("spool_set_replay_pointer", 1)
    member = join(replay=True)
    received = member.ids()
    # It is asked for while the pointer is at 1; the pointer has passed 3 when what was received is acknowledged.
    assert spool.replay() == 1
    spool.pointer(3)
    assert member.ack(received[-2]) == 4
    assert seen(member) == [(1, True), (0, False), (4, False)]
    member.ack()
    assert seen(member) == []


def test_what_was_received_and_passed_by_the_pointer_before_a_replay_begins_comes_again(
    spool: Spool, join: Join
) -> None:
    spool.spool(1, 2, 3, 4)
    spool.call("spool_set_replay_pointer", 1)
    member = join(replay=True)
    _, _, second, third, _ = member.ids()
    assert spool.replay() == 1
    spool.pointer(3)
    assert member.ack(second) == 3
    assert len(member.received(1)) == 1
    assert member.ack(third) == 0
    assert seen(member) == [(1, True), (0, False), (3, False), (4, False)]


def test_what_was_prepended_and_acknowledged_before_a_replay_begins_is_not_new_after_it(
    spool: Spool, join: Join
) -> None:
    spool.spool(1, 2)
    spool.call("prepend_and_discard", 2, "0")
    member = join(replay=True)
    first = member.ids()
    assert len(first) == 4
    member.ack(first[-1])
    spool.spool(3)
    (third,) = member.ids()
    assert spool.replay() == 0
    spool.pointer(2)
    assert member.ack(third) == 1
    assert seen(member) == [(0, False)]


def test_a_gap_across_the_replay_pointer_is_acknowledged_in_parts(spool: Spool, join: Join) -> None:
    call(spool.connection, "spool_advise", spool.name, max_messages=2, on_limit="drop_oldest")
    member = join()
    spool.spool(1, 2)
    assert member.take(1) == [1]
    spool.pointer(1)
    call(spool.connection, "spool_many", spool.name, Jsonb([{"entry": 1, "message": n} for n in range(3, 8)]))
    spool.dispatch()
    member.join(replay=True)
    parts = [(1, {"gap": [1, 1]}, True), (0, {"replay": "ended"}, False), (5, {"gap": [2, 5]}, False)]
    # One gap, told in two parts: of the first the last that was received, and of the second, is another.
    assert member.received(3) == parts
    query = "select id from pgps.receive_spooled(%s, %s, 3)"
    first, _, second = column(member.connection, query, [spool.name, member.name])
    assert member.ack(first) == 1
    assert member.received() == [*parts[1:], (6, 6, False), (7, 7, False)]
    assert member.ack(first) == 0
    assert member.ack(second) == 2
    assert seen(member) == [(6, False), (7, False)]


@pytest.mark.parametrize("most", [1, 2, 100])
def test_what_is_dropped_while_a_member_receives_is_not_told_before_it_is_gone(
    spool: Spool, join: Join, connect: Connect, most: int
) -> None:
    call(spool.connection, "spool_advise", spool.name, max_messages=3, on_limit="drop_oldest")
    member = join()
    spool.spool(1, 2, 3, 4, 5)
    for n in range(6, 9):
        call(spool.connection, "spool", spool.name, 1, str(n))
    found: list[Any] = []
    # Receiving reads the standing, then where the messages are: in between three more are dropped.
    with connect(autocommit=False) as holder:
        rows(holder, "lock table pgps_internal.spool_cancelled in access exclusive mode")
        with meanwhile(spool.connection, member.connection, lambda: found.extend(member.received(most))):
            rows(holder, "select pgps.dispatch()")
            holder.commit()
    # Were the new gap known, it would be told with the old one behind 3 to 5, and not at all in a small portion.
    assert found == [(2, {"gap": [1, 2]}, False), (3, 3, False), (4, 4, False), (5, 5, False)][:most]
    assert [*spool.contents()] == [6, 7, 8]
    first, *_ = member.ids()
    assert member.received(1) == [(5, {"gap": [1, 5]}, False)]
    assert member.ack(first) == 1
    assert member.received() == [(6, 6, False), (7, 7, False), (8, 8, False)]


def test_a_gap_that_is_not_known_yet_is_not_told_in_part(spool: Spool, join: Join, connect: Connect) -> None:
    call(spool.connection, "spool_advise", spool.name, max_messages=3, on_limit="drop_oldest")
    member = join()
    spool.spool(1, 2, 3, 4)
    spool.pointer(2)
    # What is discarded here, 2, will lie within the next gap: 3 and 4 go, and then the message at the front.
    call(spool.connection, "prepend_and_discard", spool.name, 1, '"front"')
    spool.dispatch()
    assert member.received() == [(1, {"gap": [1, 1]}, False), (3, 3, False), (4, 4, False)]
    assert member.ack(member.ids()[0]) == 1
    for n in range(5, 8):
        call(spool.connection, "spool", spool.name, 1, str(n))
    found: list[Any] = []
    with connect(autocommit=False) as holder:
        rows(holder, "lock table pgps_internal.spool_cancelled in access exclusive mode")
        query = "select seqn, id from pgps.receive_spooled(%s, %s, 2)"
        with meanwhile(
            spool.connection,
            member.connection,
            lambda: found.extend(rows(member.connection, query, [spool.name, member.name])),
        ):
            rows(holder, "select pgps.dispatch()")
            holder.commit()
    assert [*spool.contents()] == [5, 6, 7]
    # Each delivery is acknowledged up to itself, whatever was dropped while it was handed out.
    assert [member.ack(delivery) for _, delivery in found] == [1] * len(found)
    assert [seqn for seqn, _ in found] == [3, 4]
    assert member.received() == [(5, 5, False), (6, 6, False), (7, 7, False)]


def test_a_gap_put_together_of_several_is_acknowledged_as_a_whole(spool: Spool, join: Join) -> None:
    call(spool.connection, "spool_advise", spool.name, max_messages=3, on_limit="drop_oldest")
    spool.spool(1, 2)
    call(spool.connection, "prepend_and_discard", spool.name, 1, '"front"')
    spool.dispatch()
    spool.spool(3, 4, 5)
    member = join(replay=True)
    # The message at the front was dropped last, and is the first in the gap.
    rest = [(3, 3, False), (4, 4, False), (5, 5, False)]
    assert member.received() == [(0, {"replay": "ended"}, False), (2, {"gap": [-1, 2]}, False), *rest]
    assert member.ack(member.ids()[1]) == 2
    assert member.received() == rest
