"""Filters over a stored table.

100 subscriptions `symbol in (select symbol from portfolios where portfolio_id = k)` with 50 symbols
each, all of which match every event; 1,000 events are published in one statement and dispatched.
Against it, each of the 100 filters as a prepared query of its own, executed for every event inside
the server: no round trips, no results kept, plans cached by plpgsql.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.crowd import publish
from bench.figures import Figure, Target, compare
from bench.house import alternate, opened, timed
from bench.subjects import create_event_type

if TYPE_CHECKING:
    import psycopg

    from bench.house import House

TITLE = "100 subscriptions over a portfolio table, all matching"
_SUBSCRIPTIONS = 100
_SYMBOLS = 50


def run(house: House) -> list[Figure]:
    """Measure it."""
    events = house.scale(1_000, 300)
    with house.database() as dsn, opened(dsn) as connection:
        _set_up(connection)
        _dispatch(connection, events)
        set_wise, one_by_one = [], []
        for number in house.pairs():
            house.say("portfolio")
            mine, theirs = alternate(
                number, lambda: _dispatch(connection, events), lambda: _evaluate(connection, events)
            )
            set_wise.append(mine)
            one_by_one.append(theirs)
    note = f"{events:,} events; against each filter's own prepared query per event"
    return [compare(TITLE, set_wise, one_by_one, unit="s", target=Target("at least", 20), inverse=True, note=note)]


def _set_up(connection: psycopg.Connection) -> None:
    create_event_type(connection)
    connection.execute(
        "create table portfolios (portfolio_id integer, symbol text, primary key (portfolio_id, symbol))"
    )
    connection.execute(
        "insert into portfolios select k, 'S' || n from generate_series(1, %s) k, generate_series(0, %s) n",
        [_SUBSCRIPTIONS, _SYMBOLS - 1],
    )
    connection.execute("vacuum analyze portfolios")
    for k in range(1, _SUBSCRIPTIONS + 1):
        connection.execute(
            "select pgps.subscribe(%s, 'quote', %s)",
            [f"p{k}", f"symbol in (select symbol from portfolios where portfolio_id = {k})"],
        )
    queries = "\n".join(
        f"if p_symbol in (select symbol from portfolios where portfolio_id = {k}) then matched := matched + 1; end if;"
        for k in range(1, _SUBSCRIPTIONS + 1)
    )
    connection.execute(
        f"create function evaluate(p_symbol text) returns integer language plpgsql as $$"
        f" declare matched integer := 0; begin {queries} return matched; end $$".encode()
    )


def _dispatch(connection: psycopg.Connection, events: int) -> float:
    publish(connection, "quote", events, _SYMBOLS)
    return timed(lambda: connection.execute("select pgps.dispatch()"))


def _evaluate(connection: psycopg.Connection, events: int) -> float:
    def evaluate() -> None:
        row = connection.execute(
            "select sum(evaluate('S' || n %% %s)) from generate_series(1, %s) n", [_SYMBOLS, events]
        ).fetchone()
        assert row == (events * _SUBSCRIPTIONS,)

    return timed(evaluate)
