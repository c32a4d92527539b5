"""Compare what the members of process groups have noted with what was spooled."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.chaos.kills.members import ANSWER, CHECKPOINT, QUESTION
from tests.chaos.kills.senders import Sent
from tests.fix_broker import column, rows, value

SOME = 5
"""How many of what is wrong a problem names."""


@dataclass(frozen=True)
class Row:
    """A line of a member's notes."""

    life: str
    seqn: int
    entry: int | None
    message: dict[str, Any]
    in_replay: bool


@dataclass(frozen=True)
class Notes:
    """What stands in the tables about one spool: what was spooled for good, and what each member got, in order.

    `requests` has entry and author of each request, and `gaps` the numbers that pgps.spool_gaps tells.
    """

    spool: str
    requests: dict[int, tuple[int, str]]
    cancelled: set[int]
    got: dict[str, list[Row]]
    last: int
    contents: dict[int, dict[str, Any]]
    gaps: set[int]

    def new(self, member: str) -> list[Row]:
        """What a member got that was no replay, no marker and no gap."""
        return [row for row in self.got[member] if row.entry is not None and not row.in_replay]

    def told(self, member: str) -> set[int]:
        """The numbers that a member was told to be gone."""
        bounds = [row.message["gap"] for row in self.got[member] if "gap" in row.message]
        return {n for first, last in bounds for n in range(first, last + 1)}


def read(admin: psycopg.Connection, spool: str, members: Iterable[str]) -> Notes:
    """Read what is known of a spool, as of one moment."""
    with admin.transaction():
        rows(admin, "set transaction isolation level repeatable read")
        # Before the snapshot: one that is older than a copy of a slot of the store sees neither the slot nor the copy.
        rows(admin, "lock table pgps_internal.spool_slot in access share mode")
        sent = rows(admin, "select request, entry, who from siege.sent where spool = %s", [spool])
        cancelled = set(column(admin, "select request from siege.cancelled"))
        query = "select member, life, seqn, entry, message, in_replay from siege.got where spool = %s order by place"
        got: dict[str, list[Row]] = {member: [] for member in members}
        for member, *row in rows(admin, query, [spool]):
            got[member].append(Row(*row))
        last = value(admin, "select coalesce(max(last_seqn), 0) from pgps.spools where name = %s", [spool])
        query = "select seqn, message from pgps.spooled_messages where spool = %s"
        contents: dict[int, dict[str, Any]] = dict(rows(admin, query, [spool]))
        query = "select generate_series(first_seqn, last_seqn) from pgps.spool_gaps where spool = %s"
        gaps = set(column(admin, query, [spool]))
    return Notes(spool, {one: (entry, who) for one, entry, who in sent}, cancelled, got, last, contents, gaps)


def _some(found: Iterable[object]) -> str:
    listed = list(found)
    return f"{len(listed)}: {listed[:SOME]}"


def lacking(notes: Notes, wanted: Iterable[int]) -> Iterator[str]:
    """Say which of the requests have not reached every member as new."""
    wanted = [one for one in wanted if one not in notes.cancelled and notes.requests[one][0] != CHECKPOINT]
    for member in notes.got:
        have = {row.message["who"] for row in notes.new(member)}
        if lacks := [(one, notes.requests[one][1]) for one in wanted if notes.requests[one][1] not in have]:
            yield f"{notes.spool}: {member} lacks {_some(lacks)}"


def wrong(notes: Notes) -> Iterator[str]:
    """Say what no member may get: twice, out of order, an answer before its question, what nobody spooled for good."""
    known = {who: one for one, (entry, who) in notes.requests.items() if entry != CHECKPOINT}
    numbered: dict[int, str] = {}
    for member in notes.got:
        at, new = f"{notes.spool}: {member}", notes.new(member)
        numbers = [row.seqn for row in new]
        if numbers != sorted(set(numbers)):
            yield f"{at} got twice or out of order {_some((a, b) for a, b in itertools.pairwise(numbers) if b <= a)}"
        authors = [row.message.get("who") for row in new]
        if twice := [who for who, count in Counter(authors).items() if count > 1]:
            yield f"{at} got more than once {_some(twice)}"
        if strange := [row for row in new if row.message.get("who") not in known]:
            yield f"{at} got what is a checkpoint or was rolled back {_some(strange)}"
        if cancelled := [who for who in authors if known.get(str(who)) in notes.cancelled]:
            yield f"{at} got what was cancelled {_some(cancelled)}"
        if others := [row for row in new if numbered.setdefault(row.seqn, row.message["who"]) != row.message["who"]]:
            yield f"{at} got another message under the number {_some(others)}"
        place = {who: n for n, who in enumerate(authors)}
        late = [row.message for row in new if place.get(row.message.get("to"), -1) > place[row.message["who"]]]
        if late:
            yield f"{at} got answers before their questions {_some(late)}"
    yield from _wrong_replays(notes, numbered)


def _wrong_replays(notes: Notes, numbered: dict[int, str]) -> Iterator[str]:
    """Say what is wrong with replays: each gives rising numbers, but a checkpoint may come first, and old messages."""
    for member, got in notes.got.items():
        for (life, in_replay), group in itertools.groupby(got, lambda row: (row.life, row.in_replay)):
            block = list(group)
            numbers = [row.seqn for row in block]
            behind = numbers[1:]
            if in_replay and (behind != sorted(set(behind)) or (len(numbers) > 1 and numbers[0] == numbers[1])):
                yield f"{notes.spool}: {member} in life {life} had a replay of {numbers[:50]}"
            for row in block:
                who = row.message.get("who")
                if in_replay and row.entry in {QUESTION, ANSWER} and numbered.get(row.seqn, who) != who:
                    yield f"{notes.spool}: {member} had a replay of another message {row}"


def sparse(notes: Notes, *, kept: bool) -> Iterator[str]:
    """Say whether numbers are missing: they are dense, so the last one is the number of requests."""
    checkpoints = sum(who.startswith("front") for _, who in notes.requests.values())
    numbered = len(notes.requests) - checkpoints
    if notes.last != numbered if kept else notes.last > numbered:
        yield f"{notes.spool}: {numbered} requests have the numbers up to {notes.last}"


def disordered(notes: Notes, sent: Iterable[Sent]) -> Iterator[str]:
    """Say which transaction has lower numbers than one whose commit was reported before it began."""
    number = {row.message["who"]: row.seqn for member in notes.got for row in notes.new(member)}
    numbered = {one: number[who] for one, (_, who) in notes.requests.items() if who in number}
    found = []
    for one in sent:
        seqns = [numbered[request] for request in one.requests.get(notes.spool, ()) if request in numbered]
        if seqns:
            found.append((one.began, one.ended, min(seqns), max(seqns)))
        if seqns != sorted(seqns):
            yield f"{notes.spool}: calls of one transaction have the numbers {seqns}"
    ends = sorted(found, key=lambda each: each[1])
    highest, ended = 0, 0
    for began, _, least, _ in sorted(found):
        while ended < len(ends) and ends[ended][1] < began:
            highest = max(highest, ends[ended][3])
            ended += 1
        if least < highest:
            yield f"{notes.spool}: number {least} was spooled when {highest} was committed"


def untold(notes: Notes) -> Iterator[str]:
    """Say of a spool that drops its oldest what a member has neither got nor was told to be gone, and vice versa."""
    everything = set(range(1, notes.last + 1))
    # Of messages that were cancelled it is not known which numbers stay unused, and checkpoints are not played through.
    checkpoints = {n for n, message in notes.contents.items() if message["who"].startswith(("back/", "front/"))}
    unused = sum(entry == CHECKPOINT or one in notes.cancelled for one, (entry, _) in notes.requests.items())
    for member in notes.got:
        have, told = {row.seqn for row in notes.new(member)}, notes.told(member)
        silent = everything - have - told
        if len(silent) > unused or silent & set(notes.contents) - checkpoints:
            yield f"{notes.spool}: {member} has neither got nor been told of {_some(sorted(silent))}"
        # To a member gaps are one with what was cancelled or discarded between them.
        if there := (told - notes.gaps) & set(notes.contents):
            yield f"{notes.spool}: {member} was told of a gap where none is {_some(sorted(there))}"
    if both := notes.gaps & set(notes.contents):
        yield f"{notes.spool}: dropped, and there {_some(sorted(both))}"


def replayed(notes: Notes, before: dict[str, int], matches: Callable[[dict[str, Any]], bool]) -> Iterator[str]:
    """Say who got another replay than what lies in the spool and matches; `before`: how many rows each had got."""
    expected = [n for n in sorted(notes.contents) if matches(notes.contents[n])]
    for member, got in notes.got.items():
        seqns = [row.seqn for row in got[before[member] :] if row.in_replay]
        if seqns != expected:
            yield f"{notes.spool}: {member} had a replay of {_some(seqns)}, and not of {_some(expected)}"
