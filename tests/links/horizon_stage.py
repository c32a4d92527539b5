"""The stage for the scenes of horizon_scenes: one broker under test, and peers that say what a scene wants."""

from __future__ import annotations

from contextlib import ExitStack

from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import wait_until
from tests.links.peer import Item, Origin, Peer, kinds
from tests.links.rig import Broker, received


class Scene:
    """A broker with a global subscription `all`, and neighbours b and c, which both offer the origin x."""

    def __init__(self, broker: Broker, stack: ExitStack) -> None:
        self.here, self.stack = broker, stack
        self.x = Origin("x")
        make_type(broker.admin, "tick")
        self.b, self.c = self.peer("b"), self.peer("c")

    def peer(self, name: str) -> Peer:
        made = Peer(self.here, name, broker=f"{ord(name):08x}-0000-4000-8000-000000000000")
        self.stack.callback(made.hears.close)
        self.stack.callback(made.says.close)
        return made

    def again(self, peer: Peer) -> None:
        peer.open()
        self.stack.callback(peer.hears.close)
        self.stack.callback(peer.says.close)

    def subscribe(self, name: str = "all", filter: str | None = None) -> None:  # noqa: A002
        call(self.here.admin, "subscribe", name, "tick", filter=filter, scope="global")

    def ready(self) -> str:
        """Both offer x, b is the parent; the filter of `all` is in force from batch 4 on; return its key."""
        for peer in (self.b, self.c):
            peer.say(peer.ad(self.x))
        self.subscribe()
        self.b.hear()
        self.c.hear()
        key = self.b.key(self.x)
        one = self.b.attachment(self.x)["attachment"]
        self.b.say(self.b.data(self.x, one, 0, 4), self.b.active(self.x, key, one, 4))
        self.b.hear()
        return key

    def seen(self) -> None:
        """Return when whoever receives has seen all subscriptions, and the dispatcher need not judge for them."""
        if not value(self.here.admin, "select count(*) from pgps_internal.event_type where name = 'other'"):
            make_type(self.here.admin, "other")
        rows(self.here.admin, "select pgps_internal.push_filters()")  # as whoever sends to a neighbour does first

        def all_seen() -> bool:
            publish(self.here.admin, "other", 1)
            self.here.settle()
            return value(self.here.admin, "select count(*) = 0 from pgps_internal.newcomer") is True

        wait_until(all_seen, what="all that were received meanwhile are dispatched")

    def number(self, peer: Peer) -> int:
        return int(peer.attachment(self.x)["attachment"])

    def turn_to_c(self) -> int:
        """B goes away, and c becomes the parent; return the attachment."""
        self.b.close()
        self.c.hear()
        return self.number(self.c)

    def got(self, name: str = "all") -> list[int]:
        self.here.settle()
        return [n for _, n in received(self.here, name)]


def path(s: Scene) -> None:
    """Rule 1: a path that leads through this broker is none."""
    me = s.here.identity()["broker"]
    s.subscribe()
    s.b.say(s.b.ad(s.x, me))
    assert "attach" not in kinds(s.b.hear())


def attached(s: Scene) -> tuple[Origin, str]:
    """Make c a child for what this broker publishes: every event of more than 5; return origin and filter."""
    me = Origin("here", s.here.identity()["broker"])
    s.c.say(
        s.c.message("sub", key="k", filter="n > 5", constant_types=["integer"], environment={}, type="tick"),
        s.c.message("attach", **me.key, attachment=1, horizon=0, keep=[]),
    )
    s.c.hear()
    return me, "k"


def wants_all(s: Scene, peer: Peer, key: str, horizon: int, *, attachment: int = 1) -> list[Item]:
    """Make a peer a child for x that has every event up to a batch; return what it asks with."""
    every = peer.message("sub", key=key, filter=None, constant_types=None, environment={}, type="tick")
    return [every, peer.message("attach", **s.x.key, attachment=attachment, horizon=horizon, keep=[key])]


def few(s: Scene) -> int:
    """Events of 5 and more are in force from batch 4 on; c, which has every event up to batch 8, becomes a child."""
    s.subscribe("few", "n >= 5")
    s.b.say(s.b.ad(s.x))
    s.b.hear()
    s.c.hear()
    key, one = s.b.key(s.x), s.number(s.b)
    s.b.say(s.b.data(s.x, one, 0, 4), s.b.active(s.x, key, one, 4))
    s.c.say(*wants_all(s, s.c, "every", 8))
    # The parent is told what c wants, and is asked again then.
    for peer in (s.c, s.b, s.c, s.b):
        peer.hear()
    assert s.number(s.b) > one
    return s.number(s.b)
