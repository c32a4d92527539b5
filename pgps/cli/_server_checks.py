"""What `pgps doctor` looks for in the server and its sessions: each check is a function of facts, as in _checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pgps.cli._facts import Facts, Finding, Level
from pgps.cli._format import argument, count, counted, duration, quoted, size

__all__ = ["SERVER_CHECKS"]

OLD_TRANSACTION = 300.0  # seconds; space is not reclaimed while it lasts
SHORT_TIMEOUT = 30.0  # seconds; dispatching after a pause, and reclaiming, may take as long
DISK_WARNING, DISK_PROBLEM = 0.10, 0.03  # of a file system that are free
BLOCKED = 5.0  # seconds; a statement that waits longer for a lock
CLOCK = 5.0  # seconds that a batch may lie in the future
DEAD = 3600.0  # seconds without a consumer while events wait, unless the subscription says how long (dead_after)


def plpython_works(facts: Facts) -> Iterator[Finding]:
    """PL/Python can be loaded: a package that was removed or upgraded takes the library away."""
    if facts.plpython_error:
        major = facts.server["server_version"] // 10_000
        message = f"it cannot be run, and no filter or statement be defined: {facts.plpython_error.splitlines()[0]}"
        fix = f"apt-get install --reinstall postgresql-plpython3-{major}; then reconnect"
        yield Finding(Level.PROBLEM, "plpython3u", message, fix)


def transactions(facts: Facts) -> Iterator[Finding]:
    """No transaction is open for so long that space cannot be reclaimed; each that is gets named."""
    old = [row for row in facts.transactions if row["seconds"] >= OLD_TRANSACTION]
    if not old:
        yield Finding(Level.OK, "transactions", "none is open for long")
    for row in old:
        since = duration(row["seconds"])
        if row["gid"] is not None:
            message = f'prepared transaction "{row["gid"]}" of {row["role"]} waits for {since}: space is not reclaimed'
            yield Finding(Level.WARNING, "transactions", message, f"rollback prepared '{row['gid']}' (or commit it)")
            continue
        who = f"process {row['pid']} of {row['role']} ({row['application_name'] or 'no application name'})"
        message = f"{who} has one open for {since}: space is not reclaimed"
        yield Finding(Level.WARNING, "transactions", message, f"select pg_terminate_backend({row['pid']})")


def timeouts(facts: Facts) -> Iterator[Finding]:
    """No short statement_timeout of a role or database cuts dispatching and reclaiming off."""
    for row in facts.timeouts:
        if 0 < row["seconds"] < SHORT_TIMEOUT:
            who = f"role {quoted(row['role'])}" if row["role"] else ""
            place = f"database {quoted(row['database'])}" if row["database"] else ""
            where = " in ".join(filter(None, (who, place)))
            fix = f"alter {where or 'system'} set statement_timeout = 0"
            length = duration(row["seconds"])
            message = f"statement_timeout of {where or 'the server'} is {length}: pgps.dispatch() may need longer"
            yield Finding(Level.WARNING, "timeouts", message, fix)


def disks(facts: Facts) -> Iterator[Finding]:
    """The server's file systems have room: a full one stops every publisher."""
    if facts.client_parses and facts.health:
        yield Finding(Level.NOTE, "disk", "free space is unknown: the server tells it with PL/Python alone", "df -h")
    for row in facts.health.get("disks", ()):
        free = row["free_bytes"] / max(row["total_bytes"], 1)
        text = f"{size(row['free_bytes'])} of {size(row['total_bytes'])} free ({row['place']})"
        if free >= DISK_WARNING:
            yield Finding(Level.OK, "disk", text)
            continue
        level = Level.PROBLEM if free < DISK_PROBLEM else Level.WARNING
        yield Finding(level, "disk", text, "pgps queue ls; pgps sub ls: see what holds events, end what is dead")


def lost_events(facts: Facts) -> Iterator[Finding]:
    """No crash has emptied a queue that is not persistent."""
    for row in facts.health.get("lost", ()):
        name = row["event_type"]
        if not row["guaranteed"]:
            message = f'about {count(row["events"])} non-guaranteed events of "{name}" went with a crash'
            yield Finding(Level.NOTE, "durability", message)
            continue
        message = f'about {counted(row["events"], "event")} of "{name}" lost: its queue is not persistent'
        fix = f"pgps queue set {argument(name + '_in')} --persistent, if they are worth it"
        yield Finding(Level.WARNING, "durability", message, fix)


def blocked(facts: Facts) -> Iterator[Finding]:
    """Nobody waits long for a lock that somebody else holds."""
    found = [row for row in facts.health.get("blocked", ()) if row["seconds"] >= BLOCKED]
    for row in found:
        holder = f"process {row['holder']} of {row['role']} ({row['application_name'] or 'no application name'})"
        what = f" on {row['relation']}" if row["relation"] else ""
        message = f"{holder} holds a lock{what} that process {row['pid']} waits for since {duration(row['seconds'])}"
        yield Finding(Level.WARNING, "locks", message, f"select pg_terminate_backend({row['holder']})")
    if facts.health and not found:
        yield Finding(Level.OK, "locks", "nobody waits for one")


def clock(facts: Facts) -> Iterator[Finding]:
    """The clock was not set back: leases, retries and retention go by it."""
    ahead = max((row["last_batch_ahead"] or 0.0 for row in facts.activity), default=0.0)
    if ahead > CLOCK:
        message = f"a batch is {duration(ahead)} in the future: the server's clock was set back"
        fix = "chronyc tracking; leases, retries and retention wait until the clock has caught up"
        yield Finding(Level.WARNING, "clock", message, fix)


def dead_consumers(facts: Facts) -> Iterator[Finding]:
    """Each subscription with events waiting has a consumer."""
    for row in facts.waiting:
        if row["is_dead"] or (row["dead_after"] is None and row["lag_seconds"] >= DEAD):
            typed = argument(row["name"])
            message = (
                f'nobody takes the events of "{row["name"]}": {count(row["depth"])} wait, the oldest for'
                f" {duration(row['lag_seconds'])}, and their space with them"
            )
            start = "pgps-worker --dsn DSN" if row["kind"] == "internal" else "start its consumer"
            fix = f"{start}; or pgps sub rm {typed}"
            yield Finding(Level.WARNING, "consumers", message, fix)


def slow_lanes(facts: Facts) -> Iterator[Finding]:
    """No role's filters are so slow that it gets its events late."""
    for row in facts.slow_lanes:
        error = (row["last_error"] or "no error recorded").splitlines()[0]
        behind = f"{counted(row['lag_events'], 'event')} behind, the oldest for {duration(row['lag_seconds'])}"
        message = f"the filters of role {quoted(row['role'])} are slow ({error}): {behind}; nobody else is"
        fix = "make what they read faster (an index), or select pgps.alter_subscription('…', filter => '…')"
        yield Finding(Level.WARNING, "lanes", message, fix)


def slow_detection(facts: Facts) -> Iterator[Finding]:
    """No role's composite events are so slow that they are detected apart from those of others."""
    for row in facts.slow_detection:
        error = (row["last_error"] or "no error recorded").splitlines()[0]
        message = (
            f"the composite events of role {quoted(row['role'])} are slow ({error}):"
            f" {counted(row['lag_events'], 'event')} behind; nobody else is"
        )
        fix = "make their filters and attributes faster, or select pgps.alter_composite_event('…', filter => '…')"
        yield Finding(Level.WARNING, "composite events", message, fix)


def set_aside(facts: Facts) -> Iterator[Finding]:
    """No event type is set aside since its generated code failed."""
    for row in facts.set_aside:
        error = (row["last_error"] or "no error recorded").splitlines()[0]
        message = f'"{row["name"]}" is set aside, its events wait: {error}'
        yield Finding(Level.PROBLEM, "event types", message, row["hint"])


def composites(facts: Facts) -> Iterator[Finding]:
    """No composite event is suspended, since then it detects nothing."""
    for row in facts.composites:
        error = (row["last_error"] or "no error recorded").splitlines()[0]
        typed = argument(row["name"])
        fix = f"pgps type drop {typed} --cascade --yes" if row["is_orphan"] else f"pgps event resume {typed}"
        yield Finding(Level.PROBLEM, "composite events", f'"{row["name"]}" is suspended: {error}', fix)


def suspects(facts: Facts) -> Iterator[Finding]:
    """No role that is no superuser runs code as the owner of pgps, or as others, through an expression."""
    for row in facts.suspects:
        typed = argument(row["event_type"])
        if row["policy"] is None:
            message = f'event type "{row["event_type"]}": {row["fault"]}'
            fix = f"unless you trust that role as a superuser: pgps type drop {typed} --cascade --yes"
        else:
            message = f'policy "{row["policy"]}" on event type "{row["event_type"]}": {row["fault"]}'
            fix = f"unless receivers trust that role: pgps policy rm {typed} {argument(row['policy'])}"
        yield Finding(Level.WARNING, "expressions", message, fix)


SERVER_CHECKS: list[Callable[[Facts], Iterator[Finding]]] = [
    plpython_works,
    transactions,
    timeouts,
    disks,
    lost_events,
    blocked,
    clock,
    dead_consumers,
    slow_lanes,
    slow_detection,
    set_aside,
    composites,
    suspects,
]
