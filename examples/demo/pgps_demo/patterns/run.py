"""The patterns at work: readings at home, alerts at the hospital; quotes at an exchange, and what has recovered."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo
from rich.console import Console

from pgps_demo.data import Data
from pgps_demo.display import Steps
from pgps_demo.expect import Key, Wanted
from pgps_demo.network.bars import Bars
from pgps_demo.network.site import Server, Site, at_once, running, wait_for
from pgps_demo.network.standing import Counter, in_force, settle
from pgps_demo.patterns.recount import doses_of, expect, first_of
from pgps_demo.prove import judge
from pgps_demo.report import show_title, show_verdicts, verdict_dicts
from pgps_demo.scene import THRESHOLDS

__all__ = ["run"]

PICTURE = """\
  home: reading, insulin ─▶ untreated ══link══▶ hospital: an alert
  exchange: quote ─▶ recovered ─▶ a table of the traders"""
_PIECE = 2000
_ABOVE = {patient: high for patient, (_, high) in THRESHOLDS.items()}
_INSERT: dict[str, LiteralString] = {
    "reading": "insert into pgps_event.reading select * from unnest(%s::integer[], %s::timestamptz[], %s::integer[])",
    "insulin": "insert into pgps_event.insulin select * from unnest(%s::integer[], %s::timestamptz[], %s::integer[])",
    "quote": "insert into pgps_event.quote select * from unnest(%s::text[], %s::timestamptz[], %s::numeric[])",
}
_TABLES: dict[str, LiteralString] = {
    "alert": "select patient::text, first, last, glucose from hospital.alert order by arrival",
    "recovery": "select symbol, fell_from, back_at, price from trading.recovery order by arrival",
}
_HEARD: LiteralString = "select event_type from pgps.advertisements where event_type = 'untreated'"
# Behind all others, for nobody: by these the brokers know that nothing earlier is to come.
_END = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)

Row = tuple[Any, dt.datetime, Any]


def run(data: Data, steps: Steps, out: Console, *, part: float) -> dict[str, Any]:
    """Play both scenarios, the first `part` of the data, and return the result for programs."""
    servers = [Server("home"), Server("hospital")]
    home, hospital, exchange = (
        Site(name, server)
        for name, server in zip(("home", "hospital", "exchange"), [*servers, servers[0]], strict=True)
    )
    sites = [home, hospital, exchange]
    with running(servers, sites):
        show_title(steps.console, "Patterns of events: what is not treated, and what recovers")
        steps.console.print(PICTURE)
        with steps.step("two private PostgreSQL servers, three databases with pgps"):
            at_once(lambda site: site.server.start(site.name), [home, hospital])
            with servers[0].cluster.connect() as connection:
                connection.execute("create database exchange template home")
        with steps.step("event types, patterns, a link; workers") as notes:
            _build(home, hospital, exchange)
            notes.append(f"processes {', '.join(str(site.worker.pid) for site in sites)}")
        return _Run(home, hospital, exchange, steps, out, first_of(data, part)).all()


def _script(site: Site) -> None:
    text = (resources.files("pgps_demo.patterns") / f"{site.name}.sql").read_bytes()
    with psycopg.connect(site.dsn()) as connection:
        connection.execute(text)


def _build(home: Site, hospital: Site, exchange: Site) -> None:
    for site in (home, hospital, exchange):
        _script(site)
    with psycopg.connect(home.dsn()) as connection:
        with connection.cursor() as cursor:
            cursor.executemany("insert into home.threshold values (%s, %s)", _ABOVE.items())
        conninfo = make_conninfo(hospital.dsn(), user="home_link")
        connection.execute("select pgps.create_link('hospital', %s, role => 'hospital_link')", [conninfo])
    for site in (home, hospital, exchange):
        site.start_worker()
    both = [home, hospital]
    wait_for(lambda: bool(hospital.rows(_HEARD)) or "not advertised", both, "the advertisement of the pattern")
    subscribe: LiteralString = (
        "select pgps.subscribe('alert', 'untreated', scope => 'global', "
        "execute => 'hospital.raise_alert(patient, starts_at, ends_at, glucose)')"
    )
    with psycopg.connect(hospital.dsn(), autocommit=True) as connection:
        connection.execute(subscribe)
    wait_for(lambda: in_force(hospital, "home") == 1 or "not in force", both, "the hospital's filter to be in force")


@dataclass
class _Run:
    """One run."""

    home: Site
    hospital: Site
    exchange: Site
    steps: Steps
    out: Console
    data: Data

    def all(self) -> dict[str, Any]:
        """Publish, wait, compare; return the result for programs."""
        wanted = expect(self.data, _ABOVE)
        readings: list[Row] = [(r.patient, r.taken_at.replace(tzinfo=dt.UTC), r.glucose) for r in self.data.readings]
        doses: list[Row] = [(dose.patient, dose.given_at, dose.units) for dose in doses_of(self.data.readings)]
        midnight = dt.time(tzinfo=dt.UTC)
        quotes: list[Row] = [(q.symbol, dt.datetime.combine(q.day, midnight), q.close) for q in self.data.quotes]
        published = [("readings", "home", len(readings)), ("quotes", "exchange", len(quotes))]
        with Bars(self.steps.console, published, [(w.subscription, w.owner, w.count) for w in wanted]) as self.bars:
            self._play(readings, doses, quotes, wanted)
        verdicts = [judge(each, self._received(each)) for each in wanted]
        show_title(self.out, "What was detected, against what pandas makes of the raw data")
        show_verdicts(self.out, verdicts)
        return {
            "ok": all(verdict.ok for verdict in verdicts),
            "published": {"reading": len(readings), "insulin": len(doses), "quote": len(quotes)},
            "subscriptions": verdict_dicts(verdicts),
        }

    def _play(self, readings: list[Row], doses: list[Row], quotes: list[Row], wanted: Sequence[Wanted]) -> None:
        with psycopg.connect(self.home.dsn(), autocommit=True) as connection:
            given = 0
            for start in range(0, len(readings), _PIECE):
                piece = readings[start : start + _PIECE]
                upto = next((n for n, dose in enumerate(doses) if dose[1] > piece[-1][1]), len(doses))
                with connection.transaction():
                    _publish(connection, "reading", piece)
                    _publish(connection, "insulin", doses[given:upto])
                given = max(given, upto)
                self.bars.fill("readings", start + len(piece))
            _publish(connection, "insulin", [*doses[given:], (0, _END, 0)])
            _publish(connection, "reading", [(0, _END, 0)])
        with psycopg.connect(self.exchange.dsn(), autocommit=True) as connection:
            for start in range(0, len(quotes), _PIECE):
                _publish(connection, "quote", quotes[start : start + _PIECE])
                self.bars.fill("quotes", min(start + _PIECE, len(quotes)))
            _publish(connection, "quote", [("none", _END, 0)])
        sites = {"alert": self.hospital, "recovery": self.exchange}
        counters = {name: Counter(site, None, _TABLES[name], [0]) for name, site in sites.items()}
        counts = {each.subscription: each.count for each in wanted}
        settle(
            [self.home, self.hospital, self.exchange],
            counters,
            counts,
            lambda: self.bars.fill_all({name: counter.look() for name, counter in counters.items()}),
        )

    def _received(self, wanted: Wanted) -> dict[str, list[Key]]:
        site = self.hospital if wanted.subscription == "alert" else self.exchange
        received: dict[str, list[Key]] = {}
        with psycopg.connect(site.dsn()) as connection:
            for who, *event in connection.execute(_TABLES[wanted.subscription]):
                received.setdefault(who, []).append((who, *event))
        return received


def _publish(connection: psycopg.Connection, event_type: str, rows: Sequence[Row]) -> None:
    if rows:
        connection.execute(_INSERT[event_type], [list(column) for column in zip(*rows, strict=True)])
