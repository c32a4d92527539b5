"""Be one of the players for one move: `python -m pgps_chess white DSN GAME`."""

from __future__ import annotations

import argparse
import sys

import psycopg

from pgps.client import Client
from pgps.errors import ConnectionLost, PgpsError, WrongState
from pgps_chess import black, white
from pgps_chess.player import Player
from pgps_chess.record import RecordError, read_record

TRY_LATER = 75
_IN_USE = "55006"


def main() -> int:
    """Play; exit status 0 done, 1 the move that came is wrong, 75 try later: no broker, or another one of me plays."""
    parser = argparse.ArgumentParser(prog="pgps_chess", description="Make one move of a game of chess by mail.")
    parser.add_argument("colour", choices=["white", "black"])
    parser.add_argument("dsn", help="how to connect")
    parser.add_argument("game", help="one of the files in games: legal, opera, vienna")
    parser.add_argument("--together", action="store_true", help="receive, answer and commit in one transaction")
    parser.add_argument("--by-hand", action="store_true", help="name each step, and wait for Enter before it is made")
    given = parser.parse_args()
    play = white.play if given.colour == "white" else black.play
    try:
        with Client(given.dsn) as client:
            step = _wait if given.by_hand else _go_on
            done = play(Player(given.colour, client, read_record(given.game), step, given.together))
    except RecordError as error:
        return _fail(1, error)
    except (ConnectionLost, psycopg.OperationalError) as error:
        return _fail(TRY_LATER, error)
    except WrongState as error:
        return _fail(TRY_LATER if error.sqlstate == _IN_USE else 1, error)
    except PgpsError as error:
        return _fail(1, error)
    print(f"done {done}")
    return 0


def _wait(number: int) -> None:
    print(f"step {number}", flush=True)
    if not sys.stdin.readline():
        raise SystemExit(1)


def _go_on(_: int) -> None:
    pass


def _fail(status: int, error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
