"""The group at work: updates come, all three members are killed, they come back; overseas a contact point dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg.types.json import Jsonb
from rich.console import Console
from rich.text import Text

import pgps_demo
from pgps_demo.data import Data
from pgps_demo.display import Steps
from pgps_demo.group.directory import REPORT, expect, updates
from pgps_demo.network.bars import Bars
from pgps_demo.network.site import Server, Site, at_once, running, wait_for
from pgps_demo.report import plain_table, show_title

__all__ = ["run"]

GROUP, OVERSEAS = "directory", "overseas"
PICTURE = """\
  paris ─┐                       ┌─ york ── follower, until york's server is killed
  oslo ──┼─ home ══ long haul ═══┤
  rome ──┘                       └─ bath ── follower, from then on"""
_MEMBERS = ("paris", "oslo", "rome")
_PIECE = 200
_KILL, _BACK = 0.3, 0.6
_LOOK_EVERY = 0.25
_ACKED: LiteralString = """
    select coalesce(max(acked_seqn), 0) as acked from pgps.group_members where group_name = %s and member = %s
"""
_SPOOL: LiteralString = "select cardinality(pgps.spool_many(%s, %s)) as sent"


@dataclass(slots=True)
class _Life:
    """A process of a member; each life has a name of its own, since its memory is new."""

    site: Site
    member: str
    file: Path
    process: subprocess.Popen[bytes]


def run(data: Data, steps: Steps, out: Console, *, speed: float) -> dict[str, Any]:
    """Run it and return the result for programs."""
    servers = [Server("home"), Server("york")]
    sites = [Site("home", servers[0]), Site("york", servers[1]), Site("bath", servers[0])]
    with running(servers, sites), tempfile.TemporaryDirectory(prefix="pgps-demo-") as place:
        show_title(steps.console, "A process group that recovers, and a network overseas")
        steps.console.print(PICTURE)
        with steps.step("two private PostgreSQL servers, three databases with pgps"):
            at_once(lambda site: site.server.start(site.name), sites[:2])
            with servers[0].cluster.connect() as connection:
                connection.execute("create database bath template home")
        return _Run(sites, steps, out, data, speed, Path(place)).all()


def _environment() -> dict[str, str]:
    """Return the environment of a member: the demonstration is no installed package, so it is told where it is."""
    places = [str(Path(pgps_demo.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


@dataclass
class _Run:
    """One run."""

    sites: list[Site]
    steps: Steps
    out: Console
    data: Data
    speed: float
    place: Path
    lives: dict[str, _Life] = field(default_factory=dict)
    lived: int = 0
    sent: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home, self.york, self.bath = self.sites
        self.updates = list(updates(self.data.quotes))

    def all(self) -> dict[str, Any]:
        """Do everything, and compare what the members hold with what plain Python makes of the raw data."""
        try:
            self._prepare()
            self._play()
            reports = self._reports()
        finally:
            for life in self.lives.values():
                life.process.kill()
                life.process.wait()
        expected = expect(self.data.quotes)
        found = [
            {
                "member": name,
                "entries": len(report["entries"]),
                "expected": len(expected),
                "wrong": len(report["entries"].items() ^ expected.items()),
                "replayed": report["replayed"],
                "new": report["new"],
                "ok": report["entries"] == expected,
            }
            for name, report in reports.items()
        ]
        self._show(found)
        return {
            "ok": all(each["ok"] for each in found),
            "updates": len(self.updates),
            "members": found,
            **self.told,
        }

    # -- the scene ----------------------------------------------------------

    def _prepare(self) -> None:
        with self.steps.step("spools made, a pgps-worker for each database, three members and a follower started"):
            for site in (self.home, self.york):
                site.call("create role broker_worker login", role="postgres")
                site.call("grant pgps_worker to broker_worker", role="postgres")
            for site in self.sites:
                site.call("select pgps.create_spool(%s)", [GROUP], role="postgres")
            contacts = [site.dsn("broker_worker") for site in (self.york, self.bath)]
            self.home.call("select pgps.create_network(%s, %s)", [OVERSEAS, contacts], role="postgres")
            for site in self.sites:
                site.start_worker()
            for member in _MEMBERS:
                self._start(member, self.home)
            self._start("follower", self.york)
            wait_for(self._are_present, self.sites, "members that have joined")

    def _start(self, member: str, site: Site) -> None:
        self.lived += 1
        file = self.place / f"{member}-{self.lived}.json"
        command = [
            sys.executable,
            "-m",
            "pgps_demo.group.member",
            site.dsn(),
            GROUP,
            f"{member}_{self.lived}",
            str(file),
        ]
        if member == "paris":
            command += ["checkpoints", str(max(len(self.updates) // 16, 1)), str(len(_MEMBERS))]
        with (self.place / f"{member}-{self.lived}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=_environment(), start_new_session=True)
        self.lives[member] = _Life(site, f"{member}_{self.lived}", file, process)

    def _are_present(self) -> Any:
        """Return True when all that were started have joined."""
        found = {
            row["member"]
            for site in {life.site.name: life.site for life in self.lives.values()}.values()
            for row in site.rows("select member from pgps.group_members where present", role="postgres")
        }
        for life in self.lives.values():
            if life.process.poll() is not None:
                log = life.file.with_suffix(".log")
                raise RuntimeError(f"{life.member} ended: {log.read_text()}")
        return {life.member for life in self.lives.values()} <= found or found

    # -- the play -----------------------------------------------------------

    def _play(self) -> None:
        total = len(self.updates)
        arriving = [(name, "at home", total) for name in _MEMBERS] + [("follower", "overseas", total)]
        kill, back = round(total * _KILL), round(total * _BACK)
        with Bars(self.steps.console, [("updates", "2 networks", total)], arriving) as self.bars:
            self._spool(self.updates[:kill])
            wait_for(self._has_checkpoint, self.sites, "a checkpoint")
            # All three die; what was spooled for them waits, and so does what is spooled now.
            for member in _MEMBERS:
                self.lives[member].process.kill()
            self.bars.say("all three members are killed, with all they had in their memory; updates go on")
            self._spool(self.updates[kill:back])
            self.york.server.cluster.kill9()
            self.york.worker.stop()
            self.bars.say("york's server is killed: the follower starts anew at bath, which has everything, too")
            self.lives.pop("follower").process.kill()
            # What the dead have asked for takes effect before they come back.
            self.home.call("select pgps.dispatch()", role="postgres")
            for member in _MEMBERS:
                self._start(member, self.home)
            self._start("follower", self.bath)
            self.sites = [self.home, self.bath]
            wait_for(self._are_present, self.sites, "members that are back")
            self.bars.say("the members are back, with a replay of what the group has processed")
            self._spool(self.updates[back:])
            wait_for(lambda: self._watch() or dict(self.counts), self.sites, "the last update")

    def _has_checkpoint(self) -> Any:
        """Return True when one is in the spool: at the front, where numbers go down from -1."""
        self._watch()
        query: LiteralString = "select checkpoint_pointer, last_seqn from pgps.spools where name = %s"
        row = self.home.rows(query, [GROUP], role="postgres")[0]
        self.told["checkpoints"] = -(row["checkpoint_pointer"] or 0)
        return self.told["checkpoints"] > 0 or (row, dict(self.counts))

    def _spool(self, messages: Sequence[tuple[int, dict[str, str]]]) -> None:
        began, done, looked = time.monotonic(), 0, 0.0
        left = iter(messages)
        with psycopg.connect(self.home.dsn(), autocommit=True) as connection:
            while piece := list(islice(left, _PIECE)):
                # For the group at home, and for the one overseas, in one transaction.
                both = [
                    {"entry": entry, "message": message, "network": network}
                    for network in ("local", OVERSEAS)
                    for entry, message in piece
                ]
                connection.execute(_SPOOL, [GROUP, Jsonb(both)])
                done += len(piece)
                self.sent += len(piece)
                if time.monotonic() - looked > _LOOK_EVERY:
                    self._watch()
                    looked = time.monotonic()
                if self.speed:
                    time.sleep(max(0.0, began + done / self.speed - time.monotonic()))

    def _watch(self) -> bool:
        """Fill the bars; return True when all members that live have everything."""
        for member, life in self.lives.items():
            if life.process.poll() is None:
                self.counts[member] = life.site.rows(_ACKED, [GROUP, life.member], role="postgres")[0]["acked"]
        self.bars.fill_all({"updates": self.sent} | self.counts)
        return all(count >= len(self.updates) for count in self.counts.values())

    def _reports(self) -> dict[str, Any]:
        """Let each member write what it holds, and read it."""
        both = [{"entry": REPORT, "message": None, "network": network} for network in ("local", OVERSEAS)]
        self.home.call(_SPOOL, [GROUP, Jsonb(both)], role="postgres")
        lives = self.lives

        def there() -> Any:
            found = [name for name, life in lives.items() if life.file.exists()]
            return len(found) == len(lives) or found

        with self.steps.step("each member says what it holds"):
            wait_for(there, self.sites, "reports")
            self._has_checkpoint()
        return {name: json.loads(life.file.read_text()) for name, life in lives.items()}

    def _show(self, found: Sequence[dict[str, Any]]) -> None:
        show_title(self.out, "What each member holds, against what plain Python makes of the raw data")
        table = plain_table(
            "member", "replayed", "came as new", "entries", "expected", "wrong", right=[False] + [True] * 5
        )
        for each in found:
            mark = ("✓ ", "bold green") if each["ok"] else ("✗ ", "bold red")
            table.add_row(
                Text.assemble(mark, each["member"]),
                *(f"{each[key]:,}" for key in ("replayed", "new", "entries", "expected", "wrong")),
            )
        self.out.print(table)
