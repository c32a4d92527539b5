"""`pgps doctor` and `pgps top` on a real broker."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
import time
from collections.abc import Callable

import psycopg
from psycopg.conninfo import make_conninfo
from rich.console import Console

from pgps.cli._frame import Frame, render
from tests.cli.conftest import Pgps
from tests.fix_broker import call, make_type, publish, rows
from tests.fix_db import Connect, wait_until

Name = Callable[..., str]


def test_doctor_on_a_sound_broker_finds_no_problem(pgps: Pgps, own_database: str) -> None:
    result = pgps("doctor", "--json", dsn=own_database)
    findings = result.json
    assert result.status == 0, [one for one in findings if one["level"] == "problem"]
    assert {one["check"] for one in findings} >= {"server", "plpython3u", "revision", "code", "roles", "workers"}
    assert not [one for one in findings if one["level"] == "problem"]


def test_doctor_on_an_empty_database_says_to_install(pgps_without_database: Pgps, empty_database: str) -> None:
    result = pgps_without_database("doctor", dsn=empty_database)
    assert result.status == 1
    assert "pgps install" in result.out


def test_doctor_works_for_a_role_without_rights(pgps: Pgps, dsn: str, role: Callable[..., str]) -> None:
    stranger = role("stranger")
    result = pgps("doctor", "--json", dsn=make_conninfo(dsn, user=stranger, password="test"))
    assert f"grant pgps_admin to {stranger}" in [one["fix"] for one in result.json]


def test_doctor_works_when_the_owner_of_a_subscription_is_gone(
    pgps: Pgps, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "tick")
    leaver = connect(role("leaver"), dsn=own_database)
    for name, options in (("all", {}), ("some", {"filter": "n > 1"}), ("mine", {"filter": "n = (select 1)"})):
        call(leaver, "subscribe", name, "tick", **options)
    name = leaver.info.user
    leaver.close()
    rows(admin, f"drop owned by {name} cascade; drop role {name}; create role {name}")
    publish(admin, "tick", 1, 2)
    assert call(admin, "dispatch") == 2
    result = pgps("doctor", "--json", dsn=own_database)
    problems = [each for each in result.json if each["level"] == "problem"]
    assert [each["fix"].split(";")[0] for each in problems] == [
        "pgps sub rm all",
        "pgps sub rm mine",
        "pgps sub rm some",
    ]
    given = problems[0]["fix"].split(": ")[1].replace("…", name)
    admin.execute(given.encode())
    assert rows(admin, "select name from pgps.subscriptions where state = 'active'") == [("all",)]
    assert all("its owner was dropped" in each["message"] for each in problems)
    assert len(rows(admin, "select * from pgps.subscriptions")) == 3
    for each in ("all", "some", "mine"):
        call(admin, "unsubscribe", each)
    assert rows(admin, "select * from pgps.subscriptions") == []


def test_top_shows_one_frame(pgps: Pgps, name: Name, admin: psycopg.Connection) -> None:
    quote, sub = name("quote"), name("sub")
    pgps("type", "create", quote, "n int", "--advertise")
    pgps("sub", "create", sub, quote)
    pgps("publish", quote, '[{"n": 1}, {"n": 2}]')
    frame = pgps("top", "--once", "--json").lines[0]
    assert [row["waiting"] for row in frame["event_types"] if row["event_type"] == quote] == [2]
    admin.execute("select pgps.dispatch()")
    frame = pgps("top", "--once", "--json").lines[0]
    assert [row["depth"] for row in frame["subscriptions"] if row["name"] == sub] == [2]
    text = pgps("top", "--once").out
    assert quote in text
    assert sub in text
    assert "no workers" in text


def test_top_leaves_the_terminal_as_it_was_when_q_is_typed(dsn: str) -> None:
    terminal, inside = pty.openpty()
    before = termios.tcgetattr(inside)
    with subprocess.Popen(
        [sys.executable, "-m", "pgps.cli", "top", "--interval", "60"],
        env={**os.environ, "PGPS_DSN": dsn, "TERM": "xterm"},
        stdin=inside,
        stdout=inside,
        stderr=inside,
    ) as process:
        shown = b""
        while b"no workers" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"q")
        wait_until(lambda: process.poll() is not None, what="top leaves")
    assert process.returncode == 0
    assert termios.tcgetattr(inside) == before
    os.close(inside)
    os.close(terminal)


def frame(taken: float, published: int) -> Frame:
    kinds = {"matched": 0, "repeats": 0, "waiting": 3, "waiting_seconds": 20.0, "last_batch_at": None, "rate": 5.0}
    return Frame(
        taken=taken,
        moment={"database": "d", "now": None},
        types=[{"event_type": f"t{n}", "published": published, **kinds} for n in range(30)],
        subscriptions=[],
        workers=[],
    )


def test_rates_are_of_the_time_between_two_frames() -> None:
    first, second = frame(time.monotonic(), 100), frame(time.monotonic() + 2, 150)
    first.measure(None)
    assert first.throughput == 5.0 * 30
    second.taken = first.taken + 2
    second.measure(first)
    assert second.throughput == 25.0 * 30
    assert list(second.history) == [150.0, 750.0]


def test_a_frame_fits_the_screen() -> None:
    for height in (24, 40):
        console = Console(width=80, height=height, force_terminal=True, record=True)
        made = frame(0, 1)
        made.measure(None)
        with console.capture() as capture:
            console.print(render(made, height=height, width=80))
        lines = capture.get().splitlines()
        assert len(lines) <= height
        assert "more" in capture.get()
