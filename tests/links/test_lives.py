"""A broker that was put back, and publishes on before anybody notices: what some neighbours have taken in its former
epoch, and others could not, comes to all of them once, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.fix_broker import call, make_type, publish, refused, rows
from tests.links.rig import Broker, Link, open_link, received, settle

Brokers = Callable[[int], list[Broker]]


@dataclass
class Lives:
    """Broker a was put back: b has none of the events that a has forgotten, 4 and 5; c has them."""

    a: Broker
    b: Broker
    c: Broker
    links: list[Link] = field(default_factory=list)

    def open(self, one: Broker, other: Broker) -> Link:
        self.links.append(open_link(one, other, f"to_{other.name}"))
        return self.links[-1]

    def settle(self) -> None:
        settle([self.a, self.b, self.c], self.links)

    def close(self) -> None:
        while self.links:
            self.links.pop().close()

    def notice(self) -> None:
        """The neighbour that knows better is met, and the broker is told, as a worker does."""
        link = self.open(self.a, self.c)
        with refused("55000", "was restored", "resume_links") as caught:
            link.out.next(refresh=False)
        said = caught.value.diag
        call(link.out.source, "link_refused", said.message_primary, said.message_hint, said.message_detail)
        self.close()

    def resume(self) -> None:
        call(self.a.admin, "resume_links", "restored")

    def got(self, broker: Broker) -> list[int]:
        return [n for _, n in received(broker, "all")]


@pytest.fixture
def lives(brokers: Brokers, copied: Callable[[Broker], Broker]) -> Lives:
    a, b, c = brokers(3)
    before = Lives(a, b, c)
    make_type(a.admin, "tick")
    for one, other in ((a, b), (a, c), (b, c)):
        call(one.admin, "create_link", f"to_{other.name}", other.dsn)
    before.open(a, b)
    before.open(a, c)
    before.settle()
    for other in (b, c):
        call(other.admin, "subscribe", "all", "tick", scope="global")
    before.settle()
    publish(a.admin, "tick", 1, 2, 3)
    before.settle()
    before.close()
    backup = copied(a)
    before.open(a, c)
    for n in (4, 5):
        publish(a.admin, "tick", n)
        before.settle()
    before.close()
    # The same database of the same server, as it finds itself.
    rows(backup.admin, "update pgps_internal.broker set incarnation = pgps_internal.link_incarnation()")
    return Lives(backup, b, c)


@pytest.mark.parametrize("is_noticed", [True, False])
@pytest.mark.parametrize("with_rows", [0, 32])
def test_what_one_neighbour_took_before_another_noticed_comes_to_both_once(
    lives: Lives, is_noticed: bool, with_rows: int
) -> None:
    lives.open(lives.a, lives.b).out.with_rows = with_rows
    for n in (6, 7, 8):
        publish(lives.a.admin, "tick", n, n + 10)
        lives.settle()
    lives.close()
    if is_noticed:
        lives.notice()
    publish(lives.a.admin, "tick", 9)
    lives.resume()
    for other in (lives.b, lives.c):
        lives.open(lives.a, other).out.with_rows = with_rows
    lives.settle()
    publish(lives.a.admin, "tick", 10)
    lives.settle()
    lives.close()
    assert lives.got(lives.b) == [1, 2, 3, 6, 16, 7, 17, 8, 18, 9, 10]
    assert lives.got(lives.c) == [1, 2, 3, 4, 5, 6, 16, 7, 17, 8, 18, 9, 10]


@pytest.mark.parametrize("first", ["former", "present"])
def test_what_a_neighbour_passes_on_of_the_former_epoch_is_not_taken_twice_behind_it(lives: Lives, first: str) -> None:
    lives.open(lives.a, lives.b)
    for n in (6, 7):
        publish(lives.a.admin, "tick", n)
        lives.settle()
    lives.close()
    lives.resume()
    # c has one of the two epochs by another way than the other one.
    lives.open(lives.b, lives.c)
    if first == "former":
        lives.settle()
    lives.open(lives.a, lives.c)
    lives.settle()
    lives.open(lives.a, lives.b)
    lives.settle()
    publish(lives.a.admin, "tick", 8)
    lives.settle()
    lives.close()
    assert lives.got(lives.b) == [1, 2, 3, 6, 7, 8]
    assert lives.got(lives.c) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("staged", [False, True])
def test_both_epochs_of_a_broker_in_one_batch_are_one_to_who_has_neither(
    brokers: Brokers, copied: Callable[[Broker], Broker], staged: bool
) -> None:
    a, b, c = brokers(3)
    make_type(a.admin, "tick")
    for one, other in ((a, b), (b, c)):
        call(one.admin, "create_link", f"to_{other.name}", other.dsn)
    before = Lives(a, b, c)
    before.open(a, b)
    before.open(b, c)
    before.settle()
    for other in (b, c):
        call(other.admin, "subscribe", "all", "tick", scope="global")
    before.settle()
    publish(a.admin, "tick", 1, 2)
    before.settle()
    before.close()
    backup = copied(a)
    rows(backup.admin, "update pgps_internal.broker set incarnation = pgps_internal.link_incarnation()")
    lives = Lives(backup, b, c)
    # b dispatches nothing until it has both epochs, and c knows of both.
    lives.open(backup, b)
    for n in (3, 4):
        publish(backup.admin, "tick", n, n + 10)
        settle([backup], lives.links)
    lives.close()
    lives.resume()
    lives.open(backup, b)
    out = lives.open(b, c).out
    out.carry = partial(out.carry, staged=staged)  # type: ignore[method-assign]
    publish(backup.admin, "tick", 5)
    settle([backup, c], lives.links)
    lives.settle()
    lives.close()
    assert lives.got(b) == [1, 2, 3, 13, 4, 14, 5]
    assert lives.got(c) == [1, 2, 3, 13, 4, 14, 5]
