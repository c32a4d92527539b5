"""Games that were played, which the two players play again."""

from __future__ import annotations

from pathlib import Path

import chess
import chess.pgn

__all__ = ["GAMES", "RecordError", "is_over", "next_move", "position", "read_record"]

GAMES = Path(__file__).parent / "games"


class RecordError(Exception):
    """A move is not legal, or the record of the game has another one."""


def read_record(name: str) -> list[str]:
    """Return the moves of a game in `games`, as a score sheet writes them; each is legal where it stands."""
    with (GAMES / f"{name}.pgn").open() as file:
        game = chess.pgn.read_game(file)
    if game is None or game.errors:
        raise RecordError(f"{name}.pgn is not the record of a game: {game.errors if game else 'it is empty'}")
    board, moves = game.board(), list[str]()
    for move in game.mainline_moves():
        moves.append(board.san(move))
        board.push(move)
    return moves


def position(moves: list[str]) -> chess.Board:
    """Return the board after these moves; RecordError names the first one that is not legal."""
    board = chess.Board()
    for number, move in enumerate(moves, 1):
        try:
            board.push_san(move)
        except ValueError as error:
            raise RecordError(f"half-move {number}, {move}, is not legal: {error}") from error
    return board


def next_move(record: list[str], moves: list[str]) -> str | None:
    """Return what the record has after these moves, None when the game is over; it is legal there."""
    position(moves)
    if record[: len(moves)] != moves:
        raise RecordError(f"the record of the game does not have {moves[-1]} as half-move {len(moves)}")
    if is_over(record, moves):
        return None
    position([*moves, record[len(moves)]])
    return record[len(moves)]


def is_over(record: list[str], moves: list[str]) -> bool:
    """Whether no move comes after these: mate, stalemate, or one side has given up."""
    return len(moves) == len(record) or position(moves).is_game_over()
