"""What was detected, as JSON that can be published."""

import json
from datetime import timedelta
from typing import Any, Optional

from composite.definition import Definition
from composite.occurrences import constituents
from composite.points import TIME_BITS, Occurrence
from composite.stepping import Found
from composite.syntax import Expression
from composite.times import EPOCH
from composite.wire import write_occurrence, write_point


def moment(at: int) -> str:
    """Return microseconds since 1970 as a timestamp with its zone."""
    return (EPOCH + timedelta(microseconds=at)).isoformat()


# For both operands of a sequence, by the origin of an event, what stands in its constituent before the time, between
# time and payload, and behind the id.
Heads = tuple[dict[Any, tuple[str, str, str]], dict[Any, tuple[str, str, str]]]


class PairTeller:
    """Write what sequences of two events are made of; what is the same in many is written once.

    moments: times that were written before, of other definitions, too; heads: beginnings of constituents, of this one.
    """

    def __init__(self, definition: Definition, moments: dict[int, str], heads: Heads) -> None:
        self.leaves = definition.expression.parts
        self.moments = moments
        self.heads = heads

    def write(self, firsts: tuple[Occurrence, ...], last: Occurrence) -> str:
        """Return the constituents of a sequence, which are in order of time, as a JSON array."""
        if len(firsts) == 1:
            return f"[{self.write_event(0, firsts[0])},{self.write_event(1, last)}]"
        return f"[{','.join(self.write_event(0, one) for one in firsts)},{self.write_event(1, last)}]"

    def write_event(self, role: int, event: Occurrence) -> str:
        """Return an event at an operand of the sequence as a constituent, as write_part does."""
        _, _, end, _, event_id, origin, payload = event
        head = self.heads[role].get(origin)
        if head is None:
            head = self.heads[role][origin] = head_of(self.leaves[role], origin)
        before, between, behind = head
        at = self.moments.get(end >> TIME_BITS)
        if at is None:
            at = self.moments[end >> TIME_BITS] = moment(end >> TIME_BITS)
        return f'{before}{at}{between}{payload},"event_id":{event_id}{behind}'


def head_of(leaf: Expression, origin: Optional[str]) -> tuple[str, str, str]:
    """Return what a constituent has around its time, payload and id, in the order that jsonb puts names in."""
    name, source, kind = (json.dumps(text, ensure_ascii=False) for text in (leaf.name, origin, leaf.type))
    return f'{{"as":{name},"at":"', f'","origin":{source},"payload":', f',"event_type":{kind}}}'


def write_parts(definition: Definition, occurrence: Occurrence) -> str:
    """Return the constituents of an occurrence as a JSON array."""
    return "[" + ",".join(map(write_part, constituents(definition, occurrence))) + "]"


def write_few(definition: Definition, occurrence: Occurrence) -> str:
    """Return the same of an occurrence that has too many or too large ones: no payloads, and ticks in runs."""
    found = constituents(definition, without_payloads(occurrence), in_runs=True)
    return "[" + ",".join(map(write_part, found)) + "]"


def without_payloads(occurrence: Occurrence) -> Occurrence:
    """Return an occurrence whose events have no payload: it can be written however large they are."""
    if len(occurrence) == 7:
        return (*occurrence[:6], None)
    serial, start, end, node, groups = occurrence[:5]
    if node is None:
        return occurrence
    return (serial, start, end, node, tuple(tuple(map(without_payloads, group)) for group in groups))


def write_part(part: dict[str, Any]) -> str:
    """Return a constituent as JSON, with its payload as it came."""
    payload = part.pop("payload", None)
    for name in ("at", "tick", "last"):
        if name in part:
            part[name] = moment(part[name])
    text = json.dumps(part, ensure_ascii=False)
    return text if payload is None else f'{text[:-1]}, "payload": {payload}}}'


def tell_part(found: Found, asked: list[str], broker: str) -> tuple[Occurrence, str]:
    """Return what was detected for a neighbour, and how it travels; it has asked for sub-expressions of these names."""
    one = found.occurrence
    while one[3].name not in asked:
        (one,) = (member for group in one[4] for member in group)
    key = None if found.key == () else found.key
    told = [asked.index(one[3].name), key, write_point(found.point), write_occurrence(one, broker)]
    return one, json.dumps(told, ensure_ascii=False, separators=(",", ":"))
