"""Where a client connects to, and as what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from pgps.errors import ConfigError

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
    try:
        parameters = conninfo_to_dict(conninfo, **given)
    except Exception as error:
        raise ConfigError(
            f"invalid connection string: {str(error).strip()}", hint="Write key=value pairs, or a postgresql:// URI."
        ) from error
    named = {"application_name": f"pgps-client/{name}" if name else "pgps-client"}
    return Target(_LIBPQ | named | parameters, reconnect_timeout, prepare_threshold)
