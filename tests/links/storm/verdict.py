"""The result of a story, with everything that is needed to find out why it is so."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.fix_broker import rows, value
from tests.links.storm.truth import Event, Finding
from tests.links.storm.world import World

STILL = 15.0
"""Seconds without any movement after which what is not at rest will not be."""
BOUND = 240.0
_EXPLAINED = 3
_LOGGED = 25


@dataclass
class Verdict:
    """The result of a story."""

    seed: int
    name: str
    command: str
    script: str
    began: float = 0.0
    took: float = 0.0
    published: int = 0
    deliveries: int = 0
    subscriptions: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds until the network was built, settled, stormed over, and at rest."""
    findings: list[Finding] = field(default_factory=list)
    late: list[Finding] = field(default_factory=list)
    """What came only when there was traffic again."""
    problems: list[str] = field(default_factory=list)
    """Links that do not come up, brokers that stay behind, gaps: also without a lost event."""
    remarks: list[str] = field(default_factory=list)
    """What is not right, and harms no event: deadlocks."""
    windows: list[str] = field(default_factory=list)
    explained: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)
    audit: list[dict[str, Any]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    """What the workers complained of."""
    sessions: list[str] = field(default_factory=list)
    """What every broker's sessions did when it should have been at rest, and was not."""

    @property
    def is_clean(self) -> bool:
        return not (self.findings or self.late or self.problems)

    def count(self, kind: str) -> int:
        """Return how many deliveries are wrong in one way."""
        return sum(len(finding.ns) for finding in self.findings if finding.kind == kind)

    @property
    def line(self) -> str:
        """Return the result in one line."""
        phases = ", ".join(f"{name} {took:.0f}" for name, took in self.phases.items())
        told = (
            f"seed {self.seed} {self.name}: {self.published} events, {self.deliveries} deliveries,"
            f" {self.took:.0f} s ({phases})"
        )
        if self.remarks:
            told = f"{told}, {sum('deadlock detected' in said for said in self.remarks)} times a deadlock was noted"
        if self.is_clean:
            return f"{told}: clean"
        kinds = {finding.kind: self.count(finding.kind) for finding in self.findings}
        wrong = [f"{count} {kind}" for kind, count in kinds.items()]
        wrong += [f"{sum(len(one.ns) for one in self.late)} late"] if self.late else []
        return f"{told}: {', '.join([*wrong, *self.problems[:3]])}"

    def as_json(self) -> dict[str, Any]:
        """Return the result as a dictionary that can be written as JSON."""
        return {"clean": self.is_clean, "line": self.line, **dataclasses.asdict(self)}

    def report(self) -> str:
        """Return the result as text, with the findings and the steps that were done."""
        parts = [self.line, f"again: {self.command}", ""]
        for title, lines in (
            ("what is wrong", [*self.windows, *self.problems]),
            ("remarks", self.remarks),
            ("the first of them", [_indented(one) for one in self.explained]),
            ("links that are not as they should be", [str(one) for one in self.links if _is_odd(one)]),
            ("the audit says", [str(one) for one in self.audit]),
            ("the story", self.told),
            ("sessions when all should have been at rest", self.sessions),
            ("the workers say", self.logs),
        ):
            if lines:
                parts += [f"-- {title}", *lines, ""]
        return "\n".join(parts)


def _is_odd(link: dict[str, Any]) -> bool:
    return bool(link["state"] != "up" or link["lag_events"] or link["refused"] or link["gaps"] or link["last_error"])


def _indented(one: dict[str, Any]) -> str:
    return "\n".join(f"  {key}: {said}" for key, said in one.items())


def snapshot(world: World) -> dict[str, Any]:
    """Return figures of every broker that change as long as any event or message is on its way."""
    query = """
        select (select json_agg(json_build_array(l.name, l.state, l.lag_events, l.events_sent, l.events_received)
                    order by l.name) from pgps.links l),
            (select json_agg(json_build_array(s.name, s.depth) order by s.name) from pgps.subscriptions s),
            (select coalesce(sum(a.waiting), 0) from pgps.activity a), (select count(*) from storm.got),
            (select json_agg(json_build_array(o.name, o.epoch, o.rewind_from) order by o.origin_id)
                from pgps_internal.origin o where o.rewind_from is not null)
    """
    return {name: rows(member.admin, query)[0] for name, member in world.members.items()}


def unrest(world: World, seen: dict[str, Any]) -> list[str]:
    """Return what is not as it must be when the network is at rest."""
    called = {one.name for one in world.subscriptions if one.is_called}
    said = []
    for name, (links, subscriptions, waiting, _, rewinds) in seen.items():
        for link, state, lag, *_ in links or []:
            if state != "up":
                said.append(f"link {link} at {name} is {state}")
            elif lag:
                said.append(f"{lag} events wait for link {link} at {name}")
        for subscription, depth in subscriptions or []:
            if subscription in called and depth:
                said.append(f"subscription {subscription} at {name} has not got {depth} events")
        if waiting:
            said.append(f"{waiting} events at {name} wait for dispatch")
        for origin, epoch, begins in rewinds or []:
            said.append(f"{name} fetches {origin}'s events (epoch {epoch}) once more, from batch {begins} on")
    return said


def rest(world: World, *, quiet: float, still: float = STILL, bound: float = BOUND) -> list[str]:
    """Wait until nothing has changed for a while; return what is not as it should be then.

    It goes on waiting as long as something changes, and gives up when nothing has changed for `still` seconds, or after
    `bound` seconds in all.
    """
    began = moved = time.monotonic()
    before: dict[str, Any] = {}
    while True:
        world.do_undone()
        if not world.undone:
            # Steps that were done late may have taken links away again.
            world.mend()
        seen = snapshot(world)
        now = time.monotonic()
        if seen != before:
            moved, before = now, seen
        said = [f"cannot be done: {step}" for step in world.undone] + unrest(world, seen)
        if now - moved >= (still if said else quiet) or now - began > bound:
            return said
        time.sleep(0.25)  # between two looks, which are work for all brokers


def look(world: World, verdict: Verdict) -> list[Finding]:
    """Read what every subscription has, and compare it with what it must have."""
    for name in world.members:
        world.note_own(name)
    found = world.truth.never_handed_out()
    for subscription in world.subscriptions:
        world.read(subscription)
    for subscription in world.subscriptions + world.ended:
        found += world.truth.check(subscription)
    verdict.published = len(world.truth.events)
    verdict.subscriptions = len(world.subscriptions) + len(world.ended)
    verdict.deliveries = sum(len(one.got) for one in world.subscriptions + world.ended)
    return found


def gather(world: World, verdict: Verdict) -> None:
    """Add to the verdict all details that help to find the cause."""
    for name, member in world.members.items():
        query = "select to_jsonb(l) - 'hint' || jsonb_build_object('at', %s::text) from pgps.links l order by l.name"
        verdict.links += [row[0] for row in rows(member.admin, query, [name])]
        if value(member.admin, "select to_regprocedure('pgps.audit()') is not null"):
            with contextlib.suppress(psycopg.Error):
                query = "select to_jsonb(a) || jsonb_build_object('at', %s::text) from pgps.audit() a"
                verdict.audit += [row[0] for row in rows(member.admin, query, [name])]
    verdict.logs = complaints(world)
    for finding in verdict.findings + verdict.late:
        verdict.windows.append(_window(world, finding, is_late=finding in verdict.late))
    for finding in [one for one in verdict.findings + verdict.late if one.ns][:_EXPLAINED]:
        verdict.explained += [_explained(world, finding, n) for n in finding.ns[:_EXPLAINED]]


_ROUTES = {
    "origin, epoch, parent, attachment, answered, rewound from, horizon": """
        select o.name, o.epoch, n.name, o.attachment, o.answered, o.rewind_from, pgps_internal.horizon(o.origin_id)
        from pgps_internal.origin o left join pgps_internal.neighbour n on n.neighbour_id = o.parent order by 1, 2
        """,
    "neighbour, draining, has sent all, wanted, told of origins, of last words": """
        select n.name, n.is_draining, n.has_sent_all,
            (select count(*) from pgps_internal.wanted w where w.neighbour_id = n.neighbour_id),
            (select array_agg(concat(o.name, ' ', o.epoch, ' ', t.value ->> 'attachment'))
                from pgps_internal.told t join pgps_internal.origin o on o.origin_id::text = t.key
                where t.neighbour_id = n.neighbour_id and t.kind = 'attach'),
            (select array_agg(t.kind) from pgps_internal.told t
                where t.neighbour_id = n.neighbour_id and t.kind in ('drain', 'drained'))
        from pgps_internal.neighbour n order by 1
        """,
    "attached, origin, epoch, attachment, horizon, live, keep, missing": """
        select n.name, o.name, o.epoch, a.attachment, a.horizon, a.is_live, a.keep, a.missing
        from pgps_internal.attached a join pgps_internal.neighbour n using (neighbour_id)
            join pgps_internal.origin o using (origin_id)
        order by 1, 2, 3
        """,
}


def routes(world: World) -> list[str]:
    """Return what a link that does not work may be waiting for: parents, attachments, and the last messages."""
    said = []
    for name, member in world.members.items():
        for what, query in _ROUTES.items():
            said.append(f"{name}: {what}")
            said += [f"  {row}" for row in rows(member.admin, query)]
    return said


def sessions(world: World) -> list[str]:
    """Return what the sessions at every broker do, and for which other sessions they wait."""
    query = """
        select a.pid, a.application_name, a.state, concat_ws(' ', a.wait_event_type, a.wait_event),
            pg_blocking_pids(a.pid), round(extract(epoch from clock_timestamp() - a.state_change)::numeric, 1),
            left(regexp_replace(a.query, '[[:space:]]+', ' ', 'g'), 120)
        from pg_stat_activity a
        where a.datname = current_database() and a.pid <> pg_backend_pid()
            and (a.state <> 'idle' or a.application_name like '%/link%') order by a.application_name
    """
    return [f"{name}: {' | '.join(map(str, row))}" for name, member in world.members.items()
            for row in rows(member.admin, query)]  # fmt: skip


def complaints(world: World) -> list[str]:
    """Return the last warnings and errors in the logs of the workers."""
    found = []
    for name in world.members:
        log = world.crew.log(name)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        said = [line for line in lines if " INFO " not in line and " DEBUG " not in line]
        found += [f"{name}: {line[:300]}" for line in said[-_LOGGED:]]
    return found


def deadlocks(world: World) -> list[str]:
    """Return the deadlocks that broke links; the links reconnect, so a deadlock costs time and no events."""
    logs = {name: world.crew.log(name) for name in world.members}
    return [*_deadlocks_of_servers(world)] + [
        f"{name}: {line[:200]}"
        for name, log in logs.items()
        if log.exists()
        for line in log.read_text(errors="replace").splitlines()
        if "deadlock detected" in line and " WARNING " in line
    ]


def _deadlocks_of_servers(world: World) -> Iterator[str]:
    """Yield what the servers say of each deadlock: which sessions waited for which locks, in which statements."""
    for number, site in enumerate(world.fleet.sites):
        with site.log.open(errors="replace") as log:
            log.seek(world.server_logs.get(site, 0))
            found = False
            for line in log:
                if " ERROR: " in line:
                    found = "deadlock detected" in line
                elif not re.search("DETAIL|CONTEXT|STATEMENT|HINT", line) and not line.startswith("\t"):
                    found = False
                if found:
                    yield f"server {number}: {line.rstrip()[:300]}"


def told(world: World) -> list[str]:
    """Return the steps that were done."""
    return [f"{one.at:6.2f} {one.text}{f'   ({one.outcome})' if one.outcome else ''}" for one in world.told]


def _window(world: World, finding: Finding, *, is_late: bool) -> str:
    events = [world.truth.events[n] for n in finding.ns if n in world.truth.events]
    subscription = next((one for one in world.subscriptions + world.ended if one.name == finding.subscription
                         and one.broker == finding.broker), None)  # fmt: skip
    of = f"({subscription.pattern}, {subscription.filter})" if subscription else ""
    return (
        f"{len(finding.ns)} {'late' if is_late else finding.kind} at {finding.broker}: {finding.subscription} {of}"
        f" of {finding.type} from {finding.home}, {finding.said}; {_span(world, events)}"
    )


def _span(world: World, events: Iterable[Event]) -> str:
    found = sorted(events, key=lambda event: event.at)
    if not found:
        return "of nobody"
    first, last = found[0], found[-1]
    return (
        f"n {first.n} to {last.n}, published from {first.at - world.began:.2f} s to {last.at - world.began:.2f} s"
        f" by producers {sorted({event.producer for event in found})[:6]}"
    )


def _explained(world: World, finding: Finding, n: int) -> dict[str, Any]:
    """Return where an event is, and how the broker explains that a subscription lacks it."""
    event = world.truth.events.get(n)
    said: dict[str, Any] = {"subscription": f"{finding.subscription} at {finding.broker}", "event": str(event)}
    if event is None:
        return said
    where: dict[str, int] = {}
    for name, member in world.members.items():
        with contextlib.suppress(psycopg.Error):
            query = f"select event_id from pgps_queue.{event.type}_in where n = %s"
            for (found,) in rows(member.admin, query, [n]):
                where[name] = found
    said["in the in queues of (event id)"] = where
    admin = world.members[finding.broker].admin
    if finding.broker in where:
        with contextlib.suppress(psycopg.Error):
            steps = rows(admin, "select step, outcome from pgps.explain(%s, %s)",
                         [finding.subscription, where[finding.broker]])  # fmt: skip
            said["explain"] = "; ".join(f"{step}: {outcome}" for step, outcome in steps)
    with contextlib.suppress(psycopg.Error):
        query = "select neighbour, path, is_parent, event_types, filters_in_force from pgps.routes where origin = %s"
        said[f"routes to {event.home}"] = rows(admin, query, [event.home])
    return said
