"""A link that one side drops at once, with what waits, and makes anew: the other side hears it, and begins anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from pgps_worker.links.keeper import Keeper
from tests.fix_broker import call, make_type, publish, refused, rows, value
from tests.fix_db import wait_until
from tests.links.rig import Broker, Link, linked, open_link, received, settle
from tests.links.serving import served
from tests.links.test_reclaim import turn
from tests.links.unit_scene import SERVICE, Scene

Brokers = Callable[[int], list[Broker]]
Copied = Callable[[Broker], Broker]


@contextmanager
def two(brokers: Brokers) -> Iterator[tuple[Broker, Broker, list[Link]]]:
    """Yield two brokers, each of which wants the other's ticks, and their link, over which each has got two."""
    a, b = brokers(2)
    for broker in (a, b):
        make_type(broker.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        for broker in (a, b):
            call(broker.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        tick(a, b, 1, 2)
        settle([a, b], links)
        yield a, b, links


def tick(a: Broker, b: Broker, *numbers: int) -> None:
    """Publish at both; what b publishes is a hundred more."""
    publish(a.admin, "tick", *numbers)
    publish(b.admin, "tick", *(n + 100 for n in numbers))


def drop(broker: Broker, name: str) -> None:
    call(broker.admin, "drop_link", name, cascade=True)


def make(broker: Broker, other: Broker) -> None:
    call(broker.admin, "create_link", f"to_{other.name}", other.dsn)


def all_ticks(broker: Broker) -> dict[str, list[int]]:
    """What its subscription has got of each broker, in order."""
    got = received(broker, "all")
    return {name: [n for origin, n in got if origin == name] for name in ("a", "b")}


def gaps(*members: Broker) -> int:
    return sum(value(m.admin, "select count(*) from pgps_internal.rejected") for m in members)


@pytest.mark.parametrize("where", ["at the side that made it", "at the other side", "at both sides"])
def test_a_link_that_is_made_anew_carries_all_and_nothing_twice(brokers: Brokers, where: str) -> None:
    with two(brokers) as (a, b, links):
        tick(a, b, 3)
        for broker in (a, b):
            broker.settle()
        # Packed and told, and not received.
        for lane in (links[0].out, links[0].back):
            lane.next()
        links[0].close()
        if where != "at the other side":
            drop(a, "to_b")
        if where != "at the side that made it":
            drop(b, "a")
        tick(a, b, 4)
        if where == "at the other side":
            make(b, a)
        else:
            make(a, b)
        links[0] = open_link(b, a, "to_a") if where == "at the other side" else open_link(a, b, "to_b")
        settle([a, b], links)
        tick(a, b, 5)
        settle([a, b], links)
        links[0].close()
        # What was found out once stays so.
        links[0] = open_link(b, a, "to_a") if where == "at the other side" else open_link(a, b, "to_b")
        tick(a, b, 6)
        settle([a, b], links)
        for broker in (a, b):
            assert all_ticks(broker) == {"a": [*range(1, 7)], "b": [*range(101, 107)]}
        assert gaps(a, b) == 0


def test_nobody_who_was_not_told_is_asked_to_begin_anew(brokers: Brokers) -> None:
    """A worker of an older release passes on nothing: the link stays blocked, and nothing is taken for known."""
    with two(brokers) as (a, b, links):
        links[0].close()
        drop(a, "to_b")
        make(a, b)
        for here, there, link in ((a, b, "to_b"), (b, a, None)):
            with psycopg.connect(here.dsn, autocommit=True) as session:
                call(session, "link_open", value(there.admin, "select pgps.link_identity()::text"), "receive", link)
        assert value(b.admin, "select count(*) from pgps_internal.arrival where lseq > 0") > 0
        links[0] = open_link(a, b, "to_b")
        settle([a, b], links)
        tick(a, b, 3)
        settle([a, b], links)
        assert all_ticks(a) == all_ticks(b) == {"a": [1, 2, 3], "b": [101, 102, 103]}


@pytest.mark.parametrize("met", ["nobody", "the one that made it", "both", "both, and something came"])
def test_what_is_made_and_dropped_again_in_vain_hides_nothing(brokers: Brokers, met: str) -> None:
    with two(brokers) as (a, b, links):
        for n in range(3, 7):
            links[0].close()
            drop(a, "to_b")
            make(a, b)
            tick(a, b, n)
            if met == "the one that made it":
                with psycopg.connect(a.dsn, autocommit=True) as session:
                    opened = call(session, "link_open", json.dumps(b.introduction(a)), "send", "to_b")
                    call(session, "link_next", opened["last"], 100, True)
            elif met != "nobody":
                links[0] = open_link(a, b, "to_b")
            if met == "both, and something came":
                # Not confirmed yet.
                links[0].out.move()
        links[0].close()
        links[0] = open_link(a, b, "to_b")
        settle([a, b], links)
        assert all_ticks(a) == all_ticks(b) == {"a": [*range(1, 7)], "b": [*range(101, 107)]}
        assert value(a.admin, "select count(*) from pgps_internal.former_link") <= 5


def test_workers_bring_up_a_link_that_is_made_anew(brokers: Brokers) -> None:
    a, b = brokers(2)
    for broker in (a, b):
        make_type(broker.admin, "tick")
        call(broker.admin, "subscribe", "all", "tick", scope="global")
    make(a, b)
    make(b, a)
    with served(a, b):
        for n, where in enumerate((a, b, a), 1):
            wait_until(partial(in_force, a, b), what="both filters are in force")
            tick(a, b, n)
            wait_until(partial(waits, a, b, 2 * n), what=f"both have {n} of each")
            other = b if where is a else a
            drop(where, f"to_{other.name}")
            make(where, other)
        wait_until(partial(in_force, a, b), what="both filters are in force")
        for broker in (a, b):
            assert value(broker.admin, "select state from pgps_internal.broker") == "active"
            assert rows(broker.admin, "select 1 from pgps.links where state = 'blocked'") == []
    assert all_ticks(a) == all_ticks(b) == {"a": [1, 2, 3], "b": [101, 102, 103]}


@pytest.mark.parametrize("who", ["here", "there"])
def test_a_link_that_is_dropped_while_it_is_opened_is_opened_once_more(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    with two(brokers) as (a, b, links):
        links[0].close()
        make(b, a)
        open_them = Keeper._open
        dropped: list[str] = []

        async def open_late(*args: Any) -> Any:
            if not dropped:
                where, name, other = (a, "to_b", b) if who == "here" else (b, "to_a", a)
                drop(where, name)
                make(where, other)
                dropped.append(name)
            return await open_them(*args)

        monkeypatch.setattr(Keeper, "_open", open_late)
        with served(a, b):
            wait_until(partial(in_force, a, b), what="both filters are in force")
        assert dropped


def in_force(*members: Broker) -> bool:
    up = "select count(*) filter (where state = 'up') = 1 and count(*) = 1 from pgps.links"
    active = "select count(*) = 1 from pgps_internal.activation where is_confirmed"
    live = "select count(*) = 1 from pgps_internal.attached where is_live"
    return all(value(m.admin, query) for m in members for query in (up, active, live))


def waits(a: Broker, b: Broker, count: int) -> bool:
    return all(value(m.admin, "select depth from pgps.subscriptions where name = 'all'") == count for m in (a, b))


def test_who_is_behind_the_one_that_drops_gets_everything(brokers: Brokers) -> None:
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        settle(made, links)
        call(c.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        settle(made, links)
        for n, (where, name, other) in enumerate(((a, "to_b", b), (b, "a", a), (c, "b", b), (b, "to_c", c)), 1):
            i = 0 if a in (where, other) else 1
            links[i].close()
            publish(a.admin, "tick", 2 * n)
            drop(where, name)
            turn(where)
            one, far = (a, b) if i == 0 else (b, c)
            if name.startswith("to_"):
                make(one, far)
            publish(a.admin, "tick", 2 * n + 1)
            links[i] = open_link(one, far, f"to_{far.name}")
            settle(made, links)
        assert [n for _, n in received(c, "all")] == [*range(1, 10)]


def test_what_is_published_while_there_is_no_link_is_kept_until_the_other_side_asks(brokers: Brokers) -> None:
    with two(brokers) as (a, b, links):
        call(b.admin, "unsubscribe", "all")
        settle([a, b], links)
        assert all_ticks(a) == {"a": [1, 2], "b": [101, 102]}
        links[0].close()
        turn(b)
        drop(a, "to_b")
        for n in range(3, 6):
            publish(b.admin, "tick", n)
            rows(b.admin, "select pgps.dispatch()")
        make(a, b)
        links[0] = open_link(a, b, "to_b")
        for broker in (a, b):
            turn(broker)
        settle([a, b], links)
        assert all_ticks(a) == {"a": [], "b": [3, 4, 5]}
        assert gaps(a, b) == 0


@pytest.mark.parametrize("met", [True, False])
def test_one_that_was_put_back_and_makes_the_link_anew_is_recognised(
    brokers: Brokers, copied: Copied, met: bool
) -> None:
    with two(brokers) as (a, b, links):
        links[0].close()
        backup = copied(a)
        rows(backup.admin, "update pgps_internal.broker set incarnation = pgps_internal.link_incarnation()")
        links[0] = open_link(a, b, "to_b")
        tick(a, b, 3)
        settle([a, b], links)
        links[0].close()
        if met:
            links[0] = open_link(backup, b, "to_b")
            with refused("55000", "restored"):
                settle([backup, b], links)
            links[0].close()
        drop(backup, "to_b")
        make(backup, b)
        links[0] = open_link(backup, b, "to_b")
        with refused("55000", '"a" was restored'):
            links[0].out.next()
        links[0].close()
        call(backup.admin, "resume_links", "restored")
        links[0] = open_link(backup, b, "to_b")
        settle([backup, b], links)
        assert [n for origin, n in received(backup, "all") if origin == "b"] == [101, 102, 103]


def test_one_that_was_put_back_to_before_the_link_is_recognised(brokers: Brokers, copied: Copied) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    a.identity()
    backup = copied(a)
    rows(backup.admin, "update pgps_internal.broker set incarnation = pgps_internal.link_incarnation()")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        links[0].close()
        make(backup, b)
        links[0] = open_link(backup, b, "to_b")
        with refused("55000", '"a" was restored'):
            links[0].out.next()
        links[0].close()


def test_the_other_one_that_was_put_back_is_recognised_and_named(brokers: Brokers, copied: Copied) -> None:
    with two(brokers) as (a, b, links):
        links[0].close()
        backup = copied(b)
        rows(backup.admin, "update pgps_internal.broker set incarnation = pgps_internal.link_incarnation()")
        links[0] = open_link(a, b, "to_b")
        tick(a, b, 3)
        settle([a, b], links)
        links[0].close()
        drop(a, "to_b")
        make(a, backup)
        with refused("55000", '"b" was restored'):
            open_link(a, backup, "to_b")
        call(backup.admin, "resume_links", "restored")
        links[0] = open_link(a, backup, "to_b")
        settle([a, backup], links)
        assert [n for origin, n in received(backup, "all") if origin == "a"] == [1, 2, 3]


@pytest.mark.parametrize("where", ["home", "shop", "both"])
def test_units_of_work_cross_a_link_that_is_made_anew_and_once(scene: Scene, where: str) -> None:
    client, server = scene.client(), scene.server()
    begun = client.request(SERVICE, "1")
    scene.settle()
    assert server.text("new") == "1"
    server.sync("commit")
    scene.settle()
    scene.links[0].close()
    waiting = client.request(SERVICE, "waits")
    if where != "shop":
        drop(scene.home, "to_b")
        make(scene.home, scene.shop)
    if where != "home":
        drop(scene.shop, "a")
    scene.links[0] = open_link(scene.home, scene.shop, "to_b")
    scene.settle()
    assert client.status(begun["uow_id"]) == "PROCESSED"
    late = client.request(SERVICE, "late")
    scene.settle()
    answer = client.send("in the old conversation", begun["conversation"], option="commit")["uow_id"]
    scene.settle()
    got = []
    while (said := server.receive("any")) is not None:
        got.append(bytes(said["message"]).decode())
        server.sync("commit")
    scene.settle()
    assert sorted(got) == ["in the old conversation", "late", "waits"]
    assert {client.status(unit) for unit in (waiting["uow_id"], late["uow_id"], answer)} == {"PROCESSED"}


def test_what_waits_for_one_that_was_put_back_is_kept_until_it_asks(brokers: Brokers, copied: Copied) -> None:
    with two(brokers) as (a, b, links):
        call(b.admin, "unsubscribe", "all")
        settle([a, b], links)
        assert all_ticks(a) == {"a": [1, 2], "b": [101, 102]}
        links[0].close()
        backup = copied(a)
        turn(b)
        for n in range(3, 6):
            publish(b.admin, "tick", n)
            b.settle()
        call(backup.admin, "resume_links", "restored")
        links[0] = open_link(backup, b, "to_b")
        turn(b)
        settle([backup, b], links)
        assert [n for origin, n in received(backup, "all") if origin == "b"] == [3, 4, 5]
        assert gaps(backup, b) == 0
