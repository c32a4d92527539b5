"""RabbitMQ beside PostgreSQL: publications are rows of an outbox, a relay moves them to the broker."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

from bench.field import peers
from bench.field.crew import ROOT, Program
from bench.field.systems.base import Session, System, daemon, database, directory, free_port, listens, processes
from bench.house import opened
from pgps.embedded.process import server_user

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.field.plan import Plan
    from bench.house import House

_PACKAGES = ("rabbitmq-server",)
_PYTHON = ("aio-pika==10.2.1", "psycopg[binary]>=3.2")


class RabbitMQ(System):
    """The broker, with the pattern that keeps it consistent with a database."""

    name = "rabbitmq"
    title = "RabbitMQ + outbox"

    def missing(self) -> str | None:
        """Fetch the packages."""
        try:
            peers.debian(*_PACKAGES)
            peers.python(*_PYTHON)
        except peers.Missing as missing:
            return str(missing)
        return None

    def version(self) -> str:
        """Return the packages' versions."""
        return f"rabbitmq-server {peers.debian_version('rabbitmq-server')}, {_PYTHON[0]}"

    @contextlib.contextmanager
    def open(self, house: House, plan: Plan) -> Iterator[Session]:
        """Run a broker and a relay."""
        with database(house, plan) as known, broker() as (port, pids):
            with opened(known.app) as connection:
                connection.execute(
                    "create table outbox (id bigserial primary key, n bigint not null, symbol text not null,"
                    " price numeric not null, volume bigint not null, created_at timestamptz not null default now())"
                )
            command = [str(peers.python(*_PYTHON)), "-m", "bench.field.clients.rabbitmq"]
            config = {"dsn": known.app, "broker": f"amqp://guest:guest@127.0.0.1:{port}/"}
            with _relay(command, config, plan) as relay:
                yield Session(Program(command, config, processes=processes(plan)), known.app, [*pids, relay])


@contextlib.contextmanager
def broker() -> Iterator[tuple[int, list[int]]]:
    """Run the broker and its port mapper as an unprivileged user, with all files in a directory of their own."""
    root = peers.debian(*_PACKAGES)
    server = next((root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    erlang = root / "usr/lib/erlang"
    mapper = next(erlang.glob("erts-*")) / "bin" / "epmd"
    port, distribution, epmd = free_port(), free_port(), free_port()
    with directory() as place:
        environment = {
            "HOME": str(place), "PATH": f"{place}:/usr/bin:/bin", "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(epmd), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_HOME": str(server), "RABBITMQ_NODENAME": f"field{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution), "RABBITMQ_MNESIA_BASE": str(place / "mnesia"),
            "RABBITMQ_LOG_BASE": str(place / "log"), "RABBITMQ_LOGS": "-", "RABBITMQ_CONFIG_FILE": str(place / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"), "RABBITMQ_CONF_ENV_FILE": str(place / "env"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(place / "config"), "RABBITMQ_PLUGINS_DIR": str(server / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }  # fmt: skip
        _erl(place / "erl", mapper.parent, erlang)
        _write(place / "plugins", "[].\n")
        _write(place / "env", "")
        names = [str(mapper), "-port", str(epmd), "-address", "127.0.0.1", "-relaxed_command_check"]
        with (
            daemon(names, lambda: listens(epmd), environment=environment) as first,
            daemon(
                [str(server / "sbin/rabbitmq-server")], lambda: listens(port), home=place, environment=environment,
                timeout=180,
            ) as second,
        ):  # fmt: skip
            yield port, [first, second]


def _erl(file: Path, binaries: Path, root: Path) -> None:
    """Write the launcher, because the packaged one works only where the package would be installed."""
    _write(
        file,
        f'#!/bin/sh\nexport ROOTDIR={root} BINDIR={binaries} EMU=beam PROGNAME=erl\nexec {binaries}/erlexec "$@"\n',
    )
    file.chmod(0o755)


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    server_user().own(file)


@contextlib.contextmanager
def _relay(command: list[str], config: dict[str, str], plan: Plan) -> Iterator[int]:
    topology = ["direct" if plan.filters == "symbol" else "fanout", str(plan.subscribers), str(plan.symbols)]
    process = subprocess.Popen(
        [*command, "relay", config["dsn"], config["broker"], *topology], cwd=ROOT, stdout=subprocess.PIPE,
        env={"PATH": os.defpath, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the relay did not start")
        yield process.pid
    finally:
        process.terminate()
        process.wait()
