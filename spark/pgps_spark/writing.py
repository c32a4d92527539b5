"""`df.write.format("pgps")` and `df.writeStream.format("pgps")`: loads, as in publishing.py, by Spark's own commits."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pgps_spark.check import check, find_event_type
from pgps_spark.claims import is_claimed
from pgps_spark.connection import connect
from pgps_spark.publishing import Part, Target, bring_in, discard, publish_all
from pgps_spark.rejects import find_rejects, rejects_load

__all__ = ["LoadWriter", "StreamLoadWriter"]


@dataclass
class Brought(WriterCommitMessage):
    """What a task has brought in, into which load, for which job."""

    part: Part
    load: str
    job: str


class _Writer:
    def __init__(self, dsn: str, event_type: str, schema: StructType, rejects: str | None) -> None:
        with connect(dsn) as connection:
            found = find_event_type(connection, event_type)
            dead = None if rejects is None else find_rejects(connection, rejects)
        check(schema, found)
        self.target = Target(dsn, found.name, tuple(schema.fieldNames()), dead)
        self.load = uuid.uuid4().hex

    def bring(self, batches: Iterator[pa.RecordBatch], load: str, job: str) -> Brought:
        return Brought(bring_in(batches, self.target, load=load, job=job), load, job)

    def publish(self, brought: list[Brought], *, job: str, batch: int) -> None:
        load = brought[0].load if brought else self.load
        publish_all([each.part for each in brought], self.target, load=load, job=job, batch=batch)

    def discard(self, load: str) -> None:
        discard(self.target.dsn, load)
        if self.target.rejects is not None:
            discard(self.target.dsn, rejects_load(load))


class LoadWriter(_Writer, DataSourceArrowWriter):
    """Publishes a DataFrame at once, or not at all."""

    def __init__(
        self, dsn: str, event_type: str, schema: StructType, *, rejects: str | None, job: str | None, batch: int
    ) -> None:
        super().__init__(dsn, event_type, schema, rejects)
        self.job = job or self.load
        self.batch = batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Bring a task's rows in."""
        return self.bring(iterator, self.load, self.job)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tries that count have brought in."""
        self.publish(_brought(messages), job=self.job, batch=self.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give the load up."""
        self.discard(self.load)


class StreamLoadWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes each micro-batch once: the query's id, which the checkpoint keeps, and its number are claimed."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Bring a task's rows in."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId") or self.load
        batch = context.getLocalProperty("streaming.sql.batchId") or ""
        return self.bring(iterator, f"{self.load}/{batch}", f"spark/{query}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish a micro-batch."""
        brought = _brought(messages)
        if not brought:
            return
        job = brought[0].job
        if is_claimed(self.target.dsn, self.target.event_type, job, batchId, rising=True):
            self.abort(messages, batchId)
        else:
            self.publish(brought, job=job, batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Give up what was brought in."""
        for load in {each.load for each in _brought(messages)}:
            self.discard(load)


def _brought(messages: list[WriterCommitMessage | None]) -> list[Brought]:
    return [each for each in messages if isinstance(each, Brought)]
