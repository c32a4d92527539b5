"""Values of Arrow as the text that PostgreSQL's input functions read: by the type of both sides, never by a guess."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pgps.errors import BadArgument

__all__ = ["as_text", "row_as_json"]

_JSON = {"json", "jsonb"}
# What reads a time without a zone as one of the session's.
_TIMES = {"timestamp", "timestamptz"}
_NULL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def as_text(values: pa.Array, target: str, *, in_utc: bool = False) -> pa.Array:
    """Return values as Arrow's CSV writer and PostgreSQL's input function of `target` (`jsonb`, `_text`) know them.

    `in_utc`: the session that reads them is in that time zone. Raises BadArgument for a value that the target has no
    text for.
    """
    kind = values.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # The writer takes twenty times as long where it tells a zone.
        zone = None if in_utc and target in _TIMES else "UTC"
        # It tells an offset in hours and minutes; some of the nineteenth century have seconds.
        return values.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit, zone))
    encode: Callable[[Any], str]
    if target in _JSON and pa.types.is_nested(kind):
        encode = _json_of(kind)
    elif pa.types.is_duration(kind):
        # As the writer tells it, a bare number, PostgreSQL takes it for seconds.
        values, encode = values.cast(pa.duration("us")).cast(pa.int64()), _interval
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        encode = _bytea
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        encode = _array_of(kind, target.removeprefix("_"))
    elif pa.types.is_nested(kind):
        encode = _json_of(kind)
    else:
        return values
    try:
        return pa.array([None if value is None else encode(value) for value in values.to_pylist()], type=pa.string())
    except UnicodeDecodeError as error:
        raise BadArgument(f"a text is no UTF-8: {error}", hint="Decode it before.", sqlstate="22021") from error
    except (ValueError, OverflowError) as error:
        # Python has no times behind the year 9999.
        raise BadArgument(f"a value cannot be written: {error}", hint="Replace it.", sqlstate="22023") from error


def row_as_json(rows: pa.RecordBatch, place: int) -> str:
    """Return a row as a JSON object for people to read; values that JSON does not have are written as strings."""
    pairs = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            text = _json(column[place].as_py(), column.type)
        except BadArgument:
            text = json.dumps(str(column[place].as_py()))
        except (ValueError, OverflowError):
            text = json.dumps(_shown(column.slice(place, 1)))
        pairs.append(f"{json.dumps(name)}:{text}")
    # PostgreSQL's jsonb has no U+0000: what the character is written as stands there instead.
    return _NULL.sub(r"\1\\\\u0000", "{" + ",".join(pairs) + "}")


def _shown(value: pa.Array) -> str:
    """Return a value that Python does not have: no UTF-8, a time behind the year 9999."""
    try:
        if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
            return bytes(value.cast(pa.binary())[0].as_py()).decode("utf-8", "replace")
        return str(value.cast(pa.string())[0].as_py())
    except (ValueError, pa.ArrowException):
        return f"a value of type {value.type}"


def _interval(microseconds: int) -> str:
    return f"{microseconds} microseconds"


def _bytea(value: bytes) -> str:
    return "\\x" + value.hex()


def _json_of(kind: pa.DataType) -> Callable[[Any], str]:
    return lambda value: _json(value, kind)


def _json(value: Any, kind: pa.DataType) -> str:
    """Return a value as JSON: maps and structs are objects, decimals are numbers with all their digits."""
    if value is None:
        return "null"
    if pa.types.is_map(kind):
        pairs = (f"{json.dumps(_key(key))}:{_json(item, kind.item_type)}" for key, item in value)
        return "{" + ",".join(pairs) + "}"
    if pa.types.is_struct(kind):
        pairs = (f"{json.dumps(field.name)}:{_json(value[field.name], field.type)}" for field in kind)
        return "{" + ",".join(pairs) + "}"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "[" + ",".join(_json(item, kind.value_type) for item in value) + "]"
    return _plain_json(value)


def _plain_json(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise BadArgument(
            f"JSON has no value {value}", hint="Replace it before publishing, by null or a string.", sqlstate="22P02"
        )
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    if isinstance(value, dt.date | dt.time):
        return json.dumps(value.isoformat())
    return json.dumps(value if isinstance(value, str | int | float) else str(value))


def _key(key: Any) -> str:
    return key if isinstance(key, str) else _plain_json(key).strip('"')


def _array_of(kind: pa.DataType, target: str) -> Callable[[list[Any]], str]:
    return lambda values: _array(values, kind.value_type, target)


def _array(values: list[Any], kind: pa.DataType, target: str) -> str:
    """Return a list as PostgreSQL writes arrays: {1,2}, {"a","b",NULL}."""
    return "{" + ",".join(_element(value, kind, target) for value in values) + "}"


def _element(value: Any, kind: pa.DataType, target: str) -> str:
    if value is None:
        return "NULL"
    if target in _JSON and pa.types.is_nested(kind):
        text = _json(value, kind)
    elif isinstance(value, list):
        return _array(value, kind.value_type, target)
    else:
        text = _bytea(value) if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
