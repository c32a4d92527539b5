"""A type that no path promises for a while: who turns to another path meanwhile lacks nothing of it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.fix_broker import call, make_type, publish, rows, value
from tests.links.rig import Broker, Link, open_link, received, settle

Brokers = Callable[[int], list[Broker]]
PARENT = """
    select n.name from pgps_internal.origin o join pgps_internal.neighbour n on n.neighbour_id = o.parent
    where o.name = 'o'
"""
OFFER = """
    select f.is_open, 'tock' = any (f.types) from pgps_internal.offer f
        join pgps_internal.origin o using (origin_id) join pgps_internal.neighbour n using (neighbour_id)
    where o.name = 'o' and n.name = %s
"""


class Square:
    """Brokers o, b, c, h: o publishes ticks and tocks, and h, which wants both, has a path by b and another by c."""

    def __init__(self, brokers: list[Broker]) -> None:
        self.brokers = brokers
        self.o, self.b, self.c, self.h = brokers
        self.up: dict[str, Link] = {}
        self.paused = ""
        self.made = {"tick": 0, "tock": 0}
        for broker, name in zip(brokers, "obch", strict=True):
            call(broker.admin, "configure", "broker", name)
            broker.name = name
        for kind in ("tick", "tock"):
            make_type(self.o.admin, kind)
        for one, other in ("ob", "oc", "bh"):
            call(self.broker(one).admin, "create_link", f"to_{other}", self.broker(other).dsn)
            self.resume(one + other)
        self.settle()
        for kind in ("tick", "tock"):
            call(self.h.admin, "subscribe", kind, kind, scope="global")
        self.settle()
        call(self.c.admin, "create_link", "to_h", self.h.dsn)
        self.resume("ch")
        self.settle()
        self.publish("tick", "tock")
        self.settle()
        assert self.parent() == "b"

    def broker(self, name: str) -> Broker:
        return next(broker for broker in self.brokers if broker.name == name)

    def resume(self, pair: str) -> None:
        self.up[pair] = open_link(self.broker(pair[0]), self.broker(pair[1]), f"to_{pair[1]}")

    def pause(self, pair: str) -> None:
        self.up.pop(pair).close()

    def settle(self) -> None:
        settle(self.brokers, list(self.up.values()))

    def publish(self, *kinds: str) -> None:
        """Publish an event at o; one of each type has the same number."""
        for kind in kinds:
            self.made[kind] += 1
            publish(self.o.admin, kind, self.made[kind])

    def unpromised_without(self, pair: str) -> None:
        """Nobody promises tocks any more; close the link to the parent, and publish a tick."""
        call(self.o.admin, "unadvertise", "tock")
        self.settle()
        self.pause(pair)
        self.paused = pair
        self.publish("tick")
        self.settle()

    def promised_again(self) -> None:
        """Publish tocks, which are promised only when there are both paths again, and events after that."""
        call(self.o.admin, "advertise", "tock")
        self.publish("tock", "tock")
        call(self.o.admin, "unadvertise", "tock")
        self.publish("tick")
        self.settle()
        self.resume(self.paused)
        call(self.o.admin, "advertise", "tock")
        self.publish("tick", "tock")
        self.settle()

    @property
    def published(self) -> list[int]:
        assert self.made["tick"] == self.made["tock"]
        return list(range(1, self.made["tick"] + 1))

    def offer(self, neighbour: str) -> tuple[bool, bool]:
        """Whether a neighbour would bring every type to h, and whether it promises tocks."""
        (found,) = rows(self.h.admin, OFFER, [neighbour])
        return bool(found[0]), bool(found[1])

    def parent(self) -> str:
        return str(value(self.h.admin, PARENT))

    def got(self, kind: str) -> list[int]:
        return [n for _, n in received(self.h, kind)]

    def close(self) -> None:
        for link in self.up.values():
            link.close()


@pytest.fixture
def square(brokers: Brokers) -> Iterator[Square]:
    made = Square(brokers(4))
    yield made
    made.close()


def test_what_is_promised_again_after_a_turn_lacks_nothing_of_what_came_between(square: Square) -> None:
    s = square
    assert s.offer("c") == (True, True)
    s.unpromised_without("bh")
    assert s.parent() == "c", "nobody promises tocks, and by c they would come, too"
    s.promised_again()
    # Now the other one is the parent, and by b tocks would not come, for one reason or another.
    for forbid, allow in (
        ("select pgps.configure('link_create_types', 'false')", "select pgps.configure('link_create_types', 'true')"),
        ("revoke select on pgps_event.tock from pgps_neighbour", "grant select on pgps_event.tock to pgps_neighbour"),
        ("revoke insert on pgps_event.tock from pgps_neighbour", None),
    ):
        rows(s.b.admin, forbid)
        s.settle()
        assert s.offer("b") == (False, "revoke" not in forbid), forbid
        if allow:
            rows(s.b.admin, allow)
            s.settle()
            assert s.offer("b") == (True, True), allow
    s.unpromised_without("ch")
    assert s.parent() == "c", "it is waited for"
    s.promised_again()
    assert (s.got("tick"), s.got("tock")) == (s.published, s.published)
