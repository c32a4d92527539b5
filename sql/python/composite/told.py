"""What was detected, as JSON that can be published."""

import json
from datetime import timedelta
from typing import Any

from composite.definition import Definition
from composite.occurrences import constituents
from composite.points import Occurrence, time_of
from composite.stepping import Found
from composite.times import EPOCH
from composite.wire import write_occurrence, write_point


def moment(at: int) -> str:
    """Return microseconds since 1970 as a timestamp with its zone."""
    return (EPOCH + timedelta(microseconds=at)).isoformat()


def write_parts(definition: Definition, occurrence: Occurrence) -> str:
    """Return the constituents of an occurrence as a JSON array."""
    return "[" + ",".join(write_part(part) for part in constituents(definition, occurrence)) + "]"


def write_part(part: dict[str, Any]) -> str:
    """Return a constituent as JSON, with its payload as it came."""
    payload = part.pop("payload", None)
    for name in ("at", "tick"):
        if name in part:
            part[name] = moment(part[name])
    text = json.dumps(part, ensure_ascii=False)
    return text if payload is None else f'{text[:-1]}, "payload": {payload}}}'


def tell_part(found: Found, asked: list[str], broker: str) -> dict[str, Any]:
    """Return what was detected for a neighbour, as it travels; it has asked for the sub-expressions of these names."""
    one = found.occurrence
    while one[3].name not in asked:
        (one,) = (member for group in one[4] for member in group)
    key = None if found.key == () else found.key
    told = [asked.index(one[3].name), key, write_point(found.point), write_occurrence(one, broker)]
    return {
        "starts": time_of(one[1]),
        "ends": time_of(one[2]),
        "detected": time_of(found.point),
        "constituents": json.dumps(told, ensure_ascii=False, separators=(",", ":")),
    }
