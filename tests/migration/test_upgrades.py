"""Upgrades of brokers in use, from every released version: nothing is lost or comes twice, publishers go on."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from pgps import _resources, _scripts, install
from tests.fix_broker import column, rows, value
from tests.fix_db import Connect, wait_until
from tests.fix_server import Server
from tests.fix_worker import Workers, workers
from tests.migration.furnished import furnish, generated
from tests.migration.releases import Release, unpack, versions

__all__ = ["workers"]

# An installation, an upgrade, and workers of two versions: minutes on a machine that does much else.
pytestmark = pytest.mark.timeout(600)

RoleFactory = Callable[..., str]
_counter = itertools.count(1)


@pytest.fixture(scope="module", params=versions())
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Each version that was released."""
    return unpack(request.param, tmp_path_factory.mktemp("releases"))


@pytest.fixture
def people(role: RoleFactory) -> tuple[str, str]:
    """Who owns what a broker has, and who reads of it."""
    return role("owner"), role("reader")


@pytest.fixture(scope="module")
def template(released: Release, server: Server) -> Iterator[str]:
    """A database with a released version, to be cloned."""
    name = f"released_{os.getpid()}_{released.version.replace('.', '_')}"
    with psycopg.connect(server.base, autocommit=True) as connection:
        connection.execute(f"create database {name} template template0".encode())
    released.install(server.dsn(name))
    yield name
    server.drop(name)


@pytest.fixture
def old(
    template: str,
    server: Server,
    _connections: contextlib.ExitStack,
    _roles: dict[str, None],
    connect: Connect,
    people: tuple[str, str],
) -> Iterator[str]:
    """A broker in use that runs a released version."""
    name = f"{template}_{next(_counter)}"
    with psycopg.connect(server.base, autocommit=True) as connection:
        connection.execute(f"create database {name} template {template}".encode())
    try:
        with connect(dsn=server.dsn(name)) as connection:
            furnish(connection, *people)
        yield server.dsn(name)
        _connections.close()
    finally:
        # Before the roles go, which own what is in it.
        server.drop(name)


def test_what_is_generated_is_the_same_as_in_a_new_broker(
    old: str, own_database: str, connect: Connect, people: tuple[str, str]
) -> None:
    assert not install.status(old).up_to_date
    assert install.upgrade(old).up_to_date
    fresh = connect(dsn=own_database)
    furnish(fresh, *people)
    upgraded = connect(dsn=old)
    assert generated(upgraded) == generated(fresh)
    assert value(upgraded, "select pgps_internal.rebuild()") == 0


class Publisher:
    """Publishes numbered events of several types, in a thread, until it is told to stop."""

    def __init__(self, dsn: str, role: str) -> None:
        self.published = 0
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            n = self.published + 1
            try:
                with self._connection.transaction():
                    publish(self._connection, n)
            except psycopg.Error as error:
                self.errors.append(f"{n}: {error}")
            self.published = n

    def wait_for(self, more: int) -> None:
        """Wait until it has published so many more."""
        goal = self.published + more
        wait_until(lambda: self.published >= goal, timeout=200, what=f"{more} more are published: {self.errors}")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()


def publish(connection: psycopg.Connection, n: int) -> None:
    """Publish event n of each type, as people do: with INSERT, through a rule, as JSON, at once."""
    connection.execute("insert into pgps_event.quote (symbol, price) values ('abc', %s)", [n])
    connection.execute("insert into public.orders values (%s, 'abc', 10)", [n])
    connection.execute("insert into pgps_event.shed values (%s)", [2 * n])
    connection.execute("select pgps.publish('alarm', jsonb_build_object('n', %s::bigint))", [n])


EXTERNAL = {
    "all quotes": "(payload ->> 'price')::bigint",
    "watched": "(payload ->> 'price')::bigint",
    "trades": "(payload ->> 'id')::bigint",
    "shared": "(payload ->> 'id')::bigint",
    "shed": "(payload ->> 'n')::bigint / 2",
}


class Consumer:
    """Receives and acknowledges as people do, each time in one transaction; what it has got, by subscription."""

    def __init__(self, dsn: str, role: str) -> None:
        self.got: dict[str, list[int]] = {name: [] for name in EXTERNAL}
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(sql.SQL("set role {}").format(sql.Identifier(role)))

    def look(self) -> None:
        """Receive what there is; whoever meets the upgrade itself tries again."""
        for name, number in EXTERNAL.items():
            query = sql.SQL("select {} from pgps.receive(%s, 50)").format(sql.SQL(number))
            with contextlib.suppress(psycopg.errors.InternalError, psycopg.errors.UndefinedFunction):
                with self._connection.transaction():
                    found = [n for (n,) in self._connection.execute(query, [f'"{name}"'])]
                    self._connection.execute("select pgps.ack(%s)", [f'"{name}"'])
                self.got[name] += found

    def close(self) -> None:
        self._connection.close()


def test_events_go_on_while_a_broker_is_upgraded_under_workers_of_both_versions(
    old: str, released: Release, connect: Connect, workers: Workers, people: tuple[str, str]
) -> None:
    owner = people[0]
    before = connect(dsn=old)
    before.execute(sql.SQL("set role {}").format(sql.Identifier(owner)))
    # What waits when the upgrade comes, dispatched and not; some of it has been handed out and not acknowledged.
    for n in (-3, -2):
        publish(before, n)
    superuser = connect(dsn=old)
    handed_out = "select event_id from pgps.receive('\"all quotes\"')"
    wait_until(
        lambda: rows(superuser, "select pgps.dispatch()") and rows(before, handed_out),
        timeout=200,
        what="some are received",
    )
    publish(before, -1)

    first = workers(old, release=released, ready=False)
    publisher = Publisher(old, owner)
    consumer = Consumer(old, owner)
    try:
        publisher.wait_for(30)
        for _ in range(3):
            consumer.look()
        assert install.upgrade(old).up_to_date
        publisher.wait_for(20)
        second = workers(old)
        publisher.wait_for(20)
        consumer.look()
        assert first.is_running(), first.messages
        assert first.stop() == 0
        publisher.wait_for(20)
    finally:
        publisher.stop()
    assert publisher.errors == []
    wanted = [-3, -2, -1, *range(1, publisher.published + 1)]
    admin = connect(dsn=old)

    def all_came() -> bool:
        consumer.look()
        return all(len(got) >= len(wanted) - 5 * (name == "watched") for name, got in consumer.got.items())

    wait_until(all_came, timeout=200, what="all events are received")
    for name, got in consumer.got.items():
        assert sorted(got) == [n for n in wanted if name != "watched" or n > 2], name
    assert consumer.got["all quotes"] == wanted, "in order"
    assert consumer.got["trades"] == wanted, "in order"
    seen = "select n from public.seen where who = %s order by n"
    # What the callback of a filter gets, price >= 1, begins with the first event of the publisher.
    callbacks = {"note": [n for n in wanted if n >= 1], "batch": wanted, "alarm": wanted}
    for who, expected in callbacks.items():
        wait_until(lambda w=who, e=expected: len(column(admin, seen, [w])) >= len(e), timeout=200, what=who)  # type: ignore[misc]
        assert column(admin, seen, [who]) == expected, who
    consumer.close()
    assert second.is_running(), second.messages


def test_an_upgrade_waits_for_nobody_who_publishes_while_the_code_of_the_type_stays(
    own_database: str, connect: Connect, people: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = connect(dsn=own_database)
    furnish(publisher, *people)
    publisher.execute(sql.SQL("set role {}").format(sql.Identifier(people[0])))
    publisher.autocommit = False
    publisher.execute("insert into pgps_event.quote (symbol, price) values ('abc', 1)")
    publisher.execute("select pgps.publish('alarm', jsonb_build_object('n', 1), visibility => 'deferred')")
    # Another release: a generator whose comment differs, and one that writes another function.
    release = tmp_path / "sql"
    shutil.copytree(_resources.sql_dir(), release)
    monkeypatch.setattr(_scripts, "sql_dir", lambda: release)
    for script, old, new in (
        ("code/log/write_endpoint.sql", "-- Generated: the rules", "-- Generated: these rules"),
        ("code/clients/write_slice.sql", "order by l.event_id limit", "order by l.event_id  /* as ever */ limit"),
    ):
        text = (release / script).read_text()
        assert old in text
        (release / script).write_text(text.replace(old, new))
    assert not install.status(own_database).up_to_date
    assert install.upgrade(own_database).up_to_date
    assert value(connect(dsn=own_database), "select prosrc like '%%as ever%%' from pg_proc where proname = 'slice_1'")
    publisher.commit()


class Pair:
    """Two brokers that are linked, `far` and `near`, each with the type tick, and a subscription to the other's."""

    def __init__(self, far: psycopg.Connection, near: psycopg.Connection) -> None:
        self.far, self.near = far, near
        for broker, name, one in ((far, "far", 0), (near, "near", 1)):
            broker.execute("select pgps.configure('broker', %s)", [name])
            broker.execute("select pgps.create_event_type('tick', 'n integer')")
            broker.execute("select pgps.advertise('tick')")
            broker.execute("select pgps.subscribe('from_there', 'tick', %s, scope => 'global')", [f"n % 2 = {one}"])
        far.execute("select pgps.create_link('to_near', %s)", [near.info.dsn])
        self.said = 0

    def crosses(self) -> None:
        """Publish at both, until what was published last has come to the other."""
        wanted = {self.far: 0, self.near: 0}

        def came() -> bool:
            self.said += 2
            # The far one wants even numbers of the near one, that one odd numbers.
            self.far.execute("insert into pgps_event.tick values (%s)", [self.said + 1])
            self.near.execute("insert into pgps_event.tick values (%s)", [self.said])
            for broker in wanted:
                query = "select count(*) from pgps.take('from_there', 1000) m where m.origin <> %s"
                wanted[broker] += value(broker, query, ["far" if broker is self.far else "near"])
            return all(wanted.values())

        wait_until(came, timeout=200, what=f"events cross in both directions: {list(wanted.values())}")


def test_brokers_of_two_versions_stay_linked(
    template: str,
    released: Release,
    server: Server,
    connect: Connect,
    workers: Workers,
) -> None:
    names = [f"{template}_{side}" for side in ("far", "near")]
    try:
        for name in names:
            with psycopg.connect(server.base, autocommit=True) as connection:
                connection.execute(f"create database {name} template {template}".encode())
        far, near = (server.dsn(name) for name in names)
        workers(far, release=released, ready=False)
        old_worker = workers(near, release=released, ready=False)
        pair = Pair(connect(dsn=far), connect(dsn=near))
        pair.crosses()
        assert install.upgrade(near).up_to_date
        pair.crosses()
        workers(near)
        assert old_worker.stop() == 0
        pair.crosses()
        assert rows(pair.far, "select state from pgps.links") == [("up",)]
    finally:
        workers.close()
        # Dropped with what is connected to them.
        for name in names:
            server.drop(name)
