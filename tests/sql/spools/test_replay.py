"""Replay: what lies between the pointers and matches, then a marker, then what is new."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, refused, rows
from tests.fix_clock import Clock
from tests.fix_spools import Spool
from tests.sql.spools.test_groups import Join, join

__all__ = ["join"]


def test_replay_repeats_what_lies_between_the_pointers_and_then_gives_what_is_new(spool: Spool, join: Join) -> None:
    spool.spool(1, 2, 3, 4, 5)
    spool.pointer(4)
    spool.checkpoint_at(2)
    member = join(replay=True)
    assert member.received() == [
        (2, 2, True),
        (3, 3, True),
        (4, 4, True),
        (0, {"replay": "ended"}, False),
        (5, 5, False),
    ]
    assert member.take(2) == [[2], [3]]
    spool.spool(6)
    assert member.take(2) == [[4], "|"]
    assert member.take() == [5, 6]
    assert spool.replay() == 3
    assert member.take() == [[2], [3], [4], "|"]


def test_without_a_replay_pointer_everything_is_new(spool: Spool, join: Join) -> None:
    spool.spool(1, 2)
    spool.checkpoint(3)
    assert spool.replay() == 0
    member = join(replay=True)
    assert member.take() == ["|", 1, 2, 3]
    spool.checkpoint(4)
    spool.spool(5)
    assert member.take() == [5]


def test_a_checkpoint_ahead_of_the_pointer_is_replayed_alone_and_not_again(spool: Spool, join: Join) -> None:
    spool.spool(1, 2, 3)
    spool.pointer(2)
    spool.checkpoint(4)
    spool.spool(5)
    member = join(replay=True)
    assert member.take() == [[4], "|", 3, 5]
    assert spool.replay() == 1
    assert member.take() == [[4], "|"]
    spool.checkpoint_at(3)
    other = join(replay=True)
    # A message that is no checkpoint of its own, but where the checkpoint pointer is, is replayed likewise.
    assert other.take() == [[3], "|", 5]
    assert spool.replay(seqn="[5,)") == 0
    assert other.take() == ["|"]


def test_a_checkpoint_ahead_that_was_acknowledged_in_a_replay_is_not_new_after_another(
    spool: Spool, join: Join
) -> None:
    ids = spool.spool(1, 2, 3)
    spool.pointer(0)
    spool.checkpoint_at(2)
    member = join(replay=True)
    assert member.take(2) == [[2], "|"]
    spool.checkpoint_at(None)
    assert spool.replay() == 0
    assert member.take() == ["|", 1, 3]
    assert [call(spool.connection, "spool_inquire", one) for one in ids] == [1, 1, 1]


def test_an_acknowledgement_does_not_count_what_was_discarded_before_it_was_received_again(
    spool: Spool, join: Join
) -> None:
    spool.spool(1, 2, 3)
    spool.pointer(3)
    member = join(replay=True)
    assert len(member.received()) == 4
    spool.discard(seqn="[2,3]")
    assert member.take() == [[1], "|"]


def test_all_of_a_group_replays_or_one_member_alone(spool: Spool, join: Join) -> None:
    first, second = join(), join()
    spool.spool(1, 2)
    for member in (first, second):
        assert member.take() == [1, 2]
    spool.pointer(2)
    assert spool.replay() == 2
    assert first.take() == second.take() == [[1], [2], "|"]
    first.join(replay=True)
    assert (first.take(), second.take()) == ([[1], [2], "|"], [])


def test_a_replay_that_is_asked_for_in_another_comes_after_it(spool: Spool, join: Join) -> None:
    spool.spool(1, 2, 3)
    spool.pointer(3)
    member = join(replay=True)
    assert member.take(1) == [[1]]
    assert spool.replay(seqn="[2,3)") == 1
    assert member.take() == [[2], [3], "|"]
    assert member.take() == [[2], "|"]


def test_what_is_discarded_or_has_expired_is_not_replayed(spool: Spool, join: Join, clock: Clock) -> None:
    spool.spool(1, 2, 3)
    spool.spool(4, expires=clock.now())
    spool.pointer(4)
    spool.discard(seqn="[2,2]")
    assert spool.replay() == 2
    member = join(replay=True)
    assert member.take() == [[1], [3], "|"]


@pytest.mark.parametrize("portion", [1, 2, 3, 100])
def test_small_portions_of_a_replay_by_one_value_pass_over_what_has_expired(
    spool: Spool, join: Join, clock: Clock, portion: int
) -> None:
    for n in range(1, 13):
        spool.spool(n, keys=Jsonb({"K": n % 3}), expires=None if n in (1, 7, 12) else clock.now())
    spool.pointer(12)
    member = join()
    found: list[Any] = []

    def taken() -> list[Any]:
        while part := member.take(portion):
            assert len(part) <= portion
            found.extend(part)
        return found

    assert spool.replay(keys=Jsonb({"K": [1, 1]})) == 2
    assert taken() == [[1], [7], "|"]
    # A note about one of them, and the long way is taken; it says the same.
    spool.discard(seqn="[1,1]")
    found.clear()
    assert spool.replay(keys=Jsonb({"K": [1, 1]})) == 1
    assert taken() == [[7], "|"]


def test_switched_off_before_a_replay_nothing_slips_in(spool: Spool, join: Join) -> None:
    spool.spool(1, 2)
    spool.pointer(1)
    spool.call("spool_play_through", False)
    member = join(replay=True)
    spool.spool(3)
    assert member.take() == [[1], "|"]
    spool.spool(4)
    assert member.take() == []
    spool.call("spool_play_through", True)
    assert member.take() == [2, 3, 4]


_WITH: dict[int, dict[str, Any]] = {
    1: {"keys": {"SP_ID": 54}},
    2: {"keys": {"SP_ID": 55}},
    3: {"keys": {"SP_ID": 56, "SP_EPOCH": 3}, "keywords": ["add"]},
    4: {"keys": {"SP_ID": 55.5, "SP_EPOCH": 4}, "keywords": ["add", "it"]},
    5: {"keys": {"SP_EPOCH": 3}, "keywords": ["it", "add"]},
    6: {},
}


@pytest.fixture
def furnished(spool: Spool, clock: Clock) -> Spool:
    """A spool with six messages, spooled at 12:00, 12:10, …; it is 13:00 now, and all have been processed."""
    clock.set("2026-03-01 12:00+00")
    for number, options in _WITH.items():
        keys = Jsonb(options["keys"]) if "keys" in options else None
        spool.spool(number, keys=keys, keywords=options.get("keywords"))
        clock.advance("10 minutes")
    spool.pointer(6)
    return spool


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"keys": {"SP_ID": [55, None]}}, [2, 3, 4]),
        ({"keys": {"SP_ID": [None, 55]}}, [1, 2]),
        ({"keys": {"SP_ID": [None, None]}}, [1, 2, 3, 4]),
        ({"keys": {"SP_ID": [55, 55]}}, [2]),
        ({"keys": {"SP_ID": [55, None], "SP_EPOCH": [3, 3]}}, [3]),
        ({"keys": {"SP_OTHER": [None, None]}}, []),
        ({"keys": {}}, [1, 2, 3, 4, 5, 6]),
        ({"seqn": "[2,4)"}, [2, 3]),
        ({"seqn": "(2,4]"}, [3, 4]),
        ({"seqn": "[5,)"}, [5, 6]),
        ({"seqn": "empty"}, []),
        ({"seqn": "[7,99]"}, []),
        ({"keywords": ["add"]}, [3]),
        ({"keywords": ["add", "it"]}, [4]),
        ({"keywords": ["it", "add"]}, [5]),
        ({"keywords": []}, [1, 2, 6]),
        ({"spooled_at": "[2026-03-01 12:10+00, 2026-03-01 12:30+00)"}, [2, 3]),
        ({"spooled_at": "empty"}, []),
        ({"spooled_ago": ["40 minutes", "20 minutes"]}, [3, 4, 5]),
        ({"spooled_ago": [None, "50 minutes"]}, [1, 2]),
        ({"spooled_ago": ["10 minutes", None]}, [6]),
        ({"spooled_ago": ["40 minutes", "20 minutes"], "spooled_at": "[2026-03-01 12:30+00,)"}, [4, 5]),
        ({"sender": "nobody_of_that_name"}, []),
        ({"spooler": "nobody_of_that_name"}, []),
        ({"keys": {"SP_EPOCH": [3, 4]}, "seqn": "[4,9]", "spooled_ago": ["30 minutes", None]}, [4, 5]),
    ],
)
def test_a_pattern_selects_what_satisfies_all_of_it(
    furnished: Spool, join: Join, pattern: dict[str, Any], matches: list[int]
) -> None:
    given = {k: Jsonb(v) if k == "keys" else v for k, v in pattern.items()}
    member = join()
    assert furnished.replay(**given) == len(matches)
    furnished.spool(7)
    assert member.take() == [*([n] for n in matches), "|", 7]
    assert furnished.discard(**given) == len(matches)
    assert list(furnished.contents()) == [n for n in range(1, 8) if n not in matches]


def test_senders_and_spoolers_are_told_apart(spool: Spool, join: Join, connect: Any, role: Any) -> None:
    group = role("group")
    alice = role("alice", group)
    rows(spool.connection, "select pgps.grant_spool(%s, 'spool', 'public')", [spool.name])
    writer = Spool(connect(alice), spool.name)
    rows(writer.connection, "select pgps.spool(%s, 1, '1', sender => %s)", [spool.name, group])
    rows(writer.connection, "select pgps.spool(%s, 1, '2')", [spool.name])
    spool.spool(3)
    spool.pointer(3)
    member = join()
    for pattern, matches in (
        ({"sender": group}, [[1]]),
        ({"sender": alice}, [[2]]),
        ({"spooler": alice}, [[1], [2]]),
        ({"spooler": alice, "sender": alice}, [[2]]),
        ({"spooler": group}, []),
    ):
        assert spool.replay(**pattern) == len(matches)
        assert member.take() == [*matches, "|"]


@pytest.mark.parametrize(
    ("pattern", "code", "said"),
    [
        ({"keys": Jsonb({"a": [2, 1]})}, "22023", "lower bound"),
        ({"keys": Jsonb({"a": 1})}, "22023", 'key "a"'),
        ({"keys": Jsonb({"a": [1]})}, "22023", 'key "a"'),
        ({"keys": Jsonb({"a": ["1", None]})}, "22023", 'key "a"'),
        ({"keys": Jsonb([1, 2])}, "22023", "JSON array"),
        ({"keys": Jsonb({f"k{n}": [1, 2] for n in range(10)})}, "22023", "10 numeric keys"),
        ({"spooled_ago": ["10 minutes", "2 hours"]}, "22023", "spooled_ago"),
        ({"spooled_ago": ["10 minutes"]}, "22023", "1 intervals"),
        ({"keywords": ["a", None]}, "22023", "keywords"),
    ],
)
def test_patterns_that_make_no_sense_are_refused(spool: Spool, pattern: dict[str, Any], code: str, said: str) -> None:
    for function in (spool.replay, spool.discard):
        with refused(code, said):
            function(**pattern)


def test_ranges_and_times_of_a_pattern_as_an_object_are_refused_in_words(spool: Spool) -> None:
    for pattern, said in (
        ({"seqn": "[5,1]"}, 'invalid seqn "[5,1]"'),
        ({"seqn": "five"}, 'invalid seqn "five"'),
        ({"spooled_at": "[2026-02-01,2026-01-31]"}, 'invalid spooled_at "[2026-02-01,2026-01-31]"'),
        ({"spooled_ago": ["2 hours", "soon"]}, 'invalid spooled_ago "{"2 hours",soon}"'),
        ({"spooled_ago": 7}, 'invalid spooled_ago "7"'),
    ):
        with refused("22023", said):
            call(spool.connection, "spool_and_discard", spool.name, 1, "1", discard=Jsonb(pattern))


def test_a_pattern_is_read_with_the_callers_settings_and_kept_without(spool: Spool, join: Join, clock: Clock) -> None:
    clock.set("2026-02-03 12:00+00")
    spool.spool(1)
    spool.pointer(1)
    member = join()
    spool.connection.execute("set datestyle = 'sql, dmy'")
    spool.connection.execute("set timezone = 'Asia/Tokyo'")
    try:
        assert spool.replay(spooled_at="[03/02/2026 20:59:59, 03/02/2026 21:00:01]") == 1
        assert member.take() == [[1], "|"]
        assert spool.discard(spooled_at="[03/02/2026 20:59:59, 03/02/2026 21:00:01]") == 1
        assert spool.contents() == {}
    finally:
        spool.connection.execute("reset datestyle")
        spool.connection.execute("reset timezone")


def test_a_checkpoint_that_is_put_at_the_front_later_is_not_new(spool: Spool, join: Join) -> None:
    spool.spool(1)
    spool.call("prepend_and_discard", 2, '"before"')
    member = join(replay=True)
    spool.call("prepend_and_discard", 2, '"later"')
    spool.spool(2)
    # Without a replay pointer all that is there comes as new, but a checkpoint is not played through.
    assert [seqn for seqn, *_ in member.received()] == [0, -1, 1, 2]
    assert member.ack() == 4
    spool.call("prepend_and_discard", 2, '"much later"')
    assert member.received() == []
    member.join(replay=True)
    assert [seqn for seqn, *_ in member.received()] == [0, -3, -2]
