"""The healthcare network at work: measurements come in, a broker is killed, a link is cut, and all arrives once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
from rich.console import Console

from pgps_demo.data import Data, Reading
from pgps_demo.display import Steps
from pgps_demo.expect import Key, Wanted
from pgps_demo.network import show, withheld
from pgps_demo.network.bars import Bars
from pgps_demo.network.healthcare import PICTURE, PROFESSIONS, TABLES, Healthcare, expect
from pgps_demo.network.site import Site, running, wait_for
from pgps_demo.network.standing import Counter, in_force, settle
from pgps_demo.network.withheld import Finding
from pgps_demo.prove import Verdict, judge
from pgps_demo.report import show_title, show_verdicts, verdict_dicts

__all__ = ["run"]

_SIZES = (1, 5, 20, 60, 150)
_LOOK_EVERY = 0.25
_INSERT: LiteralString = """
    insert into home.measurement (patient, taken_at, glucose, isig)
    select * from unnest(%s::integer[], %s::timestamp[], %s::integer[], %s::numeric[])
"""
_LAG: LiteralString = "select name, state, lag_events, filters_sent, filters_received from pgps.links where name = %s"
_SENT: LiteralString = "select name, events_sent, filters_sent, filters_received from pgps.links order by name"
_ADVERTISED: LiteralString = "select event_type from pgps.advertisements where via is not null order by event_type"
# What each domain hears of from its neighbours.
_HEARD = {
    "hospital": ["reading"],
    "pharmacy": ["dispensing"],
    "auditor": ["anonymous_reading", "prescription_record"],
}
# The failures are caused when these shares of the events have been published.
_KILLED, _STARTED, _CUT = 0.2, 0.35, 0.6


def run(data: Data, steps: Steps, out: Console, *, speed: float, seed: int) -> dict[str, Any]:
    """Run the network and return the result for programs."""
    network = Healthcare()
    sites = list(network.sites.values())
    with running([site.server for site in sites], sites):
        show_title(steps.console, "Four linked brokers: home, hospital, pharmacy, auditor")
        steps.console.print(PICTURE)
        with steps.step("four private PostgreSQL servers with pgps"):
            network.start()
        with steps.step("roles, event types, policies, rules and links made"):
            network.build()
        with steps.step("a pgps-worker for each; links up, advertisements spread") as notes:
            for site in sites:
                site.start_worker()
            wait_for(lambda: _heard(network), sites, "advertisements")
            notes.append(f"processes {', '.join(str(site.worker.pid) for site in sites)}")
        with steps.step("global subscriptions made; their filters in force where the events come from"):
            for name in _HEARD:
                network.subscribe(name)
            wait_for(lambda: _in_force(network), sites, "filters to be in force")
        return _Run(network, steps, out, data, speed, random.Random(f"network {seed}")).all()  # noqa: S311 - nothing secret


def _heard(network: Healthcare) -> Any:
    heard = {name: [row["event_type"] for row in network.sites[name].rows(_ADVERTISED)] for name in _HEARD}
    return heard == _HEARD or heard


def _in_force(network: Healthcare) -> Any:
    pairs = (("hospital", "home"), ("pharmacy", "hospital"), ("auditor", "hospital"))
    found = [in_force(network.sites[site], origin) for site, origin in pairs]
    return found == [1, 1, 2] or found


def _are_up(network: Healthcare) -> Any:
    states = [row["state"] for site in network.sites.values() for row in site.rows("select state from pgps.links")]
    return all(state == "up" for state in states) or states


@dataclass
class _Run:
    """One run of the network."""

    network: Healthcare
    steps: Steps
    out: Console
    data: Data
    speed: float
    chance: random.Random
    published: int = 0
    mishaps: dict[str, Any] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.wanted = expect(self.data)
        self.counters = {
            each.subscription: Counter(self.network.sites[each.owner], PROFESSIONS[each.owner], query, [0])
            for each in self.wanted
            for query in [TABLES[each.subscription]]
        }

    def all(self) -> dict[str, Any]:
        """Publish, disturb, prove, search; return the result for programs."""
        self._play()
        verdicts = [judge(each, self._received(each)) for each in self.wanted]
        show_title(self.out, "What each domain has, against what plain Python makes of the raw data")
        show_verdicts(self.out, verdicts)
        links = self._links()
        show_title(self.out, "What has crossed each link")
        show.show_links(self.out, links)
        findings, searched = withheld.search(self.network)
        show_title(self.out, "What may not be known: searched for in every row and in every byte of the servers' files")
        show.show_findings(self.out, findings, searched)
        return self._result(verdicts, links, findings, searched)

    def _result(
        self,
        verdicts: Sequence[Verdict],
        links: list[dict[str, Any]],
        findings: Sequence[Finding],
        searched: dict[str, dict[str, int]],
    ) -> dict[str, Any]:
        return {
            "ok": all([v.ok for v in verdicts] + [f.ok for f in findings] + [link["ok"] for link in links])
            and self._was_disturbed(),
            "published": self.published,
            "mishaps": self.mishaps,
            "subscriptions": verdict_dicts(verdicts),
            "links": links,
            "withheld": [finding.dict() for finding in findings],
            "searched": searched,
        }

    def _was_disturbed(self) -> bool:
        """Return whether the server was another process afterwards, and events waited at the cut link."""
        was_cut: bool = self.mishaps["waited_at_cut_link"] > 0
        return was_cut and self.mishaps["killed"] != self.mishaps["started"]

    # -- the play -----------------------------------------------------------

    def _play(self) -> None:
        published = [("measurements", "home", len(self.data.readings))]
        arriving = [(each.subscription, each.owner, each.count) for each in self.wanted]
        with Bars(self.steps.console, published, arriving) as self.bars:
            readings, total = self.data.readings, len(self.data.readings)
            parts = [round(total * share) for share in (0, _KILLED, _STARTED, _CUT, 1)]
            with psycopg.connect(self.network.sites["home"].dsn("nurse"), autocommit=True) as nurse:
                self._publish(nurse, readings[: parts[1]])
                restart = self._in_background(self._kill)
                self._publish(nurse, readings[parts[1] : parts[3]])
                restart.join()
                self._raise_errors()
                wait_for(lambda: _are_up(self.network), self._sites, "the links after the kill")
                wait_for(self._has_come("assess", parts[3]), self._sites, "what was published meanwhile")
                self._cut()
                self._publish(nurse, readings[parts[3] :])
            wait_for(self._has_come("assess", total), self._sites, "the hospital")
            self._mend()
            settle(self._sites, self.counters, {each.subscription: each.count for each in self.wanted}, self._watch)

    @property
    def _sites(self) -> list[Site]:
        return list(self.network.sites.values())

    def _publish(self, nurse: psycopg.Connection, readings: Sequence[Reading]) -> None:
        began, done, looked = time.monotonic(), 0, 0.0
        for piece in self._pieces(readings):
            columns = [
                [r.patient for r in piece],
                [r.taken_at for r in piece],
                [r.glucose for r in piece],
                [r.isig for r in piece],
            ]
            nurse.execute(_INSERT, columns)
            done += len(piece)
            self.published += len(piece)
            if time.monotonic() - looked > _LOOK_EVERY:
                self._watch()
                looked = time.monotonic()
            if self.speed:
                time.sleep(max(0.0, began + done / self.speed - time.monotonic()))
        self._watch()

    def _pieces(self, readings: Sequence[Reading]) -> Iterator[Sequence[Reading]]:
        place = 0
        while place < len(readings):
            size = self.chance.choice(_SIZES)
            yield readings[place : place + size]
            place += size

    def _watch(self) -> None:
        counts = {name: counter.look() for name, counter in self.counters.items()}
        self.bars.fill_all({"measurements": self.published, **counts})

    def _has_come(self, subscription: str, place: int) -> Callable[[], Any]:
        """Return a function that tells whether a subscriber has all that it wants of the first `place` readings."""
        part = Data(self.data.readings[:place], [])
        count = next(each.count for each in expect(part) if each.subscription == subscription)

        def look() -> Any:
            self._watch()
            return self.counters[subscription].last[0] >= count or self.counters[subscription].last[0]

        return look

    # -- what is done to the network ----------------------------------------

    def _in_background(self, do: Callable[[], None]) -> threading.Thread:
        def caught() -> None:
            try:
                do()
            except BaseException as error:  # raised in the main thread
                self.errors.append(error)

        thread = threading.Thread(target=caught, name=do.__name__)
        thread.start()
        return thread

    def _raise_errors(self) -> None:
        if self.errors:
            raise self.errors[0]

    def _kill(self) -> None:
        cluster = self.network.sites["hospital"].server.cluster
        self.mishaps["killed"] = cluster.pid
        cluster.kill9()
        self.bars.say(f"kill -9 {self.mishaps['killed']}: the hospital's server is gone; measurements go on")
        while self.published < len(self.data.readings) * _STARTED:
            time.sleep(_LOOK_EVERY)
        cluster.start()
        self.mishaps["started"] = cluster.pid
        self.bars.say(f"started again, process {cluster.pid}; its worker and its neighbours come back by themselves")

    def _cut(self) -> None:
        self.network.sites["hospital"].call("select pgps.alter_link('auditor', enabled => false)")
        wait_for(lambda: self._link("auditor")["state"] == "paused", self._sites, "the cut")
        self.bars.say("the link from the hospital to the auditor is cut; measurements go on")

    def _mend(self) -> None:
        self.mishaps["waited_at_cut_link"] = self._link("auditor")["lag_events"]
        self.network.sites["hospital"].call("select pgps.alter_link('auditor', enabled => true)")
        self.bars.say(
            f"mended: {self.mishaps['waited_at_cut_link']:,} events have waited for the auditor at the hospital"
        )

    def _link(self, name: str) -> dict[str, Any]:
        return self.network.sites["hospital"].rows(_LAG, [name])[0]

    # -- the proof ----------------------------------------------------------

    def _received(self, wanted: Wanted) -> dict[str, list[Key]]:
        counter = self.counters[wanted.subscription]
        (publisher,) = wanted.events
        with psycopg.connect(counter.site.dsn(counter.role)) as connection:
            return {publisher: [tuple(row) for row in connection.execute(counter.query.encode()).fetchall()]}

    def _links(self) -> list[dict[str, Any]]:
        """Return how many events crossed each link, and how many should have: each that is wanted behind it, once."""
        wanted = {each.subscription: each.count for each in self.wanted}
        should = {
            ("home", "hospital"): wanted["assess"],
            ("hospital", "home"): 0,
            ("hospital", "pharmacy"): wanted["dispense"],
            ("hospital", "auditor"): wanted["keep"] + wanted["note"],
        }
        found = []
        for (one, other), expected in should.items():
            row = next(row for row in self.network.sites[one].rows(_SENT) if row["name"].startswith(other))
            found.append(
                {
                    "from": one,
                    "to": other,
                    "events": row["events_sent"],
                    "expected": expected,
                    "ok": row["events_sent"] == expected,
                }
            )
        return found
