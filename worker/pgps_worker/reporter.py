"""Logs, and counts for /metrics, which events failed for whom; of an event it tells nothing but the id."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from pgps._lags import Lags
from pgps_worker import calls
from pgps_worker.connection import Connection, connect
from pgps_worker.logs import about

if TYPE_CHECKING:
    from datetime import datetime

    from pgps_worker.config import WorkerConfig
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Reporter"]

log = logging.getLogger(__name__)

_STATEMENT_TIMEOUT = 30.0
# A failure bears the time of its statement, and can be seen only when its transaction has ended, which may take this
# long.
_LATE = timedelta(seconds=60)
_MOST_LINES = 100


@dataclass(slots=True)
class Reporter:
    """Looks every few seconds. Only the worker that dispatches logs what it sees; every worker counts it."""

    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    _since: datetime | None = None
    _told: dict[tuple[str, int, int], datetime] = field(default_factory=dict)
    _suspended: set[str] = field(default_factory=set)
    _dead: set[str] = field(default_factory=set)
    _slow: set[str] = field(default_factory=set)
    _slow_detection: set[str] = field(default_factory=set)
    _broken: set[str] = field(default_factory=set)
    _composites: set[str] = field(default_factory=set)
    _found: set[calls.AuditFinding] = field(default_factory=set)
    _lags: Lags = field(default_factory=Lags)

    @property
    def name(self) -> str:
        """Its name."""
        return "reporter"

    async def run(self) -> None:
        """Look until asked to stop."""
        async with connect(self.config, self.name, statement_timeout=_STATEMENT_TIMEOUT) as connection:
            self.vitals.up(self.name)
            if self._since is None:
                self._since = await calls.now(connection)
            while not self.stop.requested:
                await self._look(connection)
                await self.stop.sleep(self.config.report_every)

    async def _look(self, connection: Connection) -> None:
        counts = await calls.trouble_counts(connection)
        self.vitals.troubles = {count.subscription: count for count in counts}
        self.vitals.slow_lanes = await calls.slow_lanes(connection)
        self.vitals.slow_detection = await calls.slow_detection(connection)
        self.vitals.broken_types = await calls.broken_types(connection)
        self.vitals.findings = await calls.audit_findings(connection)
        self._lags.see(await calls.lag_counts(connection, self._lags.question))
        self.vitals.figures = [*await calls.figures(connection), *self._lags.figures]
        if self.vitals.leading:
            self._tell_of_suspended(counts)
            self._tell_of_dead(counts)
            self._tell_of_slow(self.vitals.slow_lanes)
            self._tell_of_broken(self.vitals.broken_types)
            self._tell_of_composites(await calls.suspended_composites(connection))
            self._tell_of_slow_detection(self.vitals.slow_detection)
            self._tell_of_findings(self.vitals.findings)
            await self._tell_of_failures(connection)

    def _tell_of_findings(self, findings: list[calls.AuditFinding]) -> None:
        for one in sorted(set(findings) - self._found, key=str):
            log.error(
                "events of type %s of broker %s, by way of %s: %d there, %d here (%s, %s): see pgps audit",
                one.event_type, one.origin, one.neighbour, one.there, one.here, one.kind, one.what,
                extra=about(event_type=one.event_type, origin=one.origin, neighbour=one.neighbour, hint="pgps audit"),
            )  # fmt: skip
        self._found = set(findings)

    def _tell_of_suspended(self, counts: list[calls.TroubleCount]) -> None:
        suspended = {count.subscription: count for count in counts if count.state == "suspended"}
        for name in sorted(suspended.keys() - self._suspended):
            count = suspended[name]
            error = _in_one_line(count.last_error)
            said = about(subscription=name, error=error, hint=count.hint)
            log.warning("subscription %s is suspended: %s (%s)", name, error, count.hint, extra=said)
        self._suspended = set(suspended)

    def _tell_of_dead(self, counts: list[calls.TroubleCount]) -> None:
        dead = {count.subscription: count for count in counts if count.state == "dead"}
        for name in sorted(dead.keys() - self._dead):
            depth, hint = dead[name].depth, dead[name].hint
            said = about(subscription=name, events=depth, hint=hint)
            log.warning("nobody takes the %d events of subscription %s (%s)", depth, name, hint, extra=said)
        self._dead = set(dead)

    def _tell_of_slow(self, lanes: list[calls.SlowLane]) -> None:
        slow = {lane.role: lane for lane in lanes}
        for role in sorted(slow.keys() - self._slow):
            log.warning(
                "the filters of role %s are slow, %d events wait for them: %s (select * from pgps.lanes)",
                role, slow[role].events, _in_one_line(slow[role].last_error),
                extra=about(role=role, error=slow[role].last_error, hint="select * from pgps.lanes"),
            )  # fmt: skip
        for role in sorted(self._slow - slow.keys()):
            log.info("the filters of role %s are quick again", role)
        self._slow = set(slow)

    def _tell_of_slow_detection(self, owners: list[calls.SlowDetection]) -> None:
        slow = {one.role: one for one in owners}
        for role in sorted(slow.keys() - self._slow_detection):
            log.warning(
                "the composite events of role %s are slow, %d events wait for them: %s (see pgps.composite_events)",
                role, slow[role].events, _in_one_line(slow[role].last_error),
                extra=about(role=role, error=slow[role].last_error, hint="select * from pgps.composite_events"),
            )  # fmt: skip
        for role in sorted(self._slow_detection - slow.keys()):
            log.info("the composite events of role %s are quick again", role)
        self._slow_detection = set(slow)

    def _tell_of_broken(self, types: list[calls.BrokenType]) -> None:
        broken = {one.event_type: one for one in types}
        for name in sorted(broken.keys() - self._broken):
            one = broken[name]
            log.error(
                "event type %s is set aside, its events wait: %s: %s (%s)",
                name, one.sqlstate, _in_one_line(one.error), one.hint,
                extra=about(event_type=name, sqlstate=one.sqlstate, error=one.error, hint=one.hint),
            )  # fmt: skip
        for name in sorted(self._broken - broken.keys()):
            log.info("event type %s is not set aside any more", name)
        self._broken = set(broken)

    def _tell_of_composites(self, composites: list[calls.SuspendedComposite]) -> None:
        suspended = {one.name: one for one in composites}
        for name in sorted(suspended.keys() - self._composites):
            error, hint = _in_one_line(suspended[name].error), suspended[name].hint
            said = about(event_type=name, error=error, hint=hint)
            log.warning("composite event %s is suspended: %s (%s)", name, error, hint, extra=said)
        self._composites = set(suspended)

    async def _tell_of_failures(self, connection: Connection) -> None:
        assert self._since is not None
        began, after, lines = await calls.now(connection), self._since - _LATE, 0
        while lines < _MOST_LINES and (found := await calls.troubles(connection, after)):
            for one in found:
                key = (one.subscription, one.event, one.attempts)
                if key not in self._told:
                    self._told[key] = one.at
                    lines += 1
                    _tell(one)
            after = found[-1].at
        if lines >= _MOST_LINES:
            log.warning("more events have failed: see pgps.exceptions")
        self._since = began
        self._told = {key: at for key, at in self._told.items() if at > began - 2 * _LATE}


def _tell(one: calls.Trouble) -> None:
    said = about(
        subscription=one.subscription, event_type=one.event_type, event_id=one.event, step=one.kind,
        attempt=one.attempts, sqlstate=one.sqlstate, error=_in_one_line(one.error), hint=one.hint,
    )  # fmt: skip
    if one.kind == "gap":
        log.warning(
            "events of type %s were passed over for subscription %s, from event %d on: %s; %s",
            one.event_type, one.subscription, one.event, _in_one_line(one.error), one.hint, extra=said,
        )  # fmt: skip
        return
    log.warning(
        "event %d of type %s failed for subscription %s (%s, attempt %d): %s: %s; %s",
        one.event, one.event_type, one.subscription, one.kind, one.attempts, one.sqlstate, _in_one_line(one.error),
        one.hint, extra=said,
    )  # fmt: skip


def _in_one_line(error: str | None) -> str:
    return " ".join((error or "no error recorded").split())
