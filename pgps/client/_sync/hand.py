# Made by tools/unasync_client.py from pgps/client/_async/hand.py: change that, then `make generate`.
"""What a party was about to be given when whoever waited for it was interrupted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from psycopg.rows import TupleRow, tuple_row

from pgps.client import units
from pgps.client._arguments import adapted
from pgps.client._sync import runtime
from pgps.client._sync.session import AnyConnection, read
from pgps.client.units import Message

__all__ = ["Hand"]

Undo: TypeAlias = list[Callable[[], None]] | None
_ANY = {"conversation": "any"}


@dataclasses.dataclass(eq=False, slots=True)
class _Held:
    row: TupleRow
    asked: dict[str, Any]

    @property
    def uow_id(self) -> str | None:
        return Message(*self.row).uow_id


class Hand:
    """The messages that the broker has handed out and the program has not seen, in their order.

    `undo`: what a transaction that is rolled back does, in which the broker takes back what it has handed out.
    """

    def __init__(self) -> None:
        self._held: list[_Held] = []
        self._answer: runtime.Answer[list[TupleRow]] | None = None
        self._asked: dict[str, Any] = {}

    def receive(self, connection: AnyConnection, params: dict[str, Any], undo: Undo) -> list[TupleRow]:
        """Ask the broker; of who is interrupted meanwhile the answer stays here."""
        cursor = connection.cursor(row_factory=tuple_row)
        answer = runtime.Answer(lambda: cursor.execute(units.RECEIVE.encode(), params), functools.partial(read, cursor))
        self._answer, self._asked = answer, params
        try:
            with adapted(params):
                rows = answer.get()
        except Exception:
            self._answer = None
            raise
        except BaseException:
            if undo is not None:
                undo.append(functools.partial(self._drop, answer))
            raise
        self._answer = None
        return rows

    def settle(self) -> None:
        """Wait for the answer that nobody waits for any more."""
        answer = self._answer
        if answer is None:
            return
        try:
            rows = answer.get()
        except Exception:
            self._answer = None  # it was not handed out
            return
        if self._answer is answer:
            self._answer = None
            held = [_Held(row, self._asked) for row in rows if row[12] is None]
            answer.kept = held
            self._held += held

    def _drop(self, answer: runtime.Answer[list[TupleRow]]) -> None:
        if self._answer is answer:
            self._answer = None
        self._remove(answer.kept)

    def _remove(self, held: Collection[_Held]) -> None:
        self._held = [one for one in self._held if one not in held]

    def found(self, params: dict[str, Any], undo: Undo) -> list[TupleRow]:
        """Take the first one that was asked for."""
        for one in self._held:
            if units.fits(Message(*one.row), params, one.asked):
                self._held.remove(one)
                if undo is not None:
                    undo.append(functools.partial(self._hold_again, one))
                return [one.row]
        return []

    def _hold_again(self, one: _Held) -> None:
        self._held.insert(0, one)

    def give_back(self, messages: list[Message], undo: Undo) -> None:
        """Hold messages that were given and not seen, before those that came after them."""
        held = [_Held(tuple(getattr(one, each.name) for each in dataclasses.fields(one)), _ANY) for one in messages]
        self._held = held + self._held
        if undo is not None:
            undo.append(functools.partial(self._remove, held))

    def forget(self, uow_ids: Collection[str | None], undo: Undo) -> None:
        """Forget the messages of units of work that have ended."""
        before = self._held
        self._held = [one for one in before if one.uow_id is None or one.uow_id not in uow_ids]
        if undo is not None:
            undo.append(functools.partial(setattr, self, "_held", before))

    def forget_units(self) -> None:
        """Forget what the broker hands out again, since the session has ended: all but messages of no unit of work."""
        self._held = [one for one in self._held if one.uow_id is None]
