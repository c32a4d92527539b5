"""`pgps link` on brokers that are linked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.cli.conftest import Pgps
from tests.fix_broker import call, make_type, publish, rows, value
from tests.links.conftest import brokers  # noqa: F401 - a fixture
from tests.links.rig import Broker, Link, linked, received, settle

Brokers = Callable[[int], list[Broker]]
SECRET = "tell-nobody"


@pytest.fixture
def pair(brokers: Brokers) -> Iterator[tuple[Broker, Broker, Link]]:  # noqa: F811
    """Brokers a and b; a publishes `tick`, b has subscribed to it."""
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        yield a, b, links[0]


def test_a_link_is_added_listed_paused_resumed_and_removed(pgps: Pgps, own_database: str) -> None:
    def told(*arguments: str) -> Any:
        result = pgps("link", *arguments, "--json", dsn=own_database)
        assert result.status == 0, result
        return result.json

    assert told("ls") == []
    assert "pgps link show far" in told("add", "far", "host=/nonexistent dbname=x", "--direction", "in")["done"]
    assert [(row["name"], row["direction"], row["state"], row["neighbour"]) for row in told("ls")] == [
        ("far", "in", "defined", None)
    ]
    told("pause", "far")
    assert told("show", "far")["state"] == "paused"
    told("resume", "far")
    assert told("show", "far")["enabled"] is True
    assert told("rm", "far", "--yes")["done"] == 'link "far" dropped'
    assert told("ls") == []


def test_show_tells_a_person_what_to_do(pgps: Pgps, own_database: str) -> None:
    pgps("link", "add", "far", "host=/nonexistent", dsn=own_database)
    name = conninfo_to_dict(own_database)["dbname"]
    assert re.search(
        rf"hint: .*pgps-worker --dsn '.* user=.* dbname={name}'",
        pgps("link", "show", "far", dsn=own_database).err,
    )
    call_note = "select pgps.note_link('far', 'blocked', 'it leads to itself', 'Change it.')"
    assert pgps("sql", "-c", call_note, dsn=own_database).status == 0
    shown = pgps("link", "show", "far", dsn=own_database)
    assert "it leads to itself" in shown.out
    assert "hint: Change it." in shown.err
    pgps("link", "pause", "far", dsn=own_database)
    assert "hint: pgps link resume far" in pgps("link", "show", "far", dsn=own_database).err


@pytest.mark.parametrize(
    "conninfo",
    [f"host=h dbname=d user=u password={SECRET}", f"postgresql://u:{SECRET}@h/d", f"host=h password='{SECRET} more'"],
)
@pytest.mark.parametrize("options", [["--dry-run", "--show-sql"], ["--show-sql"], ["--json"], ["--verbose"]], ids=str)
def test_a_password_is_never_shown(pgps: Pgps, own_database: str, conninfo: str, options: list[str]) -> None:
    for _ in range(2):  # the second one fails
        result = pgps("link", "add", "far", conninfo, *options, dsn=own_database)
        assert SECRET not in result.out + result.err
        if "--show-sql" in options and result.status == 0:
            assert "password=********" in result.out
            assert "warning: the password is stored" in result.err
    for command in (["link", "ls"], ["link", "show", "far"], ["topology"], ["doctor"], ["top", "--once"]):
        result = pgps(*command, "--json", dsn=own_database)
        assert SECRET not in result.out + result.err


def test_a_dry_run_adds_nothing(pgps: Pgps, own_database: str) -> None:
    result = pgps("link", "add", "far", "dbname=x", "--dry-run", "--show-sql", dsn=own_database)
    assert "select pgps.create_link(name => 'far', conninfo => 'dbname=x')" in result.out
    assert pgps("link", "ls", "--json", dsn=own_database).json == []


def test_a_connection_string_that_is_none_is_wrong_usage(pgps: Pgps) -> None:
    result = pgps("link", "add", "far", f"{SECRET} x")
    assert result.status == 2
    assert SECRET not in result.err


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "resync", "rm"])
def test_a_link_that_is_not_there_is_told_of(pgps: Pgps, verb: str) -> None:
    result = pgps("link", verb, "nowhere", *(["--yes"] if verb == "rm" else []))
    assert result.status == 1
    assert 'link "nowhere" does not exist' in result.err
    assert "hint:" in result.err


def test_only_administrators_change_links(pgps: Pgps, dsn: str, role: Callable[..., str]) -> None:
    mine = make_conninfo(dsn, user=role("stranger"), password="test")
    for arguments in (["add", "far", "dbname=x"], ["resync", "far"], ["resume", "--as", "clone"]):
        result = pgps("link", *arguments, dsn=mine)
        assert result.status == 1
        assert "grant pgps_admin" in result.err or "permission denied" in result.err
    assert pgps("link", "ls", "--json", dsn=mine).json == []
    assert "only administrators" in pgps("topology", dsn=mine).err


def test_show_has_what_crossed_and_what_waits(pgps: Pgps, pair: tuple[Broker, Broker, Link]) -> None:
    a, b, link = pair
    publish(a.admin, "tick", 1, 2, 3)
    settle([a, b], [link])
    publish(a.admin, "tick", 4)
    a.settle()
    sender = pgps("link", "show", "to_b", "--json", dsn=a.dsn).json
    assert (sender["state"], sender["neighbour"], sender["events_sent"], sender["lag_events"]) == ("up", "b", 3, 1)
    assert sender["sent"] >= sender["confirmed"] > 0
    assert sender["connected_since"] is not None
    receiver = pgps("link", "show", "a", "--json", dsn=b.dsn).json
    assert (receiver["defined_here"], receiver["events_received"]) == (False, 3)
    assert receiver["received"] == sender["confirmed"]


def test_a_link_is_drained_before_it_is_dropped(pgps: Pgps, pair: tuple[Broker, Broker, Link]) -> None:
    a, b, link = pair
    publish(a.admin, "tick", 1)
    a.settle()
    assert pgps("link", "rm", "to_b", "--yes", "--dry-run", dsn=a.dsn).status == 0
    assert pgps("link", "show", "to_b", "--json", dsn=a.dsn).json["state"] == "up"
    begun = pgps("link", "rm", "to_b", "--yes", "--no-wait", dsn=a.dsn)
    assert begun.status == 0
    assert "is being drained" in begun.err
    late = pgps("link", "rm", "to_b", "--yes", "--timeout", "0", dsn=a.dsn)
    assert late.status == 1
    settle([a, b], [link])
    link.remove()
    assert pgps("link", "ls", "--json", dsn=a.dsn).json == pgps("link", "ls", "--json", dsn=b.dsn).json == []
    assert [n for _, n in received(b, "all")] == [1]


def test_a_draining_link_without_its_neighbour_is_told_of_and_dropped_at_once(
    pgps: Pgps, pair: tuple[Broker, Broker, Link]
) -> None:
    a, _, link = pair
    link.close()
    begun = pgps("link", "rm", "to_b", "--yes", "--no-wait", dsn=a.dsn)
    assert "cascade => true" in begun.err
    found = {one["message"]: one["fix"] for one in pgps("doctor", "--json", dsn=a.dsn).json}
    assert found['"to_b" is being dropped, and its neighbour is not connected'] == "pgps link rm to_b --cascade"
    assert "draining" in pgps("topology", dsn=a.dsn).out
    dropped = pgps("link", "rm", "to_b", "--yes", "--cascade", dsn=a.dsn)
    assert dropped.status == 0
    assert "dropped" in dropped.err


def test_resync_tells_the_neighbour_everything_anew(pgps: Pgps, pair: tuple[Broker, Broker, Link]) -> None:
    a, b, link = pair
    publish(a.admin, "tick", 1)
    settle([a, b], [link])
    # As if a message had been lost on the way.
    rows(a.admin, "delete from pgps_internal.told where kind = 'ad'")
    rows(b.admin, "delete from pgps_internal.offer")
    for broker, name in ((a, "to_b"), (b, "a")):
        assert pgps("link", "resync", name, dsn=broker.dsn).status == 0
    settle([a, b], [link])
    assert value(b.admin, "select count(*) from pgps.advertisements") == 1
    assert value(a.admin, "select count(*) from pgps_internal.told where value ? 'is_stale'") == 0
    publish(a.admin, "tick", 2)
    settle([a, b], [link])
    assert received(b, "all") == [("a", 1), ("a", 2)]


def test_resync_takes_back_what_is_wanted_no_more(pgps: Pgps, pair: tuple[Broker, Broker, Link]) -> None:
    a, b, link = pair
    call(b.admin, "unsubscribe", "all")
    assert pgps("link", "resync", "a", dsn=b.dsn).status == 0
    settle([a, b], [link])
    assert value(a.admin, "select count(*) from pgps_internal.wanted") == 0


def test_resync_looks_at_altered_event_types_again(pgps: Pgps, brokers: Brokers) -> None:  # noqa: F811
    a, b = brokers(2)
    make_type(a.admin, "tick")
    make_type(b.admin, "tick", "n text")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        assert "attribute" in pgps("link", "show", "a", "--json", dsn=b.dsn).json["differences"]["tick"]
        # A link that does not carry what it should is not up, at neither end.
        for broker in (a, b):
            assert value(broker.admin, "select state from pgps.links") == "incomplete"
            doctor = pgps("doctor", "--json", dsn=broker.dsn).json
            assert [one["fix"] for one in doctor if "do not cross: tick" in one["message"]]
        call(b.admin, "drop_event_type", "tick")
        make_type(b.admin, "tick")
        assert pgps("link", "resync", "a", dsn=b.dsn).status == 0
        assert pgps("link", "show", "a", "--json", dsn=b.dsn).json["differences"] is None
        assert value(b.admin, "select state from pgps.links") == "up"


def test_resync_of_a_link_that_was_never_up_says_so(pgps: Pgps, own_database: str) -> None:
    pgps("link", "add", "far", "dbname=x", dsn=own_database)
    result = pgps("link", "resync", "far", dsn=own_database)
    assert result.status == 1
    assert "never been up" in result.err


def test_a_restored_broker_is_found_and_resumed(pgps: Pgps, pair: tuple[Broker, Broker, Link]) -> None:
    a, _, _ = pair
    rows(a.admin, "update pgps_internal.broker set incarnation = 'of a backup'")
    findings = pgps("doctor", "--json", dsn=a.dsn).json
    assert [one["level"] for one in findings if "pgps link resume --as restored" in one["fix"]] == ["problem"]
    assert pgps("link", "resume", "--as", "restored", dsn=a.dsn).status == 0
    assert a.identity()["epoch"] > 1
    assert not [one for one in pgps("doctor", "--json", dsn=a.dsn).json if "restored" in one["message"]]


def test_doctor_finds_what_is_wrong_with_a_link(pgps: Pgps, own_database: str) -> None:
    me = pgps("sql", "-c", "select current_user as me", "--json", dsn=own_database).json[0]["me"]
    pgps("link", "add", "far", "host=/nonexistent password=x", "--role", me, dsn=own_database)
    found = {one["message"]: one["fix"] for one in pgps("doctor", "--json", dsn=own_database).json}
    named = f"dbname={conninfo_to_dict(own_database)['dbname']}"
    remedy = found['no worker here connects "far"']
    assert "pgps-worker --dsn '" in remedy
    assert named in remedy
    assert "user=broker_worker" in remedy or "create role" not in remedy
    assert "password" not in remedy
    assert "passfile" in found['"far" has a password in its connection string']
    assert any("as superuser" in message for message in found)


def test_status_and_top_show_links_where_there_are_any(pgps: Pgps, own_database: str) -> None:
    assert "links" not in pgps("status", "--json", dsn=own_database).json
    assert "to send" not in pgps("top", "--once", dsn=own_database).out
    pgps("link", "add", "far", "dbname=x", dsn=own_database)
    status = pgps("status", "--json", dsn=own_database).json
    assert (status["links"], status["links_up"]) == (1, 0)
    assert "to send" in pgps("top", "--once", dsn=own_database).out
    assert pgps("top", "--once", "--json", dsn=own_database).lines[0]["links"][0]["name"] == "far"
