"""Statements whose row is there before their transaction is on disk, and transactions that wait for such a one.

The row comes as soon as the statement has run, while the server goes on to commit; so
what it is needed for can begin meanwhile. Nothing that rests on it may be committed
anywhere before `committed` has returned: a server that crashes in between has
forgotten it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import OperationalError, errors, pq
from psycopg.waiting import Wait

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pgps_worker.connection import Connection

__all__ = ["commit", "committed", "opened", "value"]


async def value(connection: Connection, statement: bytes, params: Sequence[bytes | None]) -> str:
    """Run a statement in a transaction of its own, and return the text of its one value.

    `committed` has to follow, before the connection is used for anything else. Parameters are $1, $2, … as text.
    Raises psycopg.Error.
    """
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    pgconn.send_query_params(statement, params)
    # The server sends the row at the first, and begins to commit at the second.
    pgconn.send_flush_request()
    pgconn.pipeline_sync()
    result = await connection.wait(_answer(pgconn))
    if result.status != pq.ExecStatus.TUPLES_OK:
        await committed(connection)
    return _text(connection, result)


async def committed(connection: Connection) -> None:
    """Return when the transaction of `value` is on disk. Raises psycopg.Error when it could not be committed."""
    failed = await connection.wait(_end(connection.pgconn))
    connection.pgconn.exit_pipeline_mode()
    if failed is not None:
        raise errors.error_from_result(failed)


async def opened(connection: Connection, statement: bytes, params: Sequence[bytes | None]) -> str:
    """Begin a transaction with a statement, in one round trip, and return the text of its one value.

    `commit` ends it. Raises psycopg.Error, with the transaction still open, as any statement does.
    """
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    pgconn.send_query_params(b"begin", None)
    pgconn.send_query_params(statement, params)
    pgconn.pipeline_sync()
    begun = await connection.wait(_answer(pgconn))
    result = await connection.wait(_answer(pgconn))
    await committed(connection)
    if begun.status != pq.ExecStatus.COMMAND_OK:
        raise errors.error_from_result(begun)
    return _text(connection, result)


async def commit(connection: Connection) -> None:
    """Commit what `opened` has begun. Raises psycopg.Error."""
    connection.pgconn.send_query(b"commit")
    result = await connection.wait(_answer(connection.pgconn))
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise errors.error_from_result(result)


def _text(connection: Connection, result: pq.abc.PGresult) -> str:
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise errors.error_from_result(result)
    found = result.get_value(0, 0)
    assert found is not None
    return found.decode(connection.info.encoding)


def _answer(pgconn: pq.abc.PGconn) -> Generator[Wait, object, pq.abc.PGresult]:
    """Return the result of the statement; behind it stands that there is no more of it."""
    result = yield from _next(pgconn)
    if result is None:
        raise OperationalError(pgconn.get_error_message().strip() or "the statement has no result")
    yield from _next(pgconn)
    return result


def _end(pgconn: pq.abc.PGconn) -> Generator[Wait, object, pq.abc.PGresult | None]:
    """Wait until the transaction has ended; return its error, if it has one."""
    failed = None
    while True:
        result = yield from _next(pgconn)
        if result is not None and result.status == pq.ExecStatus.PIPELINE_SYNC:
            return failed
        if result is not None:
            failed = result
        if pgconn.status != pq.ConnStatus.OK:
            raise OperationalError(pgconn.get_error_message().strip())


def _next(pgconn: pq.abc.PGconn) -> Generator[Wait, object, pq.abc.PGresult | None]:
    while pgconn.flush():
        yield Wait.W
    while pgconn.is_busy():
        yield Wait.R
        pgconn.consume_input()
    return pgconn.get_result()
