"""Reads a COPY by the packet: to resume a coroutine for each of 200,000 rows would cost more than the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg import pq
from psycopg.waiting import Wait

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from pgps_worker.connection import Connection

__all__ = ["rows"]

_PART_BYTES = 256 << 10


async def rows(connection: Connection, statement: bytes) -> AsyncIterator[bytes]:
    """Run `COPY … TO STDOUT` and yield what comes, many rows at a time; raises psycopg.Error when it is refused.

    The connection can be used for nothing else until it is at its end.
    """
    await _run(connection, statement)
    ended = False
    while not ended:
        part, ended = await connection.wait(_part(connection.pgconn))
        if part:
            yield part
    await connection.wait(_end(connection.pgconn))


async def _run(connection: Connection, statement: bytes) -> None:
    connection.pgconn.send_query(statement)
    result = await connection.wait(_result(connection.pgconn))
    if result is None or result.status != pq.ExecStatus.COPY_OUT:
        await connection.wait(_end(connection.pgconn))
        raise _error(connection.pgconn, result)


def _part(pgconn: pq.abc.PGconn) -> Generator[Wait, object, tuple[bytes, bool]]:
    """Return the rows that are here, at least one, and whether they are the last."""
    found: list[bytes | memoryview] = []
    size = 0
    while size < _PART_BYTES:
        count, row = pgconn.get_copy_data(1)
        if count > 0:
            found.append(row)
            size += count
        elif count < 0:
            return b"".join(found), True
        elif found:
            break
        else:
            yield Wait.R
            pgconn.consume_input()
    return b"".join(found), False


def _result(pgconn: pq.abc.PGconn) -> Generator[Wait, object, pq.abc.PGresult | None]:
    while pgconn.flush():
        yield Wait.W
    pgconn.consume_input()
    while pgconn.is_busy():
        yield Wait.R
        pgconn.consume_input()
    return pgconn.get_result()


def _end(pgconn: pq.abc.PGconn) -> Generator[Wait, object, None]:
    """Take the results that are left; raises when one of them is an error."""
    failed = None
    while (result := (yield from _result(pgconn))) is not None:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            failed = result
    if failed is not None:
        raise _error(pgconn, failed)


def _error(pgconn: pq.abc.PGconn, result: pq.abc.PGresult | None) -> psycopg.Error:
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode() if result else ""
    message = result.error_message.decode(errors="replace") if result else pgconn.get_error_message()
    try:
        return psycopg.errors.lookup(state)(message.strip())
    except KeyError:
        return psycopg.OperationalError(message.strip())
