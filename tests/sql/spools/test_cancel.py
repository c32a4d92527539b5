"""Taking a message back, and asking what has become of it."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, meanwhile, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.fix_spools import Spool
from tests.sql.spools.test_groups import Join, join

__all__ = ["join"]


def test_a_message_that_nobody_had_is_taken_back(spool: Spool, join: Join) -> None:
    first, second, third = spool.spool(1, 2, 3)
    assert call(spool.connection, "spool_cancel", second) is True
    # From that moment on, not only from the next dispatch.
    assert spool.contents() == {1: 1, 3: 3}
    assert call(spool.connection, "spool_cancel", second) is False
    assert call(spool.connection, "spool_inquire", second) is None
    spool.dispatch()
    assert spool.contents() == {1: 1, 3: 3}
    assert call(spool.connection, "spool_cancel", second) is False
    spool.spool(4)
    assert spool.contents() == {1: 1, 3: 3, 4: 4}
    assert join(replay=True).take() == ["|", 1, 3, 4]
    assert [call(spool.connection, "spool_cancel", n) for n in (first, third, 0, -1)] == [False] * 4


def test_a_message_that_is_not_dispatched_yet_is_taken_back_and_its_number_stays_unused(spool: Spool) -> None:
    with spool.connection.transaction():
        call(spool.connection, "spool", spool.name, 1, "1")
        second = call(spool.connection, "spool", spool.name, 1, "2")
        assert call(spool.connection, "spool_inquire", second) == 0
        assert call(spool.connection, "spool_cancel", second) is True
        call(spool.connection, "spool", spool.name, 1, "3")
    spool.dispatch()
    assert spool.contents() == {1: 1, 3: 3}
    assert spool.standing("last_seqn", "discarded") == (3, 1)


def test_a_cancellation_that_rolls_back_takes_nothing_back(spool: Spool) -> None:
    (made,) = spool.spool(1)
    with spool.connection.transaction(force_rollback=True):
        assert call(spool.connection, "spool_cancel", made) is True
    spool.dispatch()
    assert spool.contents() == {1: 1}
    assert call(spool.connection, "spool_cancel", made) is True


def test_what_a_member_has_received_is_not_taken_back(spool: Spool, join: Join) -> None:
    member = join()
    first, second = spool.spool(1, 2)
    assert member.received(1) == [(1, 1, False)]
    assert call(spool.connection, "spool_cancel", first) is False
    assert call(spool.connection, "spool_cancel", second) is True
    assert member.take() == [1]
    third, fourth = spool.spool(3, 4)
    spool.pointer(3)
    assert call(spool.connection, "spool_cancel", third) is False
    assert call(spool.connection, "spool_cancel", fourth) is True


def test_a_cancellation_that_is_dispatched_before_its_message_holds(spool: Spool) -> None:
    """A window that is cut ends with a transaction that began before the message's, and was committed after it."""
    spool.spool(0)
    with psycopg.connect(spool.connection.info.dsn, autocommit=True) as first, first.transaction():
        value(first, "select pg_current_xact_id()")
        ids = [call(spool.connection, "spool", spool.name, 1, str(n)) for n in (1, 2, 3)]
        checkpoint = call(spool.connection, "spool_and_discard", spool.name, 2, "4")
        call(spool.connection, "spool_set_replay_pointer", spool.name, 1)
        assert call(first, "spool_cancel", ids[1]) is True
        assert call(first, "spool_cancel", checkpoint) is True
    for _ in range(10):
        rows(spool.connection, "select pgps.dispatch(1)")
    assert spool.contents() == {1: 0, 2: 1, 4: 3}
    assert spool.standing("last_seqn", "discarded", "checkpoint_pointer") == (5, 2, None)
    assert call(spool.connection, "spool_cancel", ids[1]) is False
    assert call(spool.connection, "spool_inquire", ids[1]) is None
    left = "select count(*) from pgps_internal.spool_cancelled c join pgps_internal.spool s using (spool_id)"
    assert value(spool.connection, left + " where s.name = %s", [spool.name]) == 0


def test_nobody_becomes_a_member_while_a_message_is_taken_back(spool: Spool, join: Join, connect: Connect) -> None:
    (made,) = spool.spool(1)
    canceller = connect(autocommit=False)
    assert call(canceller, "spool_cancel", made) is True
    member = join(join=False)
    joined: list[bool] = []

    def enter() -> None:
        member.join(replay=True)
        joined.append(True)

    with meanwhile(spool.connection, member.connection, enter):
        has_waited = joined == []
        canceller.commit()
    assert has_waited
    assert member.received() == [(0, {"replay": "ended"}, False)]


def test_who_becomes_a_member_meanwhile_is_waited_for(spool: Spool, join: Join, connect: Connect) -> None:
    (made,) = spool.spool(1)
    first, second = join(join=False), join(join=False)
    first.connection.autocommit = False
    first.join(replay=True)
    # Not by others who become members.
    second.join()
    assert len(first.received()) == 2
    other = connect()
    found: list[bool] = []
    with meanwhile(spool.connection, other, lambda: found.append(call(other, "spool_cancel", made))):
        has_waited = found == []
        first.connection.commit()
    assert (has_waited, found) == (True, [False])


def test_a_cancellation_waits_for_a_member_that_is_receiving(spool: Spool, join: Join, connect: Connect) -> None:
    member = join()
    (made,) = spool.spool(1)
    member.connection.autocommit = False
    assert len(member.received()) == 1
    other = connect()
    found: list[bool] = []
    with meanwhile(spool.connection, other, lambda: found.append(call(other, "spool_cancel", made))):
        assert found == []
        member.connection.commit()
    member.connection.autocommit = True
    assert found == [False]
    assert member.take() == [1]


def test_inquire_says_whether_every_member_present_has_acknowledged(spool: Spool, join: Join) -> None:
    inquire = "spool_inquire"
    (made,) = spool.spool(0)
    assert call(spool.connection, inquire, made) == 0
    first, second = join(), join()
    (made,) = spool.spool(1)
    assert call(spool.connection, inquire, made) == 0
    first.take()
    assert call(spool.connection, inquire, made) == 0
    second.take()
    assert call(spool.connection, inquire, made) == 1
    later = join()
    assert call(spool.connection, inquire, made) == 1
    later.join(replay=True)
    assert call(spool.connection, inquire, made) == 0
    assert later.take() == ["|", 0, 1]
    assert call(spool.connection, inquire, made) == 1
    assert call(spool.connection, "spool_wait", made) == 1
    (made,) = spool.spool(2)
    for member in (first, second):
        member.take()
    assert call(spool.connection, inquire, made) == 0
    later.leave()
    assert call(spool.connection, inquire, made) == 1
    spool.pointer(3)
    spool.discard()
    assert call(spool.connection, inquire, made) is None
    assert call(spool.connection, inquire, 0) is None
    assert call(spool.connection, inquire, None) is None


def test_a_replayed_message_is_inquired_about_like_a_new_one(spool: Spool, join: Join) -> None:
    (made,) = spool.spool(1)
    spool.pointer(1)
    member = join(replay=True)
    assert call(spool.connection, "spool_inquire", made) == 0
    assert member.take() == [[1], "|"]
    assert call(spool.connection, "spool_inquire", made) == 1


@pytest.mark.parametrize("prepend", [False, True])
def test_a_checkpoint_that_is_taken_back_before_dispatch_discards_nothing(spool: Spool, prepend: bool) -> None:
    spool.spool(1, 2, 3)
    spool.pointer(3)
    # In one transaction, so that no dispatch comes in between.
    with spool.connection.transaction():
        made = call(spool.connection, "spool_and_discard", spool.name, 2, '"all"', prepend=prepend)
        assert call(spool.connection, "spool_cancel", made) is True
        assert spool.replay() == 3
    spool.dispatch()
    assert spool.contents() == {1: 1, 2: 2, 3: 3}
    assert spool.standing("checkpoint_pointer", "replayable") == (None, 3)
    assert spool.replay() == 3
    # A checkpoint that was dispatched has discarded already.
    later = spool.checkpoint(4)
    assert spool.contents() == ({5: 4} if not prepend else {4: 4})
    assert call(spool.connection, "spool_cancel", later) is True
    assert spool.contents() == {}


def test_what_was_put_at_the_front_is_taken_back_until_a_member_had_it(spool: Spool, join: Join) -> None:
    spool.spool(1, 2)
    spool.pointer(2)
    pattern = Jsonb({"seqn": "[9,9]"})
    made = spool.call("prepend_and_discard", 2, '"nobody had it"', discard=pattern)
    assert call(spool.connection, "spool_cancel", made) is True
    spool.dispatch()
    made = spool.call("prepend_and_discard", 2, '"replayed"', discard=pattern)
    member = join(replay=True)
    assert member.received(1) == [(-2, "replayed", True)]
    assert call(spool.connection, "spool_cancel", made) is False
    assert member.take() == [["replayed"], [1], [2], "|"]
    spool.spool(3)
    assert member.take() == [3]
    member.join(replay=True)
    assert call(spool.connection, "spool_cancel", made) is False


def test_nobody_is_said_to_have_what_expired_before_it_was_handed_out(spool: Spool, join: Join, clock: Clock) -> None:
    clock.set("2026-03-01 12:00+00")
    member = join()
    (made,) = spool.spool(1, expires=clock.now().replace(hour=13))
    assert call(spool.connection, "spool_inquire", made) == 0
    clock.advance("1 hour")
    assert call(spool.connection, "spool_inquire", made) is None
    spool.spool(2)
    assert member.take() == [2]
    assert call(spool.connection, "spool_inquire", made) is None
    assert call(spool.connection, "spool_wait", made) is None
    (other,) = spool.spool(3, expires=clock.now().replace(hour=14))
    assert member.take() == [3]
    assert call(spool.connection, "spool_inquire", other) == 1
