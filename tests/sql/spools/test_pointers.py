"""The replay pointer, the checkpoint pointer, discards, checkpoints: what a call asks for happens at dispatch."""

from __future__ import annotations

from psycopg.types.json import Jsonb

from tests.fix_broker import call, refused, rows
from tests.fix_clock import Clock
from tests.fix_spools import Spool


def test_the_replay_pointer_goes_ahead_only_and_not_beyond_the_last(spool: Spool) -> None:
    with refused("22023", "its last message is 0"):
        spool.pointer(1)
    spool.spool(1, 2, 3)
    spool.pointer(2)
    spool.pointer(2)
    assert spool.standing("replay_pointer") == 2
    with refused("22023", "back from 2 to 1"):
        spool.pointer(1)
    with refused("22023", "its last message is 3"):
        spool.pointer(4)
    with refused("22023", "null"):
        spool.pointer(None)
    call(spool.connection, "spool_set_replay_pointer", spool.name, 3)
    # What is asked for and not dispatched yet counts.
    with refused("22023", "back from 3 to 2"):
        spool.pointer(2)
    spool.dispatch()
    assert spool.standing("replay_pointer") == 3


def test_nothing_is_discarded_while_the_pointer_is_unset(spool: Spool) -> None:
    spool.spool(1, 2)
    assert spool.discard() == 0
    assert spool.contents() == {1: 1, 2: 2}


def test_a_discard_takes_what_lies_up_to_the_pointer_and_matches(spool: Spool) -> None:
    for n in range(1, 7):
        spool.spool(n, keys=Jsonb({"N": n}))
    spool.pointer(4)
    assert spool.discard(keys=Jsonb({"N": [2, None]})) == 3
    assert spool.contents() == {1: 1, 5: 5, 6: 6}
    assert spool.discard(keys=Jsonb({"N": [2, None]})) == 0
    assert spool.discard() == 1
    assert spool.contents() == {5: 5, 6: 6}
    assert spool.standing("discarded", "first_seqn", "last_seqn", "new", "replayable") == (4, 5, 6, 2, 0)


def test_the_example_of_the_manual_page(spool: Spool) -> None:
    spool.spool(*range(1, 71))
    with spool.connection.transaction():
        call(spool.connection, "spool_set_replay_pointer", spool.name, 66)
        call(spool.connection, "spool_and_discard", spool.name, 2, '"checkpoint"')
    assert len(spool.contents()) == 70
    spool.dispatch()
    assert spool.contents() == {n: n for n in range(67, 71)} | {71: "checkpoint"}
    columns = ("replay_pointer", "checkpoint_pointer", "first_seqn", "last_seqn", "replayable", "new", "discarded")
    assert spool.standing(*columns) == (66, 71, 67, 71, 1, 4, 66)
    # The checkpoint before this one is not played through either: it is not new.
    spool.checkpoint('"another"', discard=Jsonb({"keywords": ["none"]}))
    assert spool.standing(*columns) == (66, 72, 67, 72, 1, 4, 66)


def test_a_checkpoint_may_be_put_at_the_front(spool: Spool) -> None:
    spool.spool(1, 2, 3)
    spool.pointer(2)
    call(spool.connection, "prepend_and_discard", spool.name, 2, '"first"')
    spool.dispatch()
    assert spool.contents() == {-1: "first", 3: 3}
    assert spool.standing("checkpoint_pointer", "replayable") == (-1, 1)
    spool.pointer(3)
    spool.checkpoint('"second"', prepend=True)
    # The one before it lay up to the replay pointer.
    assert spool.contents() == {-2: "second"}
    spool.checkpoint('"third"', prepend=True, discard=Jsonb({"keys": {"N": [1, 2]}}))
    assert spool.contents() == {-3: "third", -2: "second"}
    assert spool.standing("checkpoint_pointer", "last_seqn") == (-3, 3)


def test_prepended_checkpoints_of_one_transaction_do_not_discard_those_after_them(spool: Spool) -> None:
    spool.spool(1)
    spool.pointer(1)
    with spool.connection.transaction():
        for text in ('"a"', '"b"'):
            call(spool.connection, "prepend_and_discard", spool.name, 2, text)
    spool.dispatch()
    assert spool.contents() == {-2: "b"}


def test_a_checkpoint_keeps_what_its_pattern_does_not_match(spool: Spool) -> None:
    spool.spool(1, keywords=["audit"])
    spool.spool(2, keywords=["add"])
    spool.spool(3)
    spool.pointer(3)
    spool.checkpoint(9, discard=Jsonb({"keywords": ["add"]}))
    assert spool.contents() == {1: 1, 3: 3, 4: 9}
    with refused("22023", '"kes"'):
        spool.checkpoint(9, discard=Jsonb({"kes": 1}))
    with refused("22023", "JSON array"):
        spool.checkpoint(9, discard=Jsonb([]))


def test_a_rolled_back_request_does_nothing(spool: Spool) -> None:
    spool.spool(1, 2)
    with spool.connection.transaction(force_rollback=True):
        call(spool.connection, "spool_set_replay_pointer", spool.name, 2)
        assert call(spool.connection, "spool_discard", spool.name) == 2
        call(spool.connection, "spool_and_discard", spool.name, 2, "9")
    spool.dispatch()
    assert spool.contents() == {1: 1, 2: 2}
    assert spool.standing("replay_pointer", "checkpoint_pointer") == (None, None)


def test_the_checkpoint_pointer_goes_anywhere(spool: Spool) -> None:
    spool.spool(1, 2, 3, 4)
    spool.pointer(3)
    for at, replayable in ((2, 2), (1, 3), (4, 1), (None, 3), (-5, 3)):
        spool.checkpoint_at(at)
        assert spool.standing("checkpoint_pointer", "replayable") == (at, replayable)


def test_expired_messages_stay_until_the_next_discard(spool: Spool, clock: Clock) -> None:
    at = clock.set("2026-03-01 12:00+00")
    spool.spool(1, expires=at)
    spool.spool(2, expires=clock.now().replace(hour=13))
    spool.spool(3)
    assert spool.contents() == {1: 1, 2: 2, 3: 3}
    assert spool.discard() == 0
    assert spool.contents() == {2: 2, 3: 3}
    clock.advance("1 hour")
    spool.checkpoint(4)
    assert spool.contents() == {3: 3, 4: 4}


def test_two_spools_of_one_transaction_are_apart(spool: Spool, name: object) -> None:
    other = Spool(spool.connection, f"{spool.name}_b")
    call(spool.connection, "create_spool", other.name)
    try:
        with spool.connection.transaction():
            for n in range(1, 4):
                call(spool.connection, "spool", spool.name, 1, str(n))
                call(spool.connection, "spool", other.name, 1, str(-n))
        spool.dispatch()
        spool.pointer(3)
        other.pointer(2)
        assert spool.discard() == 3
        assert (spool.contents(), other.contents()) == ({}, {1: -1, 2: -2, 3: -3})
        assert rows(spool.connection, "select count(*) from pgps.spooled_messages where spool = %s", [other.name]) == [
            (3,)
        ]
    finally:
        call(spool.connection, "drop_spool", other.name)
