"""The configuration file of a pipeline: TOML, read as a whole, and every mistake told before Spark is started."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from pgps.errors import ConfigError

__all__ = ["Analyse", "Archive", "Ingest", "Job", "Pipeline", "Report", "load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    name: str
    dsn: str | None
    checkpoint: str
    # Seconds between looks for something new; None: all there is now, and then the job ends.
    every: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading(_Common):
    subscription: str
    # Seconds that a broker may be away, or another query have the subscription; see the data source.
    patience: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest(_Common):
    """Files into events: `columns` has an SQL expression over the file's columns for each attribute."""

    event_type: str
    source: str
    rejects: str
    format: str = "csv"
    columns: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    max_rejects: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Analyse(_Reading):
    """A sliding window over a subscription: what lies far from it is published as an event of type `findings`.

    `window` is in seconds of the events' own `time`; `deviations` is how many standard
    deviations from the window's mean is too far; a window with less than `minimum`
    events finds nothing. `statistics`: an event type for the window's figures, every `slide` seconds.
    """

    key: str
    value: str
    time: str
    window: float
    findings: str
    deviations: float = 4.0
    minimum: int = 10
    statistics: str | None = None
    slide: float = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive(_Reading):
    """An event type's audited queues into Parquet below `directory`, by day; `subscription` delivers its events."""

    event_type: str
    directory: str
    max_events: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(_Common):
    """Tables and plots of what an archive has, as a page and pictures in `output`."""

    directory: str
    output: str
    title: str = "pgps: what went through"


Job: TypeAlias = Ingest | Analyse | Archive | Report
_KINDS: dict[str, type[Job]] = {"ingest": Ingest, "analyse": Analyse, "archive": Archive, "report": Report}
_GIVEN = {"name", "dsn", "checkpoint"}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What a file says: settings for the Spark session, and jobs in the order they stand."""

    spark: dict[str, str]
    jobs: dict[str, Job]


def load(path: Path) -> Pipeline:
    """Read a file. Raises ConfigError with the job and the key that is wrong."""
    try:
        text = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="Name the pipeline's configuration file.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}", hint="The file is TOML.") from error
    common = text.pop("pipeline", {})
    jobs = text.pop("jobs", {})
    settings = text.pop("spark", {})
    if text or not jobs:
        what = f"unknown table [{next(iter(text))}]" if text else "no [jobs.…]"
        raise ConfigError(f"{path}: {what}", hint="There are [pipeline], [spark] and [jobs.<name>].")
    unknown = set(common) - {"dsn", "directory"}
    if unknown:
        raise ConfigError(f"{path}: unknown key {unknown.pop()} in [pipeline]", hint="There are dsn and directory.")
    base = str(common.get("directory", path.parent / "pgps-spark"))
    return Pipeline(
        {key: str(value) for key, value in settings.items()},
        {name: _job(path, name, dict(given), common.get("dsn"), base) for name, given in jobs.items()},
    )


def _job(path: Path, name: str, given: dict[str, Any], dsn: str | None, base: str) -> Job:
    where = f"{path}: [jobs.{name}]"
    kind = _KINDS.get(given.pop("kind", ""))
    if kind is None:
        raise ConfigError(f"{where} has no kind, or an unknown one", hint=f"kind is one of {', '.join(_KINDS)}.")
    fields = {each.name: each for each in dataclasses.fields(kind) if each.name not in _GIVEN}
    for key in given:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {key}", hint=f"There are {', '.join(sorted(fields))}.")
    if kind is Ingest:
        given.setdefault("rejects", f"{base}/rejects/{name}")
    for key in ("window", "slide", "every", "patience"):
        if key in given:
            given[key] = _seconds(where, key, given[key])
    missing = [
        key
        for key, each in fields.items()
        if key not in given and each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where}: {', '.join(missing)} is missing", hint=f"A job {kind.__name__.lower()} needs it.")
    return kind(name=name, dsn=dsn, checkpoint=f"{base}/checkpoints/{name}", **given)


_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


def _seconds(where: str, key: str, value: object) -> float:
    """Return a span of time: a number of seconds, or a text like "30 days"."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    if isinstance(value, str):
        number, _, unit = value.partition(" ")
        factor = _UNITS.get(unit.strip().rstrip("s"))
        if factor is not None and number.replace(".", "", 1).isdigit() and float(number) > 0:
            return float(number) * factor
    raise ConfigError(f"{where}: invalid {key} {value!r}", hint='Give seconds, or a text like "30 days".')
