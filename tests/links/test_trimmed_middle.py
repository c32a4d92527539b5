"""A broker in the middle truncates what its origin still has: whoever asks for it gets it, from further up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.fix_broker import call, column, make_type, publish, rows, value
from tests.links.rig import Broker, Lane, Link, linked, open_link, received, settle
from tests.links.test_reclaim import LOG, turn

Brokers = Callable[[int], list[Broker]]
WAITING = "select count(*) from pgps_internal.attached where not is_live and cardinality(keep) > 0"


@dataclass
class Line:
    """Brokers a, b and c in a line; b has its own subscriber, and c is cut off and forgotten after its first event."""

    a: Broker
    b: Broker
    c: Broker
    up: Link

    def come(self, *numbers: int) -> None:
        """Publish at a; the subscriber at b acknowledges."""
        for number in numbers:
            publish(self.a.admin, "tick", number)
            settle([self.a, self.b], [self.up])
        assert [n for _, n in received(self.b, "own")] == list(numbers)

    @contextmanager
    def again(self) -> Iterator[Link]:
        """Link b and c once more."""
        call(self.b.admin, "create_link", "to_c", self.c.dsn)
        link = open_link(self.b, self.c, "to_c")
        try:
            yield link
        finally:
            link.close()

    def rest(self, *links: Link) -> None:
        settle([self.a, self.b, self.c], [self.up, *links])

    def check(self, *numbers: int) -> None:
        """Everything came to c, once and in order, and nothing was said to be missing."""
        assert [n for _, n in received(self.c, "all")] == list(numbers)
        for broker in (self.a, self.b, self.c):
            assert column(broker.admin, "select sqlstate from pgps.exceptions") == [], broker.name


@pytest.fixture
def line(brokers: Brokers) -> Iterator[Line]:
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with ExitStack() as stack:
        links = stack.enter_context(linked([(a, b), (b, c)]))
        settle(made, links)
        call(b.admin, "subscribe", "own", "tick", scope="global")
        call(c.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        here = Line(a, b, c, links[0])
        publish(a.admin, "tick", 1)
        settle(made, links)
        assert [n for _, n in received(b, "own")] == [1]
        links[1].close()
        call(b.admin, "drop_link", "to_c", True)
        call(c.admin, "drop_link", "b", True)
        yield here


def logged(broker: Broker) -> int:
    return int(value(broker.admin, f"select count(*) from {value(broker.admin, LOG)}"))


def stir(condition: Callable[[], bool], *lanes: Lane) -> None:
    """Move lanes until something is so."""
    for _ in range(60):
        if condition():
            return
        for lane in lanes:
            lane.move()
    raise AssertionError("it did not come to that")


def test_what_was_truncated_on_the_way_comes_from_the_origin(line: Line) -> None:
    line.come(2, 3)
    turn(line.b)
    assert logged(line.b) == 0
    line.come(4)
    with line.again() as link:
        line.rest(link)
        publish(line.a.admin, "tick", 5)
        line.rest(link)
        line.check(1, 2, 3, 4, 5)
    assert [n for _, n in received(line.b, "own")] == [5], "what came once more was for c alone"


def test_also_when_nothing_is_left_that_says_so(line: Line) -> None:
    """Not even the ledger of what was received."""
    for number in (2, 3):
        line.come(number)
        turn(line.b)
    assert rows(line.b.admin, "select from pgps_internal.arrival where ids is not null") == []
    with line.again() as link:
        line.rest(link)
        line.check(1, 2, 3)


def test_also_when_only_the_ledger_of_batches_was_truncated(line: Line) -> None:
    """With few events in a batch it goes first: what is in the log then is in no batch that is known."""
    line.come(2, 3)
    with line.b.admin.transaction():
        rows(line.b.admin, "lock table pgps_internal.turn_of_routes")
        assert value(line.b.admin, "select pgps_internal.reclaim_ledger('batch_type', 1000, 5000)") == 1
    assert logged(line.b) > 0
    with line.again() as link:
        line.rest(link)
        line.check(1, 2, 3)


def test_what_comes_once_more_is_kept_until_it_is_passed_on(line: Line) -> None:
    """For nobody but the broker that asked for it: no subscription of this one holds it."""
    line.come(2, 3)
    turn(line.b)
    call(line.b.admin, "unsubscribe", "own")
    with line.again() as link:
        stir(lambda: value(line.b.admin, WAITING) == 1, link.back, link.out)
        stir(lambda: logged(line.b) == 2, line.up.back, line.up.out)
        line.b.settle()
        # Packed for c, though not answered yet: its position is past it.
        link.out.next(refresh=False)
        turn(line.b)
        assert logged(line.b) == 2
        line.rest(link)
        publish(line.a.admin, "tick", 4)
        line.rest(link)
        line.check(1, 2, 3, 4)
        line.rest(link)
    turn(line.b)
    assert logged(line.b) == 0, "then nobody needs it"


def test_what_is_under_way_is_kept_until_it_has_come(line: Line) -> None:
    """Also what is of batches that everybody else has had."""
    line.come(2, 3)
    with line.again() as link:
        for _ in range(60):
            link.back.move()
            batch = link.out.next()
            if any(item.get("events") for item in batch["items"] or []):
                break
            if batch["items"]:
                link.out.carry(batch)
        assert received(line.b, "own") == []
        turn(line.b)
        assert logged(line.b) > 0
        line.rest(link)
        line.check(1, 2, 3)
