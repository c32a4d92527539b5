"""`pgps spool`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgps.cli._output import Column, Output
from tests.cli.conftest import Pgps
from tests.fix_broker import call, rows
from tests.fix_spools import Member, Spool

Name = Callable[..., str]
Done = Callable[..., str]


@pytest.fixture
def spool(admin: psycopg.Connection, name: Name) -> Iterator[Spool]:
    made = Spool(admin, name("spool"))
    call(admin, "create_spool", made.name)
    for n in range(1, 6):
        made.spool(n, keys=Jsonb({"N": n}), keywords=["add"])
    made.pointer(4)
    yield made
    call(admin, "drop_spool", made.name)
    rows(admin, "delete from pgps_internal.client where name ~ %s", [f"^{made.name}"])


def test_a_spool_is_listed_and_shown(
    pgps: Pgps, done: Done, spool: Spool, connect: Callable[..., psycopg.Connection]
) -> None:
    member = Member(connect(), spool, f"{spool.name}_m", replay=True)
    listed = next(row for row in pgps("spool", "ls", "--json").json if row["name"] == spool.name)
    assert [listed[key] for key in ("replayable", "new", "operational", "members")] == [4, 1, True, 1]
    shown = pgps("spool", "show", spool.name, "--json", "-n", "2").json
    assert [one["seqn"] for one in shown["messages"]] == [4, 5]
    assert [(one["member"], one["present"]) for one in shown["group"]] == [(member.name, True)]
    shown = done("spool", "show", spool.name)
    assert member.name in shown
    assert '{"N": 5}' in shown
    assert spool.name in done("spool", "watch", spool.name, "--count", "1")
    gone = pgps("spool", "show", "no_such_spool")
    assert (gone.status, "does not exist" in gone.err) == (1, True)


def test_a_spool_is_replayed_and_discarded_by_pattern(
    pgps: Pgps, done: Done, spool: Spool, connect: Callable[..., psycopg.Connection]
) -> None:
    member = Member(connect(), spool, f"{spool.name}_m")
    assert "2 messages to be replayed, members present: 1" in pgps("spool", "replay", spool.name, "--key", "N=2..3").err
    assert member.take() == [[2], [3], "|", 5]
    done("spool", "replay", spool.name, "--seqn", "[3,]", "--keyword", "add")
    assert member.take() == [[3], [4], "|"]
    found = pgps("spool", "replay", spool.name, "--spooled-ago", "1 day..", "--spooler", spool.connection.info.user)
    assert "4 messages" in found.err
    assert len(member.take()) == 5
    assert " 0 messages" in pgps("spool", "replay", spool.name, "--spooled-at", "[2001-01-01,2001-01-02]").err
    assert member.take() == ["|"]
    shown = done("spool", "replay", spool.name, "--key", "N=9007199254740993..", "--show-sql", "--dry-run")
    assert "[9007199254740993, null]" in shown
    wrong = pgps("spool", "replay", spool.name, "--spooled-ago", "1 day")
    assert (wrong.status, "LONGER..SHORTER" in wrong.err) == (2, True)
    wrong = pgps("spool", "replay", spool.name, "--key", "N=2")
    assert (wrong.status, "NAME=LOW..HIGH" in wrong.err) == (2, True)
    done("spool", "discard", spool.name, "--key", "N=..2", "--yes")
    spool.dispatch()
    assert list(spool.contents()) == [3, 4, 5]
    done("spool", "discard", spool.name, "--yes")
    spool.dispatch()
    assert list(spool.contents()) == [5]


def test_a_watch_goes_on_below_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column("name"), Column("new", right=True)]
    Output().table(columns, [{"name": "dbserver", "new": 1}])
    Output().table(columns, [{"name": "dbserver", "new": 2}], headed=False)
    assert capsys.readouterr().out.splitlines() == ["name      new", "dbserver    1", "dbserver    2"]
