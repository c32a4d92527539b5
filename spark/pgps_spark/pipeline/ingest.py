"""Job ingest: files into events, each file once; rows that are no events go to the rejects, with the reason."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa

from pgps.errors import ConfigError, LimitExceeded
from pgps_spark.check import EventType, find_event_type
from pgps_spark.claims import is_claimed, query_producer
from pgps_spark.connection import connect, resolved
from pgps_spark.copying import copied_apart
from pgps_spark.errors import database_errors, unwrapped
from pgps_spark.pipeline.config import Ingest
from pgps_spark.publishing import Part, discard, publish_parts, try_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["run"]

_CORRUPT = "_corrupt"
_REASON = "_reason"
_SOURCE = "_source"
_RESULT = "name string, events bigint, source string, reason string, sqlstate string"
_PLAIN = {
    "smallint": "smallint", "integer": "int", "bigint": "bigint", "real": "float", "double precision": "double",
    "boolean": "boolean", "date": "date", "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
}  # fmt: skip
_NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"


def run(spark: SparkSession, job: Ingest) -> Any:
    """Return the writer that ingests."""
    dsn = resolved(job.dsn)
    with connect(dsn) as connection:
        event_type = find_event_type(connection, job.event_type)
    schema = _schema(spark, job)
    reader = spark.readStream.format(job.format).schema(schema).options(**_options(job))
    rows = _judged(reader.load(job.source), job, event_type)
    writer = rows.writeStream.queryName(job.name).option("checkpointLocation", job.checkpoint)
    return writer.foreachBatch(partial(_publish, job=job, dsn=dsn, event_type=event_type))


def _options(job: Ingest) -> dict[str, str]:
    plain = {"csv": {"header": "true", "mode": "PERMISSIVE"}, "json": {"mode": "PERMISSIVE"}}.get(job.format, {})
    corrupt = {"columnNameOfCorruptRecord": _CORRUPT} if job.format in {"csv", "json"} else {}
    return {**plain, **corrupt, **{key: str(value) for key, value in job.options.items()}}


def _schema(spark: SparkSession, job: Ingest) -> StructType:
    """Return the columns of the files that are there; those of CSV as text, for us to judge."""
    from pyspark.sql.types import StringType, StructType  # noqa: PLC0415 - loaded with Spark only

    try:
        found = spark.read.format(job.format).options(**_options(job)).load(job.source).schema
    except Exception as error:
        raise ConfigError(
            f"cannot read {job.source}: {str(error).splitlines()[0]}", hint="See source and format."
        ) from error
    schema = StructType([field for field in found.fields if field.name != _CORRUPT])
    return schema if job.format not in {"csv", "json"} else schema.add(_CORRUPT, StringType())


def _judged(rows: DataFrame, job: Ingest, event_type: EventType) -> DataFrame:
    """Return the attributes, the row as it stood in the file, and why it is no event: null when it may be one."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loaded with Spark only

    given = [name for name in rows.columns if name != _CORRUPT]
    folded = {name.lower() for name in given}
    reasons: list[Column] = []
    attributes: list[Column] = []
    if _CORRUPT in rows.columns:
        reasons.append(f.when(f.col(_CORRUPT).isNotNull(), f.lit("malformed row")))
    for attribute in event_type.attributes:
        text = job.columns.get(attribute.name, _quoted(attribute.name) if attribute.name.lower() in folded else None)
        if text is None:
            if attribute.not_null and not attribute.has_default:
                raise ConfigError(
                    f'job {job.name}: nothing fills attribute "{attribute.name}" of event type "{event_type.name}"',
                    hint=f"Say columns.{attribute.name}; the files have {', '.join(given)}.",
                )
            continue
        raw = f.expr(text)
        value = _cast(raw, attribute.type)
        attributes.append(value.alias(attribute.name))
        wrong = f.concat(f.lit(f"{attribute.name}: "), raw.cast("string"), f.lit(f" is no {attribute.type}"))
        reasons.append(f.when(raw.isNotNull() & value.isNull(), wrong))
        if attribute.not_null:
            reasons.append(f.when(raw.isNull(), f.lit(f"{attribute.name} is missing")))
    whole = f.to_json(f.struct(*map(_quoted, given)))
    source = f.coalesce(f.col(_CORRUPT), whole) if _CORRUPT in rows.columns else whole
    return rows.select(*attributes, source.alias(_SOURCE), f.concat_ws("; ", *reasons).alias(_REASON))


def _quoted(name: str) -> str:
    """Return the name of a column as Spark reads it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def _cast(raw: Column, wanted: str) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - loaded with Spark only

    base = wanted.partition("(")[0]
    if base == "numeric" and not wanted.endswith("[]"):
        # Spark's decimals have 38 digits: PostgreSQL reads the text, and says whether it has room for the number.
        text = raw.cast("string")
        return f.when(text.rlike(_NUMBER), text)
    kind = _PLAIN.get(wanted) or _PLAIN.get(base)
    # A type that is PostgreSQL's own is judged there, when the row is copied in.
    return raw.try_cast(kind) if kind else raw


def _publish(df: DataFrame, batch: int, *, job: Ingest, dsn: str, event_type: EventType) -> None:
    producer = query_producer(df)
    if is_claimed(dsn, event_type.name, producer, batch, rising=True):
        # Also its rejects are written. To judge its rows again would be to say something else of them meanwhile.
        return
    load = uuid.uuid4().hex
    attributes = [name for name in df.columns if name not in {_REASON, _SOURCE}]
    with unwrapped():
        task = partial(_task, dsn=dsn, event_type=event_type.name, load=load, max_rejects=job.max_rejects)
        rows = df.mapInArrow(task, _RESULT).collect()
    rejects = [(job.name, batch, row.source, row.reason, row.sqlstate) for row in rows if row.name is None]
    if len(rejects) > job.max_rejects:
        discard(dsn, load)
        raise LimitExceeded(
            f"job {job.name}: at least {len(rejects)} rows of a batch are no events, the first since {rejects[0][3]}",
            hint="Nothing of the batch was published. Mend the files or columns, or raise max_rejects.",
        )
    if rejects:
        table = df.sparkSession.createDataFrame(
            rejects, "job string, batch bigint, source string, reason string, sqlstate string"
        )
        # Again when the batch is repeated, in place of what was written then. Each query numbers its batches from 0.
        place = f"{job.rejects}/batch={producer.removeprefix('spark/')[:8]}-{batch:08d}"
        table.drop("batch").coalesce(1).write.mode("overwrite").parquet(place)
    parts = [Part(row.name, row.events) for row in rows if row.name is not None]
    publish_parts(
        parts,
        dsn=dsn,
        event_type=event_type.name,
        load=load,
        attributes=attributes,
        job=producer,
        batch=batch,
    )


def _task(
    batches: Iterator[pa.RecordBatch], *, dsn: str, event_type: str, load: str, max_rejects: int
) -> Iterator[pa.RecordBatch]:
    """Copy rows in; yield how many, and the others, one more than there may be at most: then nothing is published."""
    name = try_name()
    events = 0
    rejects: list[tuple[str, str, str | None]] = []
    with connect(dsn, patience=30.0) as connection:
        with database_errors():
            row = connection.execute("select pgps.begin_load(%s, %s)", [event_type, load]).fetchone()
        assert row is not None
        for batch in batches:
            if len(rejects) > max_rejects:
                # The rows are read to their end, as Spark writes them to that.
                continue
            table = pa.Table.from_batches([batch])
            reasons = table.column(_REASON).to_pylist()
            sources = table.column(_SOURCE).to_pylist()
            rejects += [(source, reason, None) for source, reason in zip(sources, reasons, strict=True) if reason]
            good = table.filter(pa.array([not reason for reason in reasons])).combine_chunks()
            for one in good.to_batches():
                events += _copied(connection, row[0], one, name, rejects)
    yield _result([name], [events], [], [], [])
    del rejects[max_rejects + 1 :]
    if rejects:
        yield _result([None] * len(rejects), [None] * len(rejects), *map(list, zip(*rejects, strict=True)))


def _copied(
    connection: psycopg.Connection,
    relation: str,
    rows: pa.RecordBatch,
    part: str,
    rejects: list[tuple[str, str, str | None]],
) -> int:
    """Copy rows in, and put those that PostgreSQL refuses among the rejects."""
    attributes = rows.drop_columns([_REASON, _SOURCE])
    events, refused = copied_apart(connection, relation, attributes, {"pgps_part": part})
    sources = rows.column(_SOURCE)
    rejects += [(sources[place].as_py(), error.message, error.sqlstate) for place, error in refused]
    return events


def _result(*columns: list[Any]) -> pa.RecordBatch:
    kinds = [pa.string(), pa.int64(), pa.string(), pa.string(), pa.string()]
    most = max(map(len, columns))
    arrays = [pa.array(column or [None] * most, type=kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.record_batch(arrays, names=[each.split(" ")[0] for each in _RESULT.split(", ")])
