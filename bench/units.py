"""Units of work: requests and their answers, beside two tables written by hand; latency; a million that wait.

Twenty clients and twenty servers, in processes of their own, wait for each other with LISTEN. A client commits a
request of one message; a server receives it, answers, and commits both with `both`, in one transaction; the client
receives the answer and commits that. By hand it is a table of requests and one of answers: INSERT, DELETE of the first
row with SKIP LOCKED, NOTIFY, with as many transactions.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, LiteralString

import psycopg

from bench.figures import Figure, Target, compare
from bench.house import alternate, opened, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.sharedctypes import Synchronized
    from multiprocessing.synchronize import Event as ProcessEvent
    from typing import Protocol

    from bench.house import House

    Event = ProcessEvent | threading.Event
    Counter = Synchronized[int]

    class Party(Protocol):
        """A client or a server, whichever way they talk."""

        def ask(self) -> str: ...
        def answer(self) -> bool: ...
        def receive(self, asked: str, /) -> bool: ...
        def wait(self) -> None:
            """Sleep until something may have come, for half a second at most."""

    class Opens(Protocol):
        """Gives parties their connections, in any process."""

        def opened(self, number: int, *, serves: bool) -> contextlib.AbstractContextManager[Party]: ...


TITLE = "units"
SERVICE = ("bench", "orders", "book")
_NAME = "/".join(SERVICE)
MESSAGE = b"x" * 100
PAIRS, _PROCESSES, _WARM = 20, 2, 10
_TABLES: LiteralString = """
    create table request (id bigint generated always as identity primary key, client integer, message bytea);
    create table answer (id bigint generated always as identity primary key, client integer, message bytea);
    create index on answer (client, id)
"""


def run(house: House) -> list[Figure]:
    """Measure it."""
    with house.database() as dsn:
        with opened(dsn) as connection:
            connection.execute(
                "select pgps.create_service(%s, %s, %s, store => 'broker', deferred => true)", list(SERVICE)
            )
            for statement in _TABLES.split(";"):
                connection.execute(statement.encode())
        return [_pairs(house, dsn), _latency(house, dsn), _waiting(house)]


# ----------------------------------------------------------------------------------------------------------------------
# The two ways to ask and to answer
# ----------------------------------------------------------------------------------------------------------------------


class Units:
    """Parties of units of work."""

    def __init__(self, connection: psycopg.Connection, number: int, *, serves: bool) -> None:
        self.connection = connection
        connection.execute("select pgps.logon(%s)", [f"{'server' if serves else 'client'} {number}"])
        if serves:
            connection.execute("select pgps.register_service(%s, %s, %s)", SERVICE)
        for (channel,) in connection.execute("select pgps.session_channels()").fetchall():
            connection.execute(f"listen {channel}".encode())

    def ask(self) -> str:
        row = self.connection.execute(
            "select conversation from pgps.send_message(%b, to_service => %s, option => 'commit')", [MESSAGE, _NAME]
        ).fetchone()
        assert row is not None
        return str(row[0])

    def work(self) -> None:
        """What a server does for a request, in the transaction that answers it."""

    def answer(self) -> bool:
        with self.connection.transaction():
            row = self.connection.execute("select conversation, message from pgps.receive_message('new')").fetchone()
            if row is None:
                return False
            self.work()
            self.connection.execute("select uow_id from pgps.send_message(%b, %s)", [MESSAGE, row[0]])
            self.connection.execute("select uow_id from pgps.syncpoint('commit', 'both')")
        return True

    def receive(self, asked: str) -> bool:
        with self.connection.transaction():
            if self.connection.execute("select message from pgps.receive_message(%s)", [asked]).fetchone() is None:
                return False
            self.connection.execute("select uow_id from pgps.syncpoint('commit')")
        return True

    def wait(self) -> None:
        _notified(self.connection)


class Tables:
    """The same by hand."""

    def __init__(self, connection: psycopg.Connection, number: int, *, serves: bool) -> None:
        self.connection, self.number = connection, number
        connection.execute(("listen request" if serves else f"listen answer_{number}").encode())

    def ask(self) -> str:
        with self.connection.transaction():
            self.connection.execute("insert into request (client, message) values (%s, %b)", [self.number, MESSAGE])
            self.connection.execute("select pg_notify('request', '')")
        return ""

    def answer(self) -> bool:
        with self.connection.transaction():
            row = self.connection.execute(
                "delete from request where id = (select id from request order by id limit 1 for update skip locked)"
                " returning client, message"
            ).fetchone()
            if row is None:
                return False
            self.connection.execute("insert into answer (client, message) values (%s, %b)", [row[0], MESSAGE])
            self.connection.execute("select pg_notify('answer_' || %s::text, '')", [row[0]])
        return True

    def receive(self, _asked: str) -> bool:
        query: LiteralString = (
            "delete from answer where id = (select id from answer where client = %s order by id limit 1"
            " for update skip locked) returning message"
        )
        return self.connection.execute(query, [self.number]).fetchone() is not None

    def wait(self) -> None:
        _notified(self.connection)


def _notified(connection: psycopg.Connection) -> None:
    for _ in connection.notifies(timeout=0.5, stop_after=1):
        pass


@dataclass
class Way:
    """Where, and which of the two."""

    dsn: str
    party: type[Units | Tables]

    @contextlib.contextmanager
    def opened(self, number: int, *, serves: bool) -> Iterator[Units | Tables]:
        with opened(self.dsn) as connection:
            connection.prepare_threshold = 0
            yield self.party(connection, number, serves=serves)


def _wait(party: Party, work: Callable[[], bool], stop: Event) -> bool:
    """Do some work as soon as there is any; false when it is time to stop."""
    while not work():
        if stop.is_set():
            return False
        party.wait()
    return True


def _serve(way: Opens, number: int, stop: Event) -> None:
    with way.opened(number, serves=True) as party:
        while not stop.is_set() and _wait(party, party.answer, stop):
            pass


def _ask(way: Opens, number: int, stop: Event, warm: Counter, ended: list[float]) -> None:
    with way.opened(number, serves=False) as party:
        rounds = 0
        while not stop.is_set():
            asked = party.ask()
            if not _wait(party, lambda asked=asked: party.receive(asked), stop):  # type: ignore[misc]
                return
            ended.append(time.monotonic())
            rounds += 1
            if rounds == _WARM:
                with warm.get_lock():
                    warm.value += 1


def _some(
    way: Opens, numbers: list[int], stop: Event, warm: Counter, results: multiprocessing.Queue[list[float]]
) -> None:
    ended: list[float] = []
    threads = [threading.Thread(target=_serve, args=(way, n, stop)) for n in numbers]
    threads += [threading.Thread(target=_ask, args=(way, n, stop, warm, ended)) for n in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(ended)


def rate(way: Opens, seconds: float) -> float:
    """Return how many requests a second are answered, once everybody is there."""
    context = multiprocessing.get_context("spawn")
    stop, warm, results = context.Event(), context.Value("i", 0), context.Queue()
    numbers = [[n for n in range(PAIRS) if n % _PROCESSES == p] for p in range(_PROCESSES)]
    processes = [context.Process(target=_some, args=(way, some, stop, warm, results)) for some in numbers]
    for process in processes:
        process.start()
    # Sessions plan their statements when they run them first.
    while warm.value < PAIRS:
        time.sleep(0.1)
    began = time.monotonic()
    time.sleep(seconds)  # this long it is measured
    stop.set()
    ended = [end for _ in processes for end in results.get() if began <= end < began + seconds]
    for process in processes:
        process.join()
    return len(ended) / seconds


# ----------------------------------------------------------------------------------------------------------------------
# What is measured
# ----------------------------------------------------------------------------------------------------------------------


def _pairs(house: House, dsn: str) -> Figure:
    mine, theirs = [], []
    seconds = house.scale(6, 3)
    for number in house.pairs():
        house.say("units: 20 pairs")
        first, second = alternate(
            number, lambda: rate(Way(dsn, Units), seconds), lambda: rate(Way(dsn, Tables), seconds)
        )
        mine.append(first)
        theirs.append(second)
    note = "against two tables, SKIP LOCKED and NOTIFY; requests answered a second, persistent"
    return compare(f"{TITLE}: 20 pairs", mine, theirs, unit="/s", target=Target("at least", 0.7), note=note)


def _latency(house: House, dsn: str) -> Figure:
    """One pair alone, against one event from its INSERT to a subscriber that waits for it and acknowledges."""
    mine, theirs = [], []
    rounds = house.scale(100, 30)
    stop = threading.Event()
    with opened(dsn) as admin:
        admin.execute("select pgps.create_event_type('delivered', 'n integer')")
        admin.execute("select pgps.advertise('delivered')")
        admin.execute("select pgps.subscribe('waiting', 'delivered')")
        channel = admin.execute("select channel from pgps.subscriptions where name = 'waiting'").fetchall()[0][0]
    with worker(dsn), opened(dsn) as publisher, opened(dsn) as subscriber:
        subscriber.execute(f"listen {channel}".encode())
        server = threading.Thread(target=_serve, args=(Way(dsn, Units), 100, stop))
        server.start()
        try:
            with Way(dsn, Units).opened(100, serves=False) as client:
                for number in house.pairs():
                    first, second = alternate(
                        number,
                        lambda: statistics.median(_asked(client, stop) for _ in range(rounds)),
                        lambda: statistics.median(_delivered(publisher, subscriber) for _ in range(rounds)),
                    )
                    mine.append(first * 1000)
                    theirs.append(second * 1000)
        finally:
            stop.set()
            server.join()
    note = "a request and its answer, against one delivery of an event"
    return compare(f"{TITLE}: latency", mine, theirs, unit="ms", target=Target("at most", 2.5), note=note)


def _asked(client: Party, stop: threading.Event) -> float:
    began = time.perf_counter()
    asked = client.ask()
    _wait(client, lambda: client.receive(asked), stop)
    return time.perf_counter() - began


def _delivered(publisher: psycopg.Connection, subscriber: psycopg.Connection) -> float:
    began = time.perf_counter()
    publisher.execute("insert into pgps_event.delivered (n) values (1)")
    while not subscriber.execute("select n from pgps_queue.delivered_receive(array['waiting'], 10)").fetchall():
        for _ in subscriber.notifies(timeout=0.5, stop_after=1):
            pass
    subscriber.execute("select pgps.ack('waiting')")
    return time.perf_counter() - began


def _waiting(house: House) -> Figure:
    """Receive from one service while another one, which nobody serves, has many units or few."""
    counts = (1000, house.scale(1_000_000, 20_000))
    with house.database() as few, house.database() as many:
        pairs = []
        for dsn, count in zip((few, many), counts, strict=True):
            house.say(f"units: {count:,} that wait")
            connection = psycopg.connect(dsn, autocommit=True)
            connection.prepare_threshold = 0
            for service in ("busy", "idle"):
                connection.execute("select pgps.create_service('a', 'b', %s, deferred => true)", [service])
            connection.execute("select pgps.configure('uow_max_active', '3000000')")
            connection.execute("select pgps.logon('one')")
            connection.execute("select pgps.register_service('a', 'b', 'busy')")
            for start in range(0, count, 10_000):
                connection.execute(
                    "select count(*) from generate_series(1, %s) n cross join lateral"
                    " pgps.send_message('x', to_service => 'a/b/idle', option => 'commit')",
                    [min(10_000, count - start)],
                )
            connection.execute("vacuum analyze")
            pairs.append(connection)
        calls = house.scale(300, 100)

        def receive(connection: psycopg.Connection) -> float:
            for _ in range(calls):
                connection.execute("select pgps.send_message('x', to_service => 'a/b/busy', option => 'commit')")
            before = _spent(connection)
            for _ in range(calls):
                row = connection.execute("select message from pgps.receive_message('new')").fetchone()
                assert row is not None
                connection.execute("select pgps.syncpoint('commit')")
            return calls / (_spent(connection) - before)

        mine, theirs = [], []
        for number in house.pairs():
            first, second = alternate(number, lambda: receive(pairs[1]), lambda: receive(pairs[0]))
            mine.append(first)
            theirs.append(second)
        for connection in pairs:
            connection.close()
    note = "against 1,000; received and committed a second of processor time"
    return compare(
        f"{TITLE}: {counts[1]:,} wait elsewhere", mine, theirs, unit="/s", target=Target("at least", 0.8), note=note
    )


def _spent(connection: psycopg.Connection) -> float:
    return int(Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text().split()[0]) / 1e9


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return 3 * house.runs
