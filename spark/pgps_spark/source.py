"""The data source `pgps`, for batch and streams, both ways; how to use it stands in docs/how-to/spark.md."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pgps.errors import BadArgument
from pgps_spark.columns import schema_of
from pgps_spark.connection import connect, dsn_of
from pgps_spark.errors import database_errors
from pgps_spark.relations import Relation, queue_relation, stream_relation

__all__ = ["PgpsDataSource"]

_READ = {
    "dsn", "queue", "subscription", "columns", "where", "pushfilters", "partitions",
    "maxeventspertrigger", "patience", "path",
}  # fmt: skip
_WRITE = {"dsn", "eventtype", "job", "batch", "checkpointlocation", "path"}


class PgpsDataSource(DataSource):
    """Queues and subscriptions of a broker as DataFrames; see docs/how-to/spark.md for the options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(dict(options))
        self._given = {key.lower(): value for key, value in options.items()}
        unknown = set(self._given) - _READ - _WRITE
        if unknown:
            raise BadArgument(
                f"unknown option {', '.join(sorted(unknown))} of data source pgps",
                hint=f"There are {', '.join(sorted((_READ | _WRITE) - {'path'}))}.",
            )

    @classmethod
    def name(cls) -> str:
        """Return what `.format(…)` takes."""
        return "pgps"

    def schema(self) -> StructType:
        """Return the columns of a queue, or of a subscription's events."""

        with connect(dsn_of(self._given)) as connection, database_errors():
            relation = (
                stream_relation(connection, self._given["subscription"])
                if "subscription" in self._given
                else self._queue()
            )
            names = self._given.get("columns")
            wanted = [name.strip() for name in names.split(",")] if names else None
            columns = relation.columns(connection)
        if wanted is None:
            return schema_of([column for column in columns if column.name not in relation.left_out])
        known = {column.name: column for column in columns}
        missing = [name for name in wanted if name not in known]
        if missing:
            raise BadArgument(
                f"no column {', '.join(missing)} in {relation.view}", hint=f"There are {', '.join(known)}."
            )
        columns = [known[name] for name in wanted]
        return schema_of(columns)

    def _queue(self) -> Relation:
        queue = self._given.get("queue") or self._given.get("path")
        if not queue:
            raise BadArgument(
                "neither queue nor subscription is given",
                hint='Say .option("queue", "stock_quote_in"), or .option("subscription", …) for a stream.',
            )
        return queue_relation(queue)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return who reads a queue."""
        from pgps_spark.queues import PushingQueueReader, QueueReader  # noqa: PLC0415 - only for reading

        if "subscription" in self._given:
            raise BadArgument(
                "a subscription is read as a stream",
                hint="Use spark.readStream, with .trigger(availableNow=True) for what waits.",
            )
        pushing = self._given.get("pushfilters", "false").lower() == "true"
        return (PushingQueueReader if pushing else QueueReader)(
            dsn_of(self._given),
            self._queue().view,
            schema,
            partitions=self._number("partitions"),
            where=self._given.get("where"),
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return who reads a subscription."""
        from pgps_spark.stream import SubscriptionReader  # noqa: PLC0415 - only for streams

        if "subscription" not in self._given:
            raise BadArgument(
                "no subscription is given", hint='Say .option("subscription", …); a queue is read with spark.read.'
            )
        return SubscriptionReader(
            dsn_of(self._given),
            self._given["subscription"],
            schema,
            partitions=self._number("partitions"),
            max_events=self._number("maxeventspertrigger"),
            patience=float(self._given.get("patience", "10")),
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return who publishes a DataFrame."""
        from pgps_spark.writing import LoadWriter  # noqa: PLC0415 - only for writing

        return LoadWriter(
            *self._written(overwrite), schema, job=self._given.get("job"), batch=self._number("batch") or 0
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return who publishes a stream."""
        from pgps_spark.writing import StreamLoadWriter  # noqa: PLC0415 - only for writing

        return StreamLoadWriter(*self._written(overwrite), schema)

    def _written(self, overwrite: bool) -> tuple[str, str]:
        name = self._given.get("eventtype") or self._given.get("path")
        if overwrite:
            raise BadArgument("events cannot be overwritten", hint='Use .mode("append").')
        if not name:
            raise BadArgument("no event type is given", hint='Say .option("eventType", …).')
        return dsn_of(self._given), name

    def _number(self, option: str) -> int | None:
        text = self._given.get(option)
        if text is None:
            return None
        if not text.isdigit() or (option != "batch" and int(text) == 0):
            raise BadArgument(f"invalid {option} {text!r}", hint="Give a positive number.")
        return int(text)
