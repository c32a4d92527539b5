"""What sessions and worker were told: errors with their codes, statements that take too long, deadlocks.

Most errors are a user's own: who publishes a type that has just been dropped is told so. What names something internal,
or says that something inside went wrong, is a trouble.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.chaos.churn.stage import PATIENCE, Stage
from tests.fix_broker import Rows, rows

OWN = {
    "42704": r"^(event type|(internal )?subscription) \".*\" does not exist",
    "42710": r"exists already$",
    "42P01": r"^relation \"pgps_event\.p\w+\" does not exist",
    "2BP01": r"^event type \".*\" cannot be dropped: ",
    "55P03": r"^event type ((\"\w+\"(, )?)+) is (being changed or dropped|used by)",
    "55000": r"is (paused|suspended|internal)|is not advertised|not (been )?received|not hold|^the lease has ended",
    "P0001": r"^this callback fails now and then$",
    "57014": r"^canceling statement due to user request$",
}
"""What may be said to whom: the code, and what the message is like."""

INTERNAL = re.compile(
    r"pgps_internal|violates|cache lookup|could not open|cannot be formatted|\b\w+_(log|kept|audit|entry)(_\d)?\b|"
    r"\b(unfold|match|visible|part_ids|callback|const|position)_\d+|Traceback|failed; again"
)
"""What a line of the worker's log is a trouble for."""

BATCHES = "lock table only pgps_internal.batch in share row exclusive mode"
"""What every dispatcher locks first, and holds until its transaction ends."""

_LINE = re.compile(
    r"^\S+ \S+ \S+ \[(\d+)\] (\w{5}) (.*?) ?(ERROR|FATAL|PANIC|DETAIL|HINT|CONTEXT|STATEMENT|\w+):  (.*)$"
)


@dataclass
class Said:
    """An error in the server's log, with what stands below it; `who` is the session's application."""

    pid: str
    code: str
    who: str
    message: str
    below: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """What it counts as: own, deadlock, late or internal, or again: the worker tries again by itself."""
        if self.code == "40P01":
            return "again" if self.who.startswith("pgps-worker/") else "deadlock"
        if self.code == "57014" and "statement timeout" in self.message:
            # The worker asks slow filters for as long as lane_timeout says; others wait for what they have asked for.
            is_slow = re.search("/(slow-)?lane", self.who) or any("churn.slow(" in line for line in self.below)
            return "own" if is_slow else "late"
        if self.code == "55P03" and "/dispatcher" in self.who and any(BATCHES in line for line in self.below):
            # It waits for who dispatches by hand, who asks slow filters meanwhile, and tries again.
            return "own"
        wanted = OWN.get(self.code)
        return "own" if wanted and re.search(wanted, self.message) else "internal"

    @property
    def key(self) -> str:
        """The error without numbers and names, so that those of one kind are counted together."""
        who = re.sub(r"[-/].*", "", self.who) or "?"
        return f"{self.code} {alike(self.message)} (of {who})"


def alike(text: str) -> str:
    """Return a message without what differs each time: numbers, and names of types that have them."""
    return re.sub(r"\bp\d+(?=_|\b)", "pN", re.sub(r"(?<![a-z\d])\d+(\.\d+)?", "N", text))


def read_log(path: Path, since: int) -> list[Said]:
    """Read the errors in a server's log from an offset on."""
    found: list[Said] = []
    open_: dict[str, Said] = {}
    with path.open(errors="replace") as log:
        log.seek(since)
        pid = ""
        for line in log:
            parsed = _LINE.match(line)
            if parsed is None:
                if pid in open_ and open_[pid].below:
                    open_[pid].below[-1] += " " + line.strip()
                continue
            pid, code, who, level, text = parsed.groups()
            if level in {"ERROR", "FATAL", "PANIC"}:
                open_[pid] = Said(pid, code, who, text)
                found.append(open_[pid])
            elif level in {"DETAIL", "HINT", "CONTEXT", "STATEMENT"} and pid in open_:
                open_[pid].below.append(f"{level}: {text}")
            else:
                open_.pop(pid, None)
    return found


def read_worker(path: Path) -> Iterator[str]:
    """Yield the warnings and errors of a worker's log."""
    for line in path.read_text(errors="replace").splitlines():
        if not line.startswith("{"):
            yield line
            continue
        said = json.loads(line)
        if said["level"] in {"warning", "error", "critical"}:
            last = said.get("exception", "").strip().splitlines()[-1:]
            yield " ".join([f"{said['level']} {said['logger']}: {said['message']}", *last])


@dataclass
class Troubles:
    """What was said in a story: how often each is in `counts`, with an example of each."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, kind: str, key: str, example: Iterable[str] = ()) -> None:
        """Count what was said once more."""
        self.counts.setdefault(kind, Counter())[key] += 1
        self.examples.setdefault(key, list(example))

    def note_errors(self, errors: Iterable[Said]) -> None:
        """Count the errors of a server's log."""
        for said in errors:
            self.note(said.kind, said.key, [f"{said.who}: {said.message}", *(below[:1200] for below in said.below)])

    def note_worker(self, lines: Iterable[str]) -> None:
        """Count what a worker has logged."""
        for line in lines:
            self.note("internal" if INTERNAL.search(line) else "worker", f"worker: {alike(line)[:300]}", [line[:2000]])

    @property
    def bad(self) -> dict[str, int]:
        """What nobody is to see: how often."""
        return {key: count for kind in ("internal", "late") for key, count in self.counts.get(kind, {}).items()}

    @property
    def deadlocks(self) -> int:
        return sum(self.counts.get("deadlock", {}).values())

    def report(self) -> list[str]:
        """Everything in lines, with an example of what is no user's own."""
        said = []
        for kind in ("internal", "late", "deadlock", "again", "worker", "own"):
            for key, count in sorted(self.counts.get(kind, {}).items(), key=lambda one: -one[1]):
                said.append(f"{kind} {count} x {key}")
                if kind != "own":
                    said += [f"        {line}" for line in self.examples[key]]
        return said


class Watch(threading.Thread):
    """Looks again and again: who waits long and for whom, which types are set aside, which batches there are."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(name="watch", daemon=True)
        self.stage = stage
        self.longest: dict[str, tuple[float, list[str]]] = {}
        self._ending = threading.Event()
        self._batch = 0
        self._broken: set[str] = set()

    def run(self) -> None:
        with self.stage.session("watch") as connection:
            while not self._ending.wait(0.25):
                try:
                    self.look(connection)
                except psycopg.Error as error:
                    self.stage.tell(f"watch: {error}")

    def end(self) -> None:
        """Look once more, and end."""
        self._ending.set()
        self.join(2 * PATIENCE)

    def _note_broken(self, found: Rows) -> None:
        """Note what must not be, once each."""
        for (said,) in found:
            if said not in self._broken:
                self._broken.add(said)
                self.stage.tell(said)
                self.stage.broken.append(said)

    def look(self, connection: psycopg.Connection) -> None:
        """Look once."""
        query = """
            with fresh as (insert into churn.batch select b.batch_id, b.ids from pgps_internal.batch_type b
                where b.batch_id > %s returning batch_id)
            select coalesce(max(f.batch_id), %s) from fresh f
            """
        self._batch = rows(connection, query, [self._batch, self._batch])[0][0]
        for (name,) in rows(connection, "delete from churn.aside returning name"):
            self.stage.tell(f"{name} is set aside")
            self.stage.truth.set_aside.add(name)
        query = """
            select format('%s is a member of %s in the classes %s', s.name, t.name, array_agg(m.class_id))
            from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)
            join pgps_internal.event_type t on t.type_id = m.type_id
            group by s.name, t.name having count(*) > 1
            """
        self._note_broken(rows(connection, query))
        # Its filter fits all types, so whatever it is, it is nothing that should leave it without the type for good.
        query = """
            select format('%s is left without a type: %s', s.name, s.last_error) from pgps_internal.subscription s
            where s.is_pattern and s.last_error like 'event type %'
            """
        self._note_broken(rows(connection, query))
        query = """
            select a.application_name, extract(epoch from clock_timestamp() - a.query_start)::float8, a.query,
                a.wait_event, array(select concat_ws(' ', b.application_name, b.state, left(b.query, 200))
                    from pg_stat_activity b where b.pid = any (pg_blocking_pids(a.pid)))
            from pg_stat_activity a
            where a.state = 'active'
                -- The dispatcher gives up after two seconds.
                and clock_timestamp() - a.query_start > case when a.application_name like '%/dispatcher'
                    then interval '1 second' else '2 seconds' end
                and a.datname = current_database() and a.pid <> pg_backend_pid()
            """
        for who, seconds, statement, event, by in rows(connection, query):
            key = f"{re.sub('[-/].*', '', who)}: {alike(statement)[:80]}"
            if seconds > self.longest.get(key, (0.0, []))[0]:
                at = f"at {time.time() - self.stage.began:.2f} {who} waits for {event}: {statement[:300]}"
                self.longest[key] = (seconds, [at, *(f"behind {one}" for one in by)])
