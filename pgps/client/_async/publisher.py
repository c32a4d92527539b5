"""Publishing: the fastest statement that does what was asked for, and numbers that make it happen once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import psycopg
from psycopg.rows import tuple_row

from pgps.client import _calls, _wire
from pgps.client._arguments import adapted
from pgps.client._async import runtime
from pgps.client._async.core import AsyncCore
from pgps.client._async.session import AnyConnection, fetch, require_connection
from pgps.errors import BadArgument

__all__ = ["AsyncPublisher"]

Record: TypeAlias = Mapping[str, Any]


class AsyncPublisher:
    """Publishes for a client."""

    def __init__(self, core: AsyncCore, producer: str | None) -> None:
        self._core = core
        self._producer = producer
        self._numbers: dict[str, range] = {}
        self._lock = runtime.Lock()

    async def publish(
        self, event_type: str, payload: Any, manner: Mapping[str, str | None], connection: AnyConnection | None
    ) -> int | None:
        """Publish; see AsyncClient.publish."""
        is_one = isinstance(payload, Mapping) or not isinstance(payload, Iterable)
        records = [_wire.as_record(one) for one in ([payload] if is_one else payload)]
        if not records:
            return None
        first = await self._number(event_type, len(records))
        if connection is not None:
            with _wire.mapped():
                return await self._send(connection, event_type, records, manner, first)
        if self._producer is None:
            return await self._core.session.run(
                lambda link: self._send(link, event_type, records, manner, None), again=False
            )
        return await self._core.session.run(lambda link: self._send(link, event_type, records, manner, first))

    async def _number(self, event_type: str, count: int) -> int | None:
        """Take consecutive numbers, of which the broker remembers only the range.

        They are asked for in a transaction of their own: the application's would have the same ones each time.
        """
        if self._producer is None:
            return None
        if count > _calls.NUMBERS_AT_MOST:
            raise BadArgument(
                f"{count} events at once are more than can be numbered",
                hint=f"Publish at most {_calls.NUMBERS_AT_MOST} at once.",
                sqlstate="22023",
            )
        if count > _calls.NUMBERS_EACH:
            return int((await self._core.session.rows(_calls.NUMBERS_OF_MANY))[0][0])
        async with self._lock:
            left = self._numbers.get(event_type, range(0))
            if len(left) < count:
                first = (await self._core.session.rows(_calls.NUMBERS))[0][0]
                left = range(first, first + _calls.NUMBERS_EACH)
            self._numbers[event_type] = left[count:]
            return left[0]

    async def _send(
        self,
        connection: AnyConnection,
        event_type: str,
        records: Sequence[Record],
        manner: Mapping[str, str | None],
        first: int | None,
    ) -> int | None:
        names = None if any(manner.values()) else _wire.same_keys(records)
        if names is not None:
            shape = await self._core.shape(event_type, connection)
            known = shape.insertable(names, many=len(records) > 1)
            if known is not None and not _wire.has_composites(known, records[0]):
                try:
                    return await self._insert(connection, shape, known, records, first)
                except psycopg.errors.SyntaxErrorOrAccessRuleViolation:
                    self._core.forget_shape(event_type)  # its attributes are others now
                    raise
        return await self._call(connection, event_type, records, manner, first)

    async def _insert(
        self,
        connection: AnyConnection,
        shape: _wire.Shape,
        attributes: list[_wire.Attribute],
        records: Sequence[Record],
        first: int | None,
    ) -> int:
        params: list[Any]
        given = {one.name: [record[one.name] for record in records] for one in attributes}
        if len(records) == 1:
            statement = shape.insert_one(attributes, numbered=first is not None)
            params = [one for (one,) in given.values()]
            params += [] if first is None else [self._producer, first]
        else:
            with adapted(given):
                arrays, kinds = _wire.columns(list(given.values()))
            statement = shape.insert_many(attributes, kinds, numbered=first is not None)
            params = arrays if first is None else [self._producer, first - 1, *arrays]
        async with (
            require_connection(connection).cursor(row_factory=tuple_row) as inserted,
            connection.cursor(row_factory=tuple_row) as last,
        ):
            with adapted({"producer": self._producer, **given}):
                async with connection.pipeline():
                    await inserted.execute(statement.encode(), params)
                    await last.execute(_calls.LAST_ID.encode())
            row = await last.fetchone()
        return int(row[0]) if row else 0

    async def _call(
        self,
        connection: AnyConnection,
        event_type: str,
        records: Sequence[Record],
        manner: Mapping[str, str | None],
        first: int | None,
    ) -> int | None:
        """Let the broker take JSON apart: what is left out takes its default."""
        params: dict[str, Any] = {"event_type": event_type, "producer": None, "producer_seq": None, **manner}
        if first is not None:
            params |= {"producer": self._producer, "producer_seq": first}
        try:
            payload = _wire.dumps(records)
        except BadArgument:
            payload = _wire.dumps(records, await self._core.shape(event_type, connection))
        rows = await fetch(connection, _calls.PUBLISH, params | {"payload": payload})
        return cast("int | None", rows[0][0])
