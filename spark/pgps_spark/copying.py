"""Events in bulk, both ways: COPY … TO STDOUT into Arrow batches, Arrow batches into COPY … FROM STDIN."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.pq import ExecStatus
from pyarrow import csv
from pyspark.sql.types import StructType

from pgps.errors import BadArgument
from pgps_spark.columns import Column
from pgps_spark.errors import database_errors

__all__ = ["arrow_schema", "copied_in", "copied_out"]

_CHUNK_BYTES = 4 << 20
# Bytes of one CSV field at most: a chunk is parsed as one block.
_BLOCK_BYTES = 1 << 30


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of a reader."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - loads pandas

    return to_arrow_schema(schema, timezone="UTC")


def copied_out(
    connection: psycopg.Connection, query: sql.Composable, columns: Sequence[Column], schema: pa.Schema
) -> Generator[pa.RecordBatch]:
    """Run a query under COPY and yield its rows as Arrow batches of some megabytes, in the query's order."""
    copy = sql.SQL("copy ({}) to stdout (format csv)").format(query)
    with database_errors():
        for text in _chunks(connection, copy.as_bytes(connection)):
            yield from _parsed(text, columns, schema)


def _chunks(connection: psycopg.Connection, statement: bytes) -> Iterator[bytearray]:
    """Run COPY TO STDOUT and yield its text in pieces of some megabytes, whole rows each.

    By libpq's own calls, which wait in C: psycopg's loop over rows costs several times as much
    as the copying, for being interruptible, which a task has no use for.
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
        # In the middle of a copy it is of no use to anybody.
        connection.close()
        raise
    if text:
        yield text


def _parsed(text: bytearray, columns: Sequence[Column], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    kinds = {column.name: column.parsed_as(schema.field(column.name).type) for column in columns}
    try:
        table = csv.read_csv(
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
    except pa.ArrowInvalid as error:
        raise BadArgument(
            f"a value cannot be read into Spark: {error}",
            hint="Read it as text: give the column the type string in .schema(…).",
        ) from error
    arrays = [column.finished(table.column(column.name), schema.field(column.name).type) for column in columns]
    yield from pa.table(arrays, schema=schema).to_batches()


def copied_in(
    connection: psycopg.Connection, relation: str, batches: Iterable[pa.RecordBatch], constants: dict[str, str]
) -> int:
    """Copy Arrow batches into a relation, with constants for columns of its own; return how many rows.

    Everything in one COPY: a row that PostgreSQL refuses takes the others with it.
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
    with database_errors(), connection.cursor() as cursor, cursor.copy(statement) as copy:
        for batch in _chain(first, iterator):
            if batch.num_rows == 0:
                continue
            events += batch.num_rows
            arrays = [_writable(batch.column(n)) for n in range(batch.num_columns)]
            arrays += [pa.repeat(pa.scalar(value), batch.num_rows) for value in constants.values()]
            sink = io.BytesIO()
            csv.write_csv(pa.record_batch(arrays, names=names), sink, options)
            copy.write(sink.getvalue())
    return events


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _writable(values: pa.Array) -> pa.Array:
    """Return values as Arrow's CSV writer and PostgreSQL's input functions both know them."""
    kind = values.type
    encode: Callable[[Any], str]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        encode = _bytea
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        encode = _array
    elif pa.types.is_struct(kind) or pa.types.is_map(kind):
        encode = _json
    else:
        return values
    return pa.array([None if value is None else encode(value) for value in values.to_pylist()], type=pa.string())


def _bytea(value: bytes) -> str:
    return "\\x" + value.hex()


def _json(value: Any) -> str:
    return json.dumps(dict(value) if isinstance(value, list) else value, default=str)


def _array(values: list[Any]) -> str:
    """Return a list as PostgreSQL writes arrays: {1,2}, {"a","b",NULL}."""
    return "{" + ",".join(_element(value) for value in values) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return _array(value)
    text = _bytea(value) if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
