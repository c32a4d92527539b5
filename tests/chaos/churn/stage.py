"""What a story plays on: roles, tables and functions, its threads, and what they know of each other."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg

from tests.chaos.churn.truth import Event, Kind, Life, Span, Truth
from tests.fix_broker import call, rows, value
from tests.links.fleet import Member, Site

OWNERS = ("churn_a", "churn_b", "churn_c")
BOSS, MAKER = "churn_boss", "churn_maker"
BASE = ("pa", "pb")
ATTRIBUTES = "n bigint, m integer, session integer, seq integer"
SETTINGS = {
    "lease": "5 seconds", "retry_delay": "100 milliseconds", "retry_delay_max": "1 second", "lane_timeout": "2 seconds",
}  # fmt: skip
PATIENCE = 10.0
"""Seconds that a statement may take; no transaction of a story stays open for longer than a few."""

SCHEMA = """
create schema churn;
create table churn.journal (
    n bigint primary key, type text, oid bigint, session integer, seq integer, m integer
);
create table churn.got (
    place bigint generated always as identity, life integer, n bigint, event_id bigint,
    at double precision default extract(epoch from clock_timestamp())
);
create table churn.life (name text primary key, life integer);
create table churn.batch (batch_id bigint, ids int8multirange);
create table churn.odd as select v from generate_series(1, 9, 2) v;
create table churn.pace (seconds double precision);
insert into churn.pace values (0);
create function churn.slow(m integer) returns boolean language plpgsql stable as $f$
declare
    v_pace double precision := (select p.seconds from churn.pace p);
begin
    if v_pace > 0 then
        perform pg_sleep(v_pace);
    end if;
    return m % 3 <> 0;
end
$f$;
create table churn.aside (name text);
create function churn.note_aside() returns trigger language plpgsql security definer as $f$
begin
    insert into churn.aside select t.name from pgps_internal.event_type t where t.type_id = new.type_id;
    return null;
end
$f$;
create trigger note_aside after insert on pgps_internal.broken_type for each row execute function churn.note_aside();
grant usage, create on schema churn to public;
grant all on all tables in schema churn to public
"""


def ready(site: Site) -> None:
    """Give a server the roles of all stories, and a log that names the codes of errors."""
    with psycopg.connect(site.cluster.dsn(), autocommit=True) as connection:
        for role in (*OWNERS, BOSS, MAKER):
            if not value(connection, "select count(*) from pg_roles where rolname = %s", [role]):
                rows(connection, f"create role {role}")
        rows(connection, f"grant {', '.join(OWNERS)} to {BOSS}")
        rows(connection, f"grant pgps_admin to {MAKER}")
        rows(connection, "alter system set log_line_prefix = '%m [%p] %e %q%a '")
        rows(connection, "select pg_reload_conf()")


def furnish(connection: psycopg.Connection) -> None:
    """Give a database what every story has."""
    rows(connection, SCHEMA)
    for name, wanted in SETTINGS.items():
        call(connection, "configure", name, wanted)
    rows(connection, f"set session authorization {MAKER}")
    for kind in BASE:
        make_type(connection, kind)


def make_type(connection: psycopg.Connection, name: str) -> Kind:
    """Make an event type that everybody may use, and advertise it."""
    call(connection, "create_event_type", name, ATTRIBUTES)
    rows(connection, f"grant insert, select on pgps_event.{name} to public")
    call(connection, "advertise", name)
    return Kind(name, value(connection, "select %s::regclass::oid::bigint", [f"pgps_event.{name}"]))


@dataclass
class Stage:
    """What the threads of a story share."""

    member: Member
    seed: int
    truth: Truth = field(default_factory=Truth)
    lives: dict[int, Life] = field(default_factory=dict)
    types: dict[str, Kind] = field(default_factory=dict)
    spans: dict[int, Span] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.time)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    life_numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def chance(self, who: str) -> random.Random:
        """Return what a thread draws from."""
        return random.Random(f"churn/{self.seed}/{who}")

    def tell(self, what: str) -> None:
        self.told.append(f"{time.time() - self.began:6.2f} {what}")

    def session(self, who: str, role: str | None = None) -> psycopg.Connection:
        """Open a session under a name that the server's log has, as a role or the superuser."""
        # Who drops a type tries again and again until nobody else has it.
        patience = PATIENCE * (6 if role == MAKER else 1)
        options = f"-c statement_timeout={int(patience)}s -c application_name={who}"
        connection = psycopg.connect(self.member.dsn, autocommit=True, options=options)
        if role:
            rows(connection, f"set session authorization {role}")
        return connection

    def there(self) -> list[Life]:
        """Return the subscriptions that are there."""
        return [life for life in list(self.lives.values()) if life.is_there]

    def note_dropped(self, kind: Kind, span: Span) -> None:
        """Record that a type is gone, and with it the subscriptions to it alone."""
        self.truth.dropped[kind] = span
        for life in list(self.lives.values()):
            if life.pattern == kind.name and life.ended is None and life.made.began < span.done:
                life.ended = span

    def read_journal(self) -> None:
        """Record the events that were committed."""
        query = "select n, type, oid, session, seq, m from churn.journal"
        for n, name, oid, session, seq, m in rows(self.member.admin, query):
            self.truth.events[n] = Event(n, Kind(name, oid), session, seq, m, self.spans[n])


class Player(threading.Thread):
    """A thread of a story, which does one step after the other until it is told to end."""

    def __init__(self, stage: Stage, who: str, role: str | None = None) -> None:
        super().__init__(name=who, daemon=True)
        self.stage, self.who, self.role = stage, who, role
        self.random = stage.chance(who)
        self._ending = threading.Event()
        self._connection: psycopg.Connection | None = None

    @property
    def connection(self) -> psycopg.Connection:
        """The session of this thread."""
        if self._connection is None:
            self._connection = self.stage.session(self.who, self.role)
        return self._connection

    def step(self) -> float:
        """Do something; return after how many seconds to go on."""
        raise NotImplementedError

    def run(self) -> None:
        try:
            while not self._ending.wait(self._try_step()):
                pass
        except Exception as error:
            self.stage.broken.append(f"{self.who} ended: {type(error).__name__}: {error}")
            raise
        finally:
            if self._connection is not None:
                self._connection.close()

    def _try_step(self) -> float:
        try:
            return self.step()
        except psycopg.Error as error:
            self.stage.counts[f"error {error.sqlstate}"] += 1
            with contextlib.suppress(psycopg.Error):
                rows(self.connection, "rollback; reset role" if self.role else "rollback")
            if self._connection is not None and self._connection.closed:
                self._connection = None
            return self.random.uniform(0.02, 0.1)

    def end(self) -> None:
        """Have it end after the step that it is at."""
        self._ending.set()
        if self.is_alive():
            self.join(7 * PATIENCE)

    def done(self, actions: Callable[[psycopg.Connection], object], *, held: float = 0.0, undone: bool = False) -> Span:
        """Do something in one transaction, which stays open for a while; return when it was begun and over."""
        began = time.time()
        with contextlib.suppress(psycopg.Rollback), self.connection.transaction():
            actions(self.connection)
            if held:
                self._ending.wait(held)
            if undone:
                raise psycopg.Rollback
        return Span(began, time.time())
