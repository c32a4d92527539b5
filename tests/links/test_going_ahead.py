"""Small batches are received while their sender commits them, and committed only when it has them on its disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

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
    """The sender's disk, as far as links wait for it: it keeps what has events when it may, or breaks once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may = threading.Event()
        self.breaks = False
        self._keep = calls.keep
        monkeypatch.setattr(calls, "keep", self.keep)

    async def keep(self, connection: Connection, batch: calls.Batch) -> None:
        if batch.goes_ahead:
            await asyncio.to_thread(self.may.wait, 20)
        if batch.goes_ahead and self.breaks:
            self.breaks = False
            self.may.clear()
            raise psycopg.OperationalError("the sender is gone")
        await self._keep(connection, batch)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(monkeypatch)
    yield made
    made.may.set()


def test_an_event_is_received_meanwhile_and_committed_behind_its_sender(brokers: Brokers, disk: Disk) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    call(a.admin, "create_link", "to_b", b.dsn)
    with served(a, b):
        subscribed(a, b)
        publish(a.admin, "tick", 1)
        wait_until(lambda: value(b.admin, RECEIVING, [0]), what="it has been received, and is not committed")
        assert value(b.admin, RECEIVED) == 0
        disk.may.set()
        assert arrived(b, "all", 1) == [1]
        assert value(b.admin, RECEIVING, [0]) is None


def test_what_its_sender_has_not_kept_is_taken_back(brokers: Brokers, disk: Disk) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    call(a.admin, "create_link", "to_b", b.dsn)
    with served(a, b):
        subscribed(a, b)
        publish(a.admin, "tick", 1)
        publish(a.admin, "tick", 2)
        wait_until(lambda: value(b.admin, RECEIVING, [0]), what="it has been received, and is not committed")
        first = value(b.admin, RECEIVING, [0])
        disk.breaks = True
        disk.may.set()
        wait_until(lambda: value(b.admin, RECEIVING, [first]), what="it is being received again")
        assert value(b.admin, RECEIVED) == 0
        disk.may.set()
        assert arrived(b, "all", 2) == [1, 2]
