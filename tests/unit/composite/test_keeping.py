"""What a session keeps of composite events from one step to the next has a limit."""

from __future__ import annotations

from typing import Any

from composite.definition import define
from composite.detector import State
from composite.graph import Graph, build
from composite.subjects import KEPT_BYTES, Subject, keep, known_as, recall

(GRAPH,) = build([define("it", "a ; b")])


def subject_of(number: int, size: int, step: int | None = None, graph: Graph = GRAPH) -> Subject:
    """Return a composite event after a step whose state takes so many bytes; `step`: the newest one in the tables."""
    job = {"composite_id": number, "share": 0, "shares": 1, "state_id": number, "ordering": None, "step": step,
           "reached": 0}  # fmt: skip
    subject = Subject(job, known_as("1", define("it", "a ; b"), graph))
    subject.state, subject.size = State(graph), size
    return subject


def kept(memory: dict[str, Any]) -> list[int]:
    return sorted(number for number, _ in memory["states"])


def test_states_are_kept_up_to_a_limit() -> None:
    memory: dict[str, Any] = {"states": {}}
    third = KEPT_BYTES // 3
    keep(memory, [subject_of(1, third), subject_of(2, KEPT_BYTES)], {(1, 0): 10, (2, 0): 11})
    assert kept(memory) == [1]
    keep(memory, [subject_of(3, third), subject_of(4, third)], {(3, 0): 12, (4, 0): 13})
    assert kept(memory) == [1, 3, 4]
    keep(memory, [subject_of(5, third)], {(5, 0): 14})
    assert kept(memory) == []


def test_a_state_is_taken_once_and_only_by_the_next_step() -> None:
    memory: dict[str, Any] = {"states": {}}
    for number in (1, 2, 3):
        keep(memory, [subject_of(number, 100)], {(number, 0): 10 + number})
    same, later, (other,) = subject_of(1, 0, 11), subject_of(2, 0, 99), build([define("it", "a ; b")])
    altered = subject_of(3, 0, 13, other)
    for subject in (same, later, altered):
        recall(memory, subject)
    assert (same.kept is not None, same.size) == (True, 100)
    assert later.kept is altered.kept is None
    assert kept(memory) == []


def test_what_the_last_batch_has_brought_is_not_kept() -> None:
    memory: dict[str, Any] = {"states": {}}
    subject = subject_of(1, 100)
    assert subject.state is not None
    subject.state.step.found.append(object())  # type: ignore[arg-type]
    keep(memory, [subject], {(1, 0): 10})
    assert memory["states"][1, 0].state.step.found == []
