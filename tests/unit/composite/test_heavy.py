"""How far a step goes where events are large."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from composite.gathering import EVENT_BITS, Hits
from composite.heavy import EVENT_BYTES, MOST_BYTES, MOST_WHOLE, TOASTED, WHOLE_UPTO, TooHeavyError, bounded, weigh_open
from composite.limits import WRITTEN_AT_ONCE, TooMuch, portions, rows_in_portions
from composite.subjects import Subject

THIRD = MOST_BYTES // 3 + 1


class Server:
    """Answers what is asked about bytes: of events by their ids, of keys; counts what is asked."""

    def __init__(self, bytes_: dict[int, int] | None = None, keys: dict[str, int] | None = None) -> None:
        self.bytes_ = bytes_ or {}
        self.keys = keys or {}
        self.asked: list[str] = []
        # The batches of one large transaction.
        self.large = range(0)

    def whole_upto(self, batch: int, last: int) -> int:
        if batch not in self.large:
            return batch
        return self.large[-1] if self.large[-1] <= last else self.large[0] - 1

    def rows(self, text: str, *columns: list[Any]) -> list[dict[str, Any]]:
        self.asked.append(text)
        if text == TOASTED:
            return [{"type_id": one} for one in columns[0] if self.bytes_]
        return [{"state_id": 1, "key": key, "bytes": size} for key, size in self.keys.items()]

    def plan(self, text: str, types: list[str]) -> Any:
        if text == WHOLE_UPTO:
            return SimpleNamespace(execute=lambda given: [{"upto": self.whole_upto(*given)}])
        assert text == EVENT_BYTES
        self.asked.append(text)
        found = self.bytes_
        return SimpleNamespace(
            execute=lambda given: [{"event_id": one, "bytes": found[one]} for one in given[1] if one in found]
        )


def subject(*, reached: int = 0, taken: int | None = None, transactional: bool = False) -> Subject:
    graph = SimpleNamespace(transactional=transactional)
    job = {
        "composite_id": 1, "share": 0, "shares": 1, "state_id": 1, "step": 1, "parts": None, "now": 5, "upto": 9,
        "reached": reached, "ordering": {} if taken is None else {"taken": taken},
    }  # fmt: skip
    return Subject(job, SimpleNamespace(graph=graph))  # type: ignore[arg-type]


def hits(batch: int, *ids: int, ranges: tuple[tuple[int, int], ...] = (), of: int = 1) -> Hits:
    return Hits(batch, [of], [0], list(ids), [low for low, _ in ranges], [high for _, high in ranges], [], [])


def arrivals(*given: tuple[int, str]) -> Any:
    return [(at(1, number), 0, key, 0, None) for number, key in given]


def at(batch: int, event_id: int) -> int:
    return batch << EVENT_BITS | event_id


def bound(server: Server, one: Subject, got: dict[int, list[Hits]], last: int | None = None) -> Any:
    sources = [{"type_id": number, "type": f"t{number}"} for number in got]
    return bounded(server, sources, {1: one}, last, got)  # type: ignore[arg-type]


def test_small_events_are_asked_about_once_and_one_event_never() -> None:
    for got, asked in (({7: [hits(1, 1, 2)]}, [TOASTED]), ({7: [hits(1, 1)]}, [])):
        server, one = Server(), subject()
        assert bound(server, one, got) is got
        assert server.asked == asked
        assert (one.cut, one.job["now"]) == (None, 5)


def test_a_step_ends_before_the_large_event_that_does_not_fit_and_takes_one_at_least() -> None:
    got = {7: [hits(3, 5, ranges=((10, 20),)), hits(3, 11), hits(4, 30)], 8: [hits(3, 13, 40)]}
    server, one = Server({11: THIRD, 12: THIRD, 15: THIRD, 30: 1}), subject()
    left = bound(server, one, got)
    assert left == {7: [hits(3, 5, ranges=((10, 15),)), hits(3, 11)], 8: [hits(3, 13)]}
    one.note_cut()
    assert (one.cut, one.job["upto"], one.taken, one.job["now"], one.more) == (at(3, 14), 2, at(3, 14), None, True)
    # The next one goes on behind it, and each may be larger than a step by itself.
    for id_, behind in ((15, 29), (30, None)):
        server, one = (
            Server({11: THIRD, 15: 9 * MOST_BYTES, 30: 9 * MOST_BYTES}),
            subject(reached=2, taken=at(3, id_ - 1)),
        )
        left = bound(server, one, got)
        one.note_cut()
        if behind is None:
            assert (left is got, one.taken, one.more) == (True, None, False)
        else:
            assert (one.cut, one.job["upto"], one.taken) == (at(4, behind), 3, at(4, behind))


@pytest.mark.parametrize("cut", [at(5, 3), at(7, 3)])
def test_what_lies_behind_a_cut_is_left_where_it_is(cut: int) -> None:
    one = subject(reached=6, taken=at(7, 4))
    assert bound(Server(), one, {7: [hits(8, 50), hits(9, 60)]}, cut) == {}
    assert not one.leave_later(0)  # time passes without an event
    one.note_cut()
    assert (one.job["upto"], one.taken, one.more) == (6, at(7, 4), True)


@pytest.mark.parametrize(("batches", "end"), [((3, 3), at(4, 0) - 1), ((3, 4), at(4, 0) - 1)])
def test_where_transactions_are_whole_a_step_takes_whole_batches(batches: tuple[int, int], end: int) -> None:
    one = subject(transactional=True)
    got = {7: [hits(batches[0], 1), hits(batches[1], 2), hits(5, 3)]}
    bound(Server(dict.fromkeys((1, 2, 3), MOST_BYTES)), one, got)
    assert one.cut == end


@pytest.mark.parametrize(
    ("batches", "large", "end"),
    [
        ((3, 6), range(5, 9), at(5, 0) - 1),  # before the large one
        ((5, 6), range(5, 9), at(9, 0) - 1),  # it comes first, so it is taken whole
        ((3, 4), range(1, 4), at(4, 0) - 1),
        ((2, 3), range(2, 4), at(4, 0) - 1),
        ((5, 5), range(5, 9), at(9, 0) - 1),
    ],
)
def test_where_transactions_are_whole_a_step_takes_whole_transactions(
    batches: tuple[int, int], large: range, end: int
) -> None:
    one = subject(transactional=True)
    got = {7: [hits(batches[0], 1), hits(batches[1], 2), hits(12, 3)]}
    server = Server(dict.fromkeys((1, 2, 3), MOST_BYTES))
    server.large = large
    bound(server, one, got)
    assert one.cut == end


def test_a_transaction_of_too_many_events_is_refused_where_it_is_to_be_whole() -> None:
    got = {7: [hits(batch, ranges=((1, MOST_WHOLE // 2),)) for batch in (3, 4, 5)]}
    for transactional in (False, True):
        one = subject(transactional=transactional)
        if transactional:
            bound(Server(), one, {7: got[7][:2]})
            with pytest.raises(TooMuch, match="1,000,000 events of whole transactions"):
                bound(Server(), one, got)
        else:
            assert bound(Server(), one, got) is got


def test_what_is_open_in_keys_is_weighed_too() -> None:
    one = subject(taken=at(1, 1))
    one.arrivals = arrivals((1, "c"), (2, "a"), (3, "b"), (4, "a"), (5, "c"))
    found: list[dict[str, Any]] = []
    weigh_open(Server(keys={"a": THIRD, "b": THIRD}), [one], found, None)  # type: ignore[arg-type]
    server = Server(keys={"a": THIRD, "b": THIRD, "c": THIRD})
    with pytest.raises(TooHeavyError) as caught:
        weigh_open(server, [one], found, None)  # type: ignore[arg-type]
    assert caught.value.last == at(1, 4)
    # Not again, and not when it is the first and only one.
    weigh_open(server, [one], found, at(1, 4))  # type: ignore[arg-type]
    one.arrivals = arrivals((2, "a"), (4, "a"))
    weigh_open(Server(keys={"a": 9 * MOST_BYTES}), [one], found, None)  # type: ignore[arg-type]


def test_what_is_written_comes_in_portions_and_its_bound_grows_with_what_is_there() -> None:
    text = "x" * (WRITTEN_AT_ONCE // 2)
    assert [len(one) for one in portions([text] * 8, 1, lambda: 0)] == [3, 3, 2]
    assert list(portions([], 1, lambda: 0)) == []
    few = list(portions(iter(["a", "b"]), 2, lambda: 0))
    assert few == [["a", "b"]]
    with pytest.raises(TooMuch):
        list(portions([text] * 40, 1, lambda: 0))
    assert sum(map(len, portions([text] * 40, 1, lambda: 10 * len(text)))) == 40
    rows = [(1, text)] * 8
    assert [len(part) for part in rows_in_portions(rows)] == [3, 3, 2]
    assert next(iter(rows_in_portions(rows[:2]))) == rows[:2]
