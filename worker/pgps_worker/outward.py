"""Connections to where a database says, with the secrets of this host.

Whoever administers the links and networks of a broker writes their connection strings, and so says where the worker
connects, and as whom. The passwords, keys and services are those of the worker's host, and another one's to give away.
A service is the word of the host's administrator; whatever else a string says holds within narrow limits (decision
109).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgps.errors import ConfigError
from pgps_worker.methods import METHODS, allowed_methods, methods

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig

__all__ = ["UNREACHED", "outward"]

_REQUIRE_AUTH_SINCE = 160000
# The hint for what libpq says by itself.
UNREACHED = (
    "Try it where the worker runs: psql with the same connection string. By which methods it logs in elsewhere: "
    "pgps-worker --link-auth."
)

# They write the keys of a session into any file, read any file as a list of services, and hand on a ticket.
_REFUSED = ("sslkeylogfile", "servicefile", "gssdelegation")
# What may be said beside a service: nothing of where it is, how it is known, and how one logs in there.
_BESIDE_SERVICE = frozenset(
    """
    service user password passfile dbname options application_name fallback_application_name client_encoding
    connect_timeout keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout
    target_session_attrs load_balance_hosts
    """.split()
)


def outward(config: WorkerConfig, conninfo: str, **more: str | None) -> WorkerConfig:
    """Return a worker's settings with the connection string of another broker, within the limits of this host.

    `more` are options for strings without them. Raises ConfigError when the string is none, or is outside of the
    limits.
    """
    config = dataclasses.replace(config, dsn=conninfo)
    given = {key: str(value) for key, value in conninfo_to_dict(conninfo).items() if value is not None}
    given |= {key: value for key, value in more.items() if value is not None and key not in given}
    for option in _REFUSED:
        if option in given:
            raise ConfigError(f'option "{option}" is not for connection strings of links', hint="Leave it out.")
    if given.get("service"):
        if beside := given.keys() - _BESIDE_SERVICE:
            raise ConfigError(
                f'option "{min(beside)}" stands beside a service, whose password it could lead elsewhere',
                hint="Leave it out, or put it into the service, where the worker runs.",
            )
        return dataclasses.replace(config, dsn=make_conninfo("", **given))
    given.pop("service", None)
    if given.get("host") and given.get("hostaddr") and given.get("sslmode") != "verify-full":
        # A password file goes by the name, and the password to the address.
        raise ConfigError(
            "host and hostaddr are given, and nothing shows that they belong together",
            hint="Leave one of them out, or set sslmode=verify-full.",
        )
    if given.get("hostaddr") and not given.get("host"):
        # Else libpq would take the name of the environment, and its line of the password file, for that address.
        given["host"] = ""
    if config.link_auth != "any":
        given["require_auth"] = _require_auth(config.link_auth, given.get("require_auth", ""))
    # Else libpq would take the one of the environment, or of the worker's own service, which are for its own broker.
    given.setdefault("password", "")
    return dataclasses.replace(config, dsn=make_conninfo("", **given))


def _require_auth(link_auth: str, wanted: str) -> str:
    if psycopg.pq.version() < _REQUIRE_AUTH_SINCE:
        raise ConfigError(
            f"libpq {psycopg.pq.version() // 10000} gives a password to whoever asks for it",
            hint="Install a newer one where the worker runs: pip install 'psycopg[binary]'; or trust whoever "
            "administers links: pgps-worker --link-auth any.",
        )
    allowed = allowed_methods(link_auth) & methods(wanted)
    if not allowed:
        raise ConfigError(
            f'the connection string wants to log in by "{wanted}", and this worker does not',
            hint=f"Allow it where the worker runs: pgps-worker --link-auth {wanted.replace('!', '')}, or with a "
            "service that says require_auth.",
        )
    return ",".join(method for method in METHODS if method in allowed)
