"""`pgps client` and `pgps listen --direct`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Self

import psycopg
import pytest

from pgps.cli import _direct
from pgps.cli._session import Options, Session
from pgps.client import Client
from tests.cli.conftest import Pgps
from tests.fix_broker import make_type, publish, rows, value
from tests.fix_db import wait_until

Name = Callable[..., str]


def test_a_client_is_listed_shown_and_dropped(
    pgps: Pgps, done: Callable[..., str], dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    with Client(dsn) as client, client.identify(who) as me:
        me.register(kind)
        me.send("select 1")
        publish(admin, kind, 1)
        rows(admin, "select pgps.dispatch()")
        listed = next(row for row in pgps("client", "ls", "--json").json if row["name"] == who)
        assert (listed["connected"], listed["registrations"], listed["pending_events"]) == (True, 1, 1)
    shown = pgps("client", "show", who, "--json").json
    assert [one["event_name"] for one in shown["registrations"]] == [kind]
    assert [one["state"] for one in shown["requests"]] == ["waiting"]
    assert kind in done("client", "show", who)
    done("client", "rm", who, "--yes")
    gone = pgps("client", "show", who)
    assert (gone.status, "does not exist" in gone.err) == (1, True)


def test_a_dataclass_is_written_for_an_event_type(
    pgps: Pgps, done: Callable[..., str], admin: psycopg.Connection, name: Name
) -> None:
    kind = name("quote")
    make_type(admin, kind, "symbol text not null, price numeric, at timestamptz, tags text[], doc jsonb")
    source = done("client", "class", kind)
    made: dict[str, object] = {}
    exec(source, made)
    assert "price: decimal.Decimal | None" in source
    assert "symbol: str\n" in source
    assert pgps("client", "class", "nothing").status == 1


def _listening(admin: psycopg.Connection) -> set[int]:
    """Return the sessions of this database that listen to direct events and do nothing else."""
    found = rows(
        admin,
        """
        select pid from pg_stat_activity
        where datname = current_database() and state = 'idle' and query like 'listen "pgps\\_direct%'
        """,
    )
    return {row[0] for row in found}


def test_direct_events_are_printed_as_they_are_raised_and_nothing_is_left(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    # Sessions of tests before may not have gone yet.
    others = _listening(admin)
    process = subprocess.Popen(
        [sys.executable, "-m", "pgps.cli", "--json", "listen", "--direct", f"{kind}*"],
        env={**os.environ, "PGPS_DSN": dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # It is registered before it listens.
        wait_until(lambda: _listening(admin) - others, what="it listens")
        out = process.stdout
        assert out is not None
        publish(admin, kind, 1, 2)
        assert [json.loads(out.readline())["payload"] for _ in range(2)] == [{"n": 1}, {"n": 2}]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert value(admin, "select count(*) from pgps.clients where name like 'listen-%%'") == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("step", ["connects", "leaves"])
def test_who_is_asked_to_leave_while_it_connects_or_leaves_does_so(
    step: str, dsn: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Client):
        def __enter__(self) -> Self:
            if step == "connects":
                signal.raise_signal(signal.SIGINT)
            super().__enter__()
            return self

        def execute(self, *args: Any, **named: Any) -> Any:
            signal.raise_signal(signal.SIGTERM)
            return super().execute(*args, **named)

    monkeypatch.setattr(_direct, "Client", Interrupted)
    before = signal.getsignal(signal.SIGINT)
    _direct.listen_directly(Session(Options(dsn=dsn)), "nothing*", max_events=None, timeout=0.0)
    assert signal.getsignal(signal.SIGINT) is before
    rows(admin, "select pgps.drop_client(name) from pgps.clients where name like 'listen-%'")
