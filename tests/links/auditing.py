"""What the audit of links says, and brokers in a row for which it says something."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.fix_broker import call, column, make_type, publish, rows, value
from tests.links.horizon_stage import Scene
from tests.links.rig import Broker, Link, linked, settle

Brokers = Callable[[int], list[Broker]]


def audit(broker: Broker) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = column(broker.admin, "select to_jsonb(a) from pgps.audit() a")
    return found


def findings(broker: Broker) -> list[tuple[str, str, str, str, int, int]]:
    query = (
        "select kind, what, neighbour, origin, events_there, events_here from pgps.audit_findings order by 1, 2, 3, 4"
    )
    return [(*row,) for row in rows(broker.admin, query)]


@contextmanager
def line(made: list[Broker], *, filter: str | None = None) -> Iterator[list[Link]]:  # noqa: A002
    """Brokers in a row, the last of which gets the first one's ticks; what is counted was compared once."""
    for broker in made:
        call(broker.admin, "configure", "link_report_interval", "0 seconds")
        make_type(broker.admin, "tick")
    with linked(list(itertools.pairwise(made))) as links:
        for link in links:
            link.out.with_rows = link.back.with_rows = 32
        settle(made, links)
        call(made[-1].admin, "subscribe", "all", "tick", filter=filter, scope="global")
        settle(made, links)
        for n in (1, 2):
            publish(made[0].admin, "tick", n)
            settle(made, links)
        yield links


def end_to_end(broker: Broker, origin: str) -> dict[str, Any]:
    (row,) = [row for row in audit(broker) if row["kind"] == "end" and row["origin"] == origin]
    return row


def alter_log(broker: Broker, statement: str) -> None:
    """Do something to a log that nobody should."""
    assert broker.admin.execute(statement.encode()).rowcount > 0, statement


class Totals:
    """What the origin of a scene publishes and says of it, by way of b."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._said: dict[str, Any] = {
            "events": 0, "places": 0, "contents": 0, "shape": None, "since": 0, "contents_since": 0
        }  # fmt: skip

    def goes_on(self, upto: int, came: int, published: int) -> None:
        """One batch, of which so many events come, and so many were published."""
        s = self._scene
        events = [(10 * upto + n, n) for n in range(1, came + 1)]
        s.b.say(s.b.data(s.x, s.number(s.b), upto - 1, upto, *events))
        hashed = int(value(s.here.admin, "select pgps_internal.place_hash(%s)", [upto]))
        self._said["events"] += published
        self._said["places"] = (self._said["places"] + published * hashed) % 2**60

    def states(self, upto: int, *, said: bool = True) -> None:
        """State the totals up to a batch, or that there is none any more."""
        s, types = self._scene, {"tick": self._said} if said else {}
        s.b.say(s.b.message("audit", **s.x.key, attachment=s.number(s.b), batch=upto, types=types))
