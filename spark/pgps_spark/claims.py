"""Which batches of a job were published: the broker keeps their numbers, as claims of a producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgps.errors import ConfigError, WrongState
from pgps_spark.connection import connect
from pgps_spark.errors import database_errors
from pgps_spark.remote import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["is_claimed", "is_of_query", "query_producer"]


def is_claimed(dsn: str, event_type: str, job: str, batch: int, *, rising: bool) -> bool:
    """Say whether a batch was published before: then its rows need not even be computed.

    `rising`: the job is a streaming query, whose numbers rise by one. Then only the last batch may come again. Raises
    WrongState for one before it: the checkpoint was set back, and the batch may have other rows than when it was
    published under this number.
    """
    with connect(dsn, autocommit=False) as connection, database_errors():
        row = connection.execute("select pgps.claim(%s, %s, %s)", [event_type, job, batch]).fetchone()
        if rising:
            _require_last(
                connection.execute("select pgps.last_claim(%s, %s)", [event_type, job]).fetchone(), job, batch
            )
        connection.rollback()
        return row == (False,)


def _require_last(row: tuple[int] | None, job: str, batch: int) -> None:
    assert row is not None
    if row[0] > batch:
        raise WrongState(
            f"the checkpoint is older than what was published: {job} is at batch {batch}, and {row[0]} was published",
            hint="Take the checkpoint that the query had last. With a new checkpointLocation nothing that the source "
            "still has is left out, and what was published is published again.",
            sqlstate="55000",
        )


def is_of_query(df: DataFrame, job: str) -> bool:
    """Say whether a job's batches are the micro-batches of the streaming query that this DataFrame is one of."""
    if is_connect(df):
        return False
    query = _query_of(df)
    return query is not None and f"{job}/".startswith(f"spark/{query}/")


def query_producer(df: DataFrame) -> str:
    """Return the producer's name of the streaming query whose micro-batch this is: the same after a restart."""
    query = _query_of(df)
    if query is None:
        raise ConfigError("not in a streaming query", hint="Call it from foreachBatch.")
    return f"spark/{query}"


def _query_of(df: DataFrame) -> str | None:
    return df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or None
