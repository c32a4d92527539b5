"""Two pages for machines: /healthz (200 when every service is up and gets things done, else 503), and /metrics."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from pgps._metrics import Figure, exposition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgps_worker.calls import SlowDetection, SlowLane, TroubleCount
    from pgps_worker.config import WorkerConfig
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import LinkVitals, Vitals, WayVitals

__all__ = ["Health"]

_TIMEOUT = 5.0
_MOST_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Health:
    """A small HTTP server. It asks the services and not the database, and so it always has an answer."""

    config: WorkerConfig
    stop: Stop
    vitals: Vitals

    @property
    def name(self) -> str:
        """Its name."""
        return "health"

    async def run(self) -> None:
        """Answer until asked to stop; raises OSError when the port is taken."""
        server = await asyncio.start_server(
            self._answer, self.config.health_host, self.config.health_port, limit=_MOST_BYTES
        )
        self.vitals.up(self.name)
        async with server:
            await self.stop.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                request = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = self._page(request)
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body.encode())}\r\n"
                    f"Connection: close\r\n\r\n{body}".encode()
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that is slow, gone or talks something else is its own business
        finally:
            writer.close()

    def _page(self, request: bytes) -> tuple[str, str, str]:
        method, _, rest = request.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in {b"GET", b"HEAD"}:
            return "405 Method Not Allowed", "text/plain", ""
        if path == b"/healthz":
            status = "200 OK" if self.vitals.is_healthy else "503 Service Unavailable"
            return status, "application/json", json.dumps(self._report()) + "\n"
        if path == b"/metrics":
            return "200 OK", "text/plain; version=0.0.4", _metrics(self.vitals)
        return "404 Not Found", "text/plain", "see /healthz and /metrics\n"

    def _report(self) -> dict[str, object]:
        # A failure's text stays in the log: it may name hosts and users.
        services = {name: "up" if failure is None else "down" for name, failure in self.vitals.services.items()}
        stalled = {name: f"got nothing done for {since:.0f} s" for name, since in self.vitals.stalled.items()}
        aside = {one.event_type: {"sqlstate": one.sqlstate, "hint": one.hint} for one in self.vitals.broken_types}
        return {
            "name": self.config.name, "leading": self.vitals.leading, "services": services, "stalled": stalled,
            "set_aside": aside,
        }  # fmt: skip


def _metrics(vitals: Vitals) -> str:
    return exposition([*_figures(vitals), *vitals.figures])


def _figures(vitals: Vitals) -> Iterator[Figure]:
    yield Figure("pgps_worker_leading", "gauge", {}, int(vitals.leading))
    for field in fields(vitals):
        value = getattr(vitals, field.name)
        if isinstance(value, int) and not isinstance(value, bool):
            yield Figure(f"pgps_worker_{field.name}_total", "counter", {}, value)
    yield from _trouble_figures(vitals.troubles)
    for lane in vitals.slow_lanes:
        for name, value in _lane_values(lane):
            yield Figure(f"pgps_lane_{name}", "gauge", {"role": lane.role}, value)
    yield from _slow_figures(vitals.slow_detection)
    # These two also when there are none: an alarm needs a series that is there.
    yield Figure("pgps_event_types_set_aside", "gauge", {}, len(vitals.broken_types))
    for broken in vitals.broken_types:
        yield Figure("pgps_event_type_waiting_events", "gauge", {"event_type": broken.event_type}, broken.events)
    yield Figure("pgps_audit_findings", "gauge", {}, len(vitals.findings))
    for one in vitals.findings:
        labels = {"kind": one.kind, "what": one.what, "neighbour": one.neighbour, "origin": one.origin}
        labels["event_type"] = one.event_type
        yield Figure("pgps_audit_missing_events", "gauge", labels, one.there - one.here)
    for name, link in sorted(vitals.links.items()):
        for metric, kind, values in _LINK_METRICS:
            for more, value in values(link):
                yield Figure(f"pgps_link_{metric}", kind, {"link": name, **more}, value)


def _trouble_figures(troubles: dict[str, TroubleCount]) -> Iterator[Figure]:
    for name, one in sorted(troubles.items()):
        for metric, value in (
            ("suspended", one.state == "suspended"),
            ("dead", one.state == "dead"),
            ("failed_events", one.failed),
            ("retrying_events", one.retrying),
            ("last_failed_event_id", one.last_event),
            ("passed_over_events", one.passed_over),
        ):
            if value is not None:
                yield Figure(f"pgps_subscription_{metric}", "gauge", {"subscription": name}, value)


def _slow_figures(owners: list[SlowDetection]) -> Iterator[Figure]:
    for one in owners:
        yield Figure("pgps_composite_owner_slow", "gauge", {"role": one.role}, 1)
        yield Figure("pgps_composite_owner_lag_events", "gauge", {"role": one.role}, one.events)


def _lane_values(lane: SlowLane) -> tuple[tuple[str, float], ...]:
    return ("slow", 1), ("lag_batches", lane.batches), ("lag_events", lane.events), ("lag_seconds", lane.seconds)


_LINK_METRICS: list[tuple[str, str, Callable[[LinkVitals], Iterator[tuple[dict[str, str], float]]]]] = [
    ("up", "gauge", lambda link: iter([({}, _state(link) == "up")])),
    ("state", "gauge", lambda link: iter([({"state": _state(link)}, 1)])),
    ("events_total", "counter", lambda link: (({"way": way}, x.events) for way, x in _ways(link))),
    ("bytes_total", "counter", lambda link: (({"way": way}, x.bytes) for way, x in _ways(link))),
    ("batches_total", "counter", lambda link: (({"way": way}, x.batches) for way, x in _ways(link))),
    ("reconnects_total", "counter", lambda link: iter([({}, max(link.connections - 1, 0))])),
    ("failures_total", "counter", lambda link: iter([({}, link.failures)])),
    ("last_error", "gauge", lambda link: iter([({"code": link.last_error}, 1)] if link.last_error else [])),
    ("lag_events", "gauge", lambda link: iter([({}, link.lag_events)])),
    ("lag_seconds", "gauge", lambda link: iter([({}, link.lag_seconds)])),
    ("refused_events", "gauge", lambda link: iter([({}, link.refused)])),
    ("gaps", "gauge", lambda link: iter([({}, link.gaps)])),
]


def _state(link: LinkVitals) -> str:
    return "incomplete" if link.state == "up" and link.lacks else link.state


def _ways(link: LinkVitals) -> Iterator[tuple[str, WayVitals]]:
    yield "out", link.out
    yield "in", link.back
