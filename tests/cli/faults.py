"""Faults of a broker, and how they are staged: what goes wrong, who says so, and what a person mends first."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from starlette.testclient import TestClient

from pgps_console.app import create_app
from pgps_console.config import ConsoleConfig
from tests.cli.conftest import Pgps
from tests.console.conftest import Browser
from tests.fix_broker import value
from tests.fix_db import wait_until
from tests.fix_worker import WorkerProcess, Workers, free_port, metrics

Found = tuple[str, str, str]


def _metric(line: str) -> str:
    return re.split("[{ ]", line)[0]


@dataclass
class Broker:
    """A broker with an event type and a subscription, whose faults are staged; what staging holds open is in `held`."""

    dsn: str
    pgps: Pgps
    workers: Workers
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    worker: WorkerProcess | None = None
    port: int = 0
    console: Browser | None = None

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def ask(self, query: str) -> object:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return value(connection, query)

    def session(self) -> psycopg.Connection:
        connection = psycopg.connect(self.dsn)
        self.held.callback(connection.close)
        return connection

    def logged(self, text: str) -> str:
        """Return what to do by the worker's log, which says such a thing; "" as long as it does not."""
        lines = [one for one in (self.worker.log if self.worker else []) if text in one["message"]]
        return next((str(one["hint"]) for one in reversed(lines) if one.get("hint")), "")

    def start_worker(self, dsn: str = "") -> None:
        self.port = free_port()
        self.worker = self.workers(dsn or self.dsn, "--health-port", str(self.port))

    def stop_worker(self) -> None:
        if self.worker is not None:
            self.worker.stop()
            self.worker = None

    def doctor(self, check: str) -> list[Found]:
        """Return level, message and remedy of what is wrong by one check."""
        done = self.pgps("doctor", "--json", dsn=self.dsn)
        assert done.out, done.err
        return [
            (one["level"], one["message"], one["fix"])
            for one in done.json
            if one["check"] == check and one["level"] != "ok"
        ]

    def overview(self) -> str:
        """Return what the console's overview says is to be done."""
        if self.console is None:
            app = create_app(ConsoleConfig(dsn=self.dsn, without_password=True))
            self.console = Browser(self.held.enter_context(TestClient(app, base_url="http://localhost")))
            assert self.console.login(str(conninfo_to_dict(self.dsn)["user"])).status_code == 303
            assert "/findings" in self.console.get("/").text
        return self.console.see("/findings")

    def scraped(self) -> str:
        """Return all that Prometheus gets: what the command says, and what a worker serves beside that."""
        done = self.pgps("metrics", "--once", "--doctor", dsn=self.dsn)
        assert done.status == 0, done
        told = {_metric(line) for line in done.out.splitlines()}
        served = metrics(self.port).splitlines() if self.worker else []
        return "\n".join([*done.out.splitlines(), *(line for line in served if _metric(line) not in told)])

    def type(self, remedy: str) -> None:
        """Type a remedy as it stands, up to an alternative: commands, and statements for psql."""
        first = re.split(r"; or |, (?:if|when) | \(or | \(the ", remedy)[0]
        for part in re.split(r"; (?:then:? |when that is mended: )?", first):
            words = shlex.split(part)
            if words[0] == "pgps-worker":
                self.start_worker(words[2])
            elif words[0] == "pgps":
                # A person at a terminal is asked.
                answer = ["--yes"] if words[2:3] == ["rm"] or "--gaps" in words else []
                done = self.pgps(*words[1:], *answer, dsn=self.dsn)
                assert done.status == 0, (remedy, done)
            elif words[0] in {"select", "alter", "create", "grant", "rollback"}:
                self.run(part)
            elif part == "start its consumer":
                self.run("select count(*) from pgps.take('reader', 1000)")
            else:
                pytest.fail(f"nobody can type {part!r} of {remedy!r}")


NOBODY = "no worker runs, which could log anything"
SERVER = "it is about the server, its settings and locks, whose log is PostgreSQL's own"
DEFINED = "somebody has done or defined it, and nothing that a worker does has failed yet"
GONE = "nobody here noticed the crash: only what is missing tells of it"


@dataclass(frozen=True)
class Fault:
    """What goes wrong, the check of doctor that sees it, what it says, and what a person mends before the remedy.

    `logged` is what the worker's log says, `unlogged` why it can say nothing; `metric` is a figure of the worker beside
    pgps_findings, by which the default alert fires.
    """

    what: str
    stage: Callable[[Broker], None]
    check: str
    says: str
    repair: Callable[[Broker], None] = lambda _: None
    logged: str = ""
    unlogged: str = ""
    metric: str = ""
    alert: str = "PgpsDoctorFinds"

    def __post_init__(self) -> None:
        assert bool(self.logged) != bool(self.unlogged), self.what

    def fires(self) -> dict[str, str]:
        """Return the labels by which the alert that is to fire is known."""
        more = {"check": self.check} if self.alert.startswith("PgpsDoctor") else {}
        return {"alertname": self.alert, **more}


def _sql(*statements: str) -> Callable[[Broker], None]:
    return lambda broker: broker.run(*statements)


def _system(setting: str) -> Callable[[Broker], None]:
    return _sql(f"alter system set {setting} = off", "select pg_reload_conf()")


def _wait_behind_a_lock(broker: Broker) -> None:
    holder, waiter = broker.session(), broker.session()
    holder.execute("lock table public.ward")
    pid = waiter.info.backend_pid
    waiter.pgconn.send_query(b"select * from public.ward")
    wait_until(lambda: broker.ask(f"select cardinality(pg_blocking_pids({pid}))") == 1)
    seen = f"select clock_timestamp() > query_start + interval '6 s' from pg_stat_activity where pid = {pid}"
    wait_until(lambda: broker.ask(seen), what="it has waited for longer than is usual")


def _fail_a_callback(broker: Broker) -> None:
    broker.run(
        "create function public.on_tick(e pgps_event.tick) returns void language sql as 'select 1 / 0'",
        "select pgps.subscribe('calls', 'tick', execute => 'public.on_tick', max_attempts => 1)",
        "insert into pgps_event.tick values (3)",
    )
    wait_until(lambda: broker.ask("select failed from pgps.subscriptions where name = 'calls'") == 1)


def _take_a_filter_its_table(broker: Broker) -> None:
    broker.run(
        "create table public.bed as select 1 as n",
        "select pgps.subscribe('beds', 'tick', 'n in (select b.n from public.bed b)')",
        "drop table public.bed",
        "insert into pgps_event.tick values (1)",
    )


def _set_aside(broker: Broker) -> None:
    broker.run(
        "select pgps.create_event_type('frail', 'n integer')",
        "select pgps.advertise('frail')",
        "select pgps.subscribe('of_frail', 'frail')",
        "alter table pgps_internal.frail_audit drop column n cascade",
        "do $$ begin execute (select format('drop function pgps_internal.part_ids_%s', type_id)"
        " from pgps_internal.event_type where name = 'frail'); end $$",
        "insert into pgps_event.frail values (1)",
    )
    wait_until(lambda: broker.ask("select count(*) from pgps.event_types where state = 'set aside'") == 1)


def _wait_for_a_dispatcher(broker: Broker) -> None:
    broker.stop_worker()
    broker.run("insert into pgps_event.tick values (4)")


def _leave_a_link(broker: Broker) -> None:
    broker.stop_worker()
    broker.run("select pgps.create_link('far', 'host=127.0.0.1 port=1 dbname=nowhere')")


def _work(stage: Callable[[Broker], None]) -> Callable[[Broker], None]:
    """While a worker runs."""

    def staged(broker: Broker) -> None:
        if broker.worker is None:
            broker.start_worker()
        stage(broker)

    return staged


FAULTS = [
    Fault(
        "no worker runs",
        lambda _: None,
        "workers",
        "none: events wait",
        alert="PgpsNobodyDispatches",
        unlogged=NOBODY,
    ),
    Fault(
        "PL/Python was dropped",
        _sql("drop extension plpython3u cascade"),
        "plpython3u",
        "not created",
        unlogged=DEFINED,
    ),
    Fault(
        "the code is another release's",
        _sql("update pgps_internal.installation set value = repeat('0', 64) where key = 'code_digest'"),
        "code",
        "another release's",
        unlogged=DEFINED,
    ),
    Fault(
        "fsync is off",
        _sql("alter system set fsync = off", "select pg_reload_conf()"),
        "durability",
        "fsync is off",
        unlogged=SERVER,
    ),
    Fault(
        "commits are not waited for",
        _system("synchronous_commit"),
        "durability",
        "synchronous_commit is off",
        alert="PgpsDoctorNotes",
        unlogged=SERVER,
    ),
    Fault(
        "autovacuum is off",
        _sql("alter system set autovacuum = off", "select pg_reload_conf()"),
        "autovacuum",
        "off",
        unlogged=SERVER,
    ),
    Fault(
        "statements end early",
        _sql("alter database postgres set statement_timeout = '29s'"),
        "timeouts",
        "statement_timeout of database postgres is 29 s",
        unlogged=SERVER,
    ),
    Fault(
        "the statements of a role end early",
        _sql("create role clerk login in role pgps_worker", "alter role clerk set statement_timeout = '1s'"),
        "timeouts",
        "statement_timeout of role clerk is 1.0 s",
        unlogged=SERVER,
    ),
    Fault(
        "somebody holds a lock",
        _wait_behind_a_lock,
        "locks",
        "holds a lock on public.ward",
        unlogged=SERVER,
    ),
    Fault(
        "a queue does not outlive a crash",
        _sql("select pgps.create_event_type('brittle', 'n integer', persistent => false)"),
        "durability",
        '"brittle" promises guaranteed events',
        unlogged=DEFINED,
    ),
    Fault(
        "a crash took events",
        _sql(
            "select pgps.create_event_type('light', 'n integer', persistent => false)",
            "select pgps.advertise('light')",
            "insert into pgps_event.light select generate_series(1, 7)",
            "truncate pgps_internal.light_log",  # what recovery does with a table that is not logged
        ),
        "durability",
        'about 7 events of "light" lost',
        unlogged=GONE,
    ),
    Fault(
        "the owner of a subscription was dropped",
        _sql(
            "create role leaver; grant select on pgps_event.tick to leaver",
            "set role leaver; select pgps.subscribe('left', 'tick')",
            "reset role; drop owned by leaver; drop role leaver",
        ),
        "subscriptions",
        '"left" is suspended',
        logged="subscription left is suspended: its owner was dropped",
        metric='pgps_subscription_suspended{subscription="left"} 1',
        alert="PgpsSubscriptionSuspended",
    ),
    Fault(
        "a subscription is paused",
        _work(lambda broker: broker.run("select pgps.pause('reader')", "insert into pgps_event.tick values (1)")),
        "subscriptions",
        '"reader" is paused',
        alert="PgpsDoctorNotes",
        unlogged=DEFINED,
    ),
    Fault(
        "a subscriber may not make temporary tables",
        _work(
            _sql(
                "revoke temporary on database postgres from public",
                "create function public.gets(e pgps_event.tick) returns void language sql as ''",
                "create role nurse; grant select on pgps_event.tick to nurse; grant usage on schema public to nurse",
                "alter function public.gets owner to nurse",
                "set role nurse; select pgps.subscribe('gets', 'tick', execute => 'public.gets')",
            )
        ),
        "temporary",
        "nurse may not make temporary tables",
        unlogged=DEFINED,
    ),
    Fault(
        "a callback fails",
        _work(_fail_a_callback),
        "exceptions",
        "tick",
        repair=_sql("create or replace function public.on_tick(e pgps_event.tick) returns void language sql as ''"),
        logged="division by zero",
        metric='pgps_subscription_failed_events{subscription="calls"} 1',
        alert="PgpsEventsFail",
    ),
    Fault(
        "a filter cannot be evaluated",
        _work(_take_a_filter_its_table),
        "subscriptions",
        '"beds" is suspended: filter: ',
        repair=_sql("create table public.bed as select 1 as n"),
        logged="public.bed",
        metric='pgps_subscription_suspended{subscription="beds"} 1',
        alert="PgpsSubscriptionSuspended",
    ),
    Fault(
        "the code of an event type fails",
        _work(_set_aside),
        "event types",
        '"frail" is set aside',
        logged="frail",
        metric="pgps_event_types_set_aside 1",
        alert="PgpsEventTypeSetAside",
    ),
    Fault(
        "nobody takes the events of a subscription",
        _work(_sql("select pgps.alter_subscription('reader', dead_after => '1 microsecond')")),
        "consumers",
        'nobody takes the events of "reader"',
        logged="events of subscription reader",
        metric='pgps_subscription_dead{subscription="reader"} 1',
        alert="PgpsSubscriptionDead",
    ),
    Fault(
        "nobody dispatches",
        _wait_for_a_dispatcher,
        "dispatcher",
        "1 event waiting to be dispatched",
        alert="PgpsNobodyDispatches",
        unlogged=NOBODY,
    ),
    Fault(
        "nobody connects a link",
        _leave_a_link,
        "links",
        'no worker here connects "far"',
        unlogged=NOBODY,
    ),
]
