"""`pgps listen`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest

from tests.cli.conftest import Pgps
from tests.fix_db import wait_until

Name = Callable[..., str]


@pytest.fixture
def subscribed(name: Name, done: Callable[..., str]) -> tuple[str, str]:
    """An event type and an external subscription to it."""
    quote, sub = name("quote"), name("sub")
    done("type", "create", quote, "n int", "--advertise")
    done("sub", "create", sub, quote)
    return quote, sub


@pytest.fixture
def waiting(subscribed: tuple[str, str], done: Callable[..., str], admin: psycopg.Connection) -> tuple[str, str]:
    """A subscription for which five events wait."""
    done("publish", subscribed[0], str([{"n": n} for n in range(5)]).replace("'", '"'))
    admin.execute("select pgps.dispatch()")
    return subscribed


def numbers(lines: list[dict[str, dict[str, int]]]) -> list[int]:
    return [line["payload"]["n"] for line in lines]


def start(dsn: str, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pgps.cli", "listen", *arguments],
        env={**os.environ, "PGPS_DSN": dsn},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def waiting_listeners(admin: psycopg.Connection) -> set[int]:
    """The sessions that wait: their LISTEN and their first look are behind them."""
    found = admin.execute(
        """
        select pid from pg_stat_activity where application_name = 'pgps/cli' and state = 'idle'
            and query = 'COMMIT' and datname = current_database()
        """
    )
    return {pid for (pid,) in found}


def test_events_are_printed_once_in_order(pgps: Pgps, waiting: tuple[str, str]) -> None:
    first = pgps("listen", waiting[1], "--max", "3", "--json")
    assert numbers(first.lines) == [0, 1, 2]
    rest = pgps("listen", waiting[1], "--timeout", "0", "--json")
    assert numbers(rest.lines) == [3, 4]
    assert set(rest.lines[0]) == {
        "event_id", "event_type", "payload", "published_at", "publisher", "xid", "origin", "attempt",
    }  # fmt: skip
    assert pgps("listen", waiting[1], "--timeout", "0").out == ""


def test_a_line_for_people_has_id_time_type_and_event(pgps: Pgps, waiting: tuple[str, str]) -> None:
    quote, sub = waiting
    line = pgps("listen", sub, "--max", "1").out
    assert line.endswith(f' {quote} {{"n": 0}}\n')
    assert line.split()[0].isdigit()


def test_without_ack_nothing_is_taken(pgps: Pgps, waiting: tuple[str, str]) -> None:
    for _ in range(2):
        assert numbers(pgps("listen", waiting[1], "--no-ack", "--json").lines) == [0, 1, 2, 3, 4]
    assert numbers(pgps("listen", waiting[1], "--no-ack", "--max", "2", "--json").lines) == [0, 1]
    assert pgps("sub", "show", waiting[1], "--json").json["depth"] == 5


def test_small_batches_come_to_the_same(pgps: Pgps, waiting: tuple[str, str]) -> None:
    assert numbers(pgps("listen", waiting[1], "--batch", "2", "--max", "5", "--json").lines) == [0, 1, 2, 3, 4]


def test_the_subscription_has_to_exist_and_be_external(
    pgps: Pgps, subscribed: tuple[str, str], name: Name, admin: psycopg.Connection
) -> None:
    assert pgps("listen", "no_such_sub").err.splitlines()[1] == "hint: pgps sub ls"
    quote, function, internal = subscribed[0], name("f"), name("internal")
    admin.execute(
        f"create function public.{function}(e pgps_event.{quote}) returns void language sql as 'select'".encode()
    )
    pgps("sub", "create", internal, quote, "-x", f"public.{function}")
    result = pgps("listen", internal)
    assert result.status == 1
    assert "nobody can receive from it" in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_waiting_listener_cleanly(
    subscribed: tuple[str, str], dsn: str, admin: psycopg.Connection, number: signal.Signals
) -> None:
    # A session that was closed before may not have gone yet.
    others = waiting_listeners(admin)
    with start(dsn, subscribed[1], "--poll", "600") as listener:
        wait_until(lambda: waiting_listeners(admin) - others, what="the listener listens")
        listener.send_signal(number)
        out, err = listener.communicate(timeout=60)
    assert (listener.returncode, out, err) == (0, "", "")


def test_a_waiting_listener_is_woken(
    pgps: Pgps, subscribed: tuple[str, str], dsn: str, admin: psycopg.Connection
) -> None:
    quote, sub = subscribed
    others = waiting_listeners(admin)
    # So seldom does it look on its own that only the notification can be in time.
    with start(dsn, sub, "--poll", "3600", "--max", "1", "--json") as listener:
        wait_until(lambda: waiting_listeners(admin) - others, what="the listener listens")
        pgps("publish", quote, '{"n": 7}')
        admin.execute("select pgps.dispatch()")
        out, _ = listener.communicate(timeout=60)
    assert '"n": 7' in out
    assert listener.returncode == 0


def test_what_nobody_reads_is_not_acknowledged(
    pgps: Pgps, waiting: tuple[str, str], dsn: str, admin: psycopg.Connection
) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # before it starts, so before anything can be written
    with start(dsn, waiting[1], "--timeout", "0", stdout=writing) as listener:
        os.close(writing)
        assert listener.wait(timeout=60) != 0
    assert pgps("sub", "show", waiting[1], "--json").json["depth"] == 5
