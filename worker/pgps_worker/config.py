"""What a worker is told when it starts.

| setting          | option             | environment                  | default                          |
|------------------|--------------------|------------------------------|----------------------------------|
| dsn              | --dsn              | PGPS_DSN, else libpq's PG*   | libpq's defaults                 |
| name             | --name             | PGPS_WORKER_NAME             | host name and process id         |
| concurrency      | --concurrency      | PGPS_WORKER_CONCURRENCY      | 2 subscriptions at once          |
| callback_timeout | --callback-timeout | PGPS_WORKER_CALLBACK_TIMEOUT | 30 s                             |
| time_slice       | --time-slice       | PGPS_WORKER_TIME_SLICE       | 1 s                              |
| dispatch_timeout | --dispatch-timeout | PGPS_WORKER_DISPATCH_TIMEOUT | 60 s                             |
| reclaim_every    | --reclaim-every    | PGPS_WORKER_RECLAIM_EVERY    | 5 s                              |
| link_auth        | --link-auth        | PGPS_WORKER_LINK_AUTH        | scram-sha-256,gss,sspi,none      |
| cores            | --cores            | PGPS_WORKER_CORES            | the processors of this host      |
| health_port      | --health-port      | PGPS_WORKER_HEALTH_PORT      | none: no HTTP                    |
| health_host      | --health-host      | PGPS_WORKER_HEALTH_HOST      | 127.0.0.1                        |
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgps.errors import ConfigError
from pgps_worker.methods import allowed_methods

__all__ = ["WorkerConfig", "default_cores", "default_name"]

# "pgps-worker/<name>/<service>" must fit application_name's 63 bytes.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,32}")


def default_name() -> str:
    """Return a name no other worker of this network has: host name and process id."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname().split(".")[0])[:22]
    return f"{host}-{os.getpid()}"


def default_cores() -> int:
    """Return how many processors this host has."""
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The settings of one worker; all times are seconds. Raises ConfigError on a value that cannot work.

    `dsn` must reach the server itself, not a transaction pooler: the worker
    holds session locks and listens. `time_slice` is how long one role may have the
    last session for callbacks, or for requests, while others wait. `dispatch_timeout` ends a dispatch that
    hangs, `poll` is how late a lost notification is noticed, `report_every` how
    late a failure is logged. `link_auth` says by which methods the worker logs in at other brokers, as libpq's
    require_auth does; "any" has no limit. `cores` are the
    processors that the server and the clients have: the fewer, and the more
    subscriptions a batch wakes, the longer events gather while commits are many.
    """

    dsn: str = ""
    name: str = field(default_factory=default_name)
    concurrency: int = 2
    callback_timeout: float = 30.0
    time_slice: float = 1.0
    dispatch_timeout: float = 60.0
    reclaim_every: float = 5.0
    link_auth: str = ""
    cores: int = field(default_factory=default_cores)
    poll: float = 1.0
    report_every: float = 5.0
    health_host: str = "127.0.0.1"
    health_port: int | None = None

    def __post_init__(self) -> None:
        try:
            conninfo_to_dict(self.dsn)
        except psycopg.ProgrammingError as error:
            raise ConfigError(
                f"the connection string is malformed: {str(error).strip()}",
                hint="Give a libpq string or URI, for example postgresql:///mydb or 'dbname=mydb'.",
            ) from error
        allowed_methods(self.link_auth)
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f'invalid worker name "{self.name}"',
                hint="Use 1 to 32 letters, digits, dots, dashes and underscores.",
            )
        for what in (
            "concurrency",
            "callback_timeout",
            "time_slice",
            "dispatch_timeout",
            "reclaim_every",
            "cores",
            "poll",
            "report_every",
        ):
            value = getattr(self, what)
            if not value > 0:
                raise ConfigError(f"{what} is {value}", hint=f"Give a {what.replace('_', ' ')} above zero.")
