"""Faults of a link to another broker, and how they are staged; see tests/cli/faults.py."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgps.embedded import EmbeddedCluster
from tests.cli.faults import Broker, Fault
from tests.fix_broker import rows
from tests.fix_db import wait_until
from tests.fix_server import TEMPLATE
from tests.fix_worker import WorkerProcess

__all__ = ["Pair", "link_faults", "make_pair"]


@dataclass
class Pair:
    """A broker whose faults are staged, and its neighbour in another database of the cluster."""

    here: Broker
    far: str
    worker: WorkerProcess | None = None

    def there(self, *statements: str) -> None:
        with psycopg.connect(self.far, autocommit=True) as connection:
            for statement in statements:
                rows(connection, statement)

    def work_there(self) -> None:
        """Have the neighbour's worker run, which tells what it publishes."""
        if self.worker is None:
            self.worker = self.here.workers(self.far)

    def rest_there(self) -> None:
        """Have nobody dispatch at the neighbour."""
        if self.worker is not None:
            self.worker.stop()
            self.worker = None

    def becomes(self, state: str) -> None:
        """Wait until the link is in a state."""
        query = "select state from pgps.links where name = 'far'"
        wait_until(lambda: self.here.ask(query) == state, timeout=180, what=f"the link is {state}")


def make_pair(cluster: EmbeddedCluster, here: Broker) -> Pair:
    """Make the neighbour `far`, which publishes ticks, and a role with which it may be linked to."""
    here.run(f"create database far template {TEMPLATE}", "create role linker login password 'right' in role pgps_link")
    pair = Pair(here, cluster.dsn("far"))
    # Each makes its event types itself.
    apart = "select pgps.configure('link_create_types', 'false')"
    here.run("select pgps.configure('broker', 'near')", apart)
    pair.there(
        "select pgps.configure('broker', 'far')",
        apart,
        *_publishes("tick", "n integer"),
    )
    pair.work_there()
    return pair


def _publishes(event_type: str, attributes: str) -> list[str]:
    """Return what makes an event type that the linking broker may receive."""
    return [
        f"select pgps.create_event_type('{event_type}', '{attributes}')",
        f"select pgps.advertise('{event_type}')",
        f"grant select, insert on pgps_event.{event_type} to linker",
    ]


def _conninfo(pair: Pair, password: str) -> str:
    at = conninfo_to_dict(pair.far)
    return make_conninfo(host="127.0.0.1", port=at["port"], dbname="far", user="linker", password=password)


def _give_a_wrong_password(pair: Pair) -> None:
    pair.here.start_worker()
    pair.here.run(f"select pgps.create_link('far', '{_conninfo(pair, 'wrong')}')")


def _close_its_database(pair: Pair) -> None:
    pair.becomes("up")
    pair.rest_there()
    pair.here.run(
        "alter database far allow_connections false",
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'far'",
    )


def _make_other_types(pair: Pair) -> None:
    pair.becomes("up")
    pair.work_there()
    pair.there(*_publishes("bed", "n integer"))
    pair.here.run(
        "select pgps.create_event_type('bed', 'n text')",
        "select pgps.advertise('bed')",
        "select pgps.subscribe('beds_there', 'bed', scope => 'global')",
    )


def _lose_events(pair: Pair) -> None:
    pair.here.run(
        "insert into pgps_internal.rejected"
        " (neighbour_id, neighbour, publisher, origin_id, origin_batch, sqlstate, error)"
        " select n.neighbour_id, n.name, n.role, o.origin_id, 7, '58030', 'batches 1 to 7 of \"far\" were trimmed'"
        " from pgps_internal.neighbour n, pgps_internal.origin o where n.name = 'far' and o.name = 'far'"
    )


def _restore_here(pair: Pair) -> None:
    # A server that was put back has no sessions.
    pair.here.run(
        "update pgps_internal.broker set incarnation = 'of a backup'",
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'far' and usename = 'linker'",
    )
    # Then doctor has two things to go by, and tells one.
    pair.becomes("blocked")


def _let_nobody_answer(pair: Pair) -> None:
    """A filter is asked for, and for two minutes nothing has been heard of it: as if the answer had been lost."""
    pair.becomes("up")
    pair.here.run("select pgps.subscribe('ticks_there', 'tick', 'n > 3', scope => 'global')")
    in_force = (
        "select bool_and(a.is_confirmed) and bool_or(f.filter = 'n > 3')"
        " from pgps_internal.activation a join pgps_internal.link_filter f using (key)"
    )
    wait_until(lambda: pair.here.ask(in_force), timeout=180, what="all filters are in force")
    pair.rest_there()
    pair.here.run(
        "update pgps_internal.activation set is_confirmed = false",
        "update pgps_internal.origin set answered = null, asked_at = pgps_internal.clock() - interval '2 minutes'"
        " where name = 'far'",
    )


def _mend_types(pair: Pair) -> None:
    pair.there("select pgps.drop_event_type('bed')", *_publishes("bed", "n text"))


def link_faults(pair: Pair) -> list[Fault]:
    """Return what goes wrong with the link, one after the other."""
    return [
        Fault(
            "the password is wrong",
            lambda _: _give_a_wrong_password(pair),
            "links",
            '"far" cannot connect',
            repair=lambda broker: broker.run("alter role linker password 'wrong'"),
            logged="link far: ",
            metric='pgps_link_up{link="far"} 0',
            alert="PgpsLinkIsDown",
        ),
        Fault(
            "its database lets nobody in",
            lambda _: _close_its_database(pair),
            "links",
            '"far" cannot connect',
            repair=lambda broker: broker.run("alter database far allow_connections true"),
            logged="not currently accepting connections",
            metric='pgps_link_up{link="far"} 0',
            alert="PgpsLinkIsDown",
        ),
        Fault(
            "event types differ",
            lambda _: _make_other_types(pair),
            "links",
            "event types differ",
            repair=lambda _: _mend_types(pair),
            logged="does not carry everything: event type",
            metric='pgps_link_up{link="far"} 0',
            alert="PgpsLinkIsDown",
        ),
        Fault(
            "events are gone",
            lambda _: _lose_events(pair),
            "gaps",
            "nobody has those events any more",
            logged="1 gaps: nobody has those events any more",
            metric='pgps_link_gaps{link="far"} 1',
            alert="PgpsEventsRefused",
        ),
        Fault(
            "it carries nothing",
            lambda _: _let_nobody_answer(pair),
            "links",
            "does not carry everything: it has not answered",
            logged="does not carry everything: it has not answered",
            metric='pgps_link_up{link="far"} 0',
            alert="PgpsLinkIsDown",
        ),
        Fault(
            "this broker was restored",
            lambda _: _restore_here(pair),
            "links",
            "was restored or cloned",
            logged="was restored or cloned",
        ),
    ]
