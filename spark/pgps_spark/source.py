"""The data source `pgps`, for batch and streams, both ways; how to use it stands in docs/how-to/spark.md."""

from __future__ import annotations

import json
from collections.abc import MutableMapping

from psycopg.conninfo import conninfo_to_dict
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pgps.errors import BadArgument
from pgps_spark.columns import Column, schema_of
from pgps_spark.connection import connect, dsn_of
from pgps_spark.errors import database_errors
from pgps_spark.misfits import CORRUPT, PERMISSIVE, mode_of
from pgps_spark.relations import Relation, queue_relation, stream_relation

__all__ = ["PgpsDataSource"]

_READ = {
    "dsn", "queue", "subscription", "columns", "where", "pushfilters", "partitions",
    "maxeventspertrigger", "patience", "mode", "path",
}  # fmt: skip
_WRITE = {"dsn", "eventtype", "job", "batch", "rejects", "checkpointlocation", "path"}
# What Spark's catalogue says of a permanent table, beside the options it was created with: `option.<name>`.
_OF_TABLE = "option."
_REMEMBERED = "pgps"
_ABOUT_TABLE = {
    "owner",
    "provider",
    "comment",
    "collation",
    "external",
    "is_managed_location",
    "location",
    "serialization.format",
}


class PgpsDataSource(DataSource):
    """Queues and subscriptions of a broker as DataFrames; see docs/how-to/spark.md for the options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(dict(options))
        self._given = _own(options)
        self._is_table = any(key.lower().startswith(_OF_TABLE) for key in options)
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
            return self._shown([column for column in columns if column.name not in relation.left_out])
        known = {column.name: column for column in columns}
        missing = [name for name in wanted if name not in known]
        if missing:
            raise BadArgument(
                f"no column {', '.join(missing)} in {relation.view}", hint=f"There are {', '.join(known)}."
            )
        return self._shown([known[name] for name in wanted])

    def _shown(self, columns: list[Column]) -> StructType:
        schema = schema_of(columns)
        mode = mode_of(self._given.get("mode"), streaming="subscription" in self._given)
        if mode == PERMISSIVE:
            schema.add(CORRUPT)
        if self._is_table:
            # Spark passes the options of a table to the function that returns its schema, but not to the one that reads
            # it.
            schema.fields[0].metadata = {_REMEMBERED: json.dumps(_without_password(self._given))}
        return schema

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

        if not self._given and schema.fields:
            self._given = json.loads(schema.fields[0].metadata.get(_REMEMBERED, "{}"))
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
            mode=mode_of(self._given.get("mode"), streaming=False),
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
            mode=mode_of(self._given.get("mode"), streaming=True),
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return who publishes a DataFrame."""
        from pgps_spark.writing import LoadWriter  # noqa: PLC0415 - only for writing

        return LoadWriter(
            *self._written(overwrite),
            schema,
            rejects=self._given.get("rejects"),
            job=self._given.get("job"),
            batch=self._number("batch") or 0,
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return who publishes a stream."""
        from pgps_spark.writing import StreamLoadWriter  # noqa: PLC0415 - only for writing

        return StreamLoadWriter(*self._written(overwrite), schema, self._given.get("rejects"))

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


def _without_password(given: dict[str, str]) -> dict[str, str]:
    """Return the options of a permanent table. Raises BadArgument for a password: everybody can read the catalogue."""
    if "password" in conninfo_to_dict(given.get("dsn", "")):
        raise BadArgument(
            "the dsn of a permanent table has a password in it",
            hint="Name a passfile or a service instead: dsn 'host=… dbname=… user=… passfile=…'.",
        )
    return given


def _own(options: MutableMapping[str, str]) -> dict[str, str]:
    """Return the options that are ours, in lower case; of a table in Spark's catalogue those it was created with."""
    given = {key.lower(): value for key, value in options.items()}
    table = {key.removeprefix(_OF_TABLE): value for key, value in given.items() if key.startswith(_OF_TABLE)}
    if not table:
        return given
    left = {key: value for key, value in given.items() if not key.startswith(_OF_TABLE) and key not in _ABOUT_TABLE}
    # The directory that Spark would keep a table's files in.
    left.pop("path", None)
    return {**left, **table}
