"""What every subscription must get, worked out from the raw data in plain Python: no SQL, nothing of the broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

from pgps_demo import scene
from pgps_demo.data import Data, Event, Quote, Reading

__all__ = ["Expected", "Key", "Wanted", "expect"]

Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one subscription must get: for each publisher the events, in its order, as the subscriber's table has them.

    `ordered` is False where several sessions share the work. Events of
    `late_symbols` come out of order: they failed first and were retried.
    """

    subscription: str
    owner: str
    what: str
    events: dict[str, list[Key]]
    ordered: bool = True
    late_symbols: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        """How many events."""
        return sum(map(len, self.events.values()))


@dataclass(frozen=True, slots=True)
class Expected:
    """Everything that the proof compares with."""

    wanted: list[Wanted]
    published: dict[str, int] = field(default_factory=dict)
    failing: dict[str, int] = field(default_factory=dict)


def expect(data: Data) -> Expected:
    """Work everything out."""
    portfolios = [_portfolio(data, number, symbols) for number, symbols in scene.PORTFOLIOS.items()]
    return Expected(
        wanted=[*_of_readings(data), *portfolios, *_of_quotes(data)],
        published={publisher: len(stream) for publisher, stream in data.streams().items()},
        failing=_failing(data),
    )


def _of_readings(data: Data) -> list[Wanted]:
    def alarms(reading: Reading) -> bool:
        low, high = scene.THRESHOLDS[reading.patient]
        return reading.glucose < low or reading.glucose > high

    def seen(reading: Reading) -> Key:
        return reading.patient, reading.taken_at, reading.glucose

    def charted(reading: Reading) -> Key:
        return *seen(reading), reading.isig

    readings = data.readings
    return [
        Wanted("alarm", "hospital", "beyond own thresholds", _choose(readings, alarms, seen)),
        Wanted("no_signal", "hospital", "isig is null", _choose(readings, lambda r: r.isig is None, seen)),
        Wanted(
            "ward_chart",
            "ward",
            "policy: own patients",
            _choose(readings, lambda r: scene.ADMISSIONS[r.patient] == scene.WARD, charted),
        ),
    ]


def _portfolio(data: Data, number: int, symbols: tuple[str, ...]) -> Wanted:
    events = _choose(data.quotes, lambda quote: quote.symbol in symbols, _ticket)
    return Wanted(f"portfolio_{number}", "trader", f"held: {', '.join(symbols)}", events)


def _of_quotes(data: Data) -> list[Wanted]:
    limit = Decimal("0.95")

    def settled(quote: Quote) -> bool:
        return _is_large(quote) and quote.symbol in (*scene.ACCOUNTS, scene.MENDED)

    return [
        Wanted(
            "slump",
            "trader",
            "close < open * 0.95",
            _choose(data.quotes, lambda quote: quote.close < quote.open * limit, _ticket),
            ordered=False,
        ),
        Wanted(
            "settlement",
            "trader",
            "volume > 30000000",
            _choose(data.quotes, settled, lambda quote: (quote.symbol, quote.day, quote.volume)),
            late_symbols=frozenset({scene.MENDED}),
        ),
    ]


def _failing(data: Data) -> dict[str, int]:
    failing: dict[str, int] = {}
    for quote in data.quotes:
        if _is_large(quote) and quote.symbol not in scene.ACCOUNTS:
            failing[quote.symbol] = failing.get(quote.symbol, 0) + 1
    return dict(sorted(failing.items()))


def _is_large(quote: Quote) -> bool:
    return quote.volume > 30_000_000


def _ticket(quote: Quote) -> Key:
    return quote.symbol, quote.day, quote.close


def _choose(events: list[Any], wants: Callable[[Any], bool], key: Callable[[Any], Key]) -> dict[str, list[Key]]:
    chosen: dict[str, list[Key]] = {}
    event: Event
    for event in events:
        if wants(event):
            chosen.setdefault(event.publisher, []).append(key(event))
    return chosen
