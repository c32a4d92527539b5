"""What the audit of links says, and brokers in a row for which it says something."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.fix_broker import call, column, make_type, publish, rows
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
