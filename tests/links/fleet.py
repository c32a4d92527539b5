"""Servers with several brokers each: they can be killed, copied, and put back to what they were."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.fix_broker import call, rows, value
from tests.fix_server import TEMPLATE, copied_cluster, when_alone
from tests.fix_worker import WorkerProcess, Workers
from tests.links.rig import Broker, Link, open_lane


class InterruptedCarry(Exception):
    """What carried a batch was killed on the way."""


@dataclass
class Member(Broker):
    """A broker of a fleet."""

    site: Site
    database: str

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.site.cluster.dsn(self.database), autocommit=True)

    def reopen(self) -> None:
        self.admin.close()
        self.dsn = self.site.cluster.dsn(self.database)
        self.admin = self.connect()

    def identify(self, broker_id: str) -> None:
        """Give the broker an id that the story chooses, so that a seed gives the same story again.

        Ids decide between paths of equal length.
        """
        call(self.admin, "link_identity")
        rows(
            self.admin, "update pgps_internal.origin set broker_id = %s where is_self and to_batch is null", [broker_id]
        )
        rows(self.admin, "update pgps_internal.broker set broker_id = %s", [broker_id])

    def last_batch(self) -> int:
        return int(value(self.admin, "select coalesce(max(batch_id), 0) from pgps_internal.batch"))


class Site:
    """One server."""

    def __init__(self, name: str, home: Path, mold: int) -> None:
        settings = {"max_connections": "200"}
        self.cluster = copied_cluster(name, home=home, mold=mold, settings=settings).start()
        self._templates: set[str] = set()

    def template(self, name: str, furnish: Callable[[psycopg.Connection], None]) -> str:
        """Furnish a template once, so that what every broker of a story has need not be made each time."""
        if name not in self._templates:
            self.drop(name)
            self.copy(TEMPLATE, name)
            with psycopg.connect(self.cluster.dsn(name), autocommit=True) as connection:
                furnish(connection)
            self._templates.add(name)
        return name

    @contextlib.contextmanager
    def _base(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self.cluster.dsn(), autocommit=True) as connection:
            yield connection

    def copy(self, source: str, target: str) -> None:
        """Copy a database, which nobody may be connected to: who just left is waited for."""
        with self._base() as connection:
            _wait(connection, "select count(*) = 0 from pg_stat_activity where datname = %s", [source])
            when_alone(connection, f'create database "{target}" template "{source}" strategy file_copy')

    def drop(self, database: str) -> None:
        with self._base() as connection:
            when_alone(connection, f'drop database if exists "{database}" with (force)')

    def crash(self) -> None:
        """Kill the server and all its sessions; start it again."""
        self.cluster.kill9()
        self.cluster.start()

    @property
    def log(self) -> Path:
        return self.cluster.directory / "server.log"

    @property
    def data(self) -> Path:
        return self.cluster.directory / "data"

    def back_up(self) -> None:
        """Copy all files of the stopped server."""
        self.cluster.stop()
        shutil.rmtree(self.data.with_name("backup"), ignore_errors=True)
        _copy_tree(self.data, self.data.with_name("backup"))
        self.cluster.start()

    def put_back(self) -> None:
        """Put the files back: the server is the same, and knows nothing of what came after."""
        self.cluster.kill9()
        shutil.rmtree(self.data)
        _copy_tree(self.data.with_name("backup"), self.data)
        self.cluster.start()


@dataclass
class Fleet:
    """Some servers; brokers are placed on them in turn."""

    sites: list[Site]
    made: list[Member] = field(default_factory=list)
    count: int = 0

    def broker(self, name: str, *, site: Site | None = None, template: str = TEMPLATE) -> Member:
        self.count += 1
        place = site or self.sites[self.count % len(self.sites)]
        database = f"chaos_{self.count}_{name}"
        place.copy(template, database)
        dsn = place.cluster.dsn(database)
        member = Member(name, dsn, psycopg.connect(dsn, autocommit=True), place, database)
        self.made.append(member)
        call(member.admin, "configure", "broker", name)
        call(member.admin, "configure", "link_report_interval", "0 seconds")
        return member

    def differences(self) -> list[tuple[object, ...]]:
        """What the audits of the brokers have found: nothing may be lost in silence, and nothing else is to be said."""
        return [(m.name, *row) for m in self.made for row in rows(m.admin, "select * from pgps.audit_findings")]

    def clear(self) -> None:
        for member in self.made:
            member.admin.close()
            member.site.drop(member.database)
        self.made.clear()

    def close(self) -> None:
        for site in self.sites:
            site.cluster.destroy()


def make_fleet(home: Path, name: str, servers: int) -> Fleet:
    return Fleet([Site(f"{name}-{n}", home, n) for n in range(servers)])


def close_link(link: Link) -> None:
    """Close a link's sessions, and wait until both brokers know; a server that is gone is no obstacle."""
    for lane in (link.out, link.back):
        for connection in (lane.source, lane.target):
            connection.close()
    for broker, peer in ((link.one, link.other), (link.other, link.one)):
        with contextlib.suppress(psycopg.OperationalError):
            query = (
                "select count(*) = 0 from pgps_internal.link_session s"
                " join pgps_internal.neighbour n using (neighbour_id)"
                " where n.name = %s and pgps_internal.is_alive(s.holder)"
            )
            _wait(broker.admin, query, [peer.name])


class Staffed:
    """Members with a worker each, and what may befall them."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.running: dict[str, WorkerProcess] = {}

    def run(self, *members: Member) -> None:
        self.running = {member.name: self.workers(member.dsn) for member in members}

    def kill_worker(self, member: Member) -> None:
        self.running[member.name].kill9()
        self.running[member.name] = self.workers(member.dsn, ready=False)

    def crash(self, member: Member) -> None:
        member.admin.close()
        member.site.crash()
        member.reopen()

    def cut_connections(self, member: Member) -> None:
        rows(
            member.admin,
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'",
        )


def open_both(one: Broker, other: Broker, name: str) -> Link:
    """Open a link that `one` has defined; leave no session open when one of the two ways is refused."""
    out = open_lane(one, other, link=name, defined_at_source=True)
    try:
        return Link(one, other, out, open_lane(other, one, link=name, defined_at_source=False))
    except psycopg.Error:
        out.source.close()
        out.target.close()
        raise


def _wait(connection: psycopg.Connection, query: str, params: list[Any]) -> None:
    deadline = time.monotonic() + 60
    while not value(connection, query, params):
        assert time.monotonic() < deadline, query
        time.sleep(0.002)


def _copy_tree(source: Path, target: Path) -> None:
    """Copy with owners: the server's user is not ours."""
    subprocess.run(["cp", "-a", "--reflink=auto", str(source), str(target)], check=True)
