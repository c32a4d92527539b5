"""The paths that `make profile` samples, each under a load that goes on until it has enough."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.chain import ROWS, chained, eventually, is_dispatched
from bench.house import opened, worker
from bench.subjects import COLUMNS, create_event_type, publisher
from pgps.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import psycopg

    from bench.house import House

__all__ = ["LOADS", "Load"]

_ROWS = f"insert into pgps_event.quote ({COLUMNS}) select {ROWS} from generate_series(1, %s::integer) n".encode()
_ONE = f"insert into pgps_event.quote ({COLUMNS}) values ('S1', 1, 1, now())".encode()


@dataclass(frozen=True, slots=True)
class Load:
    """What is done again and again, some milliseconds each time, and the Python processes that take part, by name."""

    turn: Callable[[], object]
    processes: dict[str, int]


@contextlib.contextmanager
def _at_one_broker(house: House, name: str) -> Iterator[tuple[psycopg.Connection, psycopg.Connection, dict[str, int]]]:
    """Make a broker with a worker; yield a session, one of a plain role that publishes, and the worker."""
    with house.database() as dsn, opened(dsn) as session:
        create_event_type(session)
        with opened(f"{publisher(dsn)} application_name={name}") as publishing, worker(dsn) as pid:
            publishing.prepare_threshold = 0
            yield session, publishing, {"worker": pid}


@contextlib.contextmanager
def _publish(house: House) -> Iterator[Load]:
    """Single events, each in a transaction of its own."""
    with _at_one_broker(house, "publisher") as (session, publishing, processes):
        session.execute("select pgps.subscribe('tenth', 'quote', 'price > 900')")
        yield Load(lambda: [publishing.execute(_ONE) for _ in range(100)], processes)


@contextlib.contextmanager
def _bulk(house: House) -> Iterator[Load]:
    """20,000 events in a statement."""
    with _at_one_broker(house, "publisher") as (session, publishing, processes):
        session.execute("select pgps.subscribe('tenth', 'quote', 'price > 90')")
        yield Load(lambda: publishing.execute(_ROWS, [20_000]), processes)


@contextlib.contextmanager
def _dispatch(house: House) -> Iterator[Load]:
    """Transactions of 100 events, dispatched one by one to twenty filters."""
    with _at_one_broker(house, "publisher") as (session, publishing, processes):
        for number in range(20):
            session.execute("select pgps.subscribe(%s, 'quote', %s)", [f"s{number}", f"price = {number}"])

        def turn() -> None:
            publishing.execute(_ROWS, [100])
            eventually(lambda: is_dispatched(session), every=0.001)

        yield Load(turn, processes)


@contextlib.contextmanager
def _receive(house: House) -> Iterator[Load]:
    """A client of this process receives and acknowledges, 100 events at once."""
    with (
        _at_one_broker(house, "publisher") as (session, publishing, processes),
        Client(f"{_dsn(session)} application_name=consumer") as client,
        client.subscribe("all", "quote") as subscription,
    ):

        def turn() -> None:
            publishing.execute(_ROWS, [5_000])
            eventually(lambda: is_dispatched(session), every=0.01)
            assert sum(len(batch) for batch in subscription.batches(100, timeout=0.0)) == 5_000

        yield Load(turn, {**processes, "consumer": os.getpid()})


@contextlib.contextmanager
def _hop(house: House) -> Iterator[Load]:
    """Transactions of 1,000 events, carried by a link to a broker that wants all."""
    with chained(house, 2) as chain:
        chain.subscribe("all", 1)

        def turn() -> None:
            before = chain.arrived()
            chain.first.execute(_ROWS, [1_000])
            chain.wait_for(before + 1_000)

        yield Load(turn, {"worker of the first": chain.workers[0], "worker of the second": chain.workers[1]})


def _dsn(session: psycopg.Connection) -> str:
    return session.info.dsn


LOADS: dict[str, Callable[[House], AbstractContextManager[Load]]] = {
    "publish": _publish,
    "bulk": _bulk,
    "dispatch": _dispatch,
    "receive": _receive,
    "hop": _hop,
}
