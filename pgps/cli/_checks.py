"""What `pgps doctor` looks for: each check is a function of facts, and says what to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator

from pgps.cli._facts import Facts, Finding, Level
from pgps.cli._format import argument, count, counted, duration, literal, quoted
from pgps.cli._server_checks import SERVER_CHECKS
from pgps.cli._session import Row
from pgps.install import MINIMUM_SERVER

__all__ = ["CHECKS"]

NEWEST_TESTED_MAJOR = 18
LAG_WARNING = 10.0  # seconds; the dispatcher looks at least once a second
LAG_PROBLEM = 60.0
CONNECTIONS_USED = 0.8  # of max_connections


def server_version(facts: Facts) -> Iterator[Finding]:
    """15 or newer; newer than the newest tested is worth a note."""
    number, text = facts.server["server_version"], facts.server["server_version_text"]
    major, oldest = number // 10_000, MINIMUM_SERVER // 10_000
    if number < MINIMUM_SERVER:
        yield Finding(
            Level.PROBLEM, "server", f"PostgreSQL {text} is older than {oldest}", f"apt-get install postgresql-{oldest}"
        )
    elif major > NEWEST_TESTED_MAJOR:
        yield Finding(Level.NOTE, "server", f"PostgreSQL {text} is newer than the newest tested, {NEWEST_TESTED_MAJOR}")
    else:
        yield Finding(Level.OK, "server", f"PostgreSQL {text}")
    if facts.server["standby"]:
        yield Finding(
            Level.PROBLEM, "server", "this is a standby: nothing can be published", "pgps --dsn PRIMARY doctor"
        )


def plpython(facts: Facts) -> Iterator[Finding]:
    """PL/Python 3 is needed where filters are defined, unless the client parses them."""
    major = facts.server["server_version"] // 10_000
    if facts.client_parses and facts.server["plpython_available"]:
        message = "on the server, but the client parses, and there are no composite events"
        yield Finding(Level.NOTE, "plpython3u", message, "pgps install --parser server")
    elif facts.client_parses:
        yield Finding(Level.OK, "plpython3u", "not on the server: the client parses")
    elif facts.server["plpython_installed"]:
        yield Finding(Level.OK, "plpython3u", "installed")
    elif facts.server["plpython_available"]:
        yield Finding(Level.PROBLEM, "plpython3u", "not created in this database", "pgps install")
    else:
        fix = f"apt-get install postgresql-plpython3-{major}; or pgps install --parser client"
        yield Finding(Level.PROBLEM, "plpython3u", "not on the server", fix)


def revision(facts: Facts) -> Iterator[Finding]:
    """The tables and the code in the database are this release's."""
    state = facts.installation
    if not facts.server["installed"]:
        yield Finding(Level.PROBLEM, "revision", "pgps is not installed in this database", "pgps install")
    elif state is None or state.revision is None:
        yield Finding(Level.NOTE, "revision", "only a superuser can read it")
    elif state.revision < state.head:
        yield Finding(Level.PROBLEM, "revision", f"{state.revision}; this release has {state.head}", "pgps upgrade")
    elif state.revision > state.head:
        yield Finding(
            Level.PROBLEM,
            "revision",
            f"{state.revision} is newer than this release's {state.head}",
            "pip install --upgrade pgps",
        )
    else:
        yield Finding(Level.OK, "revision", state.revision)
        if state.code_digest is None:
            yield Finding(Level.NOTE, "code", "installed by psql, without a digest", "pgps upgrade")
        elif state.code_digest != state.expected_digest:
            yield Finding(Level.PROBLEM, "code", "functions and views are another release's", "pgps upgrade")
        else:
            yield Finding(Level.OK, "code", f"digest {state.code_digest[:12]}")


def roles(facts: Facts) -> Iterator[Finding]:
    """Both group roles are there."""
    if not facts.server["installed"]:
        return
    missing = sorted({"pgps_admin", "pgps_worker"} - set(facts.server["roles"]))
    if missing:
        fix = "; ".join(f"create role {name} nologin" for name in missing)
        yield Finding(Level.PROBLEM, "roles", f"missing: {', '.join(missing)}", fix + "; then pgps upgrade")
    elif facts.server["is_admin"] or facts.server["superuser"]:
        yield Finding(Level.OK, "roles", "pgps_admin, pgps_worker")
    else:
        role = facts.server["role"]
        fix = f"grant pgps_admin to {quoted(role)}"
        yield Finding(Level.NOTE, "roles", f"{role} is not in pgps_admin and sees only its own", fix)


def workers(facts: Facts) -> Iterator[Finding]:
    """Somebody dispatches, and one leads."""
    names = sorted({row["worker"] for row in facts.workers})
    if not facts.server["installed"]:
        return
    if not names:
        yield Finding(
            Level.WARNING, "workers", "none: events wait until somebody calls pgps.dispatch()", "pgps-worker --dsn DSN"
        )
        return
    leaders = sorted({row["worker"] for row in facts.workers if row["leader"]})
    yield Finding(Level.OK, "workers", f"{len(names)} running: {', '.join(names)}")
    if leaders:
        yield Finding(Level.OK, "leader", ", ".join(leaders))
    else:
        yield Finding(Level.PROBLEM, "leader", "no worker leads: nothing is dispatched", "restart pgps-worker")
    powerful = sorted({f"{row['worker']} ({row['role']})" for row in facts.workers if row.get("superuser")})
    if powerful:
        message = f"users' callbacks run in sessions of a superuser: {', '.join(powerful)}"
        fix = "create role broker_worker login in role pgps_worker; then pgps-worker --dsn 'user=broker_worker …'"
        yield Finding(Level.WARNING, "worker rights", message, fix)


def lag(facts: Facts) -> Iterator[Finding]:
    """What is committed is soon matched."""
    waiting = sum(row["waiting"] or 0 for row in facts.activity)
    worst = max((row["waiting_seconds"] or 0.0 for row in facts.activity if row["waiting"]), default=0.0)
    if not facts.activity:
        return
    text = f"{counted(waiting, 'event')} waiting to be dispatched, the oldest for {duration(worst)}"
    if waiting and worst >= LAG_WARNING:
        level = Level.PROBLEM if worst >= LAG_PROBLEM else Level.WARNING
        fix = "pgps-worker --dsn DSN" if not facts.workers else "pgps top; then the worker's log"
        yield Finding(level, "dispatcher", text, fix)
    else:
        yield Finding(Level.OK, "dispatcher", text if waiting else "nothing waits")


def subscriptions(facts: Facts) -> Iterator[Finding]:
    """None is suspended, and none is paused while its events pile up."""
    for row in facts.stopped:
        name, typed = row["name"], argument(row["name"])
        if row["state"] == "suspended":
            error = (row["last_error"] or "no error recorded").splitlines()[0]
            message = f'"{name}" is suspended: {error}'
            fix = f"pgps sub show {typed}; pgps sub resume {typed}"
            if row["is_orphan"]:
                given = f"select pgps.alter_subscription({literal(quoted(name))}, owner => '…')"
                fix = f"pgps sub rm {typed}; or give it to a role that you are a member of: {given}"
            elif error.startswith("filter: "):
                changed = f"select pgps.alter_subscription({literal(quoted(name))}, filter => '…')"
                fix = f"pgps sub resume {typed}, when what it uses is mended; or {changed}"
            yield Finding(Level.PROBLEM, "subscriptions", message, fix)
        elif row["state"] == "paused" and row["depth"]:
            message = f'"{name}" is paused with {counted(row["depth"], "event")} waiting'
            yield Finding(Level.NOTE, "subscriptions", message, f"pgps sub resume {typed}")
    if facts.server["installed"] and not any(row["state"] == "suspended" for row in facts.stopped):
        yield Finding(Level.OK, "subscriptions", "none is suspended")


def exceptions(facts: Facts) -> Iterator[Finding]:
    """No failed delivery waits for a decision."""
    waiting = [row for row in facts.queues if row["kind"] == "exception" and row["depth"]]
    for row in waiting:
        name = row["event_type"]
        message = f'{counted(row["depth"], "failed delivery", "failed deliveries")} of "{name}" waiting for a decision'
        fix = f"pgps exceptions ls --type {argument(name)}; then pgps exceptions retry {argument(name)} (or discard)"
        yield Finding(Level.WARNING, "exceptions", message, fix)
    if facts.server["installed"] and not waiting:
        yield Finding(Level.OK, "exceptions", "none")


def gaps(facts: Facts) -> Iterator[Finding]:
    """Nothing that should have come over a link was lost before it came, and no subscription was passed over."""
    for row in facts.gaps:
        if row["event_type"] is not None:
            name, event_type = row["subscription"], row["event_type"]
            message = f'"{name}" does not get some of "{event_type}": {row["error"]}'
            noted = f"pgps exceptions discard {argument(event_type)} {row['event_id']} --sub {argument(name)}"
            yield Finding(Level.WARNING, "gaps", message, f"start its consumer; take note of it: {noted}")
            continue
        gaps = counted(row["gaps"], "gap")
        message = f"{gaps} in what came over {row['subscription']}: nobody has those events any more"
        fix = f"pgps exceptions ls; then pgps exceptions discard --gaps --sub {shlex.quote(row['subscription'])}"
        yield Finding(Level.PROBLEM, "gaps", message, fix)


def audit(facts: Facts) -> Iterator[Finding]:
    """What was published elsewhere arrived as it was."""
    for row in facts.differences:
        missing = f"{count(row['events_there'])} published or sent there, {count(row['events_here'])} here"
        said = {
            "hop": f'not all that "{row["neighbour"]}" sent came',
            "end": f'what came by way of "{row["neighbour"]}" is not what was published',
            "here": "events that came, or were published here, are gone from the log",
        }[row["kind"]]
        message = f'"{row["event_type"]}" of "{row["origin"]}": {said} ({row["what"]}; {missing})'
        yield Finding(Level.PROBLEM, "audit", message, "pgps audit; when it is known why: pgps audit --dismiss")


def durability(facts: Facts) -> Iterator[Finding]:
    """What is promised survives a crash."""
    reliability = {row["name"]: row["reliability"] for row in facts.event_types}
    for row in facts.queues:
        if row["kind"] == "in" and not row["persistent"] and reliability.get(row["event_type"]) == "guaranteed":
            yield Finding(
                Level.WARNING,
                "durability",
                f'"{row["event_type"]}" promises guaranteed events, but its queue is lost in a crash',
                f"pgps queue set {argument(row['queue'])} --persistent",
            )
    if not facts.server["fsync"]:
        yield Finding(
            Level.WARNING,
            "durability",
            "fsync is off: a crash of the machine can destroy the database",
            "alter system set fsync = on; select pg_reload_conf()",
        )
    elif facts.server["synchronous_commit"] == "off":
        yield Finding(
            Level.NOTE,
            "durability",
            "synchronous_commit is off: a crash can lose the last commits",
            "alter system set synchronous_commit = on; select pg_reload_conf()",
        )


def autovacuum(facts: Facts) -> Iterator[Finding]:
    """Autovacuum runs: the small tables and the catalogs need it."""
    if facts.server["autovacuum"]:
        yield Finding(Level.OK, "autovacuum", "on")
    else:
        yield Finding(Level.WARNING, "autovacuum", "off", "alter system set autovacuum = on; select pg_reload_conf()")


def temporary_tables(facts: Facts) -> Iterator[Finding]:
    """Owners of subscriptions may make temporary tables, which delivery uses."""
    for row in facts.without_temp:
        fix = f"grant temporary on database {quoted(facts.server['database'])} to {quoted(row['role'])}"
        yield Finding(Level.WARNING, "temporary", f"{row['role']} may not make temporary tables", fix)


def connections(facts: Facts) -> Iterator[Finding]:
    """There is room for workers and clients."""
    used, most = facts.server["connections"], facts.server["max_connections"]
    text = f"{used} of {most} in use"
    if used >= CONNECTIONS_USED * most:
        fix = f"alter system set max_connections = {2 * most}; then restart the server, or use a pooler"
        yield Finding(Level.WARNING, "connections", text, fix)
    else:
        yield Finding(Level.OK, "connections", text)


def links(facts: Facts) -> Iterator[Finding]:
    """Each link that should be up is, and somebody serves it."""
    restored = facts.broker is not None and facts.broker["state"] == "restored"
    if restored:
        message = "this broker was restored or cloned: its links stay down until you say which"
        fix = "pgps link resume --as restored (the original is gone); pgps link resume --as clone (it lives on)"
        claims = facts.health.get("claims") or []
        if claims:
            said = "; ".join(
                f'"{claim["link"]}" (broker "{claim["neighbour"]}", role {claim["role"]}, {claim["at"][:16]})'
                for claim in claims
            )
            message += f". That was said over {said}"
            drops = "; ".join(f"pgps link rm {argument(claim['link'])} --cascade" for claim in claims)
            fix += f"; if it was not restored, and whoever says so is not to be believed: {drops}"
        yield Finding(Level.PROBLEM, "links", message, fix)
    wanted = [row for row in facts.links if row["defined_here"] and row["enabled"]]
    if wanted and not any(row["service"] == "links" for row in facts.workers):
        # Of those that the other side serves nothing need be done here.
        idle = [f'"{row["name"]}"' for row in wanted if row["state"] not in ("up", "elsewhere")]
        if idle:
            yield Finding(Level.PROBLEM, "links", f"no worker here connects {', '.join(idle)}", "pgps-worker --dsn DSN")
    for row in facts.links:
        # All links of a restored broker are blocked for that reason, which has been told.
        if not (restored and row["state"] == "blocked"):
            yield from _link_state(row)
    if facts.links and all(row["state"] in ("up", "elsewhere", "paused", "draining") for row in facts.links):
        yield Finding(Level.OK, "links", f"{count(len(facts.links))} defined or met, none in trouble")


# What pgps itself says of a link that is blocked; anything else may be the word of whoever is at its other end.
_OWN_ADVICE = re.compile(
    r"When that is mended: select pgps\.resync_link\(|On broker \"[^\"]*\": select pgps\.resume_links\('restored'\)$"
    r"|On it: select pgps\.resume_links"
)


def _advice(hint: str) -> str:
    return hint if _OWN_ADVICE.match(hint) else f"the other end may have said, not pgps: {hint}"


def _link_state(row: Row) -> Iterator[Finding]:
    name, typed = row["name"], argument(row["name"])
    why = (row["last_error"] or "no error recorded").splitlines()[0]
    if row["state"] == "blocked":
        fix = _advice(row["hint"]) if row["hint"] else f"pgps link show {typed}"
        yield Finding(Level.PROBLEM, "links", f'"{name}" is blocked: {why}', fix)
    elif row["state"] == "waiting" and row["defined_here"]:
        message = f'"{name}" cannot connect, and tries again: {why}' + (f" ({row['hint']})" if row["hint"] else "")
        fix = f"pgps link show {typed}; when that is mended: pgps link resume {typed}"
        yield Finding(Level.WARNING, "links", message, fix)
    elif row["state"] == "draining" and row["hint"]:
        message = f'"{name}" is being dropped, and its neighbour is not connected'
        yield Finding(Level.WARNING, "links", message, f"pgps link rm {typed} --cascade")
    elif row["state"] == "paused" and row["lag_events"]:
        message = f'"{name}" is paused with {counted(row["lag_events"], "event")} waiting'
        yield Finding(Level.NOTE, "links", message, f"pgps link resume {typed}")
    elif row["different_types"]:
        message = (
            f'"{name}": event types differ from the neighbour\'s, and do not cross: {", ".join(row["different_types"])}'
        )
        yield Finding(Level.WARNING, "links", message, f"pgps link show {typed}; then pgps link resync {typed}")
    elif row["state"] == "incomplete":
        message = f'"{name}" is up, and does not carry everything: {why}'
        yield Finding(Level.WARNING, "links", message, f"pgps link show {typed}; then pgps link resync {typed}")


def link_rights(facts: Facts) -> Iterator[Finding]:
    """No link holds a password, and none lends a superuser's rights to a neighbour."""
    for row in facts.links:
        name = row["name"]
        if row["has_password"]:
            message = f'"{name}" has a password in its connection string'
            fix = f"select pgps.alter_link({literal(name)}, 'host=… user=… passfile=…')"
            yield Finding(Level.WARNING, "link rights", message, fix)
        if row["role_is_superuser"]:
            message = f'over "{name}" the neighbour receives and publishes as superuser {row["role"]}'
            typed = argument(name)
            fix = f"create role NEIGHBOUR; pgps link rm {typed}; pgps link add {typed} … --role NEIGHBOUR"
            yield Finding(Level.WARNING, "link rights", message, fix)


_CROWDS = {
    "link_neighbours": "are {} brokers, of {}",
    "link_origins": "have named {} brokers that were not known here, of {}",
    "link_types": "say the names of {} event types, of {}",
    "link_filters": 'have filters of {} forms over "{type}", of {}',
}


def crowded_neighbours(facts: Facts) -> Iterator[Finding]:
    """No role's neighbours come near what they may make up: beyond it their links stand still, or carry everything."""
    for row in facts.health.get("crowded", ()):
        full = row["used"] >= row["most"]
        crowd = _CROWDS[row["setting"]].format(count(row["used"]), count(row["most"]), type=row["event_type"])
        after = "each further one gets all its events" if row["setting"] == "link_filters" else "no more is heard"
        message = f"the neighbours of role {quoted(row['role'])} {crowd} that they may" + (f": {after}" if full else "")
        fix = (
            f"when they are honest: select pgps.configure({literal(row['setting'])}, {literal(str(2 * row['most']))});"
            f" when not: revoke pgps_link from {quoted(row['role'])}"
        )
        yield Finding(Level.WARNING if full else Level.NOTE, "links", message, fix)


def names_in_the_way(facts: Facts) -> Iterator[Finding]:
    """Nobody has an event type or a subscription of a name that pgps needs for itself."""
    for row in facts.health.get("in_the_way", ()):
        message = f"{row['kind']} {quoted(row['name'])} of role {quoted(row['role'])} has a name that pgps needs"
        name = literal(row["name"])
        fix = {
            "event type": f"select pgps.drop_event_type({name}, cascade => true)",
            "subscription": f"select pgps.unsubscribe({name})",
        }[row["kind"]]
        yield Finding(Level.WARNING, "names", message, fix)


CHECKS: list[Callable[[Facts], Iterator[Finding]]] = [
    server_version,
    plpython,
    revision,
    roles,
    workers,
    lag,
    subscriptions,
    exceptions,
    gaps,
    audit,
    durability,
    autovacuum,
    temporary_tables,
    connections,
    links,
    link_rights,
    crowded_neighbours,
    names_in_the_way,
    *SERVER_CHECKS,
]
