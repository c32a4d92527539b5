"""The functions of schema `pgps` that serve clients, one statement each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgps_worker.connection import Connection

__all__ = [
    "Claimed",
    "Confirmed",
    "cancel_running",
    "claim_request",
    "fail_request",
    "pending_requests",
    "raise_confirming",
    "release_request",
    "retry_direct",
    "run_request",
]

CONFIRM_CHANNEL = "pgps_confirm"
REQUEST_CHANNEL = "pgps_request"


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What a look for events to confirm came to: how much was done, and how many raising transactions still run."""

    done: int
    open: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A request to execute within `timeout` seconds, of a client of the role `owner`."""

    number: int
    client: str
    request_id: int
    timeout: float
    owner: str = ""


async def retry_direct(connection: Connection, since: int | None) -> int:
    """Try again what reached nobody; return what to give as `since` the next time."""
    return int((await _row(connection, "select pgps.retry_direct(%s)", [since]))[0])


async def raise_confirming(connection: Connection) -> Confirmed:
    """Raise the confirming events of what has ended."""
    query: LiteralString = "select coalesce(done, 0), coalesce(open, 0) from pgps.raise_confirming()"
    done, still_open = await _row(connection, query)
    return Confirmed(done=int(done), open=int(still_open))


async def pending_requests(connection: Connection, *, besides: Sequence[str] = ()) -> int:
    """Return how many clients have a request that nobody executes, not counting those of some roles."""
    return int((await _row(connection, "select pgps.pending_requests(%s::name[])", [list(besides)]))[0])


async def cancel_running(connection: Connection) -> int:
    """Cancel what was cancelled by its client while it ran, here or elsewhere; return how many."""
    return int((await _row(connection, "select pgps.cancel_running_requests()"))[0])


async def claim_request(connection: Connection, *, besides: Sequence[str] = ()) -> Claimed | None:
    """Return the next request that nobody executes, but none of some roles; None when there is none."""
    query = "select request_no, client, request_id, timeout_ms, owner from pgps.claim_request(%s::name[])"
    rows: Sequence[Any] = await (await connection.execute(query, [list(besides)])).fetchall()
    for number, client, request_id, timeout_ms, owner in rows:
        return Claimed(number, client, request_id, timeout_ms / 1000, owner)
    return None


async def run_request(connection: Connection, claimed: Claimed) -> str | None:
    """Execute a request in one transaction; return done or failed, None when another session has it.

    Raises errors.QueryCanceled after its time, with its effects rolled back.
    """
    # The time limit is set for the session, and the wash takes it back: set within the statement that it limits, it
    # would come too late.
    await connection.execute(
        "select pg_catalog.set_config('statement_timeout', %s, false)", [f"{claimed.timeout * 1000:.0f}ms"]
    )
    outcome = (await _row(connection, "select pgps.run_request(%s)", [claimed.number]))[0]
    return None if outcome is None else str(outcome)


async def fail_request(connection: Connection, claimed: Claimed, *, sqlstate: str, error: str) -> None:
    """Give a request that was cancelled an error for a reply."""
    await connection.execute("select pgps.fail_request(%s, %s, %s)", [claimed.number, sqlstate, error])


async def release_request(connection: Connection, claimed: Claimed) -> None:
    """Take back the claim of this session."""
    await connection.execute("select pgps.release_request(%s)", [claimed.number])


async def _row(connection: Connection, query: LiteralString, params: Sequence[object] | None = None) -> Sequence[Any]:
    row = await (await connection.execute(query, params)).fetchone()
    assert row is not None
    return row
