"""The network of a story: its brokers and workers, and all steps that a script can do to them."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg

from pgps.embedded import EmbeddedCluster
from pgps.errors import StartFailed
from tests.fix_broker import call, rows, value
from tests.fix_db import wait_until
from tests.links.fleet import Fleet, Member, Site
from tests.links.storm.crew import Crew
from tests.links.storm.furniture import furnish, make_type, together
from tests.links.storm.script import FILTERS, Pair, Script, Step
from tests.links.storm.traffic import BASE_TYPES, Publishers, open_session, read_journal
from tests.links.storm.truth import Subscription, Truth

NOWHERE = "host=/nowhere dbname=nowhere"
_LIMITS = "-c statement_timeout=60s -c lock_timeout=8s -c application_name=storm"


class NotYet(Exception):
    """Raised by a step that cannot be done now; the step is tried again later."""


@dataclass
class Told:
    """A step that was done, for the report."""

    at: float
    text: str
    outcome: str = ""


@dataclass
class Copy:
    """The state of a broker at the time of its copy."""

    database: str
    subscriptions: list[Subscription]
    journal: set[int]


@dataclass
class World:
    """The brokers, workers and publishers of a story, with the state that they should be in."""

    fleet: Fleet
    crew: Crew
    script: Script
    per_second: float
    members: dict[str, Member] = field(default_factory=dict)
    publishers: list[Publishers] = field(default_factory=list)
    truth: Truth = field(default_factory=Truth)
    subscriptions: list[Subscription] = field(default_factory=list)
    ended: list[Subscription] = field(default_factory=list)
    links: dict[Pair, str] = field(default_factory=dict)
    misled: set[Pair] = field(default_factory=set)
    """Links whose connection string leads nowhere, also while they are paused."""
    types: list[str] = field(default_factory=lambda: list(BASE_TYPES))
    down: set[int] = field(default_factory=set)
    copies: dict[str, Copy] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    undone: list[Step] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    server_logs: dict[Site, int] = field(default_factory=dict)
    """How long each server's log was when the story began."""
    began: float = field(default_factory=time.time)

    # Setting up

    def build(self) -> None:
        """Make brokers, types, links, workers and the subscriptions that stay."""
        self.server_logs = {site: site.log.stat().st_size for site in self.fleet.sites}
        for name, server in self.script.brokers.items():
            site = self.fleet.sites[server]
            member = self.fleet.broker(name, site=site, template=site.template("storm_template", furnish))
            self.add(member, number=len(self.members) + 1)
        for pair in self.script.links:
            self._define(pair)
        for member in self.members.values():
            self.start_worker(member.name)
        for keep in self.script.keeps:
            is_called = keep.name.endswith("_called")
            made = Subscription(keep.broker, keep.name, keep.pattern, keep.filter, is_called)
            self.patiently(functools.partial(self._subscribe, made))

    def add(self, member: Member, *, number: int) -> None:
        """Make a new database a broker; its id comes from the seed: ids decide between paths of equal length."""
        self.members[member.name] = member
        self._limit(member)
        member.identify(f"00000000-0000-4000-8000-{(number * 7919 + self.script.seed * 104729) % 16**12:012x}")
        call(member.admin, "configure", "link_report_interval", "500 milliseconds")
        call(member.admin, "subscribe", f"{member.name}_own", "t*")

    def _define(self, pair: Pair) -> None:
        low, high = (self.members[name] for name in pair)
        call(low.admin, "create_link", f"to_{high.name}", high.site.cluster.dsn(high.database))
        self.links[pair] = "up"

    def _limit(self, member: Member) -> None:
        """Open the administrator's session again with time limits, so that no step of a story waits for ever."""
        member.admin.close()
        member.dsn = member.site.cluster.dsn(member.database)
        member.admin = psycopg.connect(member.dsn, autocommit=True, options=_LIMITS)

    def _subscribe(self, subscription: Subscription) -> None:
        member = self.members[subscription.broker]
        call(
            member.admin, "subscribe", subscription.name, subscription.pattern,
            filter=FILTERS[subscription.filter][0], scope="global",
            execute=f"storm.keep_{subscription.pattern}" if subscription.is_called else None,
        )  # fmt: skip
        self.subscriptions.append(subscription)

    def publish(self) -> None:
        """Start publishing."""
        self.began = time.time()
        for number in range(self.script.servers):
            there = [self.members[name] for name in self.script.on(number) if name in self.script.publishers]
            share = self.per_second * len(there) / len(self.script.publishers)
            made = Publishers(there, f"{self.script.seed}/{number}", share)
            made.start()
            self.publishers.append(made)

    def hush(self) -> None:
        """Stop publishing."""
        for publishers in self.publishers:
            publishers.end()

    def round(self, kinds: list[str], at: list[str] | None = None) -> None:
        """Publish, at each broker or those named, events of every type that every filter wants."""
        for name in at or self.members:
            session = open_session(self.members[name])
            try:
                with session.connection.transaction():
                    offered = rows(
                        session.connection, "select distinct event_type from pgps.advertisements where via is null"
                    )
                    session.publish([(kind, list(range(10))) for kind in kinds if (kind,) in offered])
            finally:
                session.connection.close()

    def patiently(self, action: Callable[[], None]) -> None:
        """Repeat an action that a deadlock has ended, and report it, because users should not have to do that."""
        for _ in range(5):
            try:
                return action()
            except psycopg.errors.DeadlockDetected as error:
                self.remarks.append(_one_line(error))
        return action()

    # Looking

    @property
    def now(self) -> float:
        """Return the seconds since publishing began."""
        return time.time() - self.began

    def subscriptions_at(self, name: str) -> list[Subscription]:
        return [subscription for subscription in self.subscriptions if subscription.broker == name]

    def read(self, subscription: Subscription) -> None:
        """Read the events of a subscription; none is ever acknowledged, so these are all that it has got."""
        admin = self.members[subscription.broker].admin
        if subscription.is_called:
            found = rows(admin, "select n from storm.got order by place")
        else:
            found = rows(admin, "select (payload ->> 'n')::bigint from pgps.receive(%s, 1000000)", [subscription.name])
        subscription.got = [n for (n,) in found]

    def note_own(self, name: str) -> None:
        """Record what a broker has published, and in which order it hands these events out."""
        member = self.members[name]
        self.truth.note(event for event in read_journal(member) if event.home == name)
        query = "select (payload ->> 'n')::bigint from pgps.receive(%s, 1000000) where payload ->> 'home' = %s"
        self.truth.note_order(name, [n for (n,) in rows(member.admin, query, [f"{name}_own", name])])

    # Steps

    def do(self, step: Step) -> None:
        """Do a step; one that cannot be done now is kept for later."""
        told = Told(self.now, " ".join((step.what, *step.args)))
        self.told.append(told)
        try:
            getattr(self, f"do_{step.what}")(*step.args)
        except (NotYet, psycopg.Error) as error:
            told.outcome = f"later: {_one_line(error)}"
            if isinstance(error, psycopg.errors.DeadlockDetected):
                self.remarks.append(f"{step}: {_one_line(error)}")
            self.undone.append(step)

    def do_undone(self) -> None:
        """Try the steps again that could not be done."""
        undone, self.undone = self.undone, []
        for step in undone:
            count = len(self.told)
            self.do(step)
            if self.undone and self.undone[-1] is step:
                # Each of them is reported once only.
                del self.told[count]

    def _admin(self, name: str) -> psycopg.Connection:
        if self.script.brokers.get(name, self._server_of(name)) in self.down:
            raise NotYet(f"the server of {name} is down")
        if self.members[name].admin.closed:
            self._limit(self.members[name])
        return self.members[name].admin

    def _server_of(self, name: str) -> int:
        return self.fleet.sites.index(self.members[name].site)

    def on(self, server: int) -> list[str]:
        return [name for name in self.members if self._server_of(name) == server]

    def do_pause(self, low: str, high: str) -> None:
        self._alter(low, high, "paused", enabled=False)

    def do_resume(self, low: str, high: str) -> None:
        self._alter(low, high, "up", enabled=True)

    def do_break(self, low: str, high: str) -> None:
        self._alter(low, high, "broken", conninfo=NOWHERE)
        if self.links[low, high] == "broken":
            self.misled.add((low, high))

    def do_mend(self, low: str, high: str) -> None:
        # A step that was kept for later may find it paused.
        self._alter(low, high, "up", conninfo=self.members[high].dsn, enabled=True)
        self.misled.discard((low, high))

    def _alter(self, low: str, high: str, becomes: str, **what: object) -> None:
        admin = self._admin(low)
        if self.links[low, high] != "gone":
            call(admin, "alter_link", f"to_{high}", **what)
            self.links[low, high] = becomes

    def do_drop(self, low: str, high: str) -> None:
        admin = self._admin(low)
        if (low, high) in self.misled:
            # The step that mends it may be among those kept for later. A link that leads nowhere is never drained.
            self.do_mend(low, high)
        if self.links[low, high] != "gone":
            call(admin, "drop_link", f"to_{high}")
        self._is_gone(low, high)

    def _is_gone(self, low: str, high: str) -> None:
        """Record that a link is dropped; steps with it that were kept for later are not done any more."""
        self.links[low, high] = "gone"
        self.misled.discard((low, high))
        self.undone = [step for step in self.undone if step.args != (low, high)]

    def do_drop_hard(self, low: str, high: str) -> None:
        """Drop a link on both sides at once, with what waits for it; at a side whose server is down, when it is up."""
        later: list[NotYet] = []
        for here, name in ((low, f"to_{high}"), (high, low)):
            try:
                with contextlib.suppress(psycopg.errors.UndefinedObject):
                    call(self._admin(here), "drop_link", name, True)
            except NotYet as error:
                later.append(error)
        self._is_gone(low, high)
        if later:
            raise later[0]

    def do_make(self, low: str, high: str) -> None:
        """Define a link that was dropped; this has to wait as long as the old link drains."""
        if self.links[low, high] != "gone":
            return
        there = "select count(*) from pgps.links where name = %s or neighbour = %s"
        if value(self._admin(low), there, [f"to_{high}", high]) or value(self._admin(high), there, [low, low]):
            raise NotYet("the old link is still there")
        self._define((low, high))

    def do_kill_worker(self, name: str) -> None:
        self.crew.kill(name)

    def do_start_worker(self, name: str) -> None:
        self.start_worker(name)

    def start_worker(self, name: str) -> None:
        self.crew.start(name, self.members[name].dsn)

    def do_kill_server(self, server: str) -> None:
        self.fleet.sites[int(server)].cluster.kill9()
        self.down.add(int(server))

    def do_start_server(self, server: str) -> None:
        site = self.fleet.sites[int(server)]
        before = site.cluster.dsn()
        # A session that was born while the server was killed holds its memory until it notices.
        wait_until(functools.partial(_starts, site.cluster), what=f"server {server} starts")
        assert site.cluster.dsn() == before, "somebody took the server's port"
        self.down.discard(int(server))
        for name in self.on(int(server)):
            self._limit(self.members[name])

    def do_cut(self, name: str) -> None:
        """Break the connections of all links at a broker."""
        query = (
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name like 'pgps-worker/%%/link-%%'"
        )
        rows(self._admin(name), query.replace("%%", "%"))

    def do_subscribe(self, broker: str, name: str, pattern: str, filter_: str) -> None:
        self._admin(broker)
        self._subscribe(Subscription(broker, name, pattern, filter_))
        # The subscription is committed by now, so every event that is inserted from now on must reach it.
        self.subscriptions[-1].made_at = time.time()

    def do_unsubscribe(self, broker: str, name: str) -> None:
        admin = self._admin(broker)
        for subscription in [one for one in self.subscriptions_at(broker) if one.name == name]:
            self.read(subscription)
            call(admin, "unsubscribe", name)
            subscription.ended_at = time.time()
            self.subscriptions.remove(subscription)
            self.ended.append(subscription)

    def do_burst(self, broker: str, count: str) -> None:
        """Publish many events in one transaction."""
        self._admin(broker)
        session = open_session(self.members[broker])
        try:
            with session.connection.transaction():
                session.publish([("tick", [i % 10 for i in range(int(count) // 2)]), ("tock", [*range(10)] * 2)])
        finally:
            session.connection.close()

    def do_type(self, kind: str, *names: str) -> None:
        """Make an event type at several brokers at the same time."""
        for name in names:
            self._admin(name)
        together(*(lambda name=name: make_type(self.members[name].admin, kind) for name in names))
        self.types.append(kind)
        for publishers in self.publishers:
            for name in set(names) & set(publishers.kinds):
                publishers.kinds[name].append(kind)

    def held(self, *names: str) -> contextlib.ExitStack:
        """Stop publishing at some brokers until the block ends."""
        stack = contextlib.ExitStack()
        for publishers in self.publishers:
            stack.enter_context(publishers.held(*names))
        return stack

    def mend(self) -> None:
        """Start servers and workers that are down; mend, resume or define again the links that are not up."""
        for server in sorted(self.down):
            self.do(Step(self.now, "start_server", (str(server),)))
        for name in self.members:
            self.start_worker(name)
        for pair, state in list(self.links.items()):
            what = "mend" if pair in self.misled else {"gone": "make", "paused": "resume"}.get(state)
            if what and not any(step.what == what and step.args == pair for step in self.undone):
                self.do(Step(self.now, what, pair))

    def force(self) -> list[str]:
        """Drop at once the links whose draining does not end; return a remark about each."""
        stuck = [step for step in self.undone if step.what == "make"]
        for step in stuck:
            self.do(Step(self.now, "drop_hard", step.args))
            self.do(Step(self.now, "make", step.args))
        return [f"the link from {step.args[0]} to {step.args[1]} was dropped, and did not go" for step in stuck]

    def close(self) -> None:
        """Remove everything."""
        self.hush()
        for member in self.members.values():
            self.crew.kill(member.name)
        for server in self.down:
            wait_until(functools.partial(_starts, self.fleet.sites[server].cluster), what=f"server {server} starts")
        for copy in self.copies.values():
            for site in self.fleet.sites if copy.database else ():
                site.drop(copy.database)
        self.fleet.clear()


def _starts(cluster: EmbeddedCluster) -> bool:
    try:
        cluster.start()
    except StartFailed as error:
        if "shared memory block" not in str(error):
            raise
        return False
    return True


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
