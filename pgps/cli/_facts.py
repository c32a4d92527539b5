"""What `pgps doctor` has found out, and what it says of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pgps.cli._session import Row
from pgps.install import Installation

__all__ = ["Facts", "Finding", "Level"]


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: `fix` is what to type, "" when nothing need be done."""

    level: Level
    check: str
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the checks look at. `installation` is None when the role may not read it."""

    server: Row
    installation: Installation | None = None
    activity: list[Row] = field(default_factory=list)
    event_types: list[Row] = field(default_factory=list)
    queues: list[Row] = field(default_factory=list)
    stopped: list[Row] = field(default_factory=list)
    workers: list[Row] = field(default_factory=list)
    transactions: list[Row] = field(default_factory=list)
    timeouts: list[Row] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)
    health: dict[str, list[Row]] = field(default_factory=dict)
    plpython_error: str = ""
    client_parses: bool = False
    without_temp: list[Row] = field(default_factory=list)
    links: list[Row] = field(default_factory=list)
    broker: Row | None = None
    gaps: list[Row] = field(default_factory=list)
    differences: list[Row] = field(default_factory=list)
    slow_lanes: list[Row] = field(default_factory=list)
    slow_detection: list[Row] = field(default_factory=list)
    set_aside: list[Row] = field(default_factory=list)
    composites: list[Row] = field(default_factory=list)
    suspects: list[Row] = field(default_factory=list)
