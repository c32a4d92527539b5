"""Where the broker is: for psycopg in tasks, for the JDBC driver in the JVM.

The option `dsn` is a libpq connection string. Without it PGPS_DSN counts, and then
libpq's own PG* variables. The executors of a cluster may have neither, so give the
option there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgps import config
from pgps.errors import ConfigError, ConnectionLost, host_names
from pgps_spark.errors import database_errors

__all__ = ["connect", "dsn_of", "jdbc_options", "resolved"]

_APPLICATION = "pgps-spark"
# Dates and times are in ISO format, whatever the server's settings are, since what is copied out is parsed.
# What a connection string demands of TLS, and the JDBC driver calls by the same name; and what that does not know.
_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_NOT_IN_JDBC = (
    "channel_binding", "require_auth", "sslcrl", "sslcrldir", "ssl_min_protocol_version", "sslnegotiation",
    "gssencmode", "requirepeer",
)  # fmt: skip
_NO_DEMAND = ("disable", "prefer", "allow")
_SETTINGS = "-c timezone=UTC -c datestyle=ISO -c bytea_output=hex -c intervalstyle=iso_8601 -c extra_float_digits=1"


def dsn_of(options: Mapping[str, str]) -> str:
    """Return the connection string that a data source's options name."""
    return config.load(dsn=options.get("dsn")).dsn


def resolved(dsn: str | None) -> str:
    """Return a connection string, with the settings of this process where None is given."""
    return config.load(dsn=dsn).dsn


def connect(dsn: str, *, autocommit: bool = True, patience: float = 0.0) -> psycopg.Connection:
    """Connect; try again for `patience` seconds while the server cannot be reached. Raises BrokerError."""
    given = conninfo_to_dict(dsn)
    options = f"{given.pop('options', '')} {_SETTINGS}".strip()
    wanted = make_conninfo("", **{**given, "options": options, "fallback_application_name": _APPLICATION})
    deadline = time.monotonic() + patience
    while True:
        try:
            with database_errors(), host_names():
                return psycopg.connect(wanted, autocommit=autocommit)
        except ConnectionLost as error:
            if time.monotonic() >= deadline or "password authentication" in error.message:
                raise
            time.sleep(0.2)


def jdbc_options(dsn: str | None = None, *, rewrite: bool = True) -> dict[str, str]:
    """Return url, user, password, driver and the settings that matter, for `df.write.jdbc` and `spark.read.jdbc`.

    Connects once, so that host, user and password are what libpq makes of the
    connection string, service files and passfiles included; so is what it says of
    TLS. Raises ConfigError for a server that is reached over a socket file: the JDBC
    driver speaks TCP only; and for a demand on the connection that the driver does not know.
    """
    with connect(resolved(dsn)) as connection:
        info = connection.info
        host, port, dbname, user, password = info.host, info.port, info.dbname, info.user, info.password
        secured = _secured(info.get_parameters())
    if host.startswith("/"):
        raise ConfigError(
            f"the JDBC driver cannot use the socket in {host}",
            hint="Name a host: host=127.0.0.1 in the connection string. pgps.embedded has dsn --tcp.",
        )
    settings = {"stringtype": "unspecified", "ApplicationName": _APPLICATION, **secured}
    if rewrite:
        settings["reWriteBatchedInserts"] = "true"
    query = "&".join(f"{name}={quote(value)}" for name, value in settings.items())
    place = f"[{host}]" if ":" in host else host
    return {
        "url": f"jdbc:postgresql://{place}:{port}/{quote(dbname)}?{query}",
        "user": user,
        "password": password,
        "driver": "org.postgresql.Driver",
        "batchsize": "10000",
        "isolationLevel": "READ_COMMITTED",
    }


def _secured(given: Mapping[str, str]) -> dict[str, str]:
    """Return what a connection demands beyond libpq's defaults as settings of the JDBC driver. Raises ConfigError."""
    strange = [f"{name}={given[name]}" for name in _NOT_IN_JDBC if name in given and given[name] not in _NO_DEMAND]
    if given.get("sslrootcert") == "system":
        strange.append("sslrootcert=system")
    if strange:
        raise ConfigError(
            f"the JDBC driver does not do what the connection string demands: {', '.join(strange)}",
            hint="Publish with via='load', which connects as libpq does, or leave it out for JDBC.",
        )
    return {name: given[name] for name in _TLS if name in given}
