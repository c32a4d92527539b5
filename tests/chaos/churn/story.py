"""A story: build, let everybody go on for a while, wait for rest, publish a last round, compare."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.churn.changes import Slots, Subscriptions, Types
from tests.chaos.churn.consume import Consumer
from tests.chaos.churn.publish import Publisher, Writer
from tests.chaos.churn.stage import BOSS, MAKER, OWNERS, PATIENCE, Player, Stage, furnish
from tests.chaos.churn.troubles import Troubles, Watch, read_log, read_worker
from tests.chaos.churn.truth import FILTERS, Finding, Got, Kind, Life, Span
from tests.fix_broker import call, column, rows
from tests.fix_db import wait_until
from tests.fix_worker import Workers
from tests.links.fleet import Fleet, Member

SLOTS = 8
WITNESS = "witness"
STILL, BOUND = 15.0, 60.0


@dataclass
class Outcome:
    """What came of a story."""

    seed: int
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    troubles: Troubles = field(default_factory=Troubles)
    about: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, repeated or out of order, and nobody was told what is none of his business."""
        return not (self.findings or self.problems or self.troubles.bad or self.troubles.deadlocks)

    @property
    def result(self) -> str:
        """The outcome in a few words."""
        wrong = [f"{len(one.ns)} {one.kind} at {one.subscription}" for one in self.findings]
        wrong += self.problems
        wrong += [f"{count} x {key[:160]}" for key, count in self.troubles.bad.items()]
        wrong += [f"{self.troubles.deadlocks} deadlocks"] if self.troubles.deadlocks else []
        return "; ".join(wrong) or "clean"

    @property
    def line(self) -> str:
        """The outcome in one line."""
        counts = ", ".join(
            f"{self.counts.get(what, 0)} {what}" for what in ("events", "deliveries", "types", "changes")
        )
        return f"seed {self.seed}: {counts}, {self.seconds:.0f} s: {self.result}"

    def as_json(self) -> dict[str, Any]:
        """The outcome for programs."""
        return {
            "seed": self.seed, "result": self.result, "counts": self.counts, "seconds": round(self.seconds, 1),
            "findings": [vars(one) for one in self.findings], "problems": self.problems,
            "troubles": {kind: dict(counts) for kind, counts in self.troubles.counts.items()},
        }  # fmt: skip

    def report(self) -> str:
        """The outcome as text, with what was found and the story."""
        found = [f"{one.kind} at {one.subscription} (life {one.life}) of {one.type}: {one.said} {one.ns[:40]}"
                 for one in self.findings]  # fmt: skip
        parts = [found, self.about, self.problems, self.troubles.report(), self.waits, self.told]
        return "\n".join([self.line, *(line for part in parts for line in ["", *part]), ""])


class Story:
    """A broker with its worker, and all who use it."""

    def __init__(self, fleet: Fleet, workers: Workers, seed: int, seconds: float, rate: float) -> None:
        site = fleet.sites[0]
        self.log, self.since = site.log, site.log.stat().st_size
        member: Member = fleet.broker("a", site=site, template=site.template("churn_template", furnish))
        self.stage, self.workers, self.seconds, self.rate = Stage(member, seed), workers, seconds, rate
        self.outcome = Outcome(seed)
        self.watch = Watch(self.stage)
        self.changing: list[Player] = []
        self.consumers: list[Consumer] = []

    def play(self) -> None:
        """Let everybody go on for a while; who consumes goes on behind that."""
        stage = self.stage
        query = "select name, endpoint::oid::bigint from pgps_internal.event_type where name !~ '^pgps_'"
        stage.types = {name: Kind(name, oid) for name, oid in rows(stage.member.admin, query)}
        self.workers(stage.member.dsn)
        self._witness()
        names = [f"s{number}" for number in range(1, SLOTS + 1)]
        slots = Slots(names)
        self.changing = [Publisher(stage, number, self.rate / 3) for number in (1, 2, 3)]
        self.changing += [Types(stage, number) for number in (1, 2)]
        self.changing += [Subscriptions(stage, number, slots) for number in (1, 2, 3)]
        self.consumers = [Consumer(stage, name, number) for name in names for number in (1, 2)]
        self.consumers.append(Consumer(stage, WITNESS, 1))
        stage.began = time.time()
        for player in [self.watch, *self.changing, *self.consumers]:
            player.start()
        stage.ending.wait(self.seconds)
        for player in self.changing:
            player.end()
        self.outcome.problems += [f"{player.who} does not end" for player in self.changing if player.is_alive()]
        stage.tell("quiet")

    def _witness(self) -> None:
        """Make a subscription that gets everything, and that nobody changes: it tells the order of delivery."""
        life = Life(0, WITNESS, "p*", "all", "now", OWNERS[0])
        with contextlib.closing(self.stage.session("witness", OWNERS[0])) as session:
            began = time.time()
            call(session, "subscribe", WITNESS, "p*")
            rows(session, "insert into churn.life values (%s, 0)", [WITNESS])
            life.made = Span(began, time.time())
        life.filters.append((life.made, "any"))
        self.stage.lives[0] = life

    def mend(self) -> None:
        """Let everything go on that was paused, suspended or has failed."""
        with contextlib.closing(self.stage.session("mend", BOSS)) as boss:
            rows(boss, "update churn.pace set seconds = 0")
            for name in column(boss, "select name from pgps.subscriptions where max_backlog is not null"):
                call(boss, "alter_subscription", name, on_backlog="keep")
            for name, state in rows(boss, "select name, state from pgps.subscriptions where state <> 'active'"):
                self.stage.tell(f"{name} is {state}")
                call(boss, "resume", name)
            for name in column(boss, "select distinct event_type from pgps.exceptions where state = 'failed'"):
                self.stage.tell(f"{call(boss, 'retry_exception', name)} of {name} are retried")

    def rest(self, when: str) -> None:
        """Wait until all is consumed, or nothing moves any more."""
        admin = self.stage.member.admin
        query = """
            select (select coalesce(sum(a.waiting), 0) from pgps.activity a),
                (select coalesce(sum(s.depth + s.retrying + s.failed), 0) from pgps.subscriptions s),
                (select coalesce(sum(l.lag_batches + l.joining), 0) from pgps.lanes l), (select count(*) from churn.got)
            """
        began = moved = mended = time.monotonic()
        seen: tuple[int, ...] = ()
        self.mend()

        def rests() -> bool:
            nonlocal seen, moved, mended
            if time.monotonic() > mended + 1.0:
                self.mend()
                mended = time.monotonic()
            now = rows(admin, query)[0]
            if now != seen:
                seen, moved = now, time.monotonic()
            return not any(seen[:3]) or time.monotonic() > min(moved + STILL, began + BOUND)

        wait_until(rests, timeout=BOUND + STILL)
        self.stage.tell(f"rests {when}: {seen}")
        if any(seen[:3]):
            said = f"{seen[0]} events wait for dispatch, {seen[1]} deliveries, {seen[2]} batches for lanes"
            self.outcome.problems.append(f"no rest {when}: {said}")
            query = "select name, state, depth, retrying, failed, last_error from pgps.subscriptions order by name"
            self.stage.told += [str(row) for row in rows(admin, query)]
            self.stage.told += [str(row) for row in rows(admin, "select * from pgps.lanes")]

    def last_round(self) -> None:
        """Publish some events of each type, now that nothing changes any more."""
        writer = Writer(self.stage, 200, self.stage.chance("last round"))
        with contextlib.closing(self.stage.session("last-round", MAKER)) as session:
            for name in self.stage.types:
                rows(session, "begin")
                writer.commit(session, writer.write(session, name, 10))

    def compare_lists(self) -> None:
        """Compare which types and subscriptions there are with those that there must be."""
        admin = self.stage.member.admin
        types = set(column(admin, "select name from pgps.event_types where name !~ '^pgps_'"))
        wanted = set(self.stage.types)
        if types != wanted:
            self.outcome.problems.append(f"types {sorted(types)}, not {sorted(wanted)}")
        query = "select name, owner::text, coalesce(filter, ''), state from pgps.subscriptions"
        there = {tuple(row) for row in rows(admin, query)}
        known = {(one.name, one.owner, FILTERS[one.filter][0] or "", "active") for one in self.stage.there()}
        self.outcome.problems += [f"is there, and should not: {one}" for one in sorted(there - known)]
        self.outcome.problems += [f"is not there: {one}" for one in sorted(known - there)]

    def compare(self) -> None:
        """Compare what everybody has processed with what was committed."""
        stage, admin = self.stage, self.stage.member.admin
        self.compare_lists()
        stage.read_journal()
        for life, n, event_id, at in rows(admin, "select life, n, event_id, at from churn.got order by place"):
            stage.lives[life].got.append(Got(n, event_id or 0, at))
        query = """
            select g.n, max(b.batch_id), g.event_id
            from (select distinct n, event_id from churn.got where event_id is not null) g
            join churn.batch b on g.event_id <@ b.ids group by g.n, g.event_id
            """
        for n, batch, event_id in rows(admin, query):
            stage.truth.places[n] = (batch, event_id)
        for one in stage.lives.values():
            if one.mode == "called":
                one.put_back |= {n for n in stage.truth.events if n % 23 == 0}
            found = stage.truth.check(one)
            self.outcome.findings += found
            for finding in found:
                self.outcome.about.append(f"{finding.kind} at {one.name} (life {one.number}) of {finding.type}:")
                self.outcome.about += [f"    {stage.truth.about(n, one, stage.began)}" for n in finding.ns[:8]]
        self.outcome.problems += stage.broken
        places = len(stage.truth.places)
        lives = [one for one in stage.lives.values() if one.filters]
        self.outcome.counts = {
            "events": len(stage.truth.events), "deliveries": sum(len(one.got) for one in lives), "lives": len(lives),
            "types": len(stage.truth.dropped) + len(stage.types), "places": places, "changes": sum(
                stage.counts[what] for what in ("filter", "owner", "both", "seek", "pause", "again", "subscribe",
                                                "unsubscribe", "limit")),
            "set aside": len(stage.truth.set_aside), "deadlocks": self.outcome.troubles.deadlocks,
        }  # fmt: skip

    def close(self) -> None:
        """End everybody."""
        for player in [*self.changing, *self.consumers]:
            player.end()
        self.watch.end()


def tell(
    fleet: Fleet,
    seed: int,
    *,
    seconds: float = 15.0,
    rate: float = 60.0,
    say: Callable[[str], None] = lambda what: None,
    logs: Path | None = None,
) -> Outcome:
    """Play the story of a seed on the first server of a fleet, which is empty afterwards.

    `logs`: where the worker's log is kept.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pgps-churn-") as directory:
        workers = Workers(Path(directory))
        story = Story(fleet, workers, seed, seconds, rate)
        outcome = story.outcome
        try:
            say("play")
            story.play()
            say("rest")
            story.rest("after the changes")
            story.last_round()
            story.rest("after a last round")
            say("compare")
            story.close()
            outcome.troubles.note_errors(read_log(story.log, story.since))
            worker = Path(directory) / "w1.log"
            outcome.troubles.note_worker(read_worker(worker))
            story.compare()
            if logs is not None:
                shutil.copy(worker, logs / f"churn-{seed}-worker.log")
        finally:
            story.close()
            workers.close()
            fleet.clear()
            outcome.told = [f"{what}: {count}" for what, count in sorted(story.stage.counts.items())] + story.stage.told
            _tell_waits(outcome, story.watch)
    outcome.seconds = time.monotonic() - started
    return outcome


def _tell_waits(outcome: Outcome, watch: Watch) -> None:
    """Tell who has waited long; what took longer than anybody's transaction stays open is a trouble."""
    for key, (seconds, by) in sorted(watch.longest.items(), key=lambda one: -one[1][0]):
        outcome.waits += [f"waited {seconds:.1f} s: {key}", *(f"        {line}" for line in by)]
        if seconds > PATIENCE and not key.startswith("types: select pgps.drop_event_type"):
            outcome.troubles.note("late", f"waited for more than {PATIENCE:g} s: {key}", by)
