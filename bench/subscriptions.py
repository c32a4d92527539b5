"""Dispatch against many subscriptions.

10,000 events, published in one statement, each matching the 5 subscriptions of its symbol:
dispatched against 100 subscriptions (20 symbols) and against 100,000 (20,000 symbols), in turn; the
time of pgps.dispatch() counts, commit included. All subscriptions are made through pgps.subscribe;
a quick run makes fewer of the many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.crowd import EACH, FEW, crowded, publish
from bench.crowd import many as number_of_many
from bench.figures import Figure, Target, compare
from bench.house import alternate, opened, timed

if TYPE_CHECKING:
    import psycopg

    from bench.house import House

TITLE = "dispatch 10,000 events, each matching 5 subscriptions"
_EVENTS = 10_000


def run(house: House) -> list[Figure]:
    """Measure it."""
    few, many = FEW, number_of_many(house)
    template, rate = crowded(house)
    with house.database(template) as dsn, opened(dsn) as connection:
        for event_type, subscriptions in (("few", few), ("many", many)):
            _dispatch(connection, event_type, subscriptions)
        times_few, times_many = [], []
        for number in house.pairs():
            house.say("dispatching")
            slow, fast = alternate(
                number, lambda: _dispatch(connection, "many", many), lambda: _dispatch(connection, "few", few)
            )
            times_many.append(slow)
            times_few.append(fast)
        _check(connection, "many", house.runs + 1)
    what = f"{TITLE}: {many:,} against {few}"
    return [
        compare(what, times_many, times_few, unit="s", target=Target("at most", 4), note="pgps: many; other: few"),
        Figure("subscriptions made a second, in one transaction", [rate], unit="/s", note="reported"),
    ]


def _dispatch(connection: psycopg.Connection, event_type: str, subscriptions: int) -> float:
    publish(connection, event_type, _EVENTS, subscriptions // EACH)
    return timed(lambda: connection.execute("select pgps.dispatch()"))


def _check(connection: psycopg.Connection, event_type: str, rounds: int) -> None:
    """Check how many events a subscription is about to receive, since a dispatch that loses events does not count."""
    # The symbol of the first event; with more symbols than events, the other symbols are not published.
    received = connection.execute(
        "select count(*) from pgps.receive(%s, 1000000) where payload ->> 'symbol' = 'S1'", [f"{event_type}_{EACH}"]
    ).fetchone()
    matched = connection.execute(
        "select sum(d.events) from pgps_internal.delivery d where d.type_id ="
        " (select type_id from pgps_internal.event_type where name = %s)",
        [event_type],
    ).fetchone()
    if not received or received[0] < rounds or matched != (rounds * _EVENTS * EACH,):
        raise RuntimeError(f"expected {rounds * _EVENTS * EACH} matches, found {matched}; received {received}")
