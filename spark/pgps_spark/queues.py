"""Reading a queue in batch: partitions by event id, filters and columns pushed down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pgps_spark.columns import Column, columns_of, selection
from pgps_spark.connection import connect
from pgps_spark.copying import arrow_schema, copied_out
from pgps_spark.errors import database_errors
from pgps_spark.filters import conjunction, translated
from pgps_spark.misfits import CORRUPT, FAILFAST, PERMISSIVE, Misfits

__all__ = ["PushingQueueReader", "QueueReader", "as_wanted"]

# Fewer events than this are not worth a second task.
_WORTH = 10_000
_PARTITIONS = 8


@dataclass
class Range(InputPartition):
    """Events from `lo` to below `hi`; None for no bound."""

    lo: int | None
    hi: int | None

    def __init__(self, lo: int | None, hi: int | None) -> None:
        super().__init__((lo, hi))
        self.lo, self.hi = lo, hi


class QueueReader(DataSourceReader):
    """Reads a queue; each partition is one COPY."""

    def __init__(
        self,
        dsn: str,
        view: str,
        schema: StructType,
        *,
        partitions: int | None,
        where: str | None,
        mode: str = FAILFAST,
    ) -> None:
        self._dsn = dsn
        self._view = view
        self._schema = schema
        self._partitions = partitions
        self._where = [] if where is None else [f"({where})"]
        self._mode = mode

    def partitions(self) -> list[InputPartition]:
        """Cut the range of event ids into pieces; the out and exception queues are in another order, and stay whole."""
        if self._partitions == 1 or (self._partitions is None and not self._view.endswith('_in"')):
            return [Range(None, None)]
        with connect(self._dsn) as connection, database_errors():
            found = [self._bound(connection, order) for order in ("asc", "desc")]
        lo, hi = found
        if lo is None or hi is None:
            return [Range(None, 0)]
        most = self._partitions or min(_PARTITIONS, (hi - lo) // _WORTH + 1)
        size = (hi - lo) // most + 1
        starts = range(lo, hi + 1, size)
        # Events that are published from now on are not read, since the partitions are read at different times.
        return [Range(start, min(start + size, hi + 1)) for start in starts]

    def _bound(self, connection: psycopg.Connection, order: str) -> int | None:
        query = sql.SQL("select event_id from {} where {} order by event_id " + order + " limit 1")
        row = connection.execute(query.format(sql.SQL(self._view), conjunction(self._where))).fetchone()
        return row[0] if row else None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range of events."""
        assert isinstance(partition, Range)
        schema = arrow_schema(self._schema)
        where = list(self._where)
        if partition.lo is not None:
            where.append(f"event_id >= {partition.lo}")
        if partition.hi is not None:
            where.append(f"event_id < {partition.hi}")
        with connect(self._dsn) as connection:
            columns = self._columns(connection)
            query = sql.SQL("select {} from {} where {}").format(
                selection(columns),
                sql.SQL(self._view),
                conjunction(where),
            )
            for batch in copied_out(connection, query, columns, schema, Misfits(self._mode)):
                yield batch.select(schema.names)

    def _columns(self, connection: psycopg.Connection) -> list[Column]:
        with database_errors():
            return as_wanted(columns_of(connection, self._view), self._schema)


class PushingQueueReader(QueueReader):
    """Reads a queue, and has PostgreSQL evaluate the filters of Spark.

    This is not the default: Spark 4.2 keeps the filters that were pushed down with the DataFrame, and
    answers a second query that has none to push down with the filters of the first.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the filters that PostgreSQL answers exactly as Spark does; return the others."""
        with connect(self._dsn) as connection:
            with database_errors():
                found = columns_of(connection, self._view)
            # A column that is read as another type, or may be null for want of a value, has other values in Spark.
            known = {
                column.name: column
                for column in as_wanted(found, self._schema)
                if column in found and (self._mode != PERMISSIVE or column.unfit() is None)
            }
            for each in filters:
                condition = translated(each, known)
                if condition is None:
                    yield each
                else:
                    self._where.append(condition.as_string(connection))


def as_wanted(columns: list[Column], schema: StructType) -> list[Column]:
    """Return the columns that a schema names, in its order, read as its types."""
    from pgps.errors import BadArgument  # noqa: PLC0415

    known = {column.name: column for column in columns}
    fields = [field for field in schema.fields if field.name in known or field != CORRUPT]
    missing = [field.name for field in fields if field.name not in known]
    if missing:
        raise BadArgument(f"no column {', '.join(missing)}", hint=f"There are {', '.join(known)}.")
    return [
        known[field.name]
        if field.dataType == known[field.name].type
        else replace(known[field.name], type=field.dataType, is_declared=False)
        for field in fields
    ]
