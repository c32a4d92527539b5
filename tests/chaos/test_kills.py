"""What the count after a story of kills says of the notes of process groups: each kind of fault is found."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.kills import count, groups
from tests.chaos.kills.count import Notes, Row
from tests.chaos.kills.members import ANSWER, CHECKPOINT, QUESTION
from tests.chaos.kills.senders import Sent
from tests.links.fleet import make_fleet

REQUESTS = {101: (QUESTION, "s/1"), 102: (ANSWER, "m>s/1"), 103: (ANSWER, "s/2"), 104: (CHECKPOINT, "back/1")}
MESSAGES: dict[int, dict[str, Any]] = {
    1: {"who": "s/1"},
    2: {"who": "m>s/1", "to": "s/1"},
    3: {"who": "s/2"},
    4: {"who": "back/1"},
}


def new(seqn: int, **named: Any) -> Row:
    return Row("1.1", seqn, ANSWER, {**MESSAGES[seqn], **named}, in_replay=False)


def replayed(seqn: int) -> Row:
    return replace(new(seqn), in_replay=True)


def gap(first: int, last: int) -> Row:
    return Row("1.1", last, None, {"gap": [first, last]}, in_replay=False)


def notes(rows: Iterable[Row] = (new(1), new(2), new(3)), **other: Any) -> Notes:
    as_it_should_be: dict[str, Any] = {"cancelled": set(), "last": 4, "contents": dict(MESSAGES), "gaps": set()}
    return Notes("spool", REQUESTS, got={"member": list(rows)}, **as_it_should_be | other)


def everything(found: Notes) -> list[str]:
    sent = [Sent(1.0, 2.0, {"spool": [101, 102]}), Sent(3.0, 4.0, {"spool": [103]})]
    return [
        *count.lacking(found, found.requests),
        *count.wrong(found),
        *count.sparse(found, kept=True),
        *count.disordered(found, sent),
        *count.untold(found),
    ]


@pytest.mark.parametrize(
    "found",
    [
        notes(),
        notes([new(1), new(2), new(3), replayed(4), replayed(1), replayed(3)]),
        notes([new(1), new(2)], cancelled={103}, contents={1: MESSAGES[1]}),
        notes([new(1), gap(2, 4)], cancelled={102, 103}, gaps={4}, contents={1: MESSAGES[1]}),
    ],
)
def test_nothing_is_said_of_notes_that_are_right(found: Notes) -> None:
    assert everything(found) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (notes([new(1), new(3)]), "member lacks 1"),
        (notes([new(1), new(2), new(1), new(3)]), "twice or out of order"),
        (notes([new(1), new(2), new(3), replace(new(1), seqn=9)]), "more than once"),
        (notes([new(1), new(2), new(3), new(4)]), "checkpoint or was rolled back"),
        (notes([new(1), new(2), new(3), replace(new(1), seqn=9, message={"who": "s/9"})]), "was rolled back"),
        (notes(cancelled={103}), "what was cancelled"),
        (notes([replace(new(2), seqn=1), replace(new(1), seqn=2), new(3)]), "answers before their questions"),
        (notes([new(1), new(2), new(3), replayed(2), replayed(3), replayed(1)]), "had a replay of"),
        (notes([new(1), new(2), new(3), replace(replayed(1), message={"who": "s/2"})]), "replay of another message"),
        (notes(last=5), "requests have the numbers up to 5"),
        (notes([replace(new(3), seqn=1), replace(new(1), seqn=2), replace(new(2), seqn=3)]), "was committed"),
        (notes([replace(new(2), seqn=1), replace(new(1), seqn=2), new(3)]), "calls of one transaction"),
        (notes([new(1), new(2)], last=5), "neither got nor been told"),
        (notes([new(1), gap(2, 3)], gaps={2}, contents={3: MESSAGES[3]}), "told of a gap where none is"),
        (notes(gaps={3}), "dropped, and there"),
    ],
)
def test_each_fault_is_found(found: Notes, said: str) -> None:
    assert any(said in problem for problem in everything(found)), everything(found)


def test_members_that_got_different_messages_under_a_number_are_told() -> None:
    found = replace(notes(), got={"one": [new(1), new(2)], "other": [new(1), replace(new(3), seqn=2)]})
    assert any("another message under the number" in problem for problem in count.wrong(found))


def test_a_replay_that_is_not_what_lies_in_the_spool_is_told() -> None:
    found = notes([new(1), new(2), new(3), replayed(1), replayed(3)])
    assert list(count.replayed(found, {"member": 3}, lambda message: "to" in message)) != []
    assert list(count.replayed(found, {"member": 3}, lambda message: message["who"] in {"s/1", "s/2"})) == []


@pytest.mark.timeout(900)
def test_members_of_groups_get_everything_once_whoever_is_killed(embedded_home: Path) -> None:
    """Play a short story; `make kills ARGS=--groups` plays long ones."""
    fleet = make_fleet(embedded_home, f"groups-{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}", 1)
    try:
        outcome = groups.tell(fleet, 4, kills=3, rate=100.0)
    finally:
        fleet.close()
    assert outcome.is_clean, outcome.report()
    assert outcome.events > 100
