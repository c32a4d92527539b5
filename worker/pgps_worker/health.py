"""Two pages for machines: /healthz (200 when every service is up and gets things done, else 503), and /metrics."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from pgps._metrics import exposition, label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgps_worker.calls import AuditFinding, BrokenType, SlowLane, TroubleCount
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
    lines = [f"# TYPE pgps_worker_leading gauge\npgps_worker_leading {int(vitals.leading)}\n"]
    for field in fields(vitals):
        value = getattr(vitals, field.name)
        if isinstance(value, int) and not isinstance(value, bool):
            metric = f"pgps_worker_{field.name}_total"
            lines.append(f"# TYPE {metric} counter\n{metric} {value}\n")
    more = _trouble_metrics(vitals.troubles) + _lane_metrics(vitals.slow_lanes)
    more += _type_metrics(vitals.broken_types) + _audit_metrics(vitals.findings)
    return "".join(lines) + more + _link_metrics(vitals.links) + exposition(vitals.figures)


_TROUBLE_METRICS: list[tuple[str, Callable[[TroubleCount], float | None]]] = [
    ("suspended", lambda one: int(one.state == "suspended")),
    ("dead", lambda one: int(one.state == "dead")),
    ("failed_events", lambda one: one.failed),
    ("retrying_events", lambda one: one.retrying),
    ("last_failed_event_id", lambda one: one.last_event),
    ("passed_over_events", lambda one: one.passed_over),
]


def _trouble_metrics(troubles: dict[str, TroubleCount]) -> str:
    lines = []
    for metric, value in _TROUBLE_METRICS if troubles else []:
        lines.append(f"# TYPE pgps_subscription_{metric} gauge\n")
        for name, one in sorted(troubles.items()):
            number = value(one)
            if number is not None:
                lines.append(f'pgps_subscription_{metric}{{subscription="{label(name)}"}} {number}\n')
    return "".join(lines)


_LANE_METRICS: list[tuple[str, Callable[[SlowLane], float]]] = [
    ("slow", lambda _: 1),
    ("lag_batches", lambda lane: lane.batches),
    ("lag_events", lambda lane: lane.events),
    ("lag_seconds", lambda lane: lane.seconds),
]


def _lane_metrics(lanes: list[SlowLane]) -> str:
    lines = []
    for metric, value in _LANE_METRICS if lanes else []:
        lines.append(f"# TYPE pgps_lane_{metric} gauge\n")
        lines += [f'pgps_lane_{metric}{{role="{label(lane.role)}"}} {value(lane):g}\n' for lane in lanes]
    return "".join(lines)


def _type_metrics(types: list[BrokenType]) -> str:
    # Also when there are none: an alarm needs a series that is there.
    lines = [f"# TYPE pgps_event_types_set_aside gauge\npgps_event_types_set_aside {len(types)}\n"]
    if types:
        lines.append("# TYPE pgps_event_type_waiting_events gauge\n")
    lines += [f'pgps_event_type_waiting_events{{event_type="{label(t.event_type)}"}} {t.events}\n' for t in types]
    return "".join(lines)


def _audit_metrics(findings: list[AuditFinding]) -> str:
    # The line is written even if the number is 0: an alarm needs a series that exists.
    lines = [f"# TYPE pgps_audit_findings gauge\npgps_audit_findings {len(findings)}\n"]
    if findings:
        lines.append("# TYPE pgps_audit_missing_events gauge\n")
    for one in findings:
        labels = {"kind": one.kind, "what": one.what, "neighbour": one.neighbour, "origin": one.origin}
        said = ",".join(f'{name}="{label(text)}"' for name, text in {**labels, "event_type": one.event_type}.items())
        lines.append(f"pgps_audit_missing_events{{{said}}} {one.there - one.here}\n")
    return "".join(lines)


_LINK_METRICS: list[tuple[str, str, Callable[[LinkVitals], Iterator[tuple[str, float]]]]] = [
    ("up", "gauge", lambda link: iter([("", int(_state(link) == "up"))])),
    ("state", "gauge", lambda link: iter([(f',state="{_state(link)}"', 1)])),
    ("events_total", "counter", lambda link: ((f',way="{way}"', x.events) for way, x in _ways(link))),
    ("bytes_total", "counter", lambda link: ((f',way="{way}"', x.bytes) for way, x in _ways(link))),
    ("batches_total", "counter", lambda link: ((f',way="{way}"', x.batches) for way, x in _ways(link))),
    ("reconnects_total", "counter", lambda link: iter([("", max(link.connections - 1, 0))])),
    ("failures_total", "counter", lambda link: iter([("", link.failures)])),
    ("last_error", "gauge", lambda link: iter([(f',code="{link.last_error}"', 1)] if link.last_error else [])),
    ("lag_events", "gauge", lambda link: iter([("", link.lag_events)])),
    ("lag_seconds", "gauge", lambda link: iter([("", link.lag_seconds)])),
    ("refused_events", "gauge", lambda link: iter([("", link.refused)])),
    ("gaps", "gauge", lambda link: iter([("", link.gaps)])),
]


def _state(link: LinkVitals) -> str:
    return "incomplete" if link.state == "up" and link.lacks else link.state


def _ways(link: LinkVitals) -> Iterator[tuple[str, WayVitals]]:
    yield "out", link.out
    yield "in", link.back


def _link_metrics(links: dict[str, LinkVitals]) -> str:
    lines = []
    for metric, kind, values in _LINK_METRICS if links else []:
        lines.append(f"# TYPE pgps_link_{metric} {kind}\n")
        for name, link in sorted(links.items()):
            lines += [f'pgps_link_{metric}{{link="{label(name)}"{more}}} {value:g}\n' for more, value in values(link)]
    return "".join(lines)
