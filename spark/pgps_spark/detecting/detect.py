"""Composite events over streams that outgrow a database: `pgps_spark.detect`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from pgps.errors import BadArgument, class_of
from pgps_spark.detecting.evaluating import condition_of
from pgps_spark.detecting.frames import (
    columns_of,
    groups_of,
    is_interval,
    kind_of,
    order_of,
    placed,
    quoted,
    required,
    time_of,
)  # fmt: skip
from pgps_spark.detecting.keyed import POSITION_BITS, Job, Row, take
from pgps_spark.detecting.language import NUMBERS, columns_in, read, refuse
from pgps_spark.detecting.modules import module
from pgps_spark.errors import carried

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Sequence

    import pandas as pd
    from pyspark.sql import Column, DataFrame

__all__ = ["detect"]

# Spark's watermark decides what is late, so the detector's own never does.
_NEVER_LATE = "300000 days"
_TYPES = {
    "text": "string", "varchar": "string", "character varying": "string", "smallint": "smallint", "int2": "smallint",
    "integer": "int", "int": "int", "int4": "int", "bigint": "bigint", "int8": "bigint", "real": "float",
    "float4": "float", "float8": "double", "double precision": "double", "boolean": "boolean", "bool": "boolean",
    "timestamptz": "timestamp", "timestamp with time zone": "timestamp", "date": "date", "numeric": "decimal(38,18)",
    "decimal": "decimal(38,18)",
}  # fmt: skip
_KINDS_OF_RESULTS = {"text": ("string",), "bool": ("boolean",), "time": ("timestamp",), "date": ("date",)}
_LONG_BITS = 63
_STAMP = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSxxxxx"


def detect(  # noqa: PLR0913 - what a user may say of a composite event
    stream: DataFrame | Mapping[str, DataFrame],
    expression: str,
    *,
    time: str | Mapping[str, str],
    context: str = "recent",
    partition_by: str | None = None,
    within: str | None = None,
    filter: str | None = None,  # noqa: A002 - as in pgps.create_composite_event
    attributes: str | None = None,
    lateness: str = "0 s",
    max_open: int | None = None,
    order_by: Sequence[str] | None = None,
    until: dt.datetime | None = None,
) -> DataFrame:
    """Return what a composite event detects in a stream, or in a DataFrame: one row for each occurrence.

    `stream` holds the events of the one event type in the expression; or of several, told apart by a column
    `event_type`; or it maps the names of event types to DataFrames. `time` is the column by which events are taken in
    order, a timestamp, one name for each event type if they differ; `order_by` one or two columns of whole numbers for
    events of the same time (those that a subscription gives, `batch_id` and `event_id`, unless said otherwise). The
    other arguments are those of `pgps.create_composite_event`, with the same meaning. The rows have the attributes,
    then starts_at, ends_at, detected_at, constituents (JSON), and with attributes `error`: why they are null.

    A stream keeps its state in the checkpoint. Its watermark is the least over the event types, and moves on between
    micro-batches; what comes later than `lateness` is dropped, and counted by Spark. In a batch all events are in
    order, and timers fire up to `until`, without it up to the latest event.

    Raises BrokerError with the SQLSTATE that the broker would give; 0A000 for what only the broker can do: filters and
    attributes that read tables or call functions, sources without a column `origin`, clocks alone.
    """
    plan = _Plan(stream, expression, time, order_by, {
        "context": context, "partition_by": partition_by, "within": _of_broker("within", within), "filter": filter,
        "attributes": attributes, "max_open": max_open,
    })  # fmt: skip
    if plan.streaming and until is not None:
        raise BadArgument("until is for batches", hint="Leave it out: a stream goes on.", sqlstate="22023")
    late = _microseconds("lateness", lateness)
    rows = plan.rows(-(-late // 1000) + 1, until)
    grouped = rows.groupBy("key")
    if plan.streaming:
        found = grouped.applyInPandasWithState(
            _of_stream(plan.job), plan.shape, "state string", "append", GroupStateTimeout.EventTimeTimeout
        )
    else:
        end = plan.latest()
        if until is not None:
            end = rows.sparkSession.range(1).select(sf.unix_micros(sf.lit(until).cast("timestamp")).alias("end"))
        found = rows.crossJoin(sf.broadcast(end)).groupBy("key").applyInPandas(_of_batch(plan.job), plan.shape)
    return plan.told(found)


def _of_broker(what: str, given: str | None) -> str | None:
    return None if given is None else f"{_microseconds(what, given)} us"


def _microseconds(what: str, given: str) -> int:
    try:
        return int(module("composite.times").read_duration("0 s" if given.strip() == "0" else given))
    except ValueError as error:
        raise BadArgument(
            f"{what}: {error}", hint="Write days, hours, minutes and seconds, as '90 s'.", sqlstate="22023"
        ) from None


class _Plan:
    """Check a definition against the columns of its streams, and write it as steps of Spark."""

    def __init__(
        self,
        stream: DataFrame | Mapping[str, DataFrame],
        expression: str,
        time: str | Mapping[str, str],
        order_by: Sequence[str] | None,
        given: dict[str, Any],
    ) -> None:
        described, error = module("composite.described"), module("lexer").SqlTextError
        given = {**given, "expression": expression, "time_basis": "event", "lateness": _NEVER_LATE}
        try:
            leaves = module("composite.syntax").leaves(described.define_from(given).expression)
            self.groups = groups_of(stream, [leaf.type for leaf in leaves])
            self.frames = {name: frame for frame, names in self.groups for name in names}
            types = {name: dict(columns_of(frame)) for name, frame in self.frames.items()}
            self.definition = described.define_from({**given, "types": types})
        except error as raised:
            raise class_of(raised.sqlstate)(raised.message, hint=raised.hint, sqlstate=raised.sqlstate) from None
        self.leaves = leaves
        self.kinds = {name: {column: kind_of(kind) for column, kind in found.items()} for name, found in types.items()}
        self.streaming = any(frame.isStreaming for frame in self.frames.values())
        self.times = {name: time_of(name, time, frame) for name, frame in self.frames.items()}
        self.order = {name: order_of(name, order_by, frame) for name, frame in self.frames.items()}
        partition = self.definition.partition or [()] * len(leaves)
        self.used: dict[str, set[str]] = {name: set() for name in self.kinds}
        for leaf, columns in zip(leaves, partition, strict=True):
            self.used[leaf.type].update(columns)
        self.predicates = [self.predicate(leaf) for leaf in leaves]
        self.results = self.checked()
        self.job = Job(
            json.dumps({key: value for key, value in given.items() if value is not None}),
            tuple(sorted(name for name, found in types.items() if is_interval(found))),
            json.dumps({name: {one: self.kinds[name][one] for one in sorted(self.used[name])} for name in types}),
            tuple(self.results.values()),
        )
        self.shape = StructType(
            [StructField(name, LongType()) for name in ("starts", "ends", "detected")]
            + [StructField("constituents", StringType()), StructField("attributes", ArrayType(StringType()))]
            + [StructField("error", StringType())]
        )

    def predicate(self, leaf: Any) -> Column:
        """Return what tells whether an event is one of a leaf."""
        found = sf.col("event_type") == leaf.type if self.is_mixed(leaf.type) else sf.lit(True)
        if leaf.source:
            if "origin" not in self.frames[leaf.type].columns:
                raise refuse(
                    f'the source "{leaf.source}" needs a column origin of event type "{leaf.type}"',
                    "Read it from a subscription, or add the column.",
                )
            found = found & (sf.col("origin") == leaf.source)
        if leaf.predicate:
            node = self.read(leaf.predicate, "predicate", {"": leaf.type, leaf.type: leaf.type})
            if node.kind not in ("bool", "null"):
                raise refuse(f"the predicate is no boolean: {leaf.predicate}", "Compare it.", "42804")
            found = found & sf.expr(condition_of(node))
        return found

    def read(self, text: str, what: str, types: Mapping[str, str], sets: frozenset[str] = frozenset()) -> Any:
        """Return the tree of an expression over aliases of event types, and note which attributes it uses."""
        node = read(text, what, {alias: self.kinds[name] for alias, name in types.items()}, sets)
        for alias, column in columns_in(node):
            self.used[types[alias]].add(column)
        return node

    def is_mixed(self, name: str) -> bool:
        """Tell whether the events of a type come together with others."""
        return "event_type" in self.frames[name].columns

    def checked(self) -> dict[str, str]:
        """Return the attributes with their types in Spark; raises BrokerError for what cannot be evaluated there."""
        named = [alias for alias in self.definition.aliases if alias.name]
        sets = frozenset(alias.name for alias in named if alias.many)
        types = {alias.name: alias.type for alias in named}
        for one in self.definition.conditions:
            if self.read(one.text, "filter", types, sets).kind not in ("bool", "null"):
                raise refuse(f"a condition of the filter is no boolean: {one.given}", "Compare it.", "42804")
        found: dict[str, str] = {}
        for one in self.definition.attributes:
            kind, wanted = self.read(one.text, "attributes", types, sets).kind, _type_of(one.type)
            fits = kind == "null" or wanted in _KINDS_OF_RESULTS.get(kind, ())
            if not fits and not (kind in NUMBERS and (wanted in _TYPES_OF_NUMBERS or wanted.startswith("decimal"))):
                message = f'attribute "{one.name}" is of type {one.type} but its expression is {kind}'
                raise refuse(message, "Give it the type of its expression.", "42804")
            found[one.name] = wanted
        return found

    def rows(self, delay: int, until: dt.datetime | None) -> DataFrame:
        """Return the events, each once for each leaf that it matches, with its key."""
        found = []
        for frame, names in self.groups:
            name = names[0]
            time = quoted(self.times[name])
            watched = frame.withWatermark(self.times[name], f"{delay} milliseconds") if self.streaming else frame
            watched = watched if until is None else watched.where(time <= sf.lit(until))
            numbers = [number for number, leaf in enumerate(self.leaves) if leaf.type in names]
            hits = sf.array(*(sf.when(self.predicates[number], self.hit(number)) for number in numbers))
            fields = [time.alias("time"), *self.fields(name), sf.explode(sf.array_compact(hits)).alias("hit")]
            found.append(watched.select(*fields).select("*", "hit.leaf", "hit.key").drop("hit"))
        return reduce(lambda one, other: one.unionByName(other), found)

    def hit(self, number: int) -> Column:
        columns = self.definition.partition[number] if self.definition.partition else ()
        key = sf.to_json(sf.array(*(quoted(column).cast("string") for column in columns))) if columns else sf.lit("[]")
        return sf.struct(sf.lit(number).alias("leaf"), key.alias("key"))

    def fields(self, name: str) -> list[Column]:
        """Return what the detector takes of an event."""
        frame, null = self.frames[name], sf.lit(None)
        at = quoted(self.times[name])
        major, minor = self.order[name]
        # Events of several types with the same time and order take places beside one another.
        ranks = (len(self.kinds) - 1).bit_length()
        event_id = "event_id" if "event_id" in frame.columns else minor
        payload = sf.struct(*(quoted(column) for column, _ in columns_of(frame)))
        bounds = is_interval(dict(columns_of(frame)))
        return [
            required(sf.unix_micros(at), f"the time of an event of type {name} is null").alias("at"),
            (sf.lit(0) if major is None else placed(name, major, POSITION_BITS - ranks)).cast("bigint").alias("major"),
            placed(name, minor, _LONG_BITS if major is None else POSITION_BITS).alias("minor"),
            (sf.col("event_type") if self.is_mixed(name) else sf.lit(name)).alias("event_type"),
            required(quoted(event_id).cast("bigint"), f"{event_id} of an event of type {name} is null").alias(
                "event_id"
            ),
            (quoted("origin") if "origin" in frame.columns else null).cast("string").alias("origin"),
            sf.to_json(payload, {"ignoreNullFields": "false", "timestampFormat": _STAMP}).alias("payload"),
            (sf.unix_micros("starts_at") if bounds else null).cast("bigint").alias("starts"),
            (sf.unix_micros("ends_at") if bounds else null).cast("bigint").alias("ends"),
        ]

    def latest(self) -> DataFrame:
        """Return the time of the latest event, of any type, as the one row `end`."""
        times = [
            frame.where(sf.col("event_type").isin(names) if self.is_mixed(names[0]) else sf.lit(True)).select(
                sf.unix_micros(self.times[names[0]]).alias("end")
            )
            for frame, names in self.groups
        ]
        return reduce(lambda one, other: one.union(other), times).agg(sf.max("end").alias("end"))

    def told(self, found: DataFrame) -> DataFrame:
        """Return detections as the broker's events have them."""
        values = [
            sf.col("attributes")[place].cast(kind).alias(name)
            for place, (name, kind) in enumerate(self.results.items())
        ]
        times = [
            sf.timestamp_micros(column).alias(name)
            for column, name in (("starts", "starts_at"), ("ends", "ends_at"), ("detected", "detected_at"))
        ]
        return found.select(*values, *times, "constituents", *(["error"] if values else []))


_TYPES_OF_NUMBERS = ("smallint", "int", "bigint", "float", "double")


def _type_of(given: str) -> str:
    name = re.sub(r"\s+", " ", given.lower())
    sized = re.fullmatch(r"(?:numeric|decimal) ?\( ?(\d+) ?(?:, ?(\d+) ?)?\)", name)
    if sized and int(sized[1]) <= 38:
        return f"decimal({sized[1]},{sized[2] or 0})"
    if name not in _TYPES:
        raise refuse(f"an attribute of type {given} is not made in Spark", f"There are: {', '.join(_TYPES)}.")
    return _TYPES[name]


def _rows(job: Job, frame: pd.DataFrame) -> Iterator[Row]:
    """Return the events of a key as the detector's tasks take them."""
    ranks = {name: rank for rank, name in enumerate(sorted(json.loads(job.kinds)))}
    bits = (len(ranks) - 1).bit_length()
    for row in frame.itertuples(index=False):
        # Pandas has NaN where a number is missing.
        bounds = (None, None) if row.starts != row.starts or row.starts is None else (int(row.starts), int(row.ends))
        position = ((int(row.major) << POSITION_BITS) + int(row.minor)) << bits | ranks[row.event_type]
        yield Row(
            int(row.leaf), int(row.at), position, row.event_type, int(row.event_id), row.origin or None, row.payload,
            *bounds,
        )  # fmt: skip


def _frame(found: list[Any]) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415 - in a task

    columns = ("starts", "ends", "detected", "constituents", "attributes", "error")
    return pd.DataFrame([(*one[:4], list(one.attributes), one.error) for one in found], columns=columns)


def _of_batch(job: Job) -> Callable[..., Any]:
    """Return what takes all events of a key at once."""

    def work(key: tuple[str], frame: pd.DataFrame) -> pd.DataFrame:
        with carried():
            return _frame(take(job, key[0], _rows(job, frame), None, int(frame["end"].iloc[0]) + 1).found)

    return work


def _of_stream(job: Job) -> Callable[..., Any]:
    """Return what takes the events of a key in a micro-batch, or lets its timers fire."""

    def work(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        rows = [row for frame in frames for row in _rows(job, frame)]
        # What comes has a time above the watermark; so all that is up to it has come.
        frontier = state.getCurrentWatermarkMs() * 1000 + 1
        with carried():
            step = take(job, key[0], rows, state.get[0] if state.exists else None, frontier)
        if step.state is None:
            if state.exists:
                state.remove()
        else:
            state.update((step.state,))
            if step.due is not None:
                # Spark wakes the key when the watermark is above this.
                state.setTimeoutTimestamp(max(-(-step.due // 1000) - 1, 1))
        yield _frame(step.found)

    return work
