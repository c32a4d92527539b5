"""What was detected, as JSON that can be published."""

import json
from datetime import timedelta
from typing import Any

from composite.definition import Definition
from composite.occurrences import constituents
from composite.points import Occurrence
from composite.times import EPOCH


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
