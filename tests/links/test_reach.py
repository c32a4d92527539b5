"""A filter that ends on the way to an origin: it stands for none that goes on, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.fix_broker import value
from tests.links.horizon_stage import Scene
from tests.links.peer import Item, Peer
from tests.links.rig import Broker

Brokers = Callable[[int], list[Broker]]


@pytest.fixture
def scene(brokers: Brokers) -> Iterator[Scene]:
    """Return a broker that x is two links away from, by way of b; c is behind it."""
    with ExitStack() as stack:
        s = Scene(brokers(1)[0], stack)
        s.b.say(s.b.ad(s.x))
        yield s


def wants(s: Scene, key: str, filter: str | None, reach: int) -> Item:  # noqa: A002
    types = ["integer"] if filter else None
    return s.c.message("sub", key=key, filter=filter, constant_types=types, environment={}, type="tick", reach=reach)


def attaches(s: Scene, attachment: int, horizon: int, *keep: str) -> Item:
    return s.c.message("attach", **s.x.key, attachment=attachment, horizon=horizon, keep=keep)


def told(items: list[Item]) -> list[tuple[str | None, int]]:
    """Return the filters that were told, with their reach."""
    return [(item["body"]["filter"], item["body"]["reach"]) for item in items if item["kind"] == "sub"]


def taken_back(peer: Peer, items: list[Item]) -> list[str | None]:
    """Return the filters that were withdrawn."""
    known = {item["body"]["key"]: item["body"]["filter"] for item in peer.all_heard if item["kind"] == "sub"}
    return [known[item["body"]["key"]] for item in items if item["kind"] == "unsub"]


def in_force(s: Scene, since: int) -> None:
    """Let b say of all that it was told, and of which it has not taken back, that it is in force."""
    keys: dict[str, int] = {}
    for item in s.b.all_heard:
        if item["kind"] == "sub":
            keys[item["body"]["key"]] = item["body"]["told"]
        elif item["kind"] == "unsub":
            del keys[item["body"]["key"]]
    number = s.number(s.b)
    s.b.say(*(s.b.message("active", **s.x.key, attachment=number, key=key, told=at, since=since)
              for key, at in keys.items()))  # fmt: skip


def is_live(s: Scene) -> bool:
    query = "select a.is_live from pgps_internal.attached a join pgps_internal.neighbour n using (neighbour_id) "
    return value(s.here.admin, query + "where n.name = 'c'") is True


def test_what_it_covers_is_told_before_it_goes_less_far(scene: Scene) -> None:
    s = scene
    s.subscribe("few", "n >= 5")
    assert told(s.b.hear()) == [("n >= 5", 16)]
    in_force(s, 0)
    s.c.say(wants(s, "every", None, 16), attaches(s, 1, 0))
    assert told(s.b.hear()) == [(None, 15)]
    in_force(s, 0)
    assert taken_back(s.b, s.b.hear()) == ["n >= 5"]
    # Half of what it began with is enough for the way to any broker.
    s.c.say(wants(s, "every", None, 9))
    s.b.hear()
    s.c.say(wants(s, "every", None, 8))
    assert told(s.b.hear()) == [("n >= 5", 16), (None, 7)]
    in_force(s, 0)
    s.c.say(wants(s, "every", None, 1))
    assert taken_back(s.b, s.b.hear()) == [None]


def test_nobody_is_made_to_wait_for_it(scene: Scene) -> None:
    s = scene
    s.c.say(wants(s, "every", None, 2), wants(s, "few", "n >= 5", 15), attaches(s, 1, 0, "every", "few"))
    s.c.hear()
    assert ("n >= 5", 14) in told(s.b.hear())
    assert not is_live(s)
    in_force(s, 0)
    answered = s.c.hear()
    assert [item["body"]["key"] for item in answered if item["kind"] == "active"] == ["few"]
    assert is_live(s)
    # A filter of one's own that it covers is asked for itself, and not in force before the parent says so.
    s.subscribe("own", "n >= 3")
    assert ("n >= 3", 16) in told(s.b.hear())
    assert value(s.here.admin, "select count(*) from pgps_internal.activation a "
                 "join pgps_internal.link_filter f using (key) where f.filter = 'n >= 3'") == 0  # fmt: skip


def test_who_has_what_it_covers_goes_on_when_it_ends(scene: Scene) -> None:
    s = scene
    s.c.say(wants(s, "every", None, 16), attaches(s, 1, 0, "every"))
    s.c.hear()
    s.b.hear()
    in_force(s, 0)
    s.c.hear()
    assert is_live(s)
    number = s.number(s.b)
    s.b.say(s.b.data(s.x, number, 0, 1, (1, 7)))
    # As a neighbour does that has a subscription of its own: what it covers comes first.
    s.c.say(wants(s, "few", "n >= 5", 16), wants(s, "every", None, 2))
    answered = s.c.hear()
    assert [item["body"]["key"] for item in answered if item["kind"] == "active"] == ["few"]
    assert told(s.b.hear())[0] == ("n >= 5", 15)
    assert is_live(s)
    in_force(s, 1)
    assert taken_back(s.b, s.b.hear()) == [None]
    s.c.hear()
    assert is_live(s)
    assert s.number(s.b) == number
    s.b.say(s.b.data(s.x, number, 1, 2, (2, 8)))
    got = [item for item in s.c.hear() if item["kind"] in ("data", "silence", "gap")]
    assert [(item["previous"], item["upto"]) for item in got] == [(1, 2)]
    assert got[0]["kind"] == "data"
