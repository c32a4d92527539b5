"""Links that cannot work: a clear state, error and remedy for each, and the others go on."""

from __future__ import annotations

from collections.abc import Callable

from pgps_worker.links.pump import Size
from tests.fix_broker import call, column, make_type, publish, refused, rows, value
from tests.fix_db import wait_until
from tests.links.rig import Broker, received
from tests.links.serving import served

Brokers = Callable[[int], list[Broker]]


def test_a_connection_string_that_is_none_is_refused_at_once(brokers: Brokers) -> None:
    (a,) = brokers(1)
    for conninfo in ("", "nonsense", "/tmp"):
        with refused("22023", "connection string"):
            call(a.admin, "create_link", "far", conninfo)
    assert rows(a.admin, "select * from pgps.links") == []


def test_both_brokers_define_the_link_and_whoever_is_left_serves_it(brokers: Brokers) -> None:
    a, b = made = brokers(2)
    for broker in made:
        make_type(broker.admin, "tick")
    call(a.admin, "create_link", "to_b", b.dsn)
    call(b.admin, "create_link", "to_a", a.dsn)

    def states() -> set[str]:
        return {state for broker in made for state in column(broker.admin, "select state from pgps.links")}

    def arrive(*numbers: int) -> None:
        for broker in made:
            publish(broker.admin, "tick", *numbers)
            broker.settle()
        waiting = "select depth from pgps.subscriptions where name = 'all'"
        for broker in made:
            wait_until(lambda of=broker: of.settle() or value(of.admin, waiting) == 2 * len(numbers), timeout=30)  # type: ignore[misc]
            assert sorted(received(broker, "all")) == [(name, n) for name in "ab" for n in numbers]

    with served(a, b):
        wait_until(lambda: states() == {"up"}, timeout=20, what="up")
        for broker in made:
            call(broker.admin, "subscribe", "all", "tick", scope="global")
        known = "select count(*) from pgps_internal.activation"
        wait_until(lambda: [value(one.admin, known) for one in made] == [1, 1], timeout=20, what="both are asked")
        arrive(1, 2)
        assert [value(one.admin, "select count(*) from pgps_internal.link_session") for one in made] == [2, 2]
    for survivor in made:
        with served(survivor):
            wait_until(lambda: states() == {"up"}, timeout=20, what=f"{survivor.name} serves it alone")
            arrive(3, 4)


def test_batches_grow_while_they_are_quick_and_shrink_when_they_are_slow() -> None:
    size = Size()
    size.note(10, 0.01)
    assert size.events == 1000, "a batch that was not full says nothing"
    for _ in range(20):
        size.note(size.events, 0.1)
    assert size.events == size.most
    size.note(size.events, 0.5)
    assert size.events == size.most, "as long as somebody would wait"
    for _ in range(20):
        size.note(size.events, 2.0)
    assert size.events == size.least
