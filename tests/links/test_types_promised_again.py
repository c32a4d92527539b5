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
OPEN = """
    select f.is_open from pgps_internal.offer f join pgps_internal.origin o using (origin_id)
        join pgps_internal.neighbour n using (neighbour_id)
    where o.name = 'o' and n.name = %s
"""


class Square:
    """Brokers o, b, c, h: o publishes ticks and tocks, and h, which wants both, has a path by b and another by c."""

    def __init__(self, brokers: list[Broker]) -> None:
        self.brokers = brokers
        self.o, self.b, self.c, self.h = brokers
        self.up: dict[str, Link] = {}
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
        self.publish(1)
        assert self.parent() == "b"

    def broker(self, name: str) -> Broker:
        return next(broker for broker in self.brokers if broker.name == name)

    def resume(self, pair: str) -> None:
        self.up[pair] = open_link(self.broker(pair[0]), self.broker(pair[1]), f"to_{pair[1]}")

    def pause(self, pair: str) -> None:
        self.up.pop(pair).close()

    def settle(self) -> None:
        settle(self.brokers, list(self.up.values()))

    def publish(self, *numbers: int) -> None:
        """Publish ticks and tocks at o, and let them arrive."""
        for kind in ("tick", "tock"):
            publish(self.o.admin, kind, *numbers)
        self.settle()

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
    assert value(s.h.admin, OPEN, ["c"])
    call(s.o.admin, "unadvertise", "tock")
    s.settle()
    s.pause("bh")
    publish(s.o.admin, "tick", 2)
    s.settle()
    assert s.parent() == "c", "nobody promises tocks, and by c they would come, too"
    call(s.o.admin, "advertise", "tock")
    publish(s.o.admin, "tock", 2, 3)
    call(s.o.admin, "unadvertise", "tock")
    publish(s.o.admin, "tick", 3)
    s.settle()
    s.resume("bh")
    call(s.o.admin, "advertise", "tock")
    s.publish(4)
    assert (s.got("tick"), s.got("tock")) == ([1, 2, 3, 4], [1, 2, 3, 4])


def test_a_path_that_would_not_bring_a_type_is_not_taken_though_nobody_promises_it(square: Square) -> None:
    s = square
    asked = "select 'tock' = any (f.types) from pgps_internal.offer f join pgps_internal.origin o using (origin_id)"
    by_c = f"{asked} join pgps_internal.neighbour n using (neighbour_id) where o.name = 'o' and n.name = 'c'"
    for forbid, allow in (
        ("select pgps.configure('link_create_types', 'false')", "select pgps.configure('link_create_types', 'true')"),
        ("revoke select on pgps_event.tock from pgps_neighbour", "grant select on pgps_event.tock to pgps_neighbour"),
        ("revoke insert on pgps_event.tock from pgps_neighbour", None),
    ):
        rows(s.c.admin, forbid)
        s.settle()
        assert (value(s.h.admin, OPEN, ["c"]), value(s.h.admin, by_c)) == (False, "revoke" not in forbid), forbid
        if allow:
            rows(s.c.admin, allow)
            s.settle()
            assert (value(s.h.admin, OPEN, ["c"]), value(s.h.admin, by_c)) == (True, True), allow
    call(s.o.admin, "unadvertise", "tock")
    s.settle()
    s.pause("bh")
    publish(s.o.admin, "tick", 2)
    s.settle()
    assert s.parent() == "b", "it is waited for"
    call(s.o.admin, "advertise", "tock")
    publish(s.o.admin, "tock", 2, 3)
    call(s.o.admin, "unadvertise", "tock")
    publish(s.o.admin, "tick", 3)
    s.settle()
    s.resume("bh")
    call(s.o.admin, "advertise", "tock")
    s.publish(4)
    assert (s.got("tick"), s.got("tock")) == ([1, 2, 3, 4], [1, 2, 3, 4])
