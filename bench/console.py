"""Pages of the console in front of very much: how long until the first byte of each.

10,000 subscriptions, 1,000,000 exceptions (100,000 events that ten subscriptions have given up), and 20,000,000
events that wait in an out queue. Each page is asked for over HTTP by one visitor who is logged in, three times in
each run; the second page of each list, too. A quick run makes a hundredth of it.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from bench.figures import Figure, Target
from bench.house import opened, timed
from pgps_console.config import ConsoleConfig
from pgps_console.server import make_server

if TYPE_CHECKING:
    import psycopg

    from bench.house import House

TITLE = "first byte of the console's pages"
_FAILING = 10
_CHUNK = 1_000_000
_PAGES = (
    "/", "/totals", "/findings", "/types", "/types/tick", "/types/many", "/types/broken",
    "/depths/tick", "/depths/many", "/depths/broken",
    "/types/tick/in", "/types/tick/out", "/types/many/in", "/types/many/out", "/types/broken/in", "/types/broken/out",
    "/types/broken/exception", "/types/tick/in?column=n&operator==&value=77",
    "/subscriptions", "/subscriptions?state=paused", "/subscriptions?state=slow", "/subscriptions?state=dead",
    "/subscriptions?name=99", "/subscriptions/many_77", "/subscriptions/fail_3",
    "/exceptions", "/exceptions?event_type=broken", "/exceptions?subscription=fail_3", "/exceptions?containing=ward",
    "/exceptions/counts", "/topology", "/trace?event_id=77", "/composites", "/units", "/spools", "/workers",
    "/settings", "/audit",
)  # fmt: skip
# Parts of pages that are fetched after the page is there; they have no target, but for the totals.
_PARTS = ("/findings", "/depths/", "/exceptions/counts")


def steps(house: House) -> int:
    """Return how many steps there are."""
    return house.runs


def run(house: House) -> list[Figure]:
    """Measure it."""
    house.made("bench_console", lambda dsn: _make(house, dsn))
    taken: dict[str, list[float]] = {}
    with house.database("bench_console") as dsn, _visitor(dsn) as visitor:
        for path in _PAGES:
            visitor.get(path)
        for _ in house.pairs():
            for path in _PAGES:
                house.say(path)
                first, second = visitor.look(path)
                taken.setdefault(path, []).append(first)
                if second is not None:
                    taken.setdefault(f"{path} (next page)", []).append(second)
    return [
        Figure(path, samples, None if path.startswith(_PARTS) else Target("at most", 200, "ms"), samples, unit="ms")
        for path, samples in taken.items()
    ]


class _Visitor:
    """Somebody who is logged in, with one connection to the console."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"content-type": "application/x-www-form-urlencoded"}
        form = urlencode({"user": "postgres", "password": ""})
        self._connection.request("POST", "/login", form, self._headers)
        answer = self._connection.getresponse()
        answer.read()
        self._headers = {"cookie": (answer.getheader("set-cookie") or "").partition(";")[0]}

    def get(self, path: str) -> tuple[float, str]:
        """Return milliseconds until the first byte of a page, and the page."""
        answer: http.client.HTTPResponse

        def ask() -> None:
            nonlocal answer
            self._connection.request("GET", path, headers=self._headers)
            answer = self._connection.getresponse()

        seconds = timed(ask)
        text = answer.read().decode()
        if answer.status != 200:
            raise RuntimeError(f"{path}: status {answer.status}")
        return seconds * 1000, text

    def look(self, path: str) -> tuple[float, float | None]:
        """Return how long a page took, the middle of three times, and how long the next one of its list."""
        looks = sorted((self.get(path) for _ in range(3)), key=lambda look: look[0])
        following = looks[0][1].partition('id="more" href="')[2].partition('"')[0].replace("&amp;", "&")
        return looks[1][0], self.get(following)[0] if following else None


@contextlib.contextmanager
def _visitor(dsn: str) -> Iterator[_Visitor]:
    server = make_server(ConsoleConfig(dsn=dsn, port=0, without_password=True), log_level="error")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield _Visitor(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)


def _make(house: House, dsn: str) -> float:
    """Make what the pages are to show; return how many seconds it took."""
    return timed(lambda: _fill(house, dsn))


def _fill(house: House, dsn: str) -> None:
    with opened(dsn) as connection:
        for event_type, attributes in (
            ("broken", "n integer, word text"),
            ("many", "symbol text, price numeric"),
            ("tick", "n integer, word text"),
        ):
            connection.execute("select pgps.create_event_type(%s, %s)", [event_type, attributes])
            connection.execute("select pgps.advertise(%s)", [event_type])
        connection.execute("select pgps.subscribe('all_ticks', 'tick')")
        _fail(house, connection, house.scale(100_000, 1_000))
        _subscribe(house, connection, house.scale(10_000, 100))
        events = house.scale(20_000_000, 200_000)
        for first in range(1, events + 1, _CHUNK):
            house.say(f"publishing {first:,} of {events:,}")
            connection.execute(
                "insert into pgps_event.tick (n, word) select n, 'word ' || n from generate_series(%s::integer, %s) n",
                [first, min(first + _CHUNK - 1, events)],
            )
            connection.execute("select pgps.dispatch()")
        connection.execute("vacuum analyze")


def _subscribe(house: House, connection: psycopg.Connection, number: int) -> None:
    house.say(f"{number:,} subscriptions")
    connection.execute(
        "select pgps.subscribe('many_' || n, 'many', format('symbol = %%L and price > %%s', 'S' || n / 5, n %% 5))"
        " from generate_series(1, %s::integer) n",
        [number],
    )
    connection.execute(
        "insert into pgps_event.many (symbol, price) select 'S' || n %% %s, 10 from generate_series(1, %s) n",
        [number // 5, number * 10],
    )
    connection.execute("select pgps.dispatch()")


def _fail(house: House, connection: psycopg.Connection, events: int) -> None:
    for number in range(_FAILING):
        connection.execute("select pgps.subscribe(%s, 'broken', max_attempts => 1)", [f"fail_{number}"])
    connection.execute(
        "insert into pgps_event.broken (n, word) select n, 'word ' || n from generate_series(1, %s) n", [events]
    )
    connection.execute("select pgps.dispatch()")
    for number in range(_FAILING):
        house.say(f"exceptions of {number + 1} of {_FAILING} subscriptions")
        for _ in range(10):
            connection.execute(
                "select pgps.nack_events(%(name)s, array(select event_id from pgps.receive(%(name)s, %(most)s)),"
                " 'no bed in the ward')",
                {"name": f"fail_{number}", "most": events // 10},
            )
            connection.execute("select pgps.ack(%s)", [f"fail_{number}"])
