"""What the detector takes of DataFrames: which columns there are, and their values, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from pgps.errors import BadArgument, UnknownName
from pgps_spark.detecting.language import refuse
from pgps_spark.errors import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["columns_of", "groups_of", "is_interval", "kind_of", "order_of", "placed", "quoted", "required", "time_of"]

# Beside the attributes in what a subscription gives.
_ABOUT = ("event_id", "published_at", "publisher", "origin", "batch_id", "event_type", "xid", "_corrupt_record")
_KINDS = {
    "string": "text", "tinyint": "int", "smallint": "int", "int": "int", "bigint": "int", "float": "float",
    "double": "float", "boolean": "bool", "timestamp": "time", "date": "date",
}  # fmt: skip


def groups_of(stream: DataFrame | Mapping[str, DataFrame], given: list[str]) -> list[tuple[DataFrame, list[str]]]:
    """Return the DataFrames to read, each once, with the event types of the expression that it holds."""
    names = list(dict.fromkeys(given))
    if not names:
        raise refuse("the expression has no event type", "A clock alone needs no stream: let the broker do it.")
    if not isinstance(stream, Mapping):
        if len(names) > 1 and "event_type" not in stream.columns:
            message = f"the expression has {len(names)} event types, and the stream has no column event_type"
            hint = "Give a DataFrame for each: detect({'quote': …, 'news': …}, …)."
            raise UnknownName(message, hint=hint, sqlstate="42704")
        return [(stream, names)]
    missing = [name for name in names if name not in stream]
    if missing:
        message = f'event type "{missing[0]}" is not among the streams'
        raise UnknownName(message, hint=f"There are: {', '.join(stream)}.", sqlstate="42704")
    return [(stream[name], [name]) for name in names]


def columns_of(frame: DataFrame) -> list[tuple[str, str]]:
    """Return the attributes, each with its type in Spark."""
    return [(name, kind) for name, kind in frame.dtypes if name not in _ABOUT]


def quoted(name: str) -> Column:
    """Return a column, whatever its name has in it."""
    return sf.col("`" + name.replace("`", "``") + "`")


def required(value: Column, message: str) -> Column:
    """Return a value; a task raises 22004 with this message where it is null."""
    error = BadArgument(message, hint="Leave such events out.", sqlstate="22004")
    return sf.when(value.isNull(), sf.raise_error(sf.lit(text_of(error)))).otherwise(value)


def placed(event_type: str, name: str, bits: int) -> Column:
    """Return a column of the order; a task raises 22003 where it has no place in a position."""
    value = quoted(name).cast("bigint")
    error = BadArgument(
        f"{name} of an event of type {event_type}, by which events are ordered, is below 0 or not below 2^{bits}",
        hint="Give one column as order_by; or take from its numbers the one at which they begin.",
        sqlstate="22003",
    )
    fits = value.isNull() | value.between(0, 2**bits - 1)
    checked = sf.when(fits, value).otherwise(sf.raise_error(sf.lit(text_of(error))))
    return required(checked, f"{name} of an event of type {event_type} is null")


def kind_of(given: str) -> str:
    """Return what expressions take values of a type of Spark as."""
    return "decimal" if given.startswith("decimal") else _KINDS.get(given, "other")


def is_interval(columns: Mapping[str, str]) -> bool:
    """Tell whether events with these attributes have a beginning, as composite events do."""
    return all(columns.get(name) == "timestamp" for name in ("starts_at", "ends_at", "detected_at"))


def time_of(event_type: str, given: str | Mapping[str, str], frame: DataFrame) -> str:
    """Return the column that has the time of events of a type."""
    name = given if isinstance(given, str) else given.get(event_type, "")
    if dict(frame.dtypes).get(name) != "timestamp":
        raise BadArgument(
            f'event type "{event_type}" has no timestamp "{name}"',
            hint="Say time='column', or time={'event type': 'column'}; cast other types to timestamp.",
            sqlstate="22023",
        )
    return name


def order_of(event_type: str, given: Sequence[str] | None, frame: DataFrame) -> tuple[str | None, str]:
    """Return the columns that order events of the same time; the first may be none."""
    types = dict(frame.dtypes)
    usual = [name for name in ("batch_id", "event_id") if name in types]
    names = list(given) if given is not None else usual
    if not 1 <= len(names) <= 2 or any(kind_of(types.get(name, "")) != "int" for name in names):
        raise BadArgument(
            f'events of type "{event_type}" have no order: {", ".join(names) or "nothing"}',
            hint="Give one or two columns of whole numbers as order_by=('batch_id', 'event_id').",
            sqlstate="22023",
        )
    return (names[0] if len(names) == 2 else None, names[-1])
