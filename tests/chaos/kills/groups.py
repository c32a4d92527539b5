"""Process groups of one broker under load, and kill -9 of whatever belongs to it: server, sessions, workers, members.

Three groups of three members each: of a spool that keeps its messages, of one that may forget them in a crash, and of
one that is so narrow that it drops its oldest. Between the kills pointers move, and messages are discarded, replayed
and cancelled. Afterwards all is counted.
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from pgps.errors import StartFailed
from tests.chaos.kills import count
from tests.chaos.kills.members import CHECKPOINT, SCHEMA, Members
from tests.chaos.kills.senders import ORDERINGS, Sender
from tests.chaos.kills.story import Outcome, fails, kill_one
from tests.fix_broker import call, rows, value
from tests.fix_db import wait_until
from tests.fix_spools import pattern_call
from tests.links.fleet import Fleet, Member
from tests.links.storm.crew import Crew

KEPT, LOOSE, NARROW = "kept", "loose", "narrow"
SPOOLS: dict[str, dict[str, Any]] = {
    KEPT: {},
    LOOSE: {"persistent": False},
    NARROW: {"max_messages": 60, "on_limit": "drop_oldest"},
}
GROUPS = {spool: [f"{spool}_{name}" for name in ("anna", "bert", "carl")] for spool in SPOOLS}
WORKERS = ("first", "second")
TARGETS = {"server": 2, "session": 2, "ended": 2, "worker": 3, "member": 5}
PATTERNS: tuple[dict[str, Any], ...] = (
    {"keys": '{"who": [1, 2]}'},
    {"keywords": ["even"]},
    {"seqn": "[5,80]"},
    {"keys": '{"n": [10, null]}', "keywords": ["odd"]},
    {"spooled_ago": ["1 hour", "1 second"]},
)
DISCARDS: tuple[dict[str, Any], ...] = ({"keys": {"who": [1, 2]}}, {"keywords": ["even"]}, {})
STILL, BOUND = 60.0, 180.0


def furnish(connection: psycopg.Connection) -> None:
    """Make tables and spools."""
    for statement in SCHEMA.split(";\n"):
        if statement.strip():
            rows(connection, statement)
    for spool, options in SPOOLS.items():
        call(connection, "create_spool", spool, **options)


class Story:
    """A broker, its workers, senders and members, and what is done to them."""

    def __init__(self, fleet: Fleet, crew: Crew, seed: int, kills: int, rate: float) -> None:
        self.site = fleet.sites[0]
        self.crew, self.seed, self.left = crew, seed, kills
        self.chance = random.Random(f"groups/{seed}")
        self.outcome = Outcome(seed)
        self.broker: Member = fleet.broker("a", site=self.site, template=self.site.template("groups_template", furnish))
        self.members = Members(self.broker.dsn, seed)
        # A transaction has five messages on average, and waits half of the pause.
        pause = 2 * 5 * len(ORDERINGS) / rate
        self.senders = [Sender(self.broker.dsn, n, seed, tuple(SPOOLS), pause) for n in range(len(ORDERINGS))]
        self.began = self.calm_since = time.monotonic()

    def start(self) -> None:
        """Start what does not run."""
        for worker in WORKERS:
            self.crew.start(worker, self.broker.dsn)
        for spool, members in GROUPS.items():
            for member in members:
                self.members.start(spool, member)

    def play(self) -> None:
        """Spool, and kill one after the other."""
        self.start()
        for spool, members in GROUPS.items():
            query = "select count(*) = %s from pgps.group_members where group_name = %s and present"
            wait_until(lambda: value(self.broker.admin, query, [len(members), spool]), what="members that join")  # noqa: B023
        for sender in self.senders:
            sender.start()
        try:
            while self.left > 0:
                self._let_send(self.chance.uniform(0.1, 1.0))
                for _ in range(self.chance.randint(0, 3)):
                    self._disturb()
                what = self.chance.choices(list(TARGETS), list(TARGETS.values()))[0]
                self._tell(f"kill {getattr(self, f'_kill_{what}')()}")
                self.outcome.kills[what] = self.outcome.kills.get(what, 0) + 1
                self.left -= 1
                self.start()
            self._let_send(0.5)
        finally:
            for sender in self.senders:
                sender.ending.set()
            for sender in self.senders:
                sender.join()

    def _let_send(self, seconds: float) -> None:
        """Wait until each sender has committed some more."""
        wanted = [len(sender.committed) + round(10 * seconds) for sender in self.senders]
        wait_until(
            lambda: all(len(s.committed) >= n for s, n in zip(self.senders, wanted, strict=True)),
            timeout=BOUND,
            what="messages that are spooled",
        )

    def _tell(self, what: str) -> None:
        self.outcome.told.append(f"{time.monotonic() - self.began:6.2f} {what}")

    def _disturb(self) -> None:
        """Do something with a spool beside the load."""
        spool = self.chance.choice(list(SPOOLS))
        step: Callable[[str], str] = self.chance.choice(
            [self._advance, self._advance, self._discard, self._checkpoint, self._replay, self._hold, self._reclaim]
        )
        try:
            self._tell(f"{spool}: {step(spool)}")
        except psycopg.Error as error:
            self.outcome.problems.append(f"{spool}: {step.__name__}: {error.sqlstate} {error}")

    def _advance(self, spool: str) -> str:
        """Move the replay pointer to what all members have processed, if that is ahead."""
        query = """
            select min(upto) from (select coalesce(max(g.seqn) filter (where g.entry is not null and not in_replay), 0)
                as upto from unnest(%s::text[]) m left join siege.got g on g.member = m group by m) x
            """
        processed = value(self.broker.admin, query, [GROUPS[spool]])
        query = "select coalesce(replay_pointer, 0) from pgps.spools where name = %s"
        if processed > value(self.broker.admin, query, [spool]):
            with contextlib.suppress(psycopg.errors.InvalidParameterValue):
                # One that was set before is dispatched only now, or the spool has forgotten its messages in a crash.
                call(self.broker.admin, "spool_set_replay_pointer", spool, processed)
        return f"the replay pointer to {processed}"

    def _discard(self, spool: str) -> str:
        pattern = self.chance.choice(PATTERNS)
        return f"discard {pattern}: {pattern_call(self.broker.admin, 'spool_discard', spool, **pattern)}"

    def _checkpoint(self, spool: str) -> str:
        """Discard a part and store a checkpoint, as a rule at the end.

        Not while the replay pointer is unset: then nothing can be replayed, and a checkpoint is as new as everything.
        """
        query = "select replay_pointer is not null from pgps.spools where name = %s"
        if not value(self.broker.admin, query, [spool]):
            return "no checkpoint yet"
        function, where = self.chance.choice([("spool_and_discard", "back")] * 2 + [("prepend_and_discard", "front")])
        who = f"{where}/{len(self.outcome.told)}"
        message, discard = json.dumps({"who": who}), json.dumps(self.chance.choice(DISCARDS))
        admin = self.broker.admin
        with admin.transaction():
            request = call(admin, function, spool, CHECKPOINT, message, discard=discard)
            rows(admin, "insert into siege.sent values (%s, %s, %s, %s)", [spool, CHECKPOINT, request, who])
        return f"checkpoint at the {where}"

    def _replay(self, spool: str) -> str:
        if self.chance.random() < 0.3:
            call(self.broker.admin, "spool_set_checkpoint_pointer", spool, None)
        pattern = self.chance.choice(PATTERNS)
        return f"replay {pattern}: {pattern_call(self.broker.admin, 'spool_replay', spool, **pattern)}"

    def _hold(self, spool: str) -> str:
        """Switch play-through off for a while."""
        call(self.broker.admin, "spool_play_through", spool, play=False)
        self._let_send(0.1)
        call(self.broker.admin, "spool_play_through", spool, play=True)
        return "play-through off and on"

    def _reclaim(self, spool: str) -> str:
        return f"reclaim: {value(self.broker.admin, 'select count(*) from (select pgps.reclaim()) r')}"

    def _kill_server(self) -> str:
        self.site.cluster.kill9()
        wait_until(self._started, what="the server starts")
        self._reopen()
        return "server"

    def _started(self) -> bool:
        # On a busy machine processes of the server that was killed may still be about to end.
        with contextlib.suppress(StartFailed):
            self.site.cluster.start()
            return True
        return False

    def _victim(self) -> tuple[int, str]:
        query = """
            select pid, concat_ws(', ', nullif(application_name, ''), state, left(query, 60)) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
            order by application_name, pid
            """
        pid, what = self.chance.choice(rows(self.broker.admin, query))
        return pid, what

    def _kill_session(self) -> str:
        """Kill a session's process: the server restarts all, since shared memory may be damaged."""
        what = kill_one(self._victim)
        wait_until(lambda: fails(lambda: self.broker.admin.execute("select")), what="the end of the old session")
        self._reopen()
        return f"session: {what}"

    def _kill_ended(self) -> str:
        """End a session, wherever it is."""
        pid, what = self._victim()
        rows(self.broker.admin, "select pg_terminate_backend(%s)", [pid])
        return f"no more than the session: {what}"

    def _kill_worker(self) -> str:
        worker = self.chance.choice(WORKERS)
        self.crew.kill(worker)
        return f"worker {worker}"

    def _kill_member(self) -> str:
        """Kill a member, or all members of a group."""
        spool = self.chance.choice(list(GROUPS))
        gone = GROUPS[spool] if self.chance.random() < 0.2 else [self.chance.choice(GROUPS[spool])]
        for member in gone:
            self.members.kill(spool, member)
        return ", ".join(gone)

    def _reopen(self) -> None:
        wait_until(lambda: not fails(self.broker.reopen), what="the server, which is to come back")
        self.calm_since = time.monotonic()

    def _lacking(self) -> list[str]:
        """Say what is still to come: all that is kept, and of the loose spool what was sent after the last crash."""
        admin = self.broker.admin
        kept, loose, narrow = (count.read(admin, spool, members) for spool, members in GROUPS.items())
        surely = {
            one
            for sender in self.senders
            for sent in sender.committed
            if sent.began > self.calm_since
            for one in sent.requests.get(LOOSE, ())
        }
        reached = [max([n.seqn for n in narrow.got[member]], default=0) >= narrow.last for member in narrow.got]
        told = [] if all(reached) else [f"not all of {NARROW} are at its end"]
        return [*count.lacking(kept, kept.requests), *count.lacking(loose, surely & set(loose.requests)), *told]

    def rest(self) -> None:
        """Wait until all has arrived that has to, or nothing moves any more."""
        began = moved = time.monotonic()
        seen = -1

        def rests() -> bool:
            nonlocal seen, moved
            now = value(self.broker.admin, "select count(*) from siege.got")
            if now != seen:
                seen, moved = now, time.monotonic()
            return not self._lacking() or time.monotonic() > min(moved + STILL, began + BOUND)

        wait_until(rests, timeout=BOUND + STILL)
        self.outcome.problems += self._lacking()

    def compare(self) -> None:
        """Compare what everybody has noted with what was committed."""
        sent = [one for sender in self.senders for one in sender.committed]
        for spool, members in GROUPS.items():
            notes = count.read(self.broker.admin, spool, members)
            found = [*count.wrong(notes), *count.sparse(notes, kept=spool != LOOSE), *count.disordered(notes, sent)]
            self.outcome.problems += found + (list(count.untold(notes)) if spool == NARROW else [])
            self.outcome.events += len(notes.requests)
            self.outcome.deliveries += sum(len(got) for got in notes.got.values())
        self.outcome.problems += [said for sender in self.senders for said in sender.problems]

    def replay(self) -> None:
        """Replay by patterns once more, now that nobody is killed, and compare with what is in the spool."""
        admin = self.broker.admin
        call(admin, "spool_set_checkpoint_pointer", KEPT, None)
        self._advance(KEPT)
        wanted: list[tuple[dict[str, object], Callable[[dict[str, object]], bool]]] = [
            ({"keywords": ["answer"]}, lambda message: "to" in message),
            ({}, lambda message: True),
        ]
        ended = "select count(*) from siege.got where spool = %s and message ? 'replay'"
        for pattern, matches in wanted:
            before = {member: len(got) for member, got in count.read(admin, KEPT, GROUPS[KEPT]).got.items()}
            markers = value(admin, ended, [KEPT])
            pattern_call(admin, "spool_replay", KEPT, **pattern)
            wait_until(lambda: value(admin, ended, [KEPT]) >= markers + len(before), what="the end of a replay")  # noqa: B023
            self.outcome.problems += count.replayed(count.read(admin, KEPT, GROUPS[KEPT]), before, matches)


def tell(fleet: Fleet, seed: int, *, kills: int = 12, rate: float = 150.0) -> Outcome:
    """Play the story of a seed on the first server of a fleet, which is empty afterwards."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pgps-groups-") as directory:
        crew = Crew(Path(directory))
        story = Story(fleet, crew, seed, kills, rate)
        try:
            story.play()
            story.rest()
            story.compare()
            story.replay()
            if not story.outcome.is_clean:
                for worker in WORKERS:
                    log = crew.log(worker)
                    story.outcome.told += log.read_text(errors="replace").splitlines()[-100:] if log.exists() else []
        finally:
            story.members.kill_all()
            crew.close()
            fleet.clear()
    story.outcome.seconds = time.monotonic() - started
    return story.outcome
