"""A spool in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LOW = -(2**63)


@dataclass
class Message:
    """A message that has its number."""

    seqn: int
    request: int
    text: int
    keys: dict[str, int] | None
    keywords: list[str] | None
    checkpoint: bool


Pattern = dict[str, Any]


def matches(message: Message, pattern: Pattern) -> bool:
    low, high = pattern.get("K", (None, None))
    if "K" in pattern and (
        message.keys is None
        or (low is not None and message.keys["K"] < low)
        or (high is not None and message.keys["K"] > high)
    ):
        return False
    if "seqn" in pattern and not pattern["seqn"][0] <= message.seqn < pattern["seqn"][1]:
        return False
    return "keywords" not in pattern or (message.keywords or []) == pattern["keywords"]


Delivery = tuple[int, Any, bool]
"""Number, message, and whether it is a replay's."""


@dataclass
class Replay:
    """What a replay repeats, and what is new behind it."""

    messages: list[Message] = field(default_factory=list)
    first: int = LOW
    last: int = LOW
    start: int = 0
    checkpoints_upto: int = LOW

    def ahead(self) -> set[int]:
        """Return the number of a checkpoint ahead of the replay pointer, which is replayed alone."""
        return {m.seqn for m in self.messages if m.seqn > self.start}


@dataclass
class Member:
    """What a member has, as the contract tells it."""

    present: bool = False
    waiting: int | None = None
    queue: list[Replay] = field(default_factory=list)
    joins: int = 0
    replay: Replay = field(default_factory=Replay)
    at: int = LOW
    marker: bool = False
    start: int = 0
    skip: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    got: list[Any] = field(default_factory=list)


class Model:
    """A spool: what was asked for waits in `asked`, (place, session or None when committed, verb, arguments).

    `limit`: how many messages it keeps; it drops the oldest.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.dropped: list[tuple[int, int]] = []
        self.checkpoints: set[int] = set()
        self.asked: list[tuple[int, int | None, str, Any]] = []
        self.messages: dict[int, Message] = {}
        self.last = 0
        self.lowest = 0
        self.pointer: int | None = None
        self.checkpoint: int | None = None
        self.members = [Member(), Member()]
        self.places = 0

    def ask(self, session: int | None, verb: str, arguments: Any) -> None:
        self.places += 1
        self.asked.append((self.places, session, verb, arguments))

    def end(self, session: int, *, commit: bool) -> None:
        self.asked = [
            (place, None if who == session else who, verb, arguments)
            for place, who, verb, arguments in self.asked
            if commit or who != session
        ]

    def effective_pointer(self, session: int | None) -> int | None:
        asked = [a for _, who, verb, a in self.asked if verb == "pointer" and who in (None, session)]
        known = [p for p in (*asked, self.pointer) if p is not None]
        return max(known, default=None)

    def lying(self, upto: int | None, pattern: Pattern) -> list[Message]:
        return [] if upto is None else [m for m in self.messages.values() if m.seqn <= upto and matches(m, pattern)]

    def dispatch(self) -> None:
        ready = sorted(a for a in self.asked if a[1] is None)
        cancelled = self.cancelled()
        self.asked = [a for a in self.asked if a[1] is not None]
        for _, _, verb, arguments in ready:
            if verb == "pointer":
                self.pointer = max(arguments, arguments if self.pointer is None else self.pointer)
            elif verb == "checkpoint_pointer":
                self.checkpoint = arguments
            elif verb == "discard":
                self.remove(arguments)
            elif verb == "replay":
                self.settle(*arguments)
            elif verb == "cancel":
                self.messages = {n: m for n, m in self.messages.items() if m.request != arguments}
            elif arguments[1].request in cancelled:
                self.number(arguments[0])
            else:
                self.keep(*arguments)
        if ready:
            self.drop_oldest()

    def keep(self, kind: str, message: Message, pattern: Pattern) -> None:
        if kind != "append":
            self.remove(pattern)
        message.seqn = self.number(kind)
        self.messages[message.seqn] = message
        if message.checkpoint:
            self.checkpoint = message.seqn
            self.checkpoints.add(message.seqn)

    def number(self, kind: str) -> int:
        if kind == "prepend":
            self.lowest -= 1
            return self.lowest
        self.last += 1
        return self.last

    def cancelled(self) -> set[int]:
        return {arguments for _, who, verb, arguments in self.asked if verb == "cancel" and who is None}

    def drop_oldest(self) -> None:
        if self.limit is not None and len(self.messages) > self.limit:
            oldest = sorted(self.by_age()[: -self.limit])
            self.dropped.append((oldest[0], oldest[-1]))
            self.messages = {n: m for n, m in self.messages.items() if n not in oldest}

    def by_age(self) -> list[int]:
        """Return the numbers, the oldest first: those at the front are newer the lower they are.

        Of two on the same side of 0 the numbers say which is older, of others the requests.
        """
        ages = {}
        for side in (sorted(n for n in self.messages if n > 0), sorted((n for n in self.messages if n < 0), key=abs)):
            age = 0
            for number in side:
                age = max(age, self.messages[number].request)
                ages[number] = age
        return sorted(ages, key=lambda n: (ages[n], abs(n)))

    def remove(self, pattern: Pattern) -> None:
        for message in self.lying(self.pointer, pattern):
            del self.messages[message.seqn]

    def replayed(self, pattern: Pattern) -> Replay:
        first = self.lowest if self.checkpoint is None else max(self.checkpoint, self.lowest)
        if self.pointer is None:
            return Replay([], first, self.lowest - 1, self.lowest - 1, self.last)
        last = self.pointer if self.checkpoint is None else max(self.checkpoint, self.pointer)
        found = [m for m in self.messages.values() if first <= m.seqn <= last and matches(m, pattern)]
        return Replay(sorted(found, key=lambda m: m.seqn), first, last, self.pointer)

    def join(self, member: Member, replay: bool) -> None:
        if replay:
            member.queue, member.replay, member.marker = [], Replay(), False
            member.joins += 1
            self.replay([member], {}, joining=True)
        elif not member.present:
            member.replay, member.marker, member.start = Replay(), False, self.last
            member.skip, member.queue = set(), []
            member.waiting = None
            member.joins += 1
        member.present, member.got = True, []

    def waits(self) -> bool:
        """Whether the spool was asked for something that changes what a replay repeats, and is not dispatched."""
        changing = ("pointer", "checkpoint_pointer", "discard")
        cancelled = self.cancelled()
        return any(
            who is None
            and (verb in changing or (verb == "message" and a[1].checkpoint and a[1].request not in cancelled))
            for _, who, verb, a in self.asked
        )

    def replay(self, members: list[Member], pattern: Pattern, *, joining: bool = False) -> None:
        """Give members a replay; one waits for what was asked for before. A member that joins begins with it."""
        self.places += 1
        if joining:
            members[0].waiting = self.places
        asked = (members, self.places, pattern, [member.joins for member in members], joining)
        if self.waits():
            self.asked.append((self.places, None, "replay", asked))
        else:
            self.settle(*asked)

    def settle(self, members: list[Member], place: int, pattern: Pattern, joins: list[int], joining: bool) -> None:
        replay = self.replayed(pattern)
        for member, joined in zip(members, joins, strict=True):
            if joining and member.waiting == place:
                member.waiting = None
                member.queue.insert(0, replay)
            elif not joining and member.joins == joined:
                member.queue.append(replay)

    def next(self, member: Member) -> None:
        """Let a member begin the next replay, if it is through with the one it is in."""
        if member.queue and not member.marker and member.waiting is None:
            replay = member.queue.pop(0)
            member.replay, member.marker, member.start = replay, True, replay.start
            member.at = replay.first - 1
            member.skip = replay.ahead() | member.acked

    def gap(self, after: int, upto: int, skip: set[int]) -> list[Delivery]:
        """Return what tells of the messages that were dropped: one row, since nothing is left between them."""
        gone = {n for first, last in self.dropped for n in range(max(first, after + 1), min(last, upto) + 1)} - skip
        return [(max(gone), {"gap": [min(gone), max(gone)]}, False)] if gone else []

    def due(self, member: Member) -> list[Delivery]:
        if member.waiting is not None:
            return []
        found: list[Delivery] = []
        if member.marker:
            found += [(m.seqn, m.text, True) for m in member.replay.messages if member.at < m.seqn in self.messages]
            found += [(n, message, True) for n, message, _ in self.gap(member.at, member.replay.last, set())]
            found = [*sorted(found, key=lambda one: one[0]), (0, {"replay": "ended"}, False)]
            if member.queue:
                return found
        new: list[Delivery] = [
            (m.seqn, m.text, False)
            for m in self.messages.values()
            if m.seqn > member.start
            and m.seqn not in member.skip
            and (not m.checkpoint or m.seqn <= member.replay.checkpoints_upto)
        ]
        return found + sorted(new + self.gap(member.start, self.last, member.skip), key=lambda one: one[0])

    def ack(self, member: Member, deliveries: list[Delivery]) -> None:
        for seqn, message, in_replay in deliveries:
            if in_replay:
                member.at = seqn
                member.acked |= member.replay.ahead()
            elif message == {"replay": "ended"}:
                member.acked |= member.replay.ahead()
                member.marker = False
            else:
                passed = set(range(max(member.start, self.lowest - 1) + 1, seqn + 1))
                passed -= {n for n in self.checkpoints if n > member.replay.checkpoints_upto}
                member.acked |= passed
                member.skip |= passed
                member.start = seqn
