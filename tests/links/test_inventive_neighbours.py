"""A neighbour that makes up brokers and event types: each of them costs the links of others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tests.fix_broker import call, make_type, publish, refused, value
from tests.fix_db import Connect
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
