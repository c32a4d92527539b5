"""One broker under load, and kill -9 of whatever belongs to it: server, sessions, worker, consumers; complete sets.

Between the kills there are transactions that are dispatched in parts, and an event type that fails and is set aside.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from pgps.errors import StartFailed
from tests.chaos.kills.clients import Consumers
from tests.fix_broker import call, rows, value
from tests.fix_db import wait_until
from tests.links.fleet import Fleet, Member
from tests.links.storm.crew import Crew
from tests.links.storm.furniture import furnish
from tests.links.storm.script import FILTERS
from tests.links.storm.traffic import BASE_TYPES, Publishers, open_session, read_journal
from tests.links.storm.truth import Finding, Subscription, Truth

STILL = 60.0
BOUND = 180.0

CALLED = {"called": ("tick", "any"), "called_lane": ("tick", "odd3")}
READ = {"read": ("tick", "ge3"), "pattern": ("t*", "any"), "lane": ("t*", "odd2")}
SHARED = {"shared": ("tick", "in2"), "named": ("tick", "any")}
"""Subscriptions by name: types and filter. Those over a stored table are matched in lanes of their own."""

CONSUMERS: dict[str, tuple[str, str | None]] = {
    **{name: (name, None) for name in READ},
    "shared_1": ("shared", None),
    "shared_2": ("shared", None),
    # Two that live under one name, which the broker tells apart by their sessions; and two that have tokens.
    "named_1": ("named", "n"),
    "named_2": ("named", "n"),
    "token_1": ("named", "t#*"),
    "token_2": ("named", "t#*"),
}
"""Consumers by name: which subscription they read, and the name that they give."""

PART = 16
"""Events in a part of a large transaction."""

TARGETS = {"server": 3, "session": 2, "worker": 3, "consumer": 3}


@dataclass
class Outcome:
    """What came of a story."""

    seed: int
    kills: dict[str, int] = field(default_factory=dict)
    events: int = 0
    deliveries: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.findings or self.problems)

    @property
    def result(self) -> str:
        """The outcome in a few words."""
        wrong = [f"{len(one.ns)} {one.kind} at {one.subscription}" for one in self.findings]
        return "; ".join([*wrong, *self.problems]) or "clean"

    @property
    def line(self) -> str:
        """The outcome in one line."""
        kills = ", ".join(f"{count} {what}" for what, count in sorted(self.kills.items()))
        return (
            f"seed {self.seed}: {sum(self.kills.values())} kills ({kills}), {self.events} events,"
            f" {self.deliveries} deliveries, {self.seconds:.0f} s: {self.result}"
        )

    def report(self) -> str:
        """The outcome as text, with what was found and the story."""
        found = [f"{one.kind} at {one.subscription} of {one.type}: {one.said} {one.ns[:40]}" for one in self.findings]
        return "\n".join([self.line, "", *found, *self.problems, "", *self.told, ""])


class Story:
    """A broker, its worker, publishers and consumers, and what is done to them."""

    def __init__(self, fleet: Fleet, crew: Crew, seed: int, kills: int, rate: float) -> None:
        self.site = fleet.sites[0]
        self.crew, self.seed, self.rate = crew, seed, rate
        self.chance = random.Random(f"kills/{seed}")
        self.left = kills
        self.outcome = Outcome(seed)
        self.truth = Truth()
        self.member: Member = fleet.broker("a", site=self.site, template=self.site.template("storm_template", furnish))
        self.subscriptions: list[Subscription] = []
        self.consumers = Consumers(self.member.dsn, seed)
        self.began = time.monotonic()
        self.set_aside: set[str] = set()

    def build(self) -> None:
        """Subscribe everybody, and start worker and consumers."""
        admin = self.member.admin
        call(admin, "configure", "lease", "3 seconds")
        call(admin, "configure", "max_part_events", str(PART))
        call(admin, "subscribe", "a_own", "t*")
        for name, (pattern, wanted) in {**CALLED, **READ, **SHARED}.items():
            call(
                admin, "subscribe", name, pattern, filter=FILTERS[wanted][0],
                handler="any" if name in SHARED else "all",
            ) if name not in CALLED else self._subscribe_called(name, pattern, wanted)  # fmt: skip
            made = Subscription("a", name, pattern, wanted)
            made.be_sure(["a"], BASE_TYPES, 0.0)
            self.subscriptions.append(made)
        self.start()

    def _subscribe_called(self, name: str, pattern: str, wanted: str) -> None:
        admin = self.member.admin
        rows(
            admin,
            f"create function storm.{name}(e pgps_event.{pattern}[]) returns void begin atomic"
            f" insert into storm.got (subscription, n) select '{name}', x.n from unnest(e) x; end",
        )
        call(admin, "subscribe", name, pattern, filter=FILTERS[wanted][0], execute=f"storm.{name}")

    def start(self) -> None:
        """Start what does not run."""
        self.crew.start("a", self.member.dsn)
        for name, (subscription, consumer) in CONSUMERS.items():
            self.consumers.start(name, subscription, consumer)

    def play(self) -> None:
        """Publish, and kill one after the other."""
        self.publishers = Publishers([self.member], f"kills/{self.seed}", self.rate)
        self.publishers.start()
        self.began = time.monotonic()
        try:
            while self.left > 0:
                self._let_publish(self.chance.uniform(0.1, 1.6))
                with contextlib.suppress(psycopg.Error):
                    self.chance.choice([self._publish_many, self._break_type, self._mend_type])()
                what = self.chance.choices(list(TARGETS), list(TARGETS.values()))[0]
                self._tell(f"kill {getattr(self, f'_kill_{what}')()}")
                self.outcome.kills[what] = self.outcome.kills.get(what, 0) + 1
                self.left -= 1
                self.start()
        finally:
            self.publishers.end()

    def _let_publish(self, seconds: float) -> None:
        """Wait until as many events have been published as in so much time when nothing is killed."""
        wanted = self.publishers.published + round(seconds * self.rate)
        wait_until(lambda: self.publishers.published >= wanted, what="events that are published")

    def _publish_many(self) -> None:
        """Publish a transaction that is dispatched in parts."""
        session = open_session(self.member)
        with session.connection, session.connection.transaction():
            for kind in BASE_TYPES:
                session.publish([(kind, [self.chance.randrange(10) for _ in range(self.chance.choice([30, 90]))])])
        self._tell("a large transaction")

    def _break_type(self) -> None:
        """Drop a function that the dispatcher needs for an event type."""
        kind = self.chance.choice(BASE_TYPES)
        type_id = value(self.member.admin, "select type_id from pgps_internal.event_type where name = %s", [kind])
        rows(self.member.admin, f"drop function if exists pgps_internal.part_ids_{type_id}")
        self._tell(f"{kind} fails")

    def _mend_type(self) -> None:
        """Resume the event types that are set aside."""
        for (kind,) in rows(self.member.admin, "select name from pgps.event_types where state = 'set aside'"):
            call(self.member.admin, "resume_event_type", kind)
            self.set_aside.add(kind)
            self._tell(f"{kind} is resumed")

    def _kill_server(self) -> str:
        self.site.cluster.kill9()
        if self.chance.random() < 0.5:
            # The publishers find that it is gone, and try again.
            before = self.publishers.failed
            wait_until(lambda: self.publishers.failed > before, what="a publisher that finds no server")
        self._start_server()
        self._reopen()
        return "server"

    def _start_server(self) -> None:
        """Start the server; on a busy machine processes of the one that was killed may still be about to end."""

        def started() -> bool:
            with contextlib.suppress(StartFailed):
                self.site.cluster.start()
                return True
            return False

        wait_until(started, what="the server starts")

    def _victim(self) -> tuple[int, str]:
        query = """
            select pid, application_name, state from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
            order by application_name, pid
            """
        pid, name, state = self.chance.choice(rows(self.member.admin, query))
        return pid, f"{name or 'of a client'}, {state}"

    def _kill_session(self) -> str:
        """Kill a session's process: the server restarts all, since shared memory may be damaged."""
        what = kill_one(self._victim)
        self._reopen(lambda: self.member.admin.execute("select"))
        return f"session {what}"

    def _kill_worker(self) -> str:
        self.crew.kill("a")
        self._let_publish(self.chance.uniform(0, 0.5))
        return "worker"

    def _kill_consumer(self) -> str:
        name = self.chance.choice(list(CONSUMERS))
        self.consumers.kill(name)
        return name

    def _reopen(self, gone: Callable[[], object] | None = None) -> None:
        """Wait until the server is back; before, until the old session is gone."""
        if gone is not None:
            wait_until(lambda: fails(gone), what="the end of the old session")
        wait_until(lambda: not fails(self.member.reopen), what="the server, which is to come back")

    def _tell(self, what: str) -> None:
        self.outcome.told.append(f"{time.monotonic() - self.began:6.2f} {what}")

    def rest(self) -> None:
        """Wait until all is processed that has to be, or nothing moves any more."""
        admin = self.member.admin
        query = """
            select (select coalesce(sum(a.waiting), 0) from pgps.activity a),
                (select coalesce(sum(s.depth), 0) from pgps.subscriptions s where s.name <> 'a_own'),
                (select coalesce(sum(l.lag_batches + l.joining), 0) from pgps.lanes l), (select count(*) from storm.got)
            """
        began = moved = time.monotonic()
        seen: tuple[int, ...] = ()

        def rests() -> bool:
            nonlocal seen, moved
            self._mend_type()
            now = rows(admin, query)[0]
            if now != seen:
                seen, moved = now, time.monotonic()
            return not any(seen[:3]) or time.monotonic() > min(moved + STILL, began + BOUND)

        wait_until(rests, timeout=BOUND + STILL)
        if any(seen[:3]):
            said = f"{seen[0]} events wait for dispatch, {seen[1]} deliveries, {seen[2]} batches for lanes"
            self.outcome.problems.append(said)

    def compare(self) -> None:
        """Compare what everybody has processed with what was committed."""
        admin = self.member.admin
        self.truth.note(read_journal(self.member))
        query = "select (payload ->> 'n')::bigint from pgps.receive('a_own', 10000000)"
        self.truth.note_order("a", [n for (n,) in rows(admin, query)])
        self.outcome.findings += self.truth.never_handed_out()
        for one in self.subscriptions:
            query = "select n from storm.got where subscription = %s order by place"
            one.got = [n for (n,) in rows(admin, query, [one.name])]
            found = self.truth.check(one)
            self.outcome.findings += [f for f in found if not (f.kind == "disorder" and self._may_be(f, one))]
        failed = value(admin, "select count(*) from pgps.exceptions")
        if failed:
            self.outcome.problems.append(f"{failed} exceptions")
        self.outcome.events = len(self.truth.events)
        self.outcome.deliveries = sum(len(one.got) for one in self.subscriptions)

    def _may_be(self, disorder: Finding, one: Subscription) -> bool:
        """Tell whether it is no fault: consumers process side by side, and what was set aside comes behind the rest."""
        if one.name in SHARED:
            return True
        if not (self.set_aside and one.pattern.endswith("*") and disorder.said):
            return False
        kinds = {n: event.type for n, event in self.truth.events.items()}
        apart = [[n for n in one.got if kinds.get(n) == kind] for kind in BASE_TYPES]
        return not any(self.truth.disorder_of_producers(one, ns) for ns in apart)


def kill_one(victim: Callable[[], tuple[int, str]]) -> str:
    """Kill the process of a session that is chosen, and return what it was.

    It may have ended by itself since it was chosen: then another one is.
    """
    while True:
        pid, what = victim()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return what


def fails(action: Callable[[], object]) -> bool:
    """Do something; tell whether the server is not there for it."""
    try:
        action()
    except psycopg.OperationalError:
        return True
    return False


def tell(fleet: Fleet, seed: int, *, kills: int = 12, rate: float = 150.0) -> Outcome:
    """Play the story of a seed on the first server of a fleet, which is empty afterwards."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pgps-kills-") as directory:
        crew = Crew(Path(directory))
        story = Story(fleet, crew, seed, kills, rate)
        try:
            story.build()
            story.play()
            story.rest()
            story.compare()
            if not story.outcome.is_clean:
                log = crew.log("a")
                story.outcome.told += log.read_text(errors="replace").splitlines()[-200:] if log.exists() else []
        finally:
            story.consumers.kill_all()
            crew.close()
            fleet.clear()
    story.outcome.seconds = time.monotonic() - started
    return story.outcome
