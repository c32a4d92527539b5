"""The command `pgps-worker`."""

from __future__ import annotations

import asyncio
import enum
import sys
from typing import Annotated

import psycopg
import typer

from pgps import config as pgps_config
from pgps._help import Command
from pgps._printable import printable
from pgps.errors import ConfigError, PgpsError
from pgps_worker import logs
from pgps_worker.config import WorkerConfig, default_cores, default_name
from pgps_worker.explained import explained
from pgps_worker.worker import run_once, run_worker

__all__ = ["app", "main"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


class Level(enum.StrEnum):
    """The level from which on messages are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Dsn = Annotated[str | None, typer.Option(help="The broker's database [PGPS_DSN; else libpq's own PG*].")]
Name = Annotated[
    str | None,
    typer.Option(envvar="PGPS_WORKER_NAME", help="Name of this worker; else host name and process id."),
]
Once = Annotated[bool, typer.Option("--once", help="Do all there is to do now and leave, for cron.")]
Concurrency = Annotated[
    int, typer.Option(envvar="PGPS_WORKER_CONCURRENCY", help="Internal subscriptions to run at once.", min=1)
]
CallbackTimeout = Annotated[
    float, typer.Option(envvar="PGPS_WORKER_CALLBACK_TIMEOUT", help="Seconds a batch of callbacks may take.")
]
TimeSlice = Annotated[
    float,
    typer.Option(
        envvar="PGPS_WORKER_TIME_SLICE",
        help="Seconds that callbacks or requests of a role may have the last session while other roles wait.",
    ),
]
DispatchTimeout = Annotated[
    float,
    typer.Option(
        envvar="PGPS_WORKER_DISPATCH_TIMEOUT", help="Seconds to match a batch; a filter that takes longer is suspended."
    ),
]
ReclaimEvery = Annotated[
    float, typer.Option(envvar="PGPS_WORKER_RECLAIM_EVERY", help="Seconds between reclaims of space.")
]
LinkAuth = Annotated[
    str,
    typer.Option(
        envvar="PGPS_WORKER_LINK_AUTH",
        help="How to log in at other brokers, as libpq's require_auth; any: also with a password in clear "
        "[scram-sha-256,gss,sspi,none].",
    ),
]
Cores = Annotated[
    int | None,
    typer.Option(
        envvar="PGPS_WORKER_CORES",
        help="Processors of the server; else of this host. The fewer, the larger batches are under load.",
        min=1,
    ),
]
HealthPort = Annotated[
    int | None,
    typer.Option(envvar="PGPS_WORKER_HEALTH_PORT", help="Serve /healthz and /metrics.", min=1, max=65535),
]
HealthHost = Annotated[str, typer.Option(envvar="PGPS_WORKER_HEALTH_HOST", help="The address to serve them on.")]
LogLevel = Annotated[Level, typer.Option(envvar="PGPS_WORKER_LOG_LEVEL", help="Log from this level on.")]
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Log JSON lines.")]


@app.command(cls=Command)
def work(
    *,
    dsn: Dsn = None,
    name: Name = None,
    once: Once = False,
    concurrency: Concurrency = 2,
    callback_timeout: CallbackTimeout = 30.0,
    time_slice: TimeSlice = 1.0,
    dispatch_timeout: DispatchTimeout = 60.0,
    reclaim_every: ReclaimEvery = 5.0,
    link_auth: LinkAuth = "",
    cores: Cores = None,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    log_level: LogLevel = Level.INFO,
    json_logs: JsonLogs = False,
) -> None:
    """Dispatch events, run internal subscriptions and reclaim space until told to leave.

    Several workers may run on one broker: one dispatches, and another takes over
    within two seconds should it end. SIGTERM and SIGINT let running batches end;
    a second one cancels them, and nothing is lost either way.
    """
    try:
        config = WorkerConfig(
            dsn=pgps_config.load(dsn=dsn).dsn,
            name=name or default_name(),
            concurrency=concurrency,
            callback_timeout=callback_timeout,
            time_slice=time_slice,
            dispatch_timeout=dispatch_timeout,
            reclaim_every=reclaim_every,
            link_auth=link_auth,
            cores=cores or default_cores(),
            health_host=health_host,
            health_port=health_port,
        )
    except ConfigError as error:
        _fail(error, 2)
    logs.set_up(log_level, as_json=json_logs, worker=config.name)
    # While a link or a callback keeps the interpreter busy, the dispatcher's thread gets it back after this time at
    # most.
    sys.setswitchinterval(0.0005)
    try:
        asyncio.run(run_once(config) if once else run_worker(config))
    except psycopg.Error as error:
        _fail(explained(config, error), 1)
    except asyncio.CancelledError:
        raise typer.Exit(1) from None


def _fail(error: PgpsError, code: int) -> None:
    typer.echo(printable(f"pgps-worker: {error}", keep="\n"), err=True)
    raise typer.Exit(code)


def main() -> None:
    """Run the command line."""
    app(prog_name="pgps-worker")


if __name__ == "__main__":
    main()
