"""What the worker has done and how its services are, for health checks and the log."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgps._metrics import Figure
    from pgps_worker.calls import AuditFinding, BrokenType, SlowDetection, SlowLane, TroubleCount

__all__ = ["LinkVitals", "Vitals", "WayVitals"]

log = logging.getLogger(__name__)

# What only tells how things are: no event waits for it, and a worker that is started again tells no sooner.
_TELLERS = frozenset({"reporter"})


@dataclass(slots=True)
class WayVitals:
    """What has crossed one way of a link since the worker began."""

    events: int = 0
    bytes: int = 0
    batches: int = 0


@dataclass(slots=True)
class LinkVitals:
    """The state of one link, and what has crossed it; of an error the code alone: its text may name hosts and users.

    `lacks`: it is up, and some events do not cross.
    """

    state: str = "connecting"
    out: WayVitals = field(default_factory=WayVitals)
    back: WayVitals = field(default_factory=WayVitals)
    connections: int = 0
    failures: int = 0
    last_error: str | None = None
    lacks: bool = False
    lag_events: int = 0
    lag_seconds: float = 0.0
    refused: int = 0
    gaps: int = 0


@dataclass(slots=True)
class Vitals:
    """Counters since the start, and the last failure of each service that is down (None: up)."""

    leading: bool = False
    is_superuser: bool = False
    events_dispatched: int = 0
    batches_dispatched: int = 0
    events_handled: int = 0
    batches_handled: int = 0
    callbacks_stopped: int = 0
    callbacks_ousted: int = 0
    events_filed: int = 0
    segments_reclaimed: int = 0
    events_carried: int = 0
    events_confirmed: int = 0
    requests_executed: int = 0
    service_restarts: int = 0
    services: dict[str, str | None] = field(default_factory=dict)
    links: dict[str, LinkVitals] = field(default_factory=dict)
    troubles: dict[str, TroubleCount] = field(default_factory=dict)
    findings: list[AuditFinding] = field(default_factory=list)
    slow_lanes: list[SlowLane] = field(default_factory=list)
    slow_detection: list[SlowDetection] = field(default_factory=list)
    broken_types: list[BrokenType] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    _beats: dict[str, tuple[float, float]] = field(default_factory=dict)

    def link(self, name: str) -> LinkVitals:
        """Return the record of a link, which the task that serves the link keeps up to date."""
        return self.links.setdefault(name, LinkVitals())

    def up(self, service: str) -> None:
        """Record that a service works."""
        if self.services.get(service) is not None:
            log.info("%s: up again", service)
        self.services[service] = None

    def down(self, service: str, failure: str) -> None:
        """Record why a service does not work for the moment."""
        self.services[service] = failure
        self.service_restarts += 1

    def beat(self, service: str, limit: float) -> None:
        """Record that a service did something, or had nothing to do; it has to do so again within `limit` seconds."""
        self._beats[service] = time.monotonic(), limit

    def rest(self, service: str) -> None:
        """Record that a service is not expected to do anything."""
        self._beats.pop(service, None)

    @property
    def stalled(self) -> dict[str, float]:
        """The services that are up but have got nothing done for too long, and for how many seconds."""
        now = time.monotonic()
        silent = {service: (now - at, limit) for service, (at, limit) in self._beats.copy().items()}
        return {service: since for service, (since, limit) in silent.items() if since > limit}

    @property
    def is_healthy(self) -> bool:
        """True when there are services, all that carry events are up, and none is stalled."""
        needed = {service: failure for service, failure in self.services.items() if service not in _TELLERS}
        return bool(needed) and not any(needed.values()) and not self.stalled
