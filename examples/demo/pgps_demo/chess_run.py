"""Chess by mail: a game over units of work, whose players are killed and whose broker crashes on the way."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psycopg.conninfo import make_conninfo

from pgps import install
from pgps.embedded import EmbeddedCluster

if TYPE_CHECKING:
    from pgps_demo.display import Steps

__all__ = ["run"]

_GAME = "legal"
# Before which steps of the thirteen, once each: the paper's most delicate moments, before sending and committing.
_KILLED = {("white", 10), ("white", 11), ("black", 12)}
_CRASHED = {("black", 11)}
_CHESS = str(Path(__file__).resolve().parents[2] / "chess")


def run(steps: Steps) -> dict[str, Any]:
    """Play a game, and compare both score sheets with its record; return the result for programs."""
    # The game is an example of its own, beside this one.
    if _CHESS not in sys.path:
        sys.path.append(_CHESS)
    from pgps_chess.match import Match, Mishap
    from pgps_chess.record import read_record
    from pgps_chess.setup import PLAYERS, prepare, score_sheet

    with EmbeddedCluster(f"demo-{os.getpid()}-chess", fast=True, keep=False) as cluster:

        def dsn_of(player: str) -> str:
            return make_conninfo(cluster.dsn(), user=player)

        def crash() -> None:
            cluster.kill9()
            cluster.start()

        due = {**dict.fromkeys(_KILLED, Mishap.KILL), **dict.fromkeys(_CRASHED, Mishap.CRASH)}

        def mishaps(colour: str, step: int) -> Mishap:
            return due.pop((colour, step), Mishap.NONE)

        with steps.step("chess by mail: two programs that are started, make one move, and end") as notes:
            install.install(cluster.dsn())
            prepare(cluster.dsn())
            counts = Match(dsn_of, _GAME, mishaps, crash).play()
            record = read_record(_GAME)
            ok = all(score_sheet(dsn_of, player) == record for player in PLAYERS)
            notes.append(f"{len(record)} half-moves, {counts['killed']} kills, {counts['crashed']} crash of the broker")
            if counts["try later"]:
                notes.append(f"programs that found the broker or their session gone, and were started again: "
                             f"{counts['try later']}")  # fmt: skip
            notes.append("the game is the same" if ok else "the game is another one")
    return {"half_moves": len(record), "counts": dict(counts), "ok": ok}
