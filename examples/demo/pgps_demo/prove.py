"""The proof: compare what subscribers have in their tables with what was worked out from the raw data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from pgps_demo.broker import Broker
from pgps_demo.expect import Key, Wanted

__all__ = ["Verdict", "judge", "judge_all"]

# The publisher and the event of each row of the subscribers' own tables, in the order in which they were written.
_TABLES: dict[str, LiteralString] = {
    "alarm": "select 'home_' || patient, patient, taken_at, glucose from hospital.alert order by arrival",
    "no_signal": "select 'home_' || patient, patient, taken_at, glucose from hospital.sensor_fault order by arrival",
    "ward_chart": "select publisher, patient, taken_at, glucose, isig from ward.chart order by arrival",
    "settlement": """
        select case symbol when 'IBM' then 'nyse' else 'nasdaq' end, symbol, day, volume
        from trading.settlement order by arrival
    """,
}
_TICKETS: LiteralString = (
    "select publisher, symbol, day, close from trading.ticket where subscription = %s order by arrival"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one subscription.

    `missing` and `extra` count events that did not come, or came though they
    should not, or came twice. `in_order` is None where no order is promised;
    `late` are those that failed first and were retried, out of order.
    """

    subscription: str
    owner: str
    what: str
    expected: int
    received: int
    missing: int
    extra: int
    in_order: bool | None
    late: int

    @property
    def ok(self) -> bool:
        """Whether it got exactly what it should, once, in order."""
        return not self.missing and not self.extra and self.in_order is not False


def judge_all(broker: Broker, wanted: Sequence[Wanted]) -> list[Verdict]:
    """Read the subscribers' tables and judge each subscription."""
    return [judge(each, _received(broker, each)) for each in wanted]


def judge(wanted: Wanted, received: dict[str, list[Key]]) -> Verdict:
    """Compare, publisher by publisher, content and order."""
    missing = extra = 0
    in_order = True
    for publisher in wanted.events.keys() | received.keys():
        should, has = wanted.events.get(publisher, []), received.get(publisher, [])
        missing += (Counter(should) - Counter(has)).total()
        extra += (Counter(has) - Counter(should)).total()
        in_order &= _without(should, wanted.late_symbols) == _without(has, wanted.late_symbols)
    return Verdict(
        subscription=wanted.subscription,
        owner=wanted.owner,
        what=wanted.what,
        expected=wanted.count,
        received=sum(map(len, received.values())),
        missing=missing,
        extra=extra,
        in_order=in_order if wanted.ordered else None,
        late=sum(event[0] in wanted.late_symbols for events in received.values() for event in events),
    )


def _without(events: list[Key], symbols: frozenset[str]) -> list[Key]:
    return [event for event in events if event[0] not in symbols]


def _received(broker: Broker, wanted: Wanted) -> dict[str, list[Key]]:
    query = _TABLES.get(wanted.subscription, _TICKETS)
    parameters: list[Any] = [] if wanted.subscription in _TABLES else [wanted.subscription]
    received: dict[str, list[Key]] = {}
    with psycopg.connect(broker.dsn(wanted.owner)) as connection:
        for publisher, *event in connection.execute(query, parameters):
            received.setdefault(publisher, []).append(tuple(event))
    return received
