"""A broker that was put back, and publishes on before anybody notices: what some neighbours have taken in its former
epoch, and others could not, comes to all of them once, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from tests.fix_broker import call, make_type, meanwhile, publish, refused, rows
from tests.links.rig import Broker, Link, open_link, received, settle
from tests.links.test_reclaim import go_on
from tests.links.test_trimmed_middle import logged

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


def test_what_was_had_in_the_former_epoch_does_not_come_again_when_it_is_truncated(lives: Lives) -> None:
    call(lives.b.admin, "subscribe", "small", "tick", filter="n < 100", scope="global")
    lives.open(lives.a, lives.b)
    lives.settle()
    for n in (6, 7, 8):
        publish(lives.a.admin, "tick", n, n + 10)
        lives.settle()
    lives.close()
    had = [1, 2, 3, 6, 16, 7, 17, 8, 18]
    assert lives.got(lives.b) == had
    assert [n for _, n in received(lives.b, "small")] == had[3:]
    # The ledger of what came fills more slowly than the log.
    go_on(lives.b, "event_id_seq")
    rows(lives.b.admin, "select pgps.reclaim(100)")
    assert logged(lives.b) == 0
    # A filter that was not in force in the former epoch: all of the new one is for it.
    call(lives.b.admin, "subscribe", "late", "tick", filter="n > 2", scope="global")
    publish(lives.a.admin, "tick", 9)
    lives.resume()
    lives.open(lives.a, lives.b)
    lives.settle()
    publish(lives.a.admin, "tick", 10)
    lives.settle()
    lives.close()
    assert lives.got(lives.b) == [9, 10]
    assert [n for _, n in received(lives.b, "small")] == [9, 10]
    assert [n for _, n in received(lives.b, "late")][-1] == 10


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


@pytest.fixture
def line(brokers: Brokers, copied: Callable[[Broker], Broker]) -> Lives:
    """Broker a was put back, and nobody has what it has forgotten; c has its events by b, and both have 1 and 2."""
    a, b, c = brokers(3)
    make_type(a.admin, "tick")
    for one, other in ((a, b), (a, c), (b, c)):
        call(one.admin, "create_link", f"to_{other.name}", other.dsn)
    before = Lives(a, b, c)
    before.open(a, b)
    before.open(b, c)
    before.settle()
    for other in (b, c):
        call(other.admin, "subscribe", "all", "tick", scope="global")
    # So that c has asked b for its own events, too, and been answered.
    call(b.admin, "advertise", "tick")
    before.settle()
    publish(a.admin, "tick", 1, 2)
    before.settle()
    before.close()
    backup = copied(a)
    rows(backup.admin, "update pgps_internal.broker set incarnation = pgps_internal.link_incarnation()")
    return Lives(backup, b, c)


def first_events(link: Link, with_rows: int, *before: Link) -> dict[str, Any]:
    """Move a link, and those before it, until its next batch out has events; return that."""
    for _ in range(20):
        for other in before:
            other.move()
        link.one.settle()
        link.back.move()
        link.out.with_rows = 0
        batch = link.out.next()
        link.out.mark = None
        if any(item.get("events") for item in batch["items"] or []):
            link.out.with_rows = with_rows
            return link.out.next() if with_rows else batch
        if batch["items"]:
            link.out.carry(batch)
    raise AssertionError("no event comes")


@pytest.mark.parametrize("with_rows", [0, 32])
def test_both_epochs_of_a_broker_from_two_neighbours_at_the_same_time_are_one(
    brokers: Brokers, line: Lives, with_rows: int
) -> None:
    """Nobody sees yet what the other one receives."""
    (other,) = brokers(1)
    line.open(line.a, line.b)
    line.settle()
    for n in (3, 4):
        publish(line.a.admin, "tick", n)
        settle([line.a], line.links)
    line.close()
    line.b.settle()
    line.resume()
    for one, to in ((line.a, other), (other, line.c)):
        call(one.admin, "create_link", f"to_{to.name}", to.dsn)
    up = line.open(line.a, other)
    by_b, by_other = line.open(line.b, line.c), line.open(other, line.c)
    former, present = first_events(by_b, 0), first_events(by_other, with_rows, up)

    def beside(step: str) -> None:
        if step == "commit":
            stack.enter_context(meanwhile(line.c.admin, by_other.out.target, lambda: by_other.out.carry(present)))

    with ExitStack() as stack:
        by_b.out.carry(former, at=beside)
    settle([line.a, line.b, line.c, other], line.links)
    publish(line.a.admin, "tick", 5)
    settle([line.a, line.b, line.c, other], line.links)
    line.close()
    assert line.got(line.c) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("staged", [False, True])
def test_both_epochs_of_a_broker_in_one_batch_are_one_to_who_has_neither(line: Lives, staged: bool) -> None:
    # b dispatches nothing until it has both epochs, and c knows of both.
    line.open(line.a, line.b)
    for n in (3, 4):
        publish(line.a.admin, "tick", n, n + 10)
        settle([line.a], line.links)
    line.close()
    line.resume()
    line.open(line.a, line.b)
    out = line.open(line.b, line.c).out
    out.carry = partial(out.carry, staged=staged)  # type: ignore[method-assign]
    publish(line.a.admin, "tick", 5)
    settle([line.a, line.c], line.links)
    line.settle()
    line.close()
    assert line.got(line.b) == [1, 2, 3, 13, 4, 14, 5]
    assert line.got(line.c) == [1, 2, 3, 13, 4, 14, 5]
