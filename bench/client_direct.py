"""The latency of a direct immediate event from its commit to the handler, against a bare NOTIFY.

A session inserts an immediate event of a type that a client of the library is registered for directly, 50 a
second; in turn it sends a bare NOTIFY to a thread that listens, its payload being the transaction. A latency is the
moment in which the handler is called less the commit timestamp that the server kept for the transaction (of an
immediate event: its own), by the same machine's clock: the disk's part of a commit is in it, which a bare
NOTIFY does not have. The event is non-guaranteed, as pushing it is. A NOTIFY that inserts a row first is reported as
well, and the way from the beginning of the raising statement to the handler, which the loopback connection is
part of. Handlers run in the measuring process.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING

from bench.figures import Figure, Target, compare
from bench.house import opened
from bench.subjects import ATTRIBUTES, COLUMNS
from pgps.client import Client, Occurrence

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from bench.house import House

TITLE = "client: direct immediate event to handler, median"
_VALUES = "values ('S', 1, 1, now())"
_SENT = {
    "pgps": f"insert into pgps_event.quote ({COLUMNS}) {_VALUES}",
    "bare": "select pg_notify('bare', pg_current_xact_id()::text)",
    "written": (
        f"with event as (insert into outbox ({COLUMNS}) {_VALUES} returning id)"
        " select pg_notify('bare', pg_current_xact_id()::text) from event"
    ),
}
_PAUSE = 0.02


def run(house: House) -> list[Figure]:
    """Measure it."""
    events = house.scale(200, 50)
    medians: dict[str, list[float]] = {name: [] for name in _SENT}
    whole: dict[str, list[float]] = {name: [] for name in _SENT}
    seen: dict[int, float] = {}
    stop = threading.Event()

    def handle(occurrence: Occurrence) -> None:
        seen[occurrence.xid] = time.time()

    with house.database() as dsn, opened(dsn) as connection:
        connection.execute(
            "select pgps.create_event_type('quote', %s, visibility => 'immediate', reliability => 'non-guaranteed')",
            [ATTRIBUTES],
        )
        connection.execute("select pgps.advertise('quote')")
        connection.execute(f"create table outbox (id bigserial primary key, {ATTRIBUTES})".encode())
        listening = threading.Thread(target=_listen, args=(dsn, seen, stop), daemon=True)
        listening.start()
        try:
            with Client(dsn) as client, client.identify("bench") as me:
                me.register("quote", mode="direct", handler=handle)
                me.start()
                for number in house.pairs():
                    turn = number % len(_SENT)
                    names = list(_SENT)
                    for name in names[turn:] + names[:turn]:
                        since_commit, since_raise = _measure(connection, _SENT[name], seen, events)
                        medians[name].append(since_commit)
                        whole[name].append(since_raise)
        finally:
            stop.set()
            listening.join()
    against, row = "against a bare NOTIFY", "a row written and a NOTIFY"
    return [
        compare(TITLE, medians["pgps"], medians["bare"], unit="ms", target=Target("at most", 4.0), note=against),
        compare(TITLE, medians["pgps"], medians["written"], unit="ms", note=row),
        compare(f"{TITLE}, since the raise", whole["pgps"], whole["written"], unit="ms", note=row),
    ]


def _measure(
    connection: psycopg.Connection, statement: str, seen: dict[int, float], events: int
) -> tuple[float, float]:
    """Return the median latencies in milliseconds, since the commit and since the raise."""
    seen.clear()
    raised = []
    for _ in range(events):
        raised.append(time.time())
        connection.execute(statement.encode(), prepare=True)
        time.sleep(_PAUSE)
    _wait(lambda: len(seen) == events)
    rows = connection.execute(
        "select x, extract(epoch from pg_xact_commit_timestamp((x & 4294967295)::text::xid))"
        " from unnest(%s::bigint[]) x",
        [list(seen)],
    ).fetchall()
    since_commit = statistics.median((seen[xid] - float(committed)) * 1000 for xid, committed in rows)
    # The events are published one after the other, so their transaction ids are in the same order.
    handled = (seen[xid] for xid in sorted(seen))
    return since_commit, statistics.median((end - begin) * 1000 for begin, end in zip(raised, handled, strict=True))


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("not all events came")
        time.sleep(0.01)


def _listen(dsn: str, seen: dict[int, float], stop: threading.Event) -> None:
    with opened(dsn) as connection:
        connection.execute("listen bare")
        while not stop.is_set():
            for notification in connection.notifies(timeout=0.2):
                seen[int(notification.payload)] = time.time()
