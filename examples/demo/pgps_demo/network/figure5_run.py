"""The six databases at work: step by step as the paper's text has it, then events, and a link that breaks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, LiteralString

import psycopg
from rich.console import Console

from pgps_demo.data import Data, Quote
from pgps_demo.display import Steps
from pgps_demo.expect import Key, Wanted
from pgps_demo.network import show
from pgps_demo.network.bars import Bars
from pgps_demo.network.figure5 import PICTURE, STAGES, TABLES, Figure5, Stage, crossing, expect, home_of
from pgps_demo.network.site import Site, running, wait_for
from pgps_demo.network.standing import Counter, settle
from pgps_demo.prove import judge
from pgps_demo.report import show_title, show_verdicts, verdict_dicts

__all__ = ["run"]

_PIECE = 40
_CUT = 0.4
_LOOK_EVERY = 0.25
_ADVERTISED: LiteralString = "select origin, via from pgps.advertisements where via is not null"
_FILTERS: LiteralString = "select neighbour, sent_filters, received_filters from pgps.link_details order by neighbour"
_IN_FORCE: LiteralString = """
    select origin, filters_in_force from pgps.routes where is_parent and origin in ('db_1', 'db_2') order by origin
"""
_SENT: LiteralString = "select neighbour, events_sent from pgps.links"
_INSERT: dict[str, LiteralString] = {
    "db_1": """
        insert into pgps_event.quote (symbol, day, open, close, volume)
        select * from unnest(%s::text[], %s::date[], %s::numeric[], %s::numeric[], %s::bigint[])""",
    "db_2": """
        insert into app.trade (symbol, day, open, close, volume)
        select * from unnest(%s::text[], %s::date[], %s::numeric[], %s::numeric[], %s::bigint[])""",
}
_RECEIVE: LiteralString = """
    insert into app.received (subscription, symbol, day, volume)
    select %(name)s, r.payload ->> 'symbol', (r.payload ->> 'day')::date, (r.payload ->> 'volume')::bigint
    from pgps.receive(%(name)s, 5000) with ordinality r order by r.ordinality
"""
_TERMINATE: LiteralString = """
    select count(pg_terminate_backend(pid)) as connections from pg_stat_activity
    where application_name = 'pgps-worker/db_3/link-db_4'
"""


def run(data: Data, steps: Steps, out: Console, *, speed: float) -> dict[str, Any]:
    """Run the network and return the result for programs."""
    network = Figure5()
    sites = list(network.sites.values())
    with running([network.server], sites):
        show_title(steps.console, "Six linked databases: the paper's figure 5")
        steps.console.print(PICTURE)
        with steps.step("a private PostgreSQL server, six databases with pgps"):
            network.start()
        with steps.step("links made, a pgps-worker for each database"):
            network.build()
        return _Run(network, steps, out, data, speed).all()


@dataclass
class _Run:
    """One run of the network."""

    network: Figure5
    steps: Steps
    out: Console
    data: Data
    speed: float
    published: dict[str, int] = field(default_factory=lambda: {"db_1": 0, "db_2": 0})
    cut: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wanted = expect(self.data)
        self.counters = {
            name: Counter(self.network.sites["db_6" if name == "s_6" else "db_3"], "app", query, [0])
            for name, query in TABLES.items()
        }

    def all(self) -> dict[str, Any]:
        """Advertise, subscribe, publish, prove; return the result for programs."""
        states = [self._stage(stage) for stage in STAGES]
        self._play()
        verdicts = [judge(each, self._received(each)) for each in self.wanted]
        # Advertisements and filters that came over a link are kept when its connections end.
        states.append({**self._state(STAGES[-1]), "name": "after", "says": "after the break: as before"})
        show_title(self.out, "What each database has stored, against the paper's text")
        show.show_states(self.out, states)
        show.show_brokers(self.out, states[-1], self._covered())
        show_title(self.out, "What the subscriptions have, against what plain Python makes of the raw data")
        show_verdicts(self.out, verdicts)
        links = self._links()
        show_title(self.out, "What has crossed each link")
        show.show_links(self.out, links)
        return {
            "ok": all([each.ok for each in verdicts] + [each["ok"] for each in [*states, *links]])
            and self.cut["connections"] > 0,
            "published": self.published,
            "cut": self.cut,
            "states": states,
            "covered": self._covered(),
            "subscriptions": verdict_dicts(verdicts),
            "links": links,
        }

    @property
    def _sites(self) -> list[Site]:
        return list(self.network.sites.values())

    # -- what the text says -------------------------------------------------

    def _stage(self, stage: Stage) -> dict[str, Any]:
        with self.steps.step(stage.says):
            self.network.do(stage)
            wait_for(lambda: self._has_spread(stage), self._sites, stage.says)
        return self._state(stage)

    def _has_spread(self, stage: Stage) -> Any:
        """Return True when a step has spread: all databases know of it, or the filter is in force at the publishers."""
        if stage.name in ("a_1", "a_2"):
            origin = {"a_1": "db_1", "a_2": "db_2"}[stage.name]
            heard = [site.name for site in self._sites if origin in {row["origin"] for row in site.rows(_ADVERTISED)}]
            return len(heard) == len(self._sites) - 1 or heard
        site = self.network.sites["db_6" if stage.name == "s_6" else "db_3"]
        in_force = site.rows(_IN_FORCE)
        wanted = {"s_6": 1, "s_3": 2, "covered": 3}[stage.name]
        return [len(row["filters_in_force"]) for row in in_force] == [wanted, wanted] or in_force

    def _state(self, stage: Stage) -> dict[str, Any]:
        """Return what each database has stored, and whether it agrees with the text."""
        advertised = {site.name: sorted({row["via"] for row in site.rows(_ADVERTISED)}) for site in self._sites}
        filters, sent = dict[str, dict[str, list[str]]](), dict[str, dict[str, list[str]]]()
        for site in self._sites:
            for row in site.rows(_FILTERS):
                if row["received_filters"]:
                    filters.setdefault(site.name, {})[row["neighbour"]] = _bare(row["received_filters"])
                if row["sent_filters"]:
                    sent.setdefault(site.name, {})[row["neighbour"]] = _bare(row["sent_filters"])
        stored = {(name, of): set(texts) for name, by in filters.items() for of, texts in by.items()}
        told = {(of, name): set(texts) for name, by in sent.items() for of, texts in by.items()}
        known = {name: set(via) for name, via in advertised.items() if via}
        return {
            "name": stage.name,
            "says": stage.says,
            "advertised_by": advertised,
            "filters_received": filters,
            "filters_sent": sent,
            "ok": known == stage.advertised and stored == told == stage.filters,
        }

    def _covered(self) -> dict[str, list[str]]:
        """Return the filters in force at the publishers that were not sent, because another one implies them."""
        covered = {}
        for site in self._sites:
            sent = {text for row in site.rows(_FILTERS) for text in row["sent_filters"]}
            in_force = {text for row in site.rows(_IN_FORCE) for text in row["filters_in_force"]}
            covered[site.name] = _bare(sorted(in_force - sent))
        return covered

    # -- the play -----------------------------------------------------------

    def _play(self) -> None:
        totals = {name: sum(home_of(quote) == name for quote in self.data.quotes) for name in self.published}
        published = [
            (f"quotes of {name.upper()}", who, totals[name]) for name, who in (("db_1", "App_1"), ("db_2", "rule"))
        ]
        arriving = [(each.subscription, each.owner, each.count) for each in self.wanted]
        with Bars(self.steps.console, published, arriving) as self.bars, contextlib.ExitStack() as stack:
            connections = {
                name: stack.enter_context(psycopg.connect(self.network.sites[name].dsn("app"), autocommit=True))
                for name in self.published
            }
            place = round(len(self.data.quotes) * _CUT)
            self._publish(connections, self.data.quotes[:place])
            self.cut = dict(self.network.sites["db_3"].rows(_TERMINATE, role="postgres")[0])
            self.bars.say(f"{self.cut['connections']} connections of the link from DB_3 to DB_4 are cut; quotes go on")
            self._publish(connections, self.data.quotes[place:])
            settle(self._sites, self.counters, {each.subscription: each.count for each in self.wanted}, self._watch)

    def _publish(self, connections: Mapping[str, psycopg.Connection], quotes: Sequence[Quote]) -> None:
        began, done, looked = time.monotonic(), 0, 0.0
        left = iter(quotes)
        while piece := list(islice(left, _PIECE)):
            for name, connection in connections.items():
                mine = [(q.symbol, q.day, q.open, q.close, q.volume) for q in piece if home_of(q) == name]
                if mine:
                    connection.execute(_INSERT[name], [list(column) for column in zip(*mine, strict=True)])
                    self.published[name] += len(mine)
            done += len(piece)
            if time.monotonic() - looked > _LOOK_EVERY:
                self._watch()
                looked = time.monotonic()
            if self.speed:
                time.sleep(max(0.0, began + done / self.speed - time.monotonic()))

    def _watch(self) -> None:
        """Let App_3 receive, and fill the bars."""
        with psycopg.connect(self.network.sites["db_3"].dsn("app"), autocommit=True) as connection:
            for name in ("s_3", "s_3_high"):
                with connection.transaction():
                    connection.execute(_RECEIVE, {"name": name})
                    connection.execute("select pgps.ack(%s)", [name])
        counts = {name: counter.look() for name, counter in self.counters.items()}
        self.bars.fill_all({f"quotes of {name.upper()}": count for name, count in self.published.items()} | counts)

    # -- the proof ----------------------------------------------------------

    def _received(self, wanted: Wanted) -> dict[str, list[Key]]:
        received: dict[str, list[Key]] = {}
        counter = self.counters[wanted.subscription]
        with psycopg.connect(counter.site.dsn(counter.role)) as connection:
            for row in connection.execute(counter.query.encode()):
                received.setdefault("db_2" if row[0] == "IBM" else "db_1", []).append(tuple(row))
        return received

    def _links(self) -> list[dict[str, Any]]:
        """Return how many events have crossed each link, and how many should have."""
        sent = {(site.name, row["neighbour"]): row["events_sent"] for site in self._sites for row in site.rows(_SENT)}
        return [
            {
                "from": one,
                "to": other,
                "events": sent[one, other],
                "expected": expected,
                "ok": sent[one, other] == expected,
            }
            for (one, other), expected in crossing(self.data).items()
        ]


def _bare(filters: Sequence[str]) -> list[str]:
    return [text.removeprefix("quote: ") for text in filters]
