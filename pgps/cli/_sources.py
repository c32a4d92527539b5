"""Events read from a file or from stdin, one at a time, with the line each began on."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from pgps.errors import BadArgument

__all__ = ["Event", "Format", "Source", "chunks", "document", "open_source"]


class Format(StrEnum):
    """How a file holds its events."""

    NDJSON = "ndjson"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class Event:
    """One event as JSON text, and the line of the source it began on."""

    text: str
    line: int


class Source:
    """Events of one stream. `size_bytes` is None when nobody knows how long it is."""

    def __init__(self, raw: BinaryIO, *, name: str, format: Format | None, size_bytes: int | None) -> None:  # noqa: A002
        self.name = name
        self.size_bytes = size_bytes
        self._raw = raw
        self._format = format or _guess(name)
        self._text = _text(raw, zipped=name.endswith(".gz"))

    def position(self) -> int:
        """Return how many bytes have been read, of a packed file the packed ones."""
        return self._raw.tell() if self.size_bytes is not None else 0

    def __iter__(self) -> Iterator[Event]:
        try:
            yield from _READERS[self._format](self._text)
        except UnicodeDecodeError as error:
            raise BadArgument(f"{self.name} is not UTF-8: {error.reason}", hint="Convert it: iconv -t UTF-8") from error
        except (csv.Error, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BadArgument(f"{self.name}: {error}") from error
        except BadArgument as error:
            raise BadArgument(f"{self.name}: {error.message}", hint=error.hint) from error


@contextlib.contextmanager
def open_source(path: str, *, format: Format | None) -> Iterator[Source]:  # noqa: A002
    """Open a file, or stdin for `-`; the name tells the format unless it is given, `.gz` unpacks."""
    if path == "-":
        yield Source(sys.stdin.buffer, name="stdin", format=format or Format.JSON, size_bytes=None)
        return
    file = Path(path)
    with file.open("rb") as raw:
        yield Source(raw, name=path, format=format, size_bytes=file.stat().st_size if file.is_file() else None)


def _guess(name: str) -> Format:
    suffix = Path(name.removesuffix(".gz")).suffix.lower()
    known = {".csv": Format.CSV, ".json": Format.JSON, ".ndjson": Format.NDJSON, ".jsonl": Format.NDJSON}
    if suffix not in known:
        raise BadArgument(f'the name "{name}" does not tell the format', hint="Say it: --format ndjson, json or csv.")
    return known[suffix]


def _text(raw: BinaryIO, *, zipped: bool) -> TextIO:
    data = cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if zipped else raw
    return io.TextIOWrapper(data, encoding="utf-8-sig", newline="")


def _ndjson(text: TextIO) -> Iterator[Event]:
    for number, line in enumerate(text, start=1):
        if line.strip():
            _parsed(line, number, dict)
            yield Event(line.strip(), number)


def _json(text: TextIO) -> Iterator[Event]:
    """Read one document, or a stream of objects with a line each."""
    first = text.readline()
    try:
        streaming = isinstance(json.loads(first), dict)
    except ValueError:
        streaming = False
    if streaming:
        yield Event(first.strip(), 1)
        yield from (Event(event.text, event.line + 1) for event in _ndjson(text))
    else:
        yield from document(first + text.read())


def _csv(text: TextIO) -> Iterator[Event]:
    """Read rows under a header; an empty field is NULL, every other goes through its type's input."""
    reader = csv.DictReader(text, restkey="", strict=True)
    names = list(reader.fieldnames or ())
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadArgument(f'the header names "{twice}" twice')
    for row in reader:
        if "" in row:
            raise BadArgument(f"line {reader.line_num} has more fields than the header")
        if None in row.values():
            raise BadArgument(f"line {reader.line_num} has fewer fields than the header")
        text_of = {key: value or None for key, value in row.items()}
        yield Event(json.dumps(text_of, ensure_ascii=False), reader.line_num)


_READERS = {Format.NDJSON: _ndjson, Format.JSON: _json, Format.CSV: _csv}


def document(text: str) -> list[Event]:
    """Return the events of one JSON document: an object, or an array of objects."""
    value = _parsed(text, 1, dict | list)
    if isinstance(value, dict):
        return [Event(text.strip(), 1)]
    if not all(isinstance(item, dict) for item in value):
        raise BadArgument("the array has something that is not an object", hint='An event is {"attribute": value, …}.')
    # Numbers are kept as they are written: a float would lose digits.
    value = json.loads(text, parse_float=_Number, parse_int=_Number)
    return [Event(_dumps(item), 1) for item in value]


class _Number(str):
    __slots__ = ()


def _dumps(value: object) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_dumps(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_dumps, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _parsed(text: str, line: int, kind: type | object) -> dict[str, object] | list[object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadArgument(f"line {line} is not JSON: {error}", hint='An event is {"attribute": value, …}.') from error
    if not isinstance(value, cast("type", kind)):
        raise BadArgument(f"line {line} is not a JSON object", hint='An event is {"attribute": value, …}.')
    return cast("dict[str, object] | list[object]", value)


def chunks(events: Iterable[Event], size: int) -> Iterator[list[Event]]:
    """Yield lists of at most `size` events."""
    iterator = iter(events)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
