"""What the patterns are, recomputed with pandas: nothing of the broker, and none of its detector."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pgps_demo.data import Data, Quote, Reading
from pgps_demo.expect import Key, Wanted

__all__ = ["Dose", "doses_of", "expect", "first_of"]

_HOUR = pd.Timedelta("1 hour")
_TEN_DAYS = pd.Timedelta("10 days")
# Invented, unlike the readings: insulin half an hour after each meal; the seconds tell it from every reading.
_MEALS = (dt.time(7, 30, 30), dt.time(12, 30, 30), dt.time(18, 30, 30))
_UNITS = 4
_LAST_PATIENT = 5
_FEWEST = 1000


@dataclass(frozen=True, slots=True)
class Dose:
    """One event of type insulin."""

    patient: int
    given_at: dt.datetime
    units: int = _UNITS


def first_of(data: Data, share: float) -> Data:
    """Return the first part of the data: a pattern is in what follows each other, and not in a sample.

    Of the readings never more than those of the first patients: enough for a thousand alerts.
    """
    days = sorted({quote.day for quote in data.quotes})
    last = days[max(0, round(len(days) * share) - 1)]
    readings = [reading for reading in data.readings if reading.patient <= _LAST_PATIENT]
    readings = readings[: max(_FEWEST, round(len(readings) * share))]
    return Data(readings, [quote for quote in data.quotes if quote.day <= last])


def doses_of(readings: Sequence[Reading]) -> list[Dose]:
    """Return the insulin that patients get on the days on which they are measured."""
    days = sorted({(reading.taken_at.date(), reading.patient) for reading in readings})
    return [Dose(patient, dt.datetime.combine(day, meal, dt.UTC)) for day, patient in days for meal in _MEALS]


def expect(data: Data, above: Mapping[int, int]) -> list[Wanted]:
    """Work out what has to arrive."""
    untreated = _untreated(data.readings, doses_of(data.readings), above)
    return [
        Wanted("alert", "hospital", "three high readings, untreated", untreated),
        Wanted("recovery", "exchange", "down 5 %, and back within ten days", _recovered(data.quotes)),
    ]


def _untreated(readings: Sequence[Reading], doses: Sequence[Dose], above: Mapping[int, int]) -> dict[str, list[Key]]:
    frame = pd.DataFrame([(one.patient, one.taken_at, one.glucose) for one in readings], columns=["who", "at", "value"])
    frame["at"] = frame["at"].dt.tz_localize("UTC")
    high = frame[frame["value"] > frame["who"].map(above)].sort_values("at", kind="stable")
    given = pd.DataFrame([(one.patient, one.given_at) for one in doses], columns=["who", "at"])
    found: dict[str, list[Key]] = {}
    for who, part in high.groupby("who"):
        times = np.sort(given.loc[given["who"] == who, "at"].to_numpy(dtype="datetime64[ns]"))
        row = part.assign(first=part["at"].shift(2)).dropna()
        first, last = (row[name].to_numpy(dtype="datetime64[ns]") for name in ("first", "at"))
        treated = np.searchsorted(times, last, "right") - np.searchsorted(times, first, "left")
        kept = row[(row["at"] - row["first"] <= _HOUR) & (treated == 0)]
        if len(kept):
            found[str(who)] = [
                (str(who), one.first.to_pydatetime(), one.at.to_pydatetime(), one.value) for one in kept.itertuples()
            ]
    return found


def _recovered(quotes: Sequence[Quote]) -> dict[str, list[Key]]:
    columns = ["symbol", "at", "cents", "close"]
    rows = [(one.symbol, pd.Timestamp(one.day, tz="UTC"), int(one.close * 100), one.close) for one in quotes]
    found: dict[str, list[Key]] = {}
    for symbol, part in pd.DataFrame(rows, columns=columns).groupby("symbol"):
        row = part.sort_values("at", kind="stable")
        before, began = row["cents"].shift(1), row["at"].shift(1)
        fell = 100 * row["cents"] <= 95 * before
        # The latest fall before each quote: what it had cost, and when.
        row = row.assign(cost=before.where(fell).ffill().shift(1), began=began.where(fell).ffill().shift(1))
        kept = row[(row["cents"] >= row["cost"]) & (row["at"] - row["began"] <= _TEN_DAYS)]
        if len(kept):
            found[str(symbol)] = [
                (symbol, one.began.to_pydatetime(), one.at.to_pydatetime(), one.close) for one in kept.itertuples()
            ]
    return found
