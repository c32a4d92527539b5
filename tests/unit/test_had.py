"""Which direct events a program has had."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from pgps.client._had import Ended, Had

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 30))))
def test_each_event_is_new_once(events: list[tuple[int, int]]) -> None:
    had, known = Had(), set[tuple[int, int]]()
    for event in events:
        assert had.is_new(*event, AT) == (event not in known)
        known.add(event)
        first, last = had._types[event[0]].first, had._types[event[0]].last
        covered = [n for begin, end in zip(first, last, strict=True) for n in range(begin, end + 1)]
        assert covered == sorted(n for kind, n in known if kind == event[0])
        assert all(begin > end + 1 for begin, end in zip(first[1:], last, strict=False)), "neighbours are one interval"


def test_what_is_known_has_a_limit() -> None:
    had = Had(most=10)
    for number in range(0, 100, 2):
        assert had.is_new(1, number, AT)
    assert not had.is_new(1, 98, AT)
    assert had.is_new(1, 0, AT), "it was so long ago that it is not known"
    assert len(had._types[1].first) == 10


def test_ids_that_a_server_which_was_put_back_gives_again_are_new() -> None:
    had = Had()
    for number in range(1, 10):
        assert had.is_new(1, number, AT)
    later = AT + dt.timedelta(seconds=1)
    assert had.is_new(1, 8, later)
    assert not had.is_new(1, 8, later)
    assert not had.is_new(1, 8, AT)


@given(st.sets(st.integers(5, 30)), st.integers(1, 40))
def test_what_had_ended_is_what_a_snapshot_shows(going_on: set[int], xid: int) -> None:
    xmin, xmax = min(going_on, default=31), 31
    ended = Ended(f"{xmin}:{xmax}:{','.join(map(str, sorted(going_on)))}")
    assert (xid in ended) == (xid <= 30 and xid not in going_on)
