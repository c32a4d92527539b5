"""Publishes a DataFrame exactly once, whatever happens to its tasks.

A task that is retried, or that runs twice, may compute its rows in another order, or
other rows. So it is not enough to number the rows in the tasks. Each try copies its
rows into a load at the broker, as a part with a name of its own. Then Spark says which
tries count, and one statement publishes those together with the claim of (job, batch).
Before it nothing is published, and after it the batch cannot be published again.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Literal

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark import TaskContext

from pgps.errors import BadArgument, ConfigError, ConnectionLost, PgpsError
from pgps_spark.check import EventType, check, find_event_type
from pgps_spark.claims import is_claimed, is_of_query, query_producer
from pgps_spark.connection import connect, jdbc_options, resolved
from pgps_spark.copying import copied_apart, copied_in
from pgps_spark.errors import database_errors, unwrapped
from pgps_spark.progress import progress as shown_progress
from pgps_spark.rejects import Rejects, find_rejects, rejects_job, rejects_load
from pgps_spark.remote import is_connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "Part", "Published", "Target", "bring_in", "publish", "publish_all", "publish_parts", "publish_stream", "try_name",
]  # fmt: skip

_PATIENCE = 30.0
# Rows that go into the table of the load, with those of other tries.
_FEW = 10_000
_NUMBERED = ("_producer", "_producer_seq")


@dataclass(frozen=True, slots=True)
class Published:
    """What came of publishing: how many events of which type; `repeated` when the batch had been published before.

    `rejected` is how many rows were published as events of the type for rejects instead.
    """

    event_type: str
    events: int
    repeated: bool
    seconds: float
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What one try of a task has brought in, and how many rows it has rejected."""

    name: str
    events: int
    rejected: int = 0


def try_name() -> str:
    """Return a name for this try of this task; names are in the order of partitions."""
    context = TaskContext.get()
    number, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
    return f"{number:06d}.{attempt}.{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a job's rows go: the event type and its attributes, and the type for those that are no events, if any."""

    dsn: str
    event_type: str
    attributes: tuple[str, ...]
    rejects: Rejects | None = None


def bring_in(batches: Iterator[pa.RecordBatch], target: Target, *, load: str, job: str) -> Part:
    """Copy a task's rows into a load, as a part named after this try; runs in the task."""
    name = try_name()
    with connect(target.dsn, patience=_PATIENCE) as connection:
        with database_errors():
            row = connection.execute("select pgps.begin_load(%s, %s)", [target.event_type, load]).fetchone()
        assert row is not None
        if target.rejects is None:
            few, more = _few(batches)
            if more:
                own = _table_of_its_own(connection, target.event_type, load, name)
                if own is not None:
                    return Part(name, copied_in(connection, own, chain(few, batches), {}))
            return Part(name, copied_in(connection, row[0], chain(few, batches), {"pgps_part": name}))
        events = 0
        refused: list[tuple[pa.RecordBatch, int, PgpsError]] = []
        for batch in batches:
            copied, places = copied_apart(connection, row[0], batch, {"pgps_part": name})
            events += copied
            refused += [(batch, place, error) for place, error in places]
        rejected = 0
        if refused:
            rejected = target.rejects.bring_in(
                connection, refused, event_type=target.event_type, job=job, load=load, part=name
            )
        return Part(name, events, rejected)


def _few(batches: Iterator[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], bool]:
    """Take batches until they have more than a few rows; return them, and whether they have."""
    taken: list[pa.RecordBatch] = []
    number = 0
    for batch in batches:
        taken.append(batch)
        number += batch.num_rows
        if number > _FEW:
            return taken, True
    return taken, False


def _table_of_its_own(connection: psycopg.Connection, event_type: str, load: str, part: str) -> str | None:
    """Make a table for a task's rows alone, and commit it; None if the load has no table more.

    This takes as long as some thousand rows; then each row is faster, both here and when it is published.
    """
    with database_errors():
        row = connection.execute("select pgps.begin_load_part(%s, %s, %s)", [event_type, load, part]).fetchone()
    assert row is not None
    return None if row[0] is None else str(row[0])


def publish_all(parts: Sequence[Part], target: Target, *, load: str, job: str, batch: int) -> int | None:
    """Publish what the tries that count have brought in, the rejects first; return as `publish_parts`.

    Each is claimed for itself. A driver that is killed between the two publishes the rest when it repeats the batch.
    """
    if target.rejects is not None and any(part.rejected for part in parts):
        publish_parts(
            [Part(part.name, part.rejected) for part in parts],
            dsn=target.dsn,
            event_type=target.rejects.name,
            load=rejects_load(load),
            attributes=target.rejects.attributes,
            job=rejects_job(job),
            batch=batch,
        )
    return publish_parts(
        parts,
        dsn=target.dsn,
        event_type=target.event_type,
        load=load,
        attributes=target.attributes,
        job=job,
        batch=batch,
    )


def publish_parts(
    parts: Sequence[Part], *, dsn: str, event_type: str, load: str, attributes: Sequence[str], job: str, batch: int
) -> int | None:
    """Publish what the tries that count have brought in; return how many, None when the batch was published before.

    If the connection is lost at the commit, the claim says whether the commit took place.
    """
    filled = sorted((part for part in parts if part.events), key=lambda part: part.name)
    arguments = [event_type, load, [part.name for part in filled], list(attributes), job, batch]
    deadline = time.monotonic() + _PATIENCE
    lost = False
    while True:
        try:
            with connect(dsn, patience=_PATIENCE) as connection, database_errors():
                row = connection.execute(
                    "select pgps.publish_load(%s, %s, %s::text[], %s::text[], %s, %s, %s)",
                    [*arguments, sum(part.events for part in filled)],
                ).fetchone()
            assert row is not None
            # After a lost connection, "published before" means that this call itself has published it.
            return sum(part.events for part in filled) if row[0] is None and lost else row[0]
        except ConnectionLost:
            if time.monotonic() > deadline:
                raise
            lost = True


def discard(dsn: str, load: str) -> None:
    """Drop a load that will not be published."""
    with connect(dsn) as connection, database_errors():
        connection.execute("select pgps.discard_load(%s)", [load])


def publish(  # noqa: PLR0913 - choices of the caller, all but two by name
    df: DataFrame,
    event_type: str,
    *,
    dsn: str | None = None,
    job: str | None = None,
    batch: int = 0,
    via: Literal["load", "jdbc"] = "load",
    number: str | None = None,
    rejects: str | None = None,
    progress: bool | None = None,
) -> Published:
    """Publish the rows of a DataFrame as events; return what was published.

    The schema is checked against the event type first. With `via` "load", all
    events are published at once or none, and once: also when tasks are retried or run twice. With
    `job` and `batch` a repeated call publishes nothing, also from another
    process: choose a name for the job that is used for nothing else. With "jdbc"
    Spark's own writer publishes each partition in a transaction of its own, and
    what a retried task had committed is published again, unless `number` names a
    column with a number for each row that is the same in every try: then `job`
    and it are the producer's number, and the broker drops repeats.
    `rejects` names an event type: a row that PostgreSQL refuses is published as an event of that type, with its
    `source` as JSON, `error`, `sqlstate`, `event_type` and `job`, as far as the type has these attributes; None = it
    fails the job. `progress` shows a bar, by default on a terminal.

    Raises BadArgument when the DataFrame does not fit, UnknownName, NotPermitted,
    WrongState (not advertised), ConstraintViolated and other BrokerErrors.
    """
    dsn = resolved(dsn)
    with connect(dsn) as connection:
        found = find_event_type(connection, event_type)
        target = Target(
            dsn, found.name, tuple(df.columns), None if rejects is None else find_rejects(connection, rejects)
        )
    began = time.monotonic()
    rejected = 0
    with shown_progress(df, f"publishing {found.name}", wanted=progress), unwrapped():
        if via == "jdbc":
            if rejects is not None:
                raise BadArgument(
                    "rejects is for via='load'", hint="JDBC fails at the first such row.", sqlstate="22023"
                )
            events: int | None = _by_jdbc(df, found, dsn=dsn, job=job, number=number)
        elif via == "load":
            if number is not None:
                raise BadArgument("number is for via='jdbc'", hint="A load needs no numbers.", sqlstate="22023")
            check(df.schema, found)
            events, rejected = _by_load(df, target, job=job, batch=batch)
        else:
            raise BadArgument(f"invalid via {via!r}", hint="Use 'load' or 'jdbc'.", sqlstate="22023")
    return Published(found.name, events or 0, events is None, time.monotonic() - began, rejected)


def _by_load(df: DataFrame, target: Target, *, job: str | None, batch: int) -> tuple[int | None, int]:
    load = uuid.uuid4().hex
    if job is not None and is_claimed(target.dsn, target.event_type, job, batch, rising=is_of_query(df, job)):
        return None, 0
    work = partial(_task, target=target, load=load, job=job or load)
    try:
        rows = df.mapInArrow(work, "name string, events bigint, rejected bigint").collect()
        parts = [Part(row.name, row.events, row.rejected) for row in rows]
        events = publish_all(parts, target, load=load, job=job or load, batch=batch)
        return events, sum(part.rejected for part in parts)
    except BaseException:
        _discard_quietly(target, load)
        raise


def _discard_quietly(target: Target, load: str) -> None:
    # A load that cannot be dropped now is dropped by the broker when it is old.
    with contextlib.suppress(ConnectionLost):
        discard(target.dsn, load)
        if target.rejects is not None:
            discard(target.dsn, rejects_load(load))


def _task(batches: Iterator[pa.RecordBatch], *, target: Target, load: str, job: str) -> Iterator[pa.RecordBatch]:
    part = bring_in(batches, target, load=load, job=job)
    values = [pa.array([part.name]), pa.array([part.events]), pa.array([part.rejected])]
    yield pa.record_batch(values, names=["name", "events", "rejected"])


def _by_jdbc(df: DataFrame, event_type: EventType, *, dsn: str, job: str | None, number: str | None) -> int:
    from pyspark.sql import Observation, functions  # noqa: PLC0415 - only here

    if (job is None) != (number is None):
        raise ConfigError("job and number belong together", hint="Name the job and the column that numbers its rows.")
    besides = () if number is None else (number,)
    check(df.schema, event_type, besides=besides)
    attributes = [name for name in df.columns if name not in besides or name in {a.name for a in event_type.attributes}]
    numbered = (
        []
        if number is None
        else [functions.lit(job).alias("_producer"), df[number].cast("long").alias("_producer_seq")]
    )
    seen = Observation("published")
    chosen = df.select(*(df[name] for name in attributes), *numbered).observe(
        seen, functions.count(functions.lit(1)).alias("events")
    )
    options = jdbc_options(dsn)
    chosen.write.format("jdbc").options(**options, dbtable=_endpoint(event_type.name)).mode("append").save()
    return int(seen.get["events"])


def _endpoint(name: str) -> str:
    return f"pgps_event.{sql.Identifier(name).as_string(None)}"


def publish_stream(
    df: DataFrame, event_type: str, *, dsn: str | None = None, rejects: str | None = None
) -> DataStreamWriter:
    """Return a stream writer that publishes each micro-batch once, also when it is repeated after a restart.

    The checkpoint's query id and the batch's number are the claim: set
    `checkpointLocation`, and keep it. `rejects` as in `publish`: without it a row that
    PostgreSQL refuses ends the query, each time anew. The schema is checked now.
    """
    dsn = resolved(dsn)
    with connect(dsn) as connection:
        check(df.schema, find_event_type(connection, event_type))
        if rejects is not None:
            find_rejects(connection, rejects)
    if is_connect(df):
        # There foreachBatch runs at the server, and does not learn which query it serves; the data source does.
        options = {"dsn": dsn, "eventType": event_type, **({} if rejects is None else {"rejects": rejects})}
        return df.writeStream.format("pgps").options(**options)
    return df.writeStream.foreachBatch(_publisher(event_type, dsn, rejects))


def _publisher(event_type: str, dsn: str, rejects: str | None) -> Callable[[DataFrame, int], None]:
    def publish_batch(df: DataFrame, batch: int) -> None:
        publish(df, event_type, dsn=dsn, job=query_producer(df), batch=batch, rejects=rejects, progress=False)

    return publish_batch
