"""What both players do alike: they keep a score sheet, and answer a move."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from pgps.client import Client, Party
from pgps.client.units import UnitOfWork
from pgps.errors import ConnectionLost
from pgps_chess.record import RecordError, is_over, next_move

__all__ = ["GAME_OVER", "NOTHING_THERE", "Player"]

GAME_OVER = "game over"
NOTHING_THERE = "nothing there"

# Called with the number of a step before it is made.
Step = Callable[[int], None]


@dataclass
class Player:
    """One of the two, for the time of one move.

    With `together`, receiving, the answer and both commits are one transaction,
    so that nobody ever sees a move half made. Without, each call is one of its
    own, as with EntireX.
    """

    colour: str
    client: Client
    record: list[str]
    step: Step
    together: bool = False

    def logon(self) -> Party:
        """Log on; the token is that of the one game that is played."""
        return self.client.logon(f"{self.colour} of the game")

    def last(self, me: Party) -> UnitOfWork | None:
        """Return how the last move stands: SYNCPOINT with `last`.

        The paper is silent on a move that was backed out, because its sender ended
        between sending and committing: it was never made, and is forgotten.
        """
        while (last := me.last()) is not None and last.status == "BACKEDOUT":
            me.syncpoint("delete", last.uow_id)
        return last

    def open(self, me: Party, service: str) -> str:
        """Send the first move of the game, and commit it with the same call; return it."""
        move = next_move(self.record, [])
        assert move is not None
        with me.transaction():
            me.send(move, service=service, option="commit")
            self._write(me, 1, move)
        return f"moved {move}"

    def answer(self, me: Party, conversation: str, *, steps: tuple[int, int, int]) -> str:
        """Receive the move of the other one, send an answer and commit both: three steps with these numbers."""
        receive, send, commit = steps
        connection = me.connection()

        def step(number: int) -> None:
            self.step(number)
            if me.connection() is not connection:
                # The party has logged on again, but a new session holds nothing of what this one had received.
                raise ConnectionLost("the session of this move is gone")

        with me.transaction() if self.together else contextlib.nullcontext():
            step(receive)
            received = me.receive(conversation, option="sync")
            moves = self._sheet(me)
            if received is None:
                return GAME_OVER if is_over(self.record, moves) else NOTHING_THERE
            moves.append(received.data.decode())
            try:
                answer = next_move(self.record, moves)
            except RecordError:
                me.syncpoint("cancel", received.uow_id)
                raise
            step(send)
            if answer is not None:
                me.send(answer, received.conversation)
            step(commit)
            # The score sheet is right whatever happens: it is written in the transaction of the commit.
            with me.transaction():
                self._write(me, len(moves), moves[-1])
                if answer is None:
                    me.syncpoint("commit", received.uow_id)
                    me.end_conversation(received.conversation)
                else:
                    self._write(me, len(moves) + 1, answer)
                    me.syncpoint("commit", "both", conversation=received.conversation)
        return GAME_OVER if answer is None else f"moved {answer}"

    def _sheet(self, me: Party) -> list[str]:
        cursor = me.connection().execute(f"select move from {self.colour}_sheet order by number".encode())
        return [move for (move,) in cursor.fetchall()]

    def _write(self, me: Party, number: int, move: str) -> None:
        me.connection().execute(f"insert into {self.colour}_sheet values (%s, %s)".encode(), [number, move])
