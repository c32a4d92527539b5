"""The broker's side: the service, and what the players keep of their own."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

__all__ = ["PLAYERS", "SERVICE", "prepare", "score_sheet"]

SERVICE = "chess/by/mail"
PLAYERS = ("white", "black")

# A move may take a week, and what became of it is known for ten more. Both outlive the broker.
_SERVICE = """
    select pgps.create_service('chess', 'by', 'mail',
        store => 'broker', lifetime => '7 days', status_lifetime => 10, deferred => true);
    create role white login;
    create role black login;
    select pgps.grant_service('chess', 'by', 'mail', 'send', 'white');
    select pgps.grant_service('chess', 'by', 'mail', 'serve', 'black')
"""
# A move that were written down twice would break the key.
_SHEET = """
    create table {0}_sheet (number integer primary key, move text not null);
    alter table {0}_sheet owner to {0}
"""


def prepare(dsn: str) -> None:
    """Make the service, the players' roles, and a score sheet for each; the role of `dsn` is an administrator."""
    with psycopg.connect(dsn) as connection:
        connection.execute(_SERVICE)
        for player in PLAYERS:
            connection.execute(_SHEET.format(player).encode())


def score_sheet(dsn_of: Callable[[str], str], player: str) -> list[str]:
    """Return the moves that a player has written down."""
    with psycopg.connect(dsn_of(player)) as connection:
        rows = connection.execute(f"select number, move from {player}_sheet order by number".encode()).fetchall()
    if [number for number, _ in rows] != list(range(1, len(rows) + 1)):
        raise ValueError(f"half-moves are missing from the score sheet of {player}: {rows}")
    return [move for _, move in rows]
