"""Where a client connects to, and as what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from pgps.client._arguments import require_storable, seconds, string
from pgps.errors import ConfigError, PgpsError

__all__ = ["Target", "target"]

# A peer that is gone is noticed within some ten seconds, not in the two hours that operating systems give it. While
# something that was sent is not acknowledged there are no keepalives; it would be sent again for a quarter of an hour.
_LIBPQ = {
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "11000",
}


@dataclass(frozen=True, slots=True)
class Target:
    """Parameters of libpq, and how the library uses the connection."""

    parameters: dict[str, Any]
    reconnect_timeout: float | None
    prepare_threshold: int | None


def target(
    conninfo: str,
    given: dict[str, Any],
    *,
    name: str | None,
    reconnect_timeout: float | None,
    prepare_threshold: int | None,
) -> Target:
    """Join a connection string with single parameters, which win; services and PG* variables are libpq's business."""
    string(name or "", "the name of a client", "Give Client(name='…').")
    try:
        require_storable([conninfo, name, given])
        parameters = conninfo_to_dict(conninfo, **given)
    except Exception as error:
        told = error.message if isinstance(error, PgpsError) else str(error).strip()
        raise ConfigError(
            f"invalid connection string: {told}", hint="Write key=value pairs, or a postgresql:// URI."
        ) from error
    named = {"application_name": f"pgps-client/{name}" if name else "pgps-client"}
    patience = None if reconnect_timeout is None else seconds(reconnect_timeout, "reconnect_timeout")
    return Target(_LIBPQ | named | parameters, patience, prepare_threshold)
