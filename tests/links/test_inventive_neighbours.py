"""A neighbour that makes up brokers, event types, gaps and events that are none: each of them costs others."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

from tests.fix_broker import call, make_type, publish, refused, rows, value
from tests.fix_db import Connect
from tests.links.horizon_stage import Scene
from tests.links.peer import Item
from tests.links.rig import Broker, linked, received, settle
from tests.links.test_hostile_neighbours import Stranger

Brokers = Callable[[int], list[Broker]]


@pytest.fixture
def stranger(brokers: Brokers, connect: Connect, role: Callable[..., str]) -> Stranger:
    """A neighbour that is nothing but a login."""
    (here,) = brokers(1)
    make_type(here.admin, "tick")
    return Stranger(here, connect, role("linker", "pgps_link"))


def ad(stranger: Stranger, *, of: str | None = None, types: list[str] | None = None) -> dict[str, Any]:
    """An advertisement of a broker behind a neighbour, by default of one that nobody has heard of."""
    of, own = of or str(uuid4()), stranger.identity["broker"]
    path = [own] if of == own else [own, of]
    told = {"broker": of, "epoch": 1, "name": "made up", "path": path, "cost": len(path) - 1, "types": types or []}
    return {"kind": "ad", "body": told}


def described(name: str) -> dict[str, Any]:
    return {"kind": "type", "body": {"name": name, "attributes": [{"name": "n", "type": "integer"}]}}


def count(stranger: Stranger, query: str) -> int:
    return int(value(stranger.here.admin, f"select count(*) from pgps_internal.{query}"))


def test_it_names_so_many_brokers_and_no_more(stranger: Stranger) -> None:
    admin = stranger.here.admin
    call(admin, "configure", "link_origins", "3")
    known = count(stranger, "origin")
    own = stranger.identity["broker"]
    stranger.take(ad(stranger, of=own), ad(stranger), ad(stranger))
    # Withdrawn ones count: what they cost stays.
    for item in (ad(stranger), {"kind": "attach", "body": ad(stranger)["body"] | {"attachment": 1, "keep": []}}):
        with refused("54000", 'role "linker', "3 are allowed", "link_origins"):
            stranger.take(item)
    stranger.take(ad(stranger, of=own, types=["tick"]))
    assert count(stranger, "origin") == known + 3
    call(admin, "configure", "link_origins", "4")
    stranger.take(ad(stranger))


def test_it_says_so_many_names_of_event_types_and_no_more(stranger: Stranger) -> None:
    admin = stranger.here.admin
    call(admin, "configure", "link_types", "3")
    own, behind = stranger.identity["broker"], str(uuid4())
    stranger.take(ad(stranger, of=own, types=["tick", "b", "b"]), ad(stranger, of=behind, types=["tick"]))
    for item in (ad(stranger, of=own, types=["a", "b", "c"]), ad(stranger, types=["d"])):
        with refused("54000", "advertise too many event types", "link_types"):
            stranger.take(item)
    stranger.take(ad(stranger, of=own, types=["b"]), ad(stranger, of=behind, types=["a", "b"]))
    stranger.take(*map(described, ("t1", "t2", "t3", "t1")))
    with refused("54000", "describe too many event types"):
        stranger.take(described("t4"))
    assert count(stranger, "event_type where name ~ '^t[0-9]'") == 3


@pytest.mark.parametrize(
    "told",
    [
        "character(5)",
        "char(5) /* note */",
        "char(5) -- note",
        "char(5) --",
        "/* one\ntwo */ char -- three\n(5) -- four",
    ],
)
def test_a_type_with_a_comment_in_it_keeps_its_length_and_hides_nothing(stranger: Stranger, told: str) -> None:
    attributes = [{"name": "code", "type": told}, {"name": "n", "type": "numeric(6,2)"}]
    stranger.take({"kind": "type", "body": {"name": "item", "attributes": attributes}})
    types = "select attname, format_type(atttypid, atttypmod) from pg_attribute"
    found = rows(
        stranger.here.admin, f"{types} where attrelid = 'pgps_event.item'::regclass and attnum > 0 order by attnum"
    )
    assert found == [
        ("code", "character(5)"),
        ("n", "numeric(6,2)"),
        ("_producer", "text"),
        ("_producer_seq", "bigint"),
    ]


@pytest.mark.parametrize(
    "told",
    ["char(5) /* note", "integer default 1", "integer --\n check (true)", "integer, m text", "integer) --", "text; x"],
)
def test_what_is_more_than_a_type_makes_none(stranger: Stranger, told: str) -> None:
    stranger.take({"kind": "type", "body": {"name": "item", "attributes": [{"name": "code", "type": told}]}})
    assert value(stranger.here.admin, "select to_regclass('pgps_event.item')") is None
    assert "cannot be created here" in value(stranger.here.admin, "select difference from pgps_internal.foreign_type")


def test_neighbours_hear_of_a_length_whatever_is_noted_of_the_attribute(brokers: Brokers) -> None:
    a, b = made = brokers(2)
    make_type(a.admin, "item", "code char(5) /* of the maker */, bits bit(3) -- three\n, n numeric(6,2)")
    rows(a.admin, "comment on column pgps_event.item.code is 'of the maker -- char /* 5'")
    with linked([(a, b)]) as links:
        settle(made, links)
        call(b.admin, "subscribe", "all", "item", scope="global")
        settle(made, links)
        call(a.admin, "publish", "item", json.dumps({"code": "abcde", "bits": "101", "n": 1}))
        settle(made, links)
        assert value(b.admin, "select payload from pgps.receive('all')") == {"code": "abcde", "bits": "101", "n": 1.0}
    assert value(b.admin, "select count(difference) from pgps_internal.foreign_type") == 0


def test_one_role_is_so_many_neighbours_and_no_more(stranger: Stranger) -> None:
    here = stranger.here
    call(here.admin, "configure", "link_neighbours", "2")
    peers = [json.dumps({**stranger.identity, "broker": str(uuid4())}) for _ in range(2)]
    call(stranger.session, "link_open", peers[0], "send")
    with refused("54000", "too many brokers", "2 are allowed", "link_neighbours"):
        call(stranger.session, "link_open", peers[1], "send")
    assert call(stranger.session, "link_open", peers[0], "send")["last"] == 0, "who is known goes on"


def test_what_one_may_not_say_any_more_others_may(stranger: Stranger, brokers: Brokers) -> None:
    here = stranger.here
    for setting in ("link_origins", "link_types", "link_neighbours"):
        call(here.admin, "configure", setting, "1")
    stranger.take(ad(stranger))
    with refused("54000"):
        stranger.take(ad(stranger))
    (there,) = brokers(1)
    make_type(there.admin, "tick")
    call(there.admin, "subscribe", "all", "tick", scope="global")
    with linked([(there, here)]) as links:
        settle([here, there], links)
        publish(here.admin, "tick", 1)
        settle([here, there], links)
        assert received(there, "all") == [("a", 1)]


def test_who_comes_near_a_limit_is_told_to_administrators(stranger: Stranger) -> None:
    admin = stranger.here.admin
    assert value(admin, "select pgps.health() -> 'crowded'") == []
    own, role = stranger.identity["broker"], value(stranger.session, "select session_user")
    stranger.take(ad(stranger, of=own, types=["a", "b", "c"]), ad(stranger), *map(described, ("t1", "t2")))
    for setting, most in (("link_neighbours", "1"), ("link_types", "4"), ("link_origins", "3")):
        call(admin, "configure", setting, most)
    crowded = value(admin, "select pgps.health() -> 'crowded'")
    # Two of three origins are less than four fifths.
    assert [(c["role"], c["setting"], c["used"], c["most"]) for c in crowded] == [(role, "link_neighbours", 1, 1)]
    call(admin, "configure", "link_types", "3")
    call(admin, "configure", "link_origins", "2")
    crowded = value(admin, "select pgps.health() -> 'crowded'")
    assert [(c["setting"], c["used"]) for c in crowded] == [
        ("link_neighbours", 1), ("link_origins", 2), ("link_types", 3),
    ]  # fmt: skip


def test_so_many_of_its_events_are_refused_and_no_more_and_none_is_lost(brokers: Brokers) -> None:
    a, b = made = brokers(2)
    make_type(a.admin, "tick")
    make_type(b.admin, "tick", "n integer check (n <> 13)")
    call(b.admin, "configure", "link_refused", "3")
    waiting = "select count(*) from pgps.exceptions"
    with linked([(a, b)]) as links:
        settle(made, links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 13, 1, 13, 13)
        settle(made, links)
        assert value(b.admin, waiting) == 3
        (crowd,) = value(b.admin, "select pgps.health() -> 'crowded'")
        assert (crowd["setting"], crowd["used"], crowd["most"]) == ("link_refused", 3, 3)
        publish(a.admin, "tick", 2, 3)
        settle(made, links)
        assert received(b, "all") == [("a", 1), ("a", 2), ("a", 3)], "what is not refused goes on"
        publish(a.admin, "tick", 4, 13)
        a.settle()
        with refused("54000", "too many refused events", "3 are allowed", "discard_exception"):
            settle(made, links)
        assert value(b.admin, waiting) == 3
        assert call(b.admin, "discard_exception", "tick") == 3
        settle(made, links)
        assert received(b, "all") == [("a", 4)]
        assert value(b.admin, waiting) == 1


def test_it_has_so_many_gaps_and_no_more(brokers: Brokers) -> None:
    (here,) = brokers(1)
    call(here.admin, "configure", "link_refused", "2")
    with ExitStack() as stack:
        s = Scene(here, stack)
        s.ready()
        one = s.number(s.b)

        def gap(after: int) -> Item:
            return s.b.message("gap", **s.x.key, attachment=one, after=after, upto=after + 1)

        s.b.say(gap(4), gap(5))
        assert value(here.admin, "select count(*) from pgps.exceptions") == 2
        with refused("54000", "too many refused events and gaps", "2 are allowed"):
            s.b.say(gap(6))
        assert value(here.admin, "select count(*) from pgps_internal.gap") == 2
        assert call(here.admin, "discard_exception", None) == 2
        s.b.say(gap(6))
