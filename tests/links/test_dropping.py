"""Links that are dropped: drained, on both sides, while other ways take over; nothing is lost or repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from tests.fix_broker import call, make_type, publish, refused, rows, value
from tests.fix_db import wait_until
from tests.fix_worker import Workers
from tests.links.horizon_stage import Scene
from tests.links.peer import kinds
from tests.links.rig import Broker, Link, linked, names, received, settle
from tests.links.test_worker import arrived, subscribed

Brokers = Callable[[int], list[Broker]]


def drop(broker: Broker, link: str) -> list[str]:
    """Drop a link and return what was said."""
    said: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        said.append(diagnostic.message_primary or "")

    broker.admin.add_notice_handler(note)
    call(broker.admin, "drop_link", link)
    broker.admin.remove_notice_handler(note)
    return said


def state(broker: Broker, link: str) -> tuple[str, str | None]:
    """Return state and hint of a link; ("gone", None) when there is none."""
    found = rows(broker.admin, "select state, hint from pgps.links where name = %s", [link])
    return found[0] if found else ("gone", None)


@contextmanager
def one_link(brokers: Brokers) -> Iterator[tuple[Broker, Broker, Link]]:
    """Yield two brokers and the link that the first has defined; the other one wants all of its ticks."""
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        yield a, b, links[0]


def test_a_dropped_link_delivers_what_is_under_way_and_goes_on_both_sides(brokers: Brokers) -> None:
    a, b = brokers(2)
    for broker in (a, b):
        make_type(broker.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        for broker in (a, b):
            call(broker.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", 1, 2)
        publish(b.admin, "tick", 11, 12)
        a.settle()
        assert "being drained" in drop(a, "to_b")[0]
        assert "being drained" in drop(a, "to_b")[0], "a second call is harmless"
        assert state(a, "to_b")[0] == "draining"
        with refused("55000", "not drained"):
            call(links[0].out.source, "link_close")
        settle([a, b], links)
        assert links[0].drained
        publish(a.admin, "tick", 3)
        settle([a, b], links)
        links[0].remove()
        assert names(a.admin) == names(b.admin) == []
        assert sorted(n for _, n in received(b, "all")) == [1, 2, 11, 12]
        assert sorted(n for _, n in received(a, "all")) == [1, 2, 3, 11, 12]


def test_with_another_way_events_take_it_without_loss_or_repetition(brokers: Brokers) -> None:
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, c), (a, b), (b, c)]) as links:
        settle(made, links)
        call(c.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        a.settle()
        links[0].out.next()  # packed, and on its way
        drop(c, "a")
        publish(a.admin, "tick", 2)
        for n in range(3, 10):
            for link in links:
                link.move()
            publish(a.admin, "tick", n)
            for broker in made:
                broker.settle()
        settle(made, links)
        assert links[0].drained
        links[0].remove()
        publish(a.admin, "tick", 10)
        settle(made, links[1:])
        assert received(c, "all") == [("a", n) for n in range(1, 11)]
        assert names(a.admin) == ["to_b", "to_c"], "a's own definition stays"
        assert state(a, "to_c")[0] == "paused"
        assert names(c.admin) == ["b"]


def test_who_is_behind_the_one_that_drops_gets_what_was_under_way(brokers: Brokers) -> None:
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(b, a), (b, c)]) as links:
        settle(made, links)
        call(c.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1, 2, 3)
        a.settle()
        drop(b, "to_a")
        settle([a, b], links[:1])
        assert links[0].drained
        links[0].remove()
        settle([b, c], links[1:])
        assert received(c, "all") == [("a", 1), ("a", 2), ("a", 3)]
        assert value(c.admin, "select count(*) from pgps.advertisements") == 0


def test_what_came_is_dispatched_before_the_link_goes(brokers: Brokers) -> None:
    with one_link(brokers) as (a, b, link):
        publish(a.admin, "tick", 1)
        drop(b, "a")
        for _ in range(6):
            a.settle()
            link.move()
        assert not link.drained
        b.settle()
        link.move()
        link.move()
        assert link.drained


def test_what_waits_for_several_batches_is_sent_before_the_link_goes(brokers: Brokers) -> None:
    with one_link(brokers) as (a, b, link):
        with psycopg.connect(a.dsn) as dispatching:
            publish(a.admin, "tick", 0)
            rows(dispatching, "select pgps.dispatch_batch(2)")
            for n in range(1, 6):
                publish(a.admin, "tick", n)
            drop(a, "to_b")
            for _ in range(3):
                link.move()
        for _ in range(6):
            rows(a.admin, "select pgps.dispatch_batch(2)")
            link.move()
            link.move()
            b.settle()
        assert received(b, "all") == [("a", n) for n in range(6)]
        assert link.drained


def test_a_path_that_nobody_wants_any_more_before_the_new_one_has_answered_is_let_go(brokers: Brokers) -> None:
    """The filter itself is still told to the new parent, for another origin."""
    a, b, c, d, e = made = brokers(5)
    for broker in (c, d):
        make_type(broker.admin, "tick")
    with linked([(a, b), (b, c), (a, d), (a, e), (d, c)]) as links:
        settle(made, links)
        call(e.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        drop(a, "to_b")
        links[0].move()  # a turns to d for what c publishes, and d does not answer yet
        with linked([(e, c)]) as others:
            settle([a, c, e], [links[3], *others])
            settle(made, [*links, *others])
            assert links[0].drained
            publish(c.admin, "tick", 1)
            publish(d.admin, "tick", 2)
            settle(made, [*links, *others])
            assert sorted(received(e, "all")) == [("c", 1), ("d", 2)]


def test_one_that_cannot_be_reached_waits_and_says_how_to_drop_it_at_once(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
    drop(a, "to_b")
    found, hint = state(a, "to_b")
    assert found == "draining"
    assert "cascade => true" in (hint or "")
    call(a.admin, "drop_link", "to_b", cascade=True)
    assert names(a.admin) == []


def test_workers_drop_a_link_also_when_one_dies_between_the_two_sides(brokers: Brokers, workers: Workers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    call(a.admin, "create_link", "to_b", b.dsn)
    call(b.admin, "create_link", "to_a", a.dsn)
    workers(a.dsn)
    workers(b.dsn)
    subscribed(a, b)
    wait_until(lambda: names(b.admin) == ["to_a"], what="b's worker has been at a")
    publish(a.admin, "tick", *range(100))
    call(b.admin, "drop_link", "to_a")
    assert arrived(b, "all", 100) == list(range(100))
    wait_until(lambda: names(b.admin) == [], what="dropped at b")
    wait_until(lambda: state(a, "to_b")[0] == "paused", what="paused at a")
    # As if the worker had died when b had forgotten a, and a not yet b.
    call(a.admin, "alter_link", "to_b", enabled=True)
    wait_until(lambda: state(a, "to_b")[0] == "up", what="up again")
    wait_until(lambda: names(b.admin) == ["a"], what="b knows a again")
    call(a.admin, "alter_link", "to_b", enabled=False)
    wait_until(lambda: state(b, "a")[0] == "waiting", what="b is alone")
    rows(a.admin, "update pgps_internal.neighbour set is_draining = true, is_dropped_here = true")
    call(b.admin, "drop_link", "a", cascade=True)
    call(a.admin, "alter_link", "to_b", enabled=True)
    wait_until(lambda: names(a.admin) == [], what="dropped at a")
    wait_until(lambda: names(b.admin) == [], what="dropped at b, too")


@pytest.mark.parametrize("first", [0, 1])
def test_who_is_left_by_both_neighbours_at_once_lets_them_go(brokers: Brokers, first: int) -> None:
    # Each of the two knows a way by the other, and neither leads anywhere else.
    a, b, c = made = brokers(3)
    make_type(b.admin, "tick")
    with linked([(b, c), (a, b), (c, a)]) as links:
        settle(made, links)
        # In force at one is not what the other asks for.
        call(a.admin, "subscribe", "all", "tick", filter="n < 10", scope="global")
        call(c.admin, "subscribe", "all", "tick", filter="n > 0", scope="global")
        settle(made, links)
        publish(b.admin, "tick", 1)
        settle(made, links)
        for broker, name in ((c, "b"), (a, "to_b"))[:: 1 if first else -1]:
            drop(broker, name)
        publish(b.admin, "tick", 2)
        settle(made, links)
        assert links[0].drained
        assert links[1].drained
        for link in links[:2]:
            link.remove()
        settle(made, links[2:])
        for broker in (a, c):
            assert received(broker, "all") == [("b", 1), ("b", 2)]


def test_a_broker_that_left_before_its_link_was_up_is_forgotten(brokers: Brokers) -> None:
    """Its link is dropped at once where it was defined, and nobody is left who would tell the other side."""
    a, b = brokers(2)
    make_type(b.admin, "tick")
    publish(b.admin, "tick", 1)
    b.settle()
    call(a.admin, "create_link", "to_b", b.dsn)
    with psycopg.connect(b.dsn, autocommit=True) as session:
        call(session, "link_open", json.dumps(a.identity()), "receive", None)
        call(b.admin, "reclaim")
        assert names(b.admin) == ["a"], "it may still come to something"
    wait_until(
        lambda: value(
            b.admin, "select count(*) = 0 from pgps_internal.link_session s where pgps_internal.is_alive(s.holder)"
        )
    )
    call(a.admin, "drop_link", "to_b")
    assert names(a.admin) == []
    call(b.admin, "reclaim")
    assert names(b.admin) == []


def test_a_broker_to_which_something_was_sent_is_not_forgotten(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
    wait_until(
        lambda: value(
            b.admin, "select count(*) = 0 from pgps_internal.link_session s where pgps_internal.is_alive(s.holder)"
        )
    )
    call(b.admin, "reclaim")
    assert names(b.admin) == ["a"]


@pytest.mark.parametrize("why", ["it is dropped, too", "it has lost the path"])
def test_nobody_waits_for_one_that_will_not_answer(brokers: Brokers, why: str) -> None:
    """The one that a broker turns to is being dropped, too, or says that it cannot reach the origin either."""
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        s.ready()
        s.b.say(s.b.message("drain"))
        assert "attach" in kinds(s.c.hear())
        assert "drain" not in kinds(s.b.hear()), "c is waited for"
        if why == "it is dropped, too":
            s.c.say(s.c.message("drain"))
        else:
            for peer in (s.b, s.c):
                peer.say(peer.message("unad", **s.x.key))
        assert "drain" in kinds(s.b.hear())
        if why == "it is dropped, too":
            assert "drain" in kinds(s.c.hear())
