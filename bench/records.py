"""Raw results as text: JSON with one line for each record, so that a difference of two results can be read."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["dumps"]


def dumps(document: dict[str, Any]) -> str:
    """Return a document as JSON; each element of a list, and each value without objects in it, is on one line."""
    return _text(document, 0) + "\n"


def _text(value: object, depth: int) -> str:
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict) and any(_has_objects(one) for one in value.values()):
        members = (f"{_line(str(name))}: {_text(one, depth + 1)}" for name, one in value.items())
        return "{" + inner + f",{inner}".join(members) + outer + "}"
    if isinstance(value, list) and _has_objects(value):
        return "[" + inner + f",{inner}".join(_line(one) for one in value) + outer + "]"
    return _line(value)


def _has_objects(value: object) -> bool:
    """Return whether it is an object, or a list with objects in it."""
    return isinstance(value, dict) or (isinstance(value, list) and any(_has_objects(one) for one in value))


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
