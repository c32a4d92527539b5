"""The parser of filters, which runs inside the server, imported from where it is kept."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "sql" / "python"))
tokenize = importlib.import_module("lexer").tokenize
SqlTextError = importlib.import_module("lexer").SqlTextError
parse_filter = importlib.import_module("filter_text").parse_filter

ATTRIBUTES = ["symbol", "price", "qty", "at", "note", "ok", "Odd", "and", "date"]


def parse(text: str, type_name: str = "security") -> dict[str, Any]:
    """Take apart a filter on an event type with ATTRIBUTES."""
    result: dict[str, Any] = parse_filter(text, type_name, ATTRIBUTES)
    return result


def shape(text: str) -> str:
    """Return the shape of a filter, attributes without the type."""
    return str(parse(text)["shape"]).replace('"security".', "")
