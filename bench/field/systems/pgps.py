"""pgps: a worker at its defaults; subscribers wait on their channel, receive and acknowledge."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from bench.field.crew import Program
from bench.field.systems.base import APP, Session, System, database, processes
from bench.house import PGPS, opened, worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from bench.field.plan import Plan
    from bench.house import House

ATTRIBUTES = "n bigint not null, symbol text not null, price numeric not null, volume bigint not null"


class Pgps(System):
    """pgps, which the others are compared with."""

    name = "pgps"
    title = "pgps"
    once = True
    ordered = True

    def version(self) -> str:
        """Return the version of this checkout."""
        import pgps  # noqa: PLC0415 - the package, not this module

        return f"pgps {pgps.__version__}, psycopg"

    def made(self, admin: str) -> None:
        """Prepare the database; called with the superuser's connection string before anybody else connects."""

    @contextlib.contextmanager
    def open(self, house: House, plan: Plan) -> Iterator[Session]:
        """Create the type and the subscriptions, and run a worker."""
        with database(house, plan, template=PGPS) as known:
            self.made(known.admin)
            with opened(known.admin) as connection:
                _create_type(connection, plan)
            with opened(known.app) as connection:
                channels = _set_up(connection, plan)
            with worker(known.admin) as pid:
                program = Program(
                    [sys.executable, "-m", "bench.field.clients.pgps"],
                    {"dsn": known.app, "channels": channels},
                    processes=processes(plan),
                )
                yield Session(program, known.app, [pid], clients=plan.consume != "callback")


def _create_type(connection: psycopg.Connection, plan: Plan) -> None:
    connection.execute("select pgps.create_event_type('quote', %s)", [ATTRIBUTES])
    connection.execute(f"grant select, insert on pgps_event.quote to {APP}".encode())
    if plan.fail_first:
        connection.execute("select pgps.configure('retry_delay', '0 seconds')")


def _set_up(connection: psycopg.Connection, plan: Plan) -> list[str]:
    connection.execute("select pgps.advertise('quote')")
    for k in range(plan.subscribers):
        execute = None
        if plan.consume == "callback":
            _callback(connection, k, each=plan.batch == 1)
            execute = f"store_{k}"
        connection.execute(
            "select pgps.subscribe(%s, 'quote', %s, execute => %s)", [f"s{k}", _filter(plan, k), execute]
        )
    rows = connection.execute("select name, channel from pgps.subscriptions").fetchall()
    channels: dict[str, str] = dict(rows)
    return [channels[f"s{k}"] for k in range(plan.subscribers)]


def _filter(plan: Plan, subscriber: int) -> str | None:
    if plan.filters == "symbol":
        return f"symbol = 'S{subscriber % plan.symbols}'"
    if plan.filters == "portfolio":
        return f"symbol in (select symbol from portfolios where portfolio_id = {plan.portfolio(subscriber)})"
    return None


def _callback(connection: psycopg.Connection, subscriber: int, *, each: bool) -> None:
    """Create the paper's stored procedure: it inserts an event, or a batch of them, into the application's table."""
    into = "insert into handled (subscriber, n, symbol, price, volume)"
    if each:
        argument, values = "event pgps_event.quote", "values ({}, event.n, event.symbol, event.price, event.volume)"
    else:
        argument = "events pgps_event.quote[]"
        values = "select {}, e.n, e.symbol, e.price, e.volume from unnest(events) e"
    connection.execute(
        f"create function store_{subscriber}({argument}) returns void language sql"
        f" begin atomic {into} {values.format(subscriber)}; end".encode()
    )
