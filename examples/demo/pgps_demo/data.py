"""The real data: glucose readings and stock quotes of the package `bokeh_sampledata`.

`CGM.csv.gz`: isig, datetime, glucose; 52,281 readings of one wearer, March to
October 2010, in order of time; three moments occur twice, and 1,061 readings
have isig "nil". The demonstration lets each month be a patient, whose number
is the month's.

`stocks.csv.gz`: Ticker, Date, Open, High, Low, Close, Volume, Adj Close; 12,154
daily quotes of five companies, 2000 to 2013, company by company.
"""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import random
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from itertools import groupby
from typing import Self, TypeAlias

from pgps.errors import PgpsError

__all__ = ["Data", "Event", "Quote", "Reading"]

_NYSE = {"IBM"}


@dataclass(frozen=True, slots=True)
class Reading:
    """One event of type glucose_reading; `isig` is None where the sensor gave no signal."""

    patient: int
    taken_at: dt.datetime
    glucose: int
    isig: Decimal | None

    @property
    def publisher(self) -> str:
        """The role that publishes it."""
        return f"home_{self.patient}"


@dataclass(frozen=True, slots=True)
class Quote:
    """One event of type stock_quote."""

    symbol: str
    day: dt.date
    open: Decimal
    high: Decimal
    low: Decimal
    close: Decimal
    volume: int
    adjusted_close: Decimal

    @property
    def publisher(self) -> str:
        """The role that publishes it."""
        return "nyse" if self.symbol in _NYSE else "nasdaq"


Event: TypeAlias = Reading | Quote


@dataclass(frozen=True, slots=True)
class Data:
    """The events that are published, each kind in the order of its publication."""

    readings: list[Reading]
    quotes: list[Quote]

    @classmethod
    def load(cls) -> Self:
        """Read both files; raises PgpsError when the package is missing."""
        readings = [
            Reading(
                patient=(taken_at := dt.datetime.fromisoformat(row["datetime"])).month,
                taken_at=taken_at,
                glucose=int(row["glucose"]),
                isig=None if row["isig"] == "nil" else Decimal(row["isig"]),
            )
            for row in _rows("CGM.csv.gz")
        ]
        quotes = [
            Quote(
                symbol=row["Ticker"],
                day=dt.date.fromisoformat(row["Date"]),
                open=Decimal(row["Open"]),
                high=Decimal(row["High"]),
                low=Decimal(row["Low"]),
                close=Decimal(row["Close"]),
                volume=int(row["Volume"]),
                adjusted_close=Decimal(row["Adj Close"]),
            )
            for row in _rows("stocks.csv.gz")
        ]
        # An exchange publishes the quotes of all companies day by day.
        return cls(readings, sorted(quotes, key=lambda quote: quote.day))

    def part(self, share: float) -> Data:
        """Return about this share of the events, spread evenly; every run selects the same ones."""
        chance = random.Random("part")  # noqa: S311 - nothing secret
        return Data(
            [reading for reading in self.readings if chance.random() < share],
            [quote for quote in self.quotes if chance.random() < share],
        )

    def streams(self) -> dict[str, list[Event]]:
        """Return the events of each publisher, in its order."""
        return {**_by_publisher(self.readings), **_by_publisher(self.quotes)}


def _rows(name: str) -> list[dict[str, str]]:
    try:
        file = resources.files("bokeh_sampledata") / "_data" / name
        text = gzip.decompress(file.read_bytes()).decode()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise PgpsError(
            f"the data of the demonstration is missing: {error}", hint="pip install 'pgps[demo]', or bokeh_sampledata"
        ) from error
    return list(csv.DictReader(text.splitlines()))


def _by_publisher(events: list[Reading] | list[Quote]) -> dict[str, list[Event]]:
    ordered: list[Event] = sorted(events, key=lambda event: event.publisher)  # stable: each keeps its order
    return {publisher: list(group) for publisher, group in groupby(ordered, key=lambda event: event.publisher)}
