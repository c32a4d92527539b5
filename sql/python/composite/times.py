"""Durations, moments and calendars of expressions, in microseconds since 1970 in UTC."""

import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple, Optional
from zoneinfo import ZoneInfo

SECOND = 1_000_000
DAY = 86_400 * SECOND
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MICROSECOND = timedelta(microseconds=1)
LONGEST = 366 * 1000 * DAY
UNITS = {
    "us": 1, "usec": 1, "usecs": 1, "microsecond": 1, "microseconds": 1,
    "ms": 1000, "msec": 1000, "msecs": 1000, "millisecond": 1000, "milliseconds": 1000,
    "s": SECOND, "sec": SECOND, "secs": SECOND, "second": SECOND, "seconds": SECOND,
    "m": 60 * SECOND, "min": 60 * SECOND, "mins": 60 * SECOND, "minute": 60 * SECOND, "minutes": 60 * SECOND,
    "h": 3600 * SECOND, "hr": 3600 * SECOND, "hrs": 3600 * SECOND, "hour": 3600 * SECOND, "hours": 3600 * SECOND,
    "d": DAY, "day": DAY, "days": DAY, "w": 7 * DAY, "week": 7 * DAY, "weeks": 7 * DAY,
}  # fmt: skip
PART_RE = re.compile(
    r"\s*(?:(\d{1,9}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6})\d*)?)?|(\d{1,15})(?:\.(\d{1,9})\d*)?\s*([a-z]+))"
)
CALENDAR_WORDS = frozenset("mon mons month months y yr yrs year years decade decades century centuries".split())
WRITTEN = (("d", DAY), ("h", 3600 * SECOND), ("min", 60 * SECOND), ("s", SECOND), ("ms", 1000), ("us", 1))
MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
WEEKDAYS = "sun mon tue wed thu fri sat".split()
# From, to, and the names of the values.
FIELDS: list[tuple[str, int, int, list[str]]] = [
    ("minute", 0, 59, []), ("hour", 0, 23, []), ("day of the month", 1, 31, []),
    ("month", 1, 12, MONTHS), ("day of the week", 0, 7, WEEKDAYS),
]  # fmt: skip
SEARCHED_DAYS = 366 * 9  # a 29th of February may be eight years away


def read_duration(text: str) -> int:
    """Return the microseconds of an interval as PostgreSQL writes it; ValueError says what is wrong with it.

    A day has 24 hours and a week seven days. Months and years are refused: they have no fixed length.
    """
    at, total, source = 0, 0, text.strip().lower()
    while at < len(source):
        match = PART_RE.match(source, at)
        if match is None:
            raise ValueError(f'"{text}" is no interval')
        hours, minutes, seconds, fraction, count, decimals, unit = match.groups()
        if unit in CALENDAR_WORDS:
            raise ValueError(f'"{text}" has no fixed length')
        if unit is not None and unit not in UNITS:
            raise ValueError(f'"{text}" is no interval')
        if unit is None:
            total += (int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0)) * SECOND
            total += int((fraction or "").ljust(6, "0"))
        else:
            total += int(count) * UNITS[unit] + int((decimals or "").ljust(9, "0")) * UNITS[unit] // 10**9
        at = match.end()
    if not source or total > LONGEST:
        raise ValueError(f'"{text}" is no interval' if not source else f'"{text}" is longer than a thousand years')
    return total


def write_duration(amount: int) -> str:
    """Return a duration in its one normal form: 90 seconds are `1 min 30 s`."""
    parts = []
    for unit, size in WRITTEN:
        if amount >= size:
            parts.append(f"{amount // size} {unit}")
            amount %= size
    return " ".join(parts) or "0 s"


def read_time(text: str, zone: str) -> int:
    """Return a moment as PostgreSQL writes it; without an offset it is one of the zone. ValueError when it is none."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f'"{text}" is no time') from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone_of(zone))
    return microseconds(moment)


def write_time(moment: int) -> str:
    """Return a moment as text, in UTC."""
    written = EPOCH + moment * MICROSECOND
    return (
        written.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0")
        + (f".{moment % SECOND:06}" if moment % SECOND else "")
        + "+00"
    )


def microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970."""
    return (moment - EPOCH) // MICROSECOND


@lru_cache(maxsize=64)
def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its name; ValueError when there is none."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f'"{name}" is no time zone') from None


class Cron(NamedTuple):
    """Hold the values that each field of a calendar allows."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool  # both days are restricted: one of them is enough, as in cron


@lru_cache(maxsize=256)
def read_cron(text: str) -> Cron:
    """Return the calendar of five fields; ValueError says which field is wrong."""
    words = text.lower().split()
    if len(words) != 5:
        raise ValueError(f'"{text}" has {len(words)} fields and not five')
    values = [cron_field(word, *field) for word, field in zip(words, FIELDS)]
    weekdays = frozenset(day % 7 for day in values[4])
    either = not words[2].startswith("*") and not words[4].startswith("*")
    return Cron(tuple(values[0]), tuple(values[1]), frozenset(values[2]), frozenset(values[3]), weekdays, either)


def cron_field(word: str, what: str, low: int, high: int, names: list[str]) -> list[int]:
    """Return the values of one field: `*`, `5`, `1-5`, `*/10`, `mon,wed`."""
    found: set[int] = set()
    for item in word.split(","):
        match = re.fullmatch(r"(?:\*|(\w{1,3})(?:-(\w{1,3}))?)(?:/(\d{1,3}))?", item)
        bounds = [cron_value(part, low, names) for part in match.group(1, 2)] if match else []
        first, last = bounds or (None, None)
        step = int(match.group(3) or 1) if match else 0
        if match and match.group(1) is None:
            first, last = low, high
        elif last is None and match and match.group(2) is None:
            last = high if match.group(3) and first is not None else first
        if first is None or last is None or not low <= first <= last <= high or step < 1:
            raise ValueError(f'"{item}" is no {what}')
        found.update(range(first, last + 1, step))
    return sorted(found)


def cron_value(word: Optional[str], low: int, names: list[str]) -> Optional[int]:
    """Return a number or the number of a name."""
    if word is None:
        return None
    return int(word) if word.isascii() and word.isdigit() else names.index(word) + low if word in names else None


def next_cron(cron: Cron, zone: str, after: int) -> Optional[int]:
    """Return the first moment of a calendar behind another; None when nothing comes in eight years.

    A local time that a change of the clocks leaves out is left out; one that comes twice counts once.
    """
    where = zone_of(zone)
    day = (EPOCH + after * MICROSECOND).astimezone(where).date()
    for _ in range(SEARCHED_DAYS):
        if cron_day(cron, day):
            for moment in cron_moments(cron, day, where):
                if moment > after:
                    return moment
        try:
            day += timedelta(days=1)
        except OverflowError:
            return None
    return None


def cron_day(cron: Cron, day: date) -> bool:
    """Tell whether a calendar has moments on a day."""
    weekday = (day.weekday() + 1) % 7 in cron.weekdays
    if day.month not in cron.months:
        return False
    return (day.day in cron.days or weekday) if cron.either else (day.day in cron.days and weekday)


def cron_moments(cron: Cron, day: date, where: ZoneInfo) -> Iterator[int]:
    """Return the moments of a day, in order."""
    for hour in cron.hours:
        for minute in cron.minutes:
            local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=where)
            moment = local.astimezone(timezone.utc)
            if moment.astimezone(where).replace(tzinfo=None) == local.replace(tzinfo=None):
                yield microseconds(moment)


def next_tick(op: str, amount: int, text: str, zone: str, after: int) -> Optional[int]:
    """Return the first tick of at, every or cron behind a moment; None when there is none."""
    if op == "at":
        return amount if amount > after else None
    if op == "every":
        return (after // amount + 1) * amount
    return next_cron(read_cron(text), zone, after)
