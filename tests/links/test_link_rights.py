"""What the role of a link may, and that neither a client nor a neighbour can speak for another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.fix_broker import call, make_type, publish, refused, rows, value
from tests.fix_db import Connect
from tests.links.rig import Broker, Lane, linked, open_link, received, settle

Brokers = Callable[[int], list[Broker]]
LINK_CALLS = [
    "link_identity()",
    "link_past(gen_random_uuid())",
    "link_open('{}', 'send')",
    "link_next(0, 1)",
    "link_rows('tick', 0, 1, false) as r(i bigint, e bigint, n integer)",
    "link_begin('{}')",
    "link_apply('{}')",
    "link_close()",
]
NOT_A_LINKS = [
    "create_link('l', 'dbname=x')",
    "drop_link('l')",
    "resync_link('l')",
    "resume_links('clone')",
    "serve_links()",
    "note_link('l', 'up')",
    "dispatch()",
    "configure('broker', 'x')",
    "discard_exception(null)",
]


@pytest.fixture
def hub(brokers: Brokers) -> Iterator[tuple[Broker, Broker, Broker, Lane]]:
    """Broker b, which a and c have linked to; the lane from a to b, over which c's words can be forged."""
    a, b, c = made = brokers(3)
    make_type(c.admin, "tick")
    with linked([(a, b), (c, b)]) as links:
        settle(made, links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        publish(c.admin, "tick", 1)
        settle(made, links)
        yield a, b, c, links[0].out


def say(lane: Lane, *items: dict[str, Any], **more: Any) -> None:
    """Send items that the neighbour at the lane's beginning has made up."""
    numbered = [{"lseq": lane.last + n, **item} for n, item in enumerate(items, 1)]
    batch = {"after": lane.last, "upto": lane.last + len(items), "mark": "1", "items": numbered, "types": []} | more
    with lane.target.transaction():
        value(lane.target, "select pgps.link_begin(%s::jsonb)", [json.dumps(batch)])
        value(lane.target, "select pgps.link_apply(%s::jsonb)", [json.dumps(batch)])
    lane.last += len(items)


def ad(of: Broker, *path: Broker, cost: int | None = None) -> dict[str, Any]:
    ids = [broker.identity()["broker"] for broker in path]
    told: dict[str, Any] = {
        "broker": of.identity()["broker"],
        "epoch": 1,
        "name": of.name,
        "path": ids,
        "types": ["tick"],
    }
    return {"kind": "ad", "body": told | {"cost": len(ids) - 1 if cost is None else cost}}


def test_a_role_without_pgps_link_can_call_nothing_of_it_and_with_it_nothing_else(
    brokers: Brokers, connect: Connect, role: Callable[..., str]
) -> None:
    (a,) = brokers(1)
    make_type(a.admin, "tick")
    rows(a.admin, "revoke all on pgps_event.tick from public")
    stranger, linker = connect(role("stranger"), dsn=a.dsn), connect(role("linker", "pgps_link"), dsn=a.dsn)
    for function in LINK_CALLS:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(stranger, f"select * from pgps.{function}")
    for function in NOT_A_LINKS:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(linker, f"select pgps.{function}")
    for verb in ("link_open", "link_begin", "link_apply", "link_close", "drop_link", "resume_links"):
        for session in (stranger, linker) if verb in ("drop_link", "resume_links") else (stranger,):
            with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState)):
                rows(session, f'select pgps._call(\'{verb}\', \'{{"duty": "send", "as": "clone", "name": "x"}}\')')
    for query in ("table pgps_internal.link", "table pgps_event.tick", "insert into pgps_event.tick values (1)"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(linker, query)
    assert rows(linker, "select * from pgps.links") == rows(linker, "select * from pgps.exceptions") == []
    assert call(linker, "link_identity")["name"] == "a"


def test_no_role_speaks_for_another_ones_neighbour(
    hub: tuple[Broker, Broker, Broker, Lane], connect: Connect, role: Callable[..., str]
) -> None:
    _, b, c, _ = hub
    linker = connect(role("linker", "pgps_link"), dsn=b.dsn)
    known = value(b.admin, "select count(*) from pgps_internal.neighbour")
    for epoch in (1, 2):
        with refused("42501", "does not speak for broker", "c"):
            call(linker, "link_open", json.dumps(c.identity() | {"epoch": epoch}), "send")
    with refused("42501"):
        call(linker, "link_open", json.dumps(c.identity()), "send", "c")
    assert value(b.admin, "select count(*) from pgps_internal.neighbour where name = 'c' and epoch = 1") == 1
    assert value(b.admin, "select count(*) from pgps_internal.neighbour") == known
    # A broker of its own it may introduce; that one has this role's rights, none.
    mine = {"broker": str(uuid4()), "epoch": 1, "name": "mine", "state": "active", "protocol": 1}
    assert call(linker, "link_open", json.dumps(mine), "receive")["last"] == 0
    lane = Lane(linker, linker, 0, None)
    unknown = {"broker": mine["broker"], "epoch": 1, "attachment": 1, "previous": 0, "upto": 5, "events": 1}
    say(lane, {"kind": "data", **unknown})
    assert value(b.admin, "select count(*) from pgps_internal.tick_log") == 1


def test_a_neighbour_gives_paths_from_itself_to_others_only(hub: tuple[Broker, Broker, Broker, Lane]) -> None:
    a, b, c, lane = hub
    offers = "select count(*) from pgps_internal.offer f join pgps_internal.neighbour n using (neighbour_id)"
    before = value(b.admin, f"{offers} where n.name = 'a'")
    for forged in (ad(c, c), ad(c, c, a), ad(c, a), ad(c, a, c, cost=-5), ad(c, a, a, c), ad(c)):
        with refused("22023", "a path that is none"):
            say(lane, forged)
    say(lane, ad(b, a, b), ad(b, a, c, b))
    assert value(b.admin, f"{offers} where n.name = 'a'") == before, "what comes over this broker is no way"
    say(lane, ad(c, a, c))
    assert value(b.admin, f"{offers} where n.name = 'a'") == before + 1


def test_a_neighbour_cannot_speak_for_the_parent_of_an_origin(hub: tuple[Broker, Broker, Broker, Lane]) -> None:
    _, b, c, lane = hub
    horizon = "select pgps_internal.horizon(o.origin_id) from pgps_internal.origin o where o.name = 'c'"
    before = value(b.admin, horizon), value(b.admin, "select count(*) from pgps_internal.activation")
    attachment = value(b.admin, "select attachment from pgps_internal.origin where name = 'c'")
    of = {"broker": c.identity()["broker"], "epoch": 1, "attachment": attachment}
    own = {"broker": b.identity()["broker"], "epoch": 1, "attachment": 0}
    key = value(b.admin, "select min(key) from pgps_internal.pushed")
    for origin in (of, own):
        say(
            lane,
            {"kind": "silence", **origin, "previous": before[0], "upto": 10_000},
            {"kind": "data", **origin, "previous": before[0], "upto": 10_001, "events": 1},
            {"kind": "gap", "body": {**origin, "after": 0, "upto": 10_000}},
            {"kind": "active", "body": {**origin, "key": key, "since": 10_000}},
            {"kind": "unad", "body": origin},
            {"kind": "detach", "body": origin},
        )
    assert (value(b.admin, horizon), value(b.admin, "select count(*) from pgps_internal.activation")) == before
    assert rows(b.admin, "select * from pgps.exceptions") == []
    publish(c.admin, "tick", 2)


def test_a_neighbours_name_for_a_filter_does_not_hide_anybodys(hub: tuple[Broker, Broker, Broker, Lane]) -> None:
    _, b, _, lane = hub
    key = value(b.admin, "select min(key) from pgps_internal.pushed")
    body = {"key": key, "type": "tick", "filter": "n > 1000", "constant_types": ["integer"], "environment": {}}
    say(lane, {"kind": "sub", "body": body | {"collation": b.identity()["collation"]}})
    own = "select f.filter from pgps_internal.link_filter f where key = %s"
    assert value(b.admin, own, [key]) is None, "still every event"
    assert value(b.admin, "select count(*) from pgps_internal.cover where key = %s", [key]) == 0
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        say(lane, {"kind": "sub", "body": body | {"key": "k", "environment": {"timezone": "x'; drop table t"}}})
    say(lane, {"kind": "sub", "body": body | {"key": "k2", "filter": "pg_terminate_backend(n)"}})
    assert (
        value(
            b.admin,
            "select count(*) from pgps_internal.wanted w join pgps_internal.link_filter f using (key)"
            " where w.known_as = 'k2' and f.filter is null",
        )
        == 1
    ), "taken as none"


def test_numbers_are_the_links_own(hub: tuple[Broker, Broker, Broker, Lane]) -> None:
    _, b, _, lane = hub
    last = lane.last
    with refused("55000", "the last received is"):
        say(lane, {"kind": "silence"}, after=last + 5, upto=last + 6)
    with refused("55000", "confirms", "the last sent is"):
        call(lane.source, "link_next", 1_000_000, 10)
    with refused("0A000", "does not understand"):
        say(lane, {"kind": "obey", "body": {}})
    with refused("55000", "has not opened a link"):
        rows(lane.source, "select pgps.link_begin('{}')")
    assert value(b.admin, "select count(*) from pgps_internal.rejected") == 0


def test_a_right_that_is_taken_away_counts_for_tables_staged_before(brokers: Brokers, role: Callable[..., str]) -> None:
    a, b = brokers(2)
    guest = role("guest")
    make_type(a.admin, "tick")
    make_type(b.admin, "tick")
    rows(b.admin, f"revoke all on pgps_event.tick from public; grant insert on pgps_event.tick to {guest}")
    call(b.admin, "create_link", "to_a", a.dsn, role=guest)
    link = open_link(b, a, "to_a")
    try:
        settle([a, b], [link])
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], [link])
        publish(a.admin, "tick", 1)
        settle([a, b], [link])
        publish(a.admin, "tick", 2)
        a.settle()
        batch = link.back.next()
        value(link.back.target, "select pgps.link_begin(%s::jsonb, true)", [json.dumps(batch)])
        rows(b.admin, f"revoke insert on pgps_event.tick from {guest}")
        with refused("42501", "may not publish"):
            link.back.carry(batch)
        with refused("42501", "may not publish"), link.back.target.transaction():
            value(link.back.target, "select pgps.link_begin(%s::jsonb)", [json.dumps(batch | {"types": []})])
            for wire in batch["types"]:
                wire["runs"] = []
            value(link.back.target, "select pgps.link_apply(%s::jsonb)", [json.dumps(batch)])
        assert received(b, "all") == [("a", 1)]
    finally:
        link.close()


def test_a_link_without_a_role_lends_no_rights_of_its_creator(brokers: Brokers) -> None:
    a, b = brokers(2)
    call(a.admin, "create_event_type", "open", "n integer")
    call(a.admin, "create_event_type", "secret", "n integer")
    with linked([(a, b)]) as links:
        call(a.admin, "create_event_type", "later", "n integer")
        rows(a.admin, "revoke all on pgps_event.secret from pgps_neighbour")
        call(a.admin, "create_policy", "later", "low", "pgps_neighbour", "n < 5")
        for name in ("open", "secret", "later"):
            call(a.admin, "advertise", name)
        settle([a, b], links)
        assert rows(a.admin, "select role from pgps.links") == [("pgps_neighbour",)]
        assert rows(b.admin, "select role from pgps.links") == [("pgps_neighbour",)]
        assert rows(b.admin, "select name from pgps.event_types order by 1") == [("later",), ("open",)]
        for name in ("open", "later"):
            call(b.admin, "subscribe", name, name, scope="global")
        settle([a, b], links)
        for name in ("open", "later"):
            rows(a.admin, f"insert into pgps_event.{name} values (1), (7)")
        settle([a, b], links)
        assert received(b, "open") == [("a", 1), ("a", 7)]
        assert received(b, "later") == [("a", 1)]
        call(a.admin, "create_link", "another", "dbname=x")
        assert not value(a.admin, "select has_table_privilege('pgps_neighbour', 'pgps_event.secret', 'select')")


@pytest.mark.parametrize(
    ("conninfo", "warned"),
    [
        ("host=127.0.0.1 dbname=x password=secret", True),
        ("postgresql://me:secret@127.0.0.1/x", True),
        ("postgresql://127.0.0.1/x?password=secret", True),
        ("host=127.0.0.1 dbname=x passfile=/etc/pgps/pass", False),
        ("service=password_less", False),
        ("postgresql://me@127.0.0.1:5432/x", False),
    ],
)
def test_a_password_in_a_connection_string_is_warned_of_and_not_repeated(
    own_database: str, connect: Connect, conninfo: str, warned: bool
) -> None:
    admin = connect(dsn=own_database)
    said: list[tuple[str, str]] = []
    admin.add_notice_handler(lambda d: said.append((f"{d.message_primary} {d.message_detail}", d.message_hint or "")))
    call(admin, "create_link", "far", conninfo)
    call(admin, "alter_link", "far", conninfo=conninfo)
    assert len(said) == (2 if warned else 0)
    for message, hint in said:
        assert '"far"' in message
        assert "secret" not in message
        assert "passfile" in hint
        assert "service" in hint
