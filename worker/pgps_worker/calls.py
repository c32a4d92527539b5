"""The functions of schema `pgps` a worker calls, one statement each; those that take a wire block.

Two calls in one statement save a round trip where latency counts; `offset 0`
keeps the planner from changing their order, on which correctness rests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, LiteralString

from pgps import _catalogue
from pgps._lags import Lag
from pgps._metrics import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgps_worker.connection import Connection
    from pgps_worker.wire import Wire

__all__ = [
    "AuditFinding",
    "Batch",
    "Pending",
    "Trouble",
    "TroubleCount",
    "all_ended_and_dispatch",
    "audit_findings",
    "begin_large",
    "blame",
    "blamed",
    "dispatch",
    "dispatch_next_part",
    "fail_delivery",
    "fall_asleep_and_dispatch",
    "is_told_awake",
    "lag_counts",
    "limit_session",
    "limit_statements",
    "milliseconds",
    "next_delivery",
    "now",
    "pending_subscribers",
    "reclaim",
    "release_suspects",
    "run_subscriber",
    "stay_awake_and_dispatch",
    "terminate",
    "trouble_counts",
    "troubles",
    "try_lead",
    "try_suspect",
    "wake_leader",
    "wash",
]

DISPATCH_CHANNEL = "pgps_dispatch"
INTERNAL_CHANNEL = "pgps_internal"

# With a number, a call is one batch; without one it would go on in one transaction while events come.
_DISPATCH: LiteralString = "pgps.dispatch_batch(), pg_catalog.current_setting('pgps.woken', true)"


@dataclass(frozen=True, slots=True)
class Batch:
    """How many events a dispatch found, and how many subscriptions it woke; both are 0 when no event waited.

    `large` is set when nothing was dispatched because the next transaction alone has so many events.
    """

    events: int
    woken: int
    large: int = 0


@dataclass(frozen=True, slots=True)
class Pending:
    """An internal subscription that has work, and its owner, whose share of the time its turns use up."""

    subscription: str
    priority: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """An event that failed for a subscription; it holds none of the attributes of the event."""

    kind: str
    subscription: str
    event_type: str
    event: int
    attempts: int
    sqlstate: str | None
    error: str | None
    hint: str
    at: datetime


@dataclass(frozen=True, slots=True)
class TroubleCount:
    """A subscription that is suspended or dead, or that has failed events or a gap.

    `last_event` is the newest that failed, `passed_over` is how many events will not come, and `depth` is how many
    wait if the subscription is dead.
    """

    subscription: str
    state: str
    last_error: str | None
    failed: int
    retrying: int
    last_event: int | None
    hint: str | None
    passed_over: int
    depth: int | None


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """Events that did not arrive as an origin published them or a neighbour sent them; see `pgps.audit_findings`."""

    kind: str
    what: str
    neighbour: str
    origin: str
    event_type: str
    there: int
    here: int


@dataclass(frozen=True, slots=True)
class SlowDetection:
    """A role whose composite events are late, and how many events wait for them."""

    role: str
    events: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class SlowLane:
    """A role whose filters are late, and how many events wait for them."""

    role: str
    batches: int
    events: int
    seconds: float
    last_error: str | None


@dataclass(frozen=True, slots=True)
class BrokenType:
    """An event type that dispatch has set aside since its code failed, and about how many of its events wait."""

    event_type: str
    sqlstate: str
    error: str
    hint: str
    events: int


@dataclass(frozen=True, slots=True)
class SuspendedComposite:
    """A composite event that detects nothing since what it is made of failed, and what to type."""

    name: str
    error: str | None
    hint: str


def try_lead(wire: Wire, bell: int | None = None) -> bool:
    """Lead if nobody does; True while this session leads. Also says that it does; bell: the process of its bell."""
    return bool(wire.row("select pgps.try_lead(nullif($1, '')::integer)", [str(bell or "")])[0])


def is_told_awake(wire: Wire) -> bool:
    """Return whether publishers take the leader to be awake."""
    return bool(wire.row("select pgps.is_told_awake()")[0])


def dispatch(wire: Wire) -> Batch:
    """Cut and match one batch."""
    return _batch(*wire.row("select " + _DISPATCH))


def begin_large(wire: Wire, timeout: float) -> int:
    """Begin the transaction in which a large one is dispatched in parts; return how many events the largest has."""
    wire.command("begin")
    limit_statements(wire, timeout)
    return int(wire.row("select pgps.dispatch_large()")[0])


def dispatch_next_part(wire: Wire) -> Batch | None:
    """Match the next part in this transaction, which is not yet visible; None when none is left."""
    # It tells of all parts so far how many subscriptions they wake.
    events, woken = wire.row("select pgps.dispatch_next_part(), pg_catalog.current_setting('pgps.woken', true)")
    return None if events is None else _batch(events, woken)


def limit_statements(wire: Wire, timeout: float) -> None:
    """Set how long a statement of this transaction may take."""
    wire.row("select pg_catalog.set_config('statement_timeout', $1, true)", [milliseconds(timeout)])


def limit_session(wire: Wire, timeout: float) -> None:
    """Set how long a statement of this session may take."""
    wire.row("select pg_catalog.set_config('statement_timeout', $1, false)", [milliseconds(timeout)])


def milliseconds(timeout: float) -> str:
    """Return seconds as the server takes a time limit."""
    return str(math.ceil(1000 * timeout))


def stay_awake_and_dispatch(wire: Wire) -> tuple[bool, Batch]:
    """Tell publishers that nobody need wake the leader, and dispatch; False when this session does not lead."""
    first: LiteralString = "(select pgps.stay_awake() as awake offset 0) as first"
    awake, *found = wire.row("select awake, " + _DISPATCH + " from " + first)
    return bool(awake), _batch(*found)


def fall_asleep_and_dispatch(wire: Wire) -> tuple[str, Batch]:
    """Have publishers wake the leader again, and dispatch; return a snapshot before which all may still not do so.

    Not the one fall_asleep returns: a snapshot ends with the last transaction
    that has ended, and newer ones that run are not in it. A transaction id drawn
    now is above all of them.
    """
    first: LiteralString = "(select pgps.fall_asleep() as running offset 0) as first"
    drawn: LiteralString = "case when running is not null then pg_catalog.pg_current_xact_id()::text end, "
    xid, *found = wire.row("select " + drawn + _DISPATCH + " from " + first)
    return f"{xid}:{xid}:", _batch(*found)


def all_ended_and_dispatch(wire: Wire, running: str) -> tuple[bool, Batch]:
    """Return whether all of `running` had ended, and then what a dispatch found."""
    first: LiteralString = "(select pgps.all_ended($1::pg_catalog.pg_snapshot) as ended offset 0) as first"
    ended, *found = wire.row("select ended, " + _DISPATCH + " from " + first, [running])
    return bool(ended), _batch(*found)


async def pending_subscribers(connection: Connection, limit: int) -> list[Pending]:
    """Return up to `limit` internal subscriptions that have work: owners in turn, of each by priority."""
    query: LiteralString = "select subscription, priority, owner from pgps.pending_subscribers() limit %s"
    rows: Sequence[Any] = await (await connection.execute(query, [limit])).fetchall()
    return [Pending(*row) for row in rows]


async def run_subscriber(connection: Connection, subscription: str, max_events: int | None) -> int:
    """Run the next batch of a subscription in one transaction; return how many events it handled."""
    query: LiteralString = "select pgps.run_subscriber(%s, max_events => %s, washed => true)"
    return int((await _row(connection, query, [subscription, max_events]))[0])


async def next_delivery(connection: Connection, subscription: str) -> int | None:
    """Return the id of the event that the subscription is given next, None when there is none."""
    event = (await _row(connection, "select pgps.next_delivery(%s)", [subscription]))[0]
    return None if event is None else int(event)


async def fail_delivery(
    connection: Connection, subscription: str, *, sqlstate: str, error: str, event: int
) -> int | None:
    """File an event as failed and move on; return its id, None when it is not the next one any more."""
    query: LiteralString = "select pgps.fail_delivery(%s, sqlstate => %s, error => %s, event_id => %s)"
    filed = (await _row(connection, query, [subscription, sqlstate, error, event]))[0]
    return None if filed is None else int(filed)


def blamed(wire: Wire) -> str | None:
    """Take what a cancelled dispatch was asking out of it; return whose filter it is, None when none was asked."""
    names = wire.row("select pgps.blame()")[0]
    return None if names is None else str(names)


def wake_leader(wire: Wire) -> None:
    """Have the leader look for what waits, if it sleeps."""
    wire.row("select pg_catalog.pg_notify($1, '')::text", [DISPATCH_CHANNEL])


async def blame(connection: Connection) -> str | None:
    """Take what a cancelled dispatch was asking out of it; return whose filter it is, None when none was asked."""
    names = (await _row(connection, "select pgps.blame()"))[0]
    await connection.execute("select pgps.fall_asleep()")
    return None if names is None else str(names)


async def troubles(connection: Connection, since: datetime) -> list[Trouble]:
    """Return events that have failed since a time, the oldest first; at most a hundred."""
    rows: Sequence[Any] = await (await connection.execute(_catalogue.TROUBLES, [since])).fetchall()
    return [Trouble(*row) for row in rows]


async def trouble_counts(connection: Connection) -> list[TroubleCount]:
    """Return what is to be told of subscriptions that are suspended, dead, or have failed events or gaps."""
    rows: Sequence[Any] = await (await connection.execute(_catalogue.TROUBLE_COUNTS)).fetchall()
    return [TroubleCount(*row) for row in rows]


async def lag_counts(connection: Connection, question: dict[str, Any]) -> list[Lag]:
    """Return how far the next subscriptions are behind, and those that are asked again; see pgps._lags."""
    rows: Sequence[Any] = await (await connection.execute(_catalogue.LAG_COUNTS, question)).fetchall()
    return [Lag(*row) for row in rows]


async def figures(connection: Connection) -> list[Figure]:
    """Return the broker's own figures."""
    rows: Sequence[Any] = await (await connection.execute(_catalogue.METRICS)).fetchall()
    return [Figure(*row) for row in rows]


async def slow_lanes(connection: Connection) -> list[SlowLane]:
    """Return what is to be told of roles whose filters are slow."""
    rows: Sequence[Any] = await (await connection.execute(_catalogue.SLOW_LANE_COUNTS)).fetchall()
    return [SlowLane(*row) for row in rows]


async def slow_detection(connection: Connection) -> list[SlowDetection]:
    """Return what is to be told of roles whose composite events are slow."""
    query: LiteralString = "select role, lag_events, last_error from pgps.slow_detection()"
    rows: Sequence[Any] = await (await connection.execute(query)).fetchall()
    return [SlowDetection(*row) for row in rows]


async def broken_types(connection: Connection) -> list[BrokenType]:
    """Return the event types that dispatch has set aside."""
    rows: Sequence[Any] = await (await connection.execute(_catalogue.BROKEN_TYPES)).fetchall()
    return [BrokenType(*row) for row in rows]


async def suspended_composites(connection: Connection) -> list[SuspendedComposite]:
    """Return the composite events that are suspended."""
    query: LiteralString = "select name, error, hint from pgps.suspended_composite_events()"
    rows: Sequence[Any] = await (await connection.execute(query)).fetchall()
    return [SuspendedComposite(*row) for row in rows]


async def audit_findings(connection: Connection) -> list[AuditFinding]:
    """Return what the audit has found, and nobody has dismissed."""
    query: LiteralString = (
        "select kind, what, neighbour, origin, event_type, events_there, events_here from pgps.audit_findings"
    )
    rows: Sequence[Any] = await (await connection.execute(query)).fetchall()
    return [AuditFinding(*row) for row in rows]


async def now(connection: Connection) -> datetime:
    """Return the broker's time."""
    at = (await _row(connection, "select pgps._clock()"))[0]
    assert isinstance(at, datetime)
    return at


async def reclaim(connection: Connection) -> int:
    """Reclaim one segment if one is free; return how many were."""
    return int((await _row(connection, "select pgps.reclaim()"))[0])


async def try_suspect(connection: Connection, subscription: str) -> bool:
    """Become the one session that looks for the event that breaks a callback; False when another one is."""
    return bool((await _row(connection, "select pgps.try_suspect(%s)", [subscription]))[0])


async def release_suspects(connection: Connection) -> None:
    """Let other sessions look for the events that break callbacks."""
    await connection.execute("select pgps.release_suspects()")


async def terminate(connection: Connection, pid: int) -> None:
    """Tell another session of the same role to end."""
    await connection.execute("select pg_catalog.pg_terminate_backend(%s)", [pid])


async def wash(connection: Connection) -> None:
    """Take back what a callback may have left in the session.

    DISCARD ALL would also throw away the plans of the generated code, which costs the next batch more.
    """
    await connection.execute(
        "reset session authorization; reset role; reset all; close all; unlisten *; deallocate all;"
        " discard temp; discard sequences; select pg_catalog.pg_advisory_unlock_all()"
    )


def _batch(events: int, woken: str | None) -> Batch:
    # A filter's function may have left something else there: it is believed as far as a pause.
    numbers = [int(part) for part in (woken or "").split("+") if part.isascii() and part.isdigit()]
    return Batch(max(0, int(events)), sum(numbers), max(0, -int(events)))


async def _row(connection: Connection, query: LiteralString, params: Sequence[object] | None = None) -> Sequence[Any]:
    row = await (await connection.execute(query, params)).fetchone()
    assert row is not None
    return row
