"""Events in bulk, both ways: COPY … TO STDOUT into Arrow batches, Arrow batches into COPY … FROM STDIN."""

from __future__ import annotations

import io
import json
from collections.abc import Generator, Iterable, Iterator, Sequence

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.pq import ExecStatus
from pyarrow import csv
from pyspark.sql.types import StructType

from pgps.errors import ConnectionLost, PgpsError
from pgps_spark.columns import MISFIT, Column, has_misfits
from pgps_spark.encoding import as_text
from pgps_spark.errors import database_errors
from pgps_spark.misfits import Misfits

__all__ = ["arrow_schema", "copied_apart", "copied_in", "copied_out"]

_CHUNK_BYTES = 4 << 20
# Bytes of one CSV field at most: a chunk is parsed as one block.
_BLOCK_BYTES = 1 << 30
# What a row can cause: wrong data, a constraint, JSON that is nested too deep, what a function of a domain raises.
_OF_A_ROW = ("22", "23", "54", "P0")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of a reader."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - loads pandas

    return to_arrow_schema(schema, timezone="UTC")


def copied_out(
    connection: psycopg.Connection,
    query: sql.Composable,
    columns: Sequence[Column],
    schema: pa.Schema,
    misfits: Misfits = Misfits(),  # noqa: B008 - it is frozen
) -> Generator[pa.RecordBatch]:
    """Run a query under COPY and yield its rows as Arrow batches of some megabytes, in the query's order.

    The query selects `columns.selection(columns)`; `misfits` deals with rows that Spark has no values for.
    """
    copy = sql.SQL("copy ({}) to stdout (format csv)").format(query)
    with database_errors():
        for text in _chunks(connection, copy.as_bytes(connection)):
            rows, complaints = _parsed(text, columns, schema)
            yield from misfits.settled(rows, complaints).to_batches()


def _chunks(connection: psycopg.Connection, statement: bytes) -> Iterator[bytearray]:
    """Run COPY TO STDOUT and yield its text in pieces of some megabytes, whole rows each.

    It uses libpq's own calls, which wait in C. psycopg's loop over rows can be interrupted, which
    a task does not need, and costs several times as much as the copying itself.
    """
    server = connection.pgconn
    text = bytearray()
    try:
        result = server.exec_(statement)
        if result.status == ExecStatus.COPY_OUT:
            while True:
                length, row = server.get_copy_data(0)
                if length < 0:
                    break
                text += row
                if len(text) >= _CHUNK_BYTES:
                    yield text
                    text = bytearray()
            ended = server.get_result()
            assert ended is not None
            result = ended
        if result.status != ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)
        while server.get_result() is not None:
            pass
    except BaseException:
        # A connection in the middle of a copy cannot be used for anything else, so it is closed.
        connection.close()
        raise
    if text:
        yield text


def _parsed(text: bytearray, columns: Sequence[Column], schema: pa.Schema) -> tuple[pa.Table, Sequence[str | None]]:
    """Return rows, and for each row the values that have no counterpart in Spark: see Misfits."""
    fields = [schema.field(column.name) for column in columns]
    kinds = {column.name: column.parsed_as(field.type) for column, field in zip(columns, fields, strict=True)}
    told = {MISFIT: pa.string()} if has_misfits(columns) else {}
    try:
        table = _read(text, {**kinds, **told})
        arrays = [
            column.finished(table.column(column.name), field.type)
            for column, field in zip(columns, fields, strict=True)
        ]
        complaints = table.column(MISFIT).to_pylist() if told else ()
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError):
        return _parsed_one_by_one(text, columns, schema)
    return pa.table(arrays, schema=pa.schema(fields)), complaints


def _parsed_one_by_one(
    text: bytearray, columns: Sequence[Column], schema: pa.Schema
) -> tuple[pa.Table, Sequence[str | None]]:
    """Return the same if a value does not fit the type that the reader asked for, such as 3000000000 for an integer."""
    names = [*(column.name for column in columns), *([MISFIT] if has_misfits(columns) else [])]
    table = _read(text, dict.fromkeys(names, pa.string()))
    complaints: list[str | None] = table.column(MISFIT).to_pylist() if MISFIT in names else [None] * table.num_rows
    arrays = []
    for column in columns:
        values = table.column(column.name).combine_chunks()
        wanted = schema.field(column.name).type
        parts: list[pa.Array] = []
        for place, part in _converted(values, column, wanted, 0):
            if part is None:
                more = json.dumps([column.name, values[place].as_py(), column.type.simpleString()])
                complaints[place] = ",".join(filter(None, (complaints[place], more)))
            parts.append(pa.nulls(1, wanted) if part is None else part)
        arrays.append(pa.chunked_array(parts, type=wanted))
    fields = [schema.field(column.name) for column in columns]
    return pa.table(arrays, schema=pa.schema(fields)), complaints


def _converted(
    values: pa.Array, column: Column, wanted: pa.DataType, place: int
) -> Iterator[tuple[int, pa.Array | None]]:
    """Yield values converted to a type; if one cannot be, halve them until it is alone; yield None and its place."""
    sink = io.BytesIO()
    csv.write_csv(pa.record_batch([values], names=[column.name]), sink, csv.WriteOptions(include_header=False))
    try:
        table = _read(sink.getvalue(), {column.name: column.parsed_as(wanted)})
        finished = column.finished(table.column(0), wanted)
        yield place, finished.combine_chunks() if isinstance(finished, pa.ChunkedArray) else finished
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError):
        if len(values) == 1:
            yield place, None
            return
        half = len(values) // 2
        yield from _converted(values.slice(0, half), column, wanted, place)
        yield from _converted(values.slice(half), column, wanted, place + half)


def _read(text: bytes | bytearray, kinds: dict[str, pa.DataType]) -> pa.Table:
    return csv.read_csv(
        pa.BufferReader(pa.py_buffer(text)),
        csv.ReadOptions(column_names=list(kinds), use_threads=False, block_size=min(len(text) + 1, _BLOCK_BYTES)),
        csv.ParseOptions(newlines_in_values=b'"' in text, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=kinds,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )


def copied_in(
    connection: psycopg.Connection, relation: str, batches: Iterable[pa.RecordBatch], constants: dict[str, str]
) -> int:
    """Copy Arrow batches into a relation, with constants for columns of its own; return how many rows.

    Everything in one COPY: a row that PostgreSQL refuses takes the others with it. Raises BadArgument for a
    value that PostgreSQL has no text for, like NaN in JSON.
    """
    events = 0
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        return 0
    names = [*first.schema.names, *constants]
    statement = sql.SQL("copy {} ({}) from stdin (format csv)").format(
        sql.SQL(relation),
        sql.SQL(", ").join(map(sql.Identifier, names)),
    )
    options = csv.WriteOptions(include_header=False)
    with database_errors(), connection.cursor() as cursor:
        targets = _types_of(cursor, relation)
        # So it was asked for (connection.py), but a pooler may leave that out.
        in_utc = connection.info.parameter_status("TimeZone") == "UTC"
        with cursor.copy(statement) as copy:
            for batch in _chain(first, iterator):
                if batch.num_rows == 0:
                    continue
                events += batch.num_rows
                columns = zip(batch.columns, batch.schema.names, strict=True)
                arrays = [as_text(column, targets[name], in_utc=in_utc) for column, name in columns]
                arrays += [pa.repeat(pa.scalar(value), batch.num_rows) for value in constants.values()]
                sink = io.BytesIO()
                csv.write_csv(pa.record_batch(arrays, names=names), sink, options)
                copy.write(sink.getvalue())
    return events


def copied_apart(
    connection: psycopg.Connection, relation: str, rows: pa.RecordBatch, constants: dict[str, str]
) -> tuple[int, list[tuple[int, PgpsError]]]:
    """Copy rows in; where PostgreSQL refuses some, halve them until each refused row is alone.

    Returns how many went in, and the places of those that did not, with their errors. The connection is in autocommit.
    """
    try:
        return copied_in(connection, relation, [rows], constants), []
    except ConnectionLost:
        raise
    except PgpsError as error:
        if not (error.sqlstate or "").startswith(_OF_A_ROW):
            raise
        if rows.num_rows == 1:
            return 0, [(0, error)]
    half = rows.num_rows // 2
    events, refused = copied_apart(connection, relation, rows.slice(0, half), constants)
    more, others = copied_apart(connection, relation, rows.slice(half), constants)
    return events + more, refused + [(place + half, error) for place, error in others]


def _types_of(cursor: psycopg.Cursor, relation: str) -> dict[str, str]:
    """Return the types of a relation's columns, of a domain what it stands for: `jsonb`, `_text` for an array."""
    cursor.execute(
        """
        select a.attname, coalesce(b.typname, y.typname) from pg_attribute a
        join pg_type y on y.oid = a.atttypid left join pg_type b on y.typtype = 'd' and b.oid = y.typbasetype
        where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped
        """,
        [relation],
    )
    return dict(cursor.fetchall())


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
