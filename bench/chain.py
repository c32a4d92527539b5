"""Brokers in a row, each with a worker, linked one to the next: events are published at the first."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.house import opened, worker
from bench.subjects import COLUMNS, create_event_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import psycopg

    from bench.house import House

__all__ = ["ROWS", "Chain", "chained", "eventually", "value"]

ROWS = "'S' || n %% 1000 as symbol, (n %% 10000)::numeric / 100 as price, n as volume, clock_timestamp() as at"
"""The four attributes of the n-th event."""

LINK = "to_next"


@dataclass(slots=True)
class Chain:
    """Brokers in a row: their connection strings, a session in each, the process ids of their workers."""

    dsns: list[str]
    sessions: list[psycopg.Connection]
    workers: list[int]

    @property
    def first(self) -> psycopg.Connection:
        """Return the connection string of the broker at which events are published."""
        return self.sessions[0]

    @property
    def last(self) -> psycopg.Connection:
        """Return the connection string of the broker that wants the events."""
        return self.sessions[-1]

    def subscribe(self, name: str, place: int, filter: str | None = None) -> None:  # noqa: A002
        """Subscribe a broker to what the first publishes, and wait until it is in force there."""
        self.sessions[place].execute(
            "select pgps.subscribe(%s, 'quote', filter => %s, scope => 'global')", [name, filter]
        )
        query = (
            "select count(*) from pgps_internal.activation a join pgps_internal.pushed p using (key)"
            " join pgps_internal.subscription s using (subscription_id) where s.name = %s and a.is_confirmed"
        )
        eventually(lambda: place == 0 or value(self.sessions[place], query, name))

    def pause(self) -> None:
        """Take the first link down."""
        self.first.execute("select pgps.alter_link(%s, enabled => false)", [LINK])
        eventually(lambda: not self.sessions_of_link())

    def resume(self) -> None:
        """Let the first link connect, and return when it is up: then it begins to carry the events that wait."""
        self.first.execute("select pgps.alter_link(%s, enabled => true)", [LINK])
        self.first.execute("notify pgps_link")
        up = "select state = 'up' from pgps_internal.link where name = %s"
        eventually(lambda: value(self.first, up, LINK), every=0.001)

    def sessions_of_link(self) -> int:
        """Count the first link's sessions at its own broker."""
        found: int = value(
            self.first,
            "select count(*) from pg_stat_activity where datname = current_database() and application_name like %s",
            f"pgps-worker/%/link-{LINK}",
        )
        return found

    def publish(self, events: int, statements: int) -> None:
        """Publish so many events in so many transactions, and wait until they are dispatched."""
        for number in range(statements):
            low = number * events // statements
            self.first.execute(
                f"insert into pgps_event.quote ({COLUMNS}) select {ROWS}"
                " from generate_series(%s::integer, %s::integer) n".encode(),
                [low + 1, (number + 1) * events // statements],
            )
        eventually(lambda: is_dispatched(self.first), within=600)

    def arrived(self, place: int = -1) -> int:
        """Count the events that a broker has received over its links."""
        found: int = value(self.sessions[place], "select coalesce(sum(events), 0) from pgps_internal.arrival")
        return found

    def dispatched(self, place: int = -1) -> int:
        """Count the events that a broker has dispatched, whether or not they are still there."""
        found: int = value(
            self.sessions[place],
            "select coalesce((select b.total from pgps_internal.batch_type b order by b.batch_id desc limit 1), 0)",
        )
        return found

    def wait_for_dispatch(self, events: int, *, within: float = 600.0) -> None:
        """Wait until the last broker has dispatched so many events in all."""
        eventually(lambda: self.dispatched() >= events, every=0.02, within=within)

    def wait_for(self, events: int, *, within: float = 600.0) -> None:
        """Wait until the last broker has received so many events in all."""
        eventually(lambda: self.arrived() >= events, every=0.01, within=within)


@contextlib.contextmanager
def chained(
    house: House, length: int, *, others: Sequence[House] = (), via: Callable[[str], str] | None = None
) -> Iterator[Chain]:
    """Set brokers up in a row and yield them when the last knows what the first publishes.

    The first is in the house's server; `others` has the servers of those behind it, which are in the same one, too,
    if there are none. `via` may change the connection string that the links have.
    """
    with contextlib.ExitStack() as stack:
        places = [house, *(others or [house] * length)]
        dsns = [stack.enter_context(place.database()) for place in places[:length]]
        sessions = [stack.enter_context(opened(dsn)) for dsn in dsns]
        create_event_type(sessions[0])
        for session, after in zip(sessions, dsns[1:], strict=False):
            session.execute("select pgps.create_link(%s, %s)", [LINK, via(after) if via else after])
        workers = [stack.enter_context(worker(dsn)) for dsn in dsns]
        offered = "select count(*) from pgps_internal.offer"
        eventually(lambda: all(value(session, offered) for session in sessions[1:]), within=120)
        yield Chain(dsns, sessions, workers)


def is_dispatched(session: psycopg.Connection) -> bool:
    """Return whether no published event waits for the dispatcher."""
    return not value(
        session,
        "select count(*) from (select c.hi from pgps_internal.control c order by c.hi desc limit 1) c"
        " where c.hi > coalesce((select b.max_hi from pgps_internal.batch b order by b.batch_id desc limit 1), 0)",
    )


def eventually(condition: Callable[[], object], *, every: float = 0.02, within: float = 60.0) -> None:
    """Wait until a condition holds; raises RuntimeError when it does not hold in time."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {within:g} seconds")
        time.sleep(every)


def value(session: psycopg.Connection, query: str, *params: object) -> Any:
    """Return the only value of a query."""
    row = session.execute(query.encode(), params or None).fetchone()
    assert row is not None
    return row[0]
