"""Small batches are received while their sender commits them, and committed only when it has them on its disk."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable

import psycopg
import pytest

from pgps_worker.connection import Connection
from pgps_worker.links import calls
from tests.fix_broker import call, make_type, publish, value
from tests.fix_db import wait_until
from tests.links.rig import Broker
from tests.links.serving import served
from tests.links.test_worker import arrived, subscribed

Brokers = Callable[[int], list[Broker]]

RECEIVED = "select count(*) from pgps_internal.arrival where events > 0"
RECEIVING = """
    select min(a.pid) from pg_stat_activity a where a.datname = current_database() and a.pid <> %s
        and a.state = 'idle in transaction' and strpos(a.query, 'link_take') > 0
    """


class Disk:
    """The sender's disk, as far as links wait for it: it keeps what has events when it may, or breaks once.

    However long that takes; behind its block, which has to end before the service does, nobody waits any more.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may = threading.Event()
        self.breaks = False
        self._is_over = False
        self._keep = calls.keep
        monkeypatch.setattr(calls, "keep", self.keep)

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over = True

    def _wait(self) -> None:
        while not self.may.wait(0.1) and not self._is_over:
            pass

    async def keep(self, connection: Connection, batch: calls.Batch) -> None:
        if batch.goes_ahead:
            await asyncio.to_thread(self._wait)
        if batch.goes_ahead and self.breaks:
            self.breaks = False
            self.may.clear()
            raise psycopg.OperationalError("the sender is gone")
        await self._keep(connection, batch)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def publish_until_one_goes_ahead(a: Broker, b: Broker) -> int:
    """Publish 1, 2, 3 and so on, until one is received and not committed; return it. One beside messages is not."""
    for n in itertools.count(1):
        publish(a.admin, "tick", n)
        wait_until(
            lambda n=n: value(b.admin, RECEIVING, [0]) or value(b.admin, RECEIVED) == n,  # type: ignore[misc]
            what="it has been received",
        )
        if value(b.admin, RECEIVING, [0]):
            return n
    raise AssertionError


def test_an_event_is_received_meanwhile_and_committed_behind_its_sender(brokers: Brokers, disk: Disk) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    call(a.admin, "create_link", "to_b", b.dsn)
    with served(a, b), disk:
        subscribed(a, b)
        last = publish_until_one_goes_ahead(a, b)
        assert value(b.admin, RECEIVED) == last - 1
        disk.may.set()
        assert arrived(b, "all", last) == list(range(1, last + 1))
        assert value(b.admin, RECEIVING, [0]) is None


def test_what_its_sender_has_not_kept_is_taken_back(brokers: Brokers, disk: Disk) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    call(a.admin, "create_link", "to_b", b.dsn)
    with served(a, b), disk:
        subscribed(a, b)
        last = publish_until_one_goes_ahead(a, b)
        publish(a.admin, "tick", last + 1)
        first = value(b.admin, RECEIVING, [0])
        disk.breaks = True
        disk.may.set()
        wait_until(lambda: value(b.admin, RECEIVING, [first]), what="it is being received again")
        assert value(b.admin, RECEIVED) == last - 1
        disk.may.set()
        assert arrived(b, "all", last + 1) == list(range(1, last + 2))
