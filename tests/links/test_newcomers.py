"""Subscriptions that are made while batches are being received: what came before they begin is not theirs.

Whoever receives has not seen them, and nobody waits: the dispatcher judges for them (decision 64).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import Connect, wait_until
from tests.links.horizon_stage import Scene
from tests.links.peer import Item
from tests.links.rig import Broker, linked, open_link, received, settle
from tests.links.test_horizon_rules import Taken

Brokers = Callable[[int], list[Broker]]


@contextmanager
def being_received(scene: Scene, *items: Item) -> Iterator[None]:
    """Receive items of b in a transaction that ends with the block."""
    batch, events = scene.b.batch(*items)
    with scene.b.says.transaction():
        begun = value(scene.b.says, "select pgps.link_begin(%s::jsonb, false)", [json.dumps(batch)])
        for statement in begun["copies"]:
            with scene.b.says.cursor().copy(statement.encode()) as copy:
                copy.set_types(["int8", "int4"])
                for row in events:
                    copy.write_row(row)
        rows(scene.b.says, "select pgps.link_apply(%s::jsonb)", [json.dumps(batch)])
        yield
    scene.b.said = batch["upto"]


@pytest.fixture
def scene(brokers: Brokers) -> Iterator[Scene]:
    """A broker that has all of origin x from batch 4 on, for the subscription `all`."""
    with ExitStack() as stack:
        made = Scene(brokers(1)[0], stack)
        made.ready()
        yield made


KINDS = {
    "of its own": {},
    "shared": {"handler": "any"},
    "prefix": {"event_type": "t*"},
    "from the past": {"start": "earliest"},
    "callback": {"execute": "public.keep"},
}


def subscribe(session: psycopg.Connection, name: str, wanted: str | None, **options: str) -> None:
    event_type = options.pop("event_type", "tick")
    call(session, "subscribe", name, event_type, wanted, scope="global", **options)


def had(scene: Scene, name: str, *, settle: bool = True) -> list[int]:
    """Return what a subscription has had of origin x; settle: when all is dispatched."""
    if settle:
        scene.here.settle()
    if value(scene.here.admin, "select kind = 'internal' from pgps_internal.subscription where name = %s", [name]):
        rows(scene.here.admin, "call pgps.run_subscribers()")
        return [n for (n,) in rows(scene.here.admin, "delete from public.kept returning n")]
    return [n for origin, n in received(scene.here, name) if origin == "x"]


def made_meanwhile(s: Scene, connect: Connect, kind: str, wanted: str) -> None:
    """Make a subscription while two batches are being received, and what was received before is being dispatched."""
    rows(
        s.here.admin,
        "create table public.wished as select generate_series(0, 99) as n; create table public.kept (n int)",
    )
    rows(
        s.here.admin,
        "create function public.keep(pgps_event.tick) returns void language sql as"
        " 'insert into public.kept values (($1).n)'",
    )
    rows(s.here.admin, "set lock_timeout = '10s'")
    session = connect(dsn=s.here.dsn, autocommit=False)
    # Another one has the same filter, and so the same class.
    call(s.here.admin, "subscribe", "local", "tick", wanted)
    with being_received(s, s.b.data(s.x, 1, 4, 5, (50, 5))):
        subscribe(session, "new", wanted, **KINDS[kind])
    with being_received(s, s.b.data(s.x, 1, 5, 6, (60, 6))):
        # What is dispatched before it is committed is not for it, and what is received then and committed later.
        assert had(s, "all") == [5]
        session.commit()
        assert had(s, "new", settle=False) == []
        assert had(s, "new") == []
    assert had(s, "new") == []
    assert had(s, "all") == [6]
    # The filter of `all` implies its own, which is in force from the horizon on.
    s.b.hear()
    s.b.say(s.b.data(s.x, 1, 6, 7, (70, 7)), s.b.data(s.x, 1, 7, 8, (80, 8)))
    assert had(s, "new") == [7, 8]
    assert had(s, "all") == [7, 8]


@pytest.mark.parametrize("told", [0, 1, 2])
@pytest.mark.parametrize("dispatched", [0, 1, 2])
def test_a_filter_that_is_in_force_for_another_one_is_so_from_one_batch_on(
    scene: Scene, told: int, dispatched: int
) -> None:
    """A newcomer with the filter of `all`, before and after this broker has found out what to ask for it."""
    s = scene
    with being_received(s, s.b.data(s.x, 1, 4, 5, (50, 5))):
        subscribe(s.here.admin, "new", None)
    got = []
    for n in range(3):
        if told == n:
            s.b.hear(settle=False)
        if dispatched == n:
            got += had(s, "new")
        s.b.say(s.b.data(s.x, 1, n + 5, n + 6, (60 + 10 * n, n + 6)))
    got += had(s, "new")
    s.b.hear(settle=False)
    s.b.say(s.b.data(s.x, 1, 8, 9, (90, 9)))
    got += had(s, "new")
    assert got
    assert got == list(range(got[0], 10))
    assert had(s, "all") == [5, 6, 7, 8, 9]


@pytest.fixture
def half(brokers: Brokers) -> Iterator[Scene]:
    """A broker that has of origin x events of 5 and more from batch 4 on, for the subscription `few`."""
    with ExitStack() as stack:
        s = Scene(brokers(1)[0], stack)
        for peer in (s.b, s.c):
            peer.say(peer.ad(s.x))
        s.subscribe("few", "n >= 5")
        s.b.hear()
        key, one = s.b.key(s.x), s.number(s.b)
        s.b.say(s.b.data(s.x, one, 0, 4), s.b.active(s.x, key, one, 4))
        s.seen()
        yield s


def dispatched_often(s: Scene) -> None:
    """Dispatch batches of what is published here, until nobody has to be judged for who may be judged elsewhere."""
    for n in range(5):
        publish(s.here.admin, "other", n)
        s.here.settle()


def nothing_of_what_comes_meanwhile(s: Scene, dispatcher: psycopg.Connection) -> None:
    """Receive a batch that began in the dispatcher's transaction and ends much later: `new` gets nothing of it."""
    with being_received(s, s.b.data(s.x, s.number(s.b), 4, 5, (50, 5))):
        dispatcher.commit()
        dispatched_often(s)
    assert had(s, "few") == [5]
    assert had(s, "new") == []
    s.seen()


def test_who_looks_while_the_dispatcher_learns_the_filter_leaves_it_to_him(half: Scene, connect: Connect) -> None:
    """The transaction in which the dispatcher learns it is open when a batch is received, which ends much later."""
    s = half
    s.subscribe("new")
    s.here.settle()
    s.b.hear(settle=False)
    dispatcher = connect(dsn=s.here.dsn, autocommit=False)
    publish(s.here.admin, "other", 1)
    call(dispatcher, "dispatch")
    assert value(dispatcher, "select is_pushed from pgps_internal.newcomer") is True
    nothing_of_what_comes_meanwhile(s, dispatcher)


def test_who_looks_while_a_prefix_gains_a_type_leaves_it_to_the_dispatcher(half: Scene, connect: Connect) -> None:
    s = half
    with connect(dsn=s.here.dsn, autocommit=False) as changing:
        call(changing, "alter_event_type", "tick", add_attribute="m integer")
        call(s.here.admin, "subscribe", "new", "ti*", scope="global")
        s.b.hear(settle=False)
        dispatched_often(s)
        changing.rollback()
    dispatcher = connect(dsn=s.here.dsn, autocommit=False)
    publish(s.here.admin, "other", 1)
    call(dispatcher, "dispatch")
    assert value(dispatcher, "select count(*) from pgps_internal.late_type") == 0
    nothing_of_what_comes_meanwhile(s, dispatcher)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", ["n < 100", "n in (table public.wished)"])
def test_what_was_received_by_who_has_not_seen_a_subscription_is_not_for_it(
    scene: Scene, connect: Connect, kind: str, wanted: str
) -> None:
    made_meanwhile(scene, connect, kind, wanted)


TAKEN = [
    ("of its own", Taken("judge", "(e.since is null or e.since >= a.upto)", "false")),
    ("shared", Taken("judge", "(e.since is null or e.since >= a.upto)", "false")),
    ("from the past", Taken("see_newcomers", "where b.batch_id > n.joined_batch", "where false")),
    ("of its own", Taken("first_from_batch", "return pgps_internal.hidden();", "null;")),
    ("callback", Taken("first_from_batch", "return pgps_internal.hidden();", "null;")),
]


@pytest.mark.parametrize(("kind", "taken"), TAKEN, ids=[f"{kind}-{taken.function}" for kind, taken in TAKEN])
def test_each_part_of_it_is_needed(scene: Scene, connect: Connect, kind: str, taken: Taken) -> None:
    taken.out_of(scene.here)
    with pytest.raises(AssertionError):
        made_meanwhile(scene, connect, kind, "n < 100")


def test_what_the_newest_transaction_of_all_receives_is_not_for_a_newcomer(scene: Scene, connect: Connect) -> None:
    """A snapshot ends with the newest transaction that has ended, and who receives may be a newer one."""
    s = scene
    s.seen()
    session = connect(dsn=s.here.dsn, autocommit=False)
    publish(s.here.admin, "tick", 1)
    subscribe(session, "new", "n < 100")
    with being_received(s, s.b.data(s.x, 1, 4, 5, (50, 5))):
        session.commit()
        # Seen with the first batch; with the second nobody is left who is older than the newest that had ended then.
        s.here.settle()
        publish(s.here.admin, "tick", 2)
        s.here.settle()
    assert had(s, "all") == [5]
    assert had(s, "new") == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_published_here_after_the_commit_of_a_subscription_is_for_it_at_once(
    scene: Scene, connect: Connect, kind: str
) -> None:
    session = connect(dsn=scene.here.dsn, autocommit=False)
    rows(scene.here.admin, "create table public.kept (n int)")
    rows(
        scene.here.admin,
        "create function public.keep(pgps_event.tick) returns void language sql as"
        " 'insert into public.kept values (($1).n)'",
    )
    publish(scene.here.admin, "tick", 1)
    subscribe(session, "new", None, **KINDS[kind])
    session.commit()
    publish(scene.here.admin, "tick", 2, 3)
    scene.here.settle()
    if kind == "callback":
        rows(scene.here.admin, "call pgps.run_subscribers()")
        assert rows(scene.here.admin, "select n from public.kept") == [(2,), (3,)]
        return
    here = [n for origin, n in received(scene.here, "new") if origin != "x"]
    assert here == ([1, 2, 3] if kind == "from the past" else [2, 3])


@pytest.mark.parametrize("handler", ["all", "any"])
def test_a_newcomer_whose_filter_is_being_changed_loses_nothing(scene: Scene, connect: Connect, handler: str) -> None:
    for ends in ("commit", "rollback"):
        name = f"new_{ends}"
        session = connect(dsn=scene.here.dsn, autocommit=False)
        call(scene.here.admin, "subscribe", name, "tick", "n < 50", scope="global", handler=handler)
        call(session, "alter_subscription", name, "n < 60")
        publish(scene.here.admin, "tick", 1, 2)
        scene.here.settle()
        getattr(session, ends)()
        publish(scene.here.admin, "tick", 3)
        scene.here.settle()
        assert [n for _, n in received(scene.here, name)] == [1, 2, 3], ends


def test_what_is_to_be_skipped_is_noted_when_whoever_changes_the_subscription_is_ready(
    scene: Scene, connect: Connect
) -> None:
    s = scene
    for handler in ("all", "any"):
        call(s.here.admin, "subscribe", f"to_{handler}", "tick", "n < 50", scope="global", handler=handler)
    call(s.here.admin, "create_event_type", "tock", "n integer")
    s.here.settle()
    rows(s.here.admin, "set lock_timeout = '10s'")
    for number, end in ((5, "rollback"), (6, "rollback"), (7, "commit"), (8, "rollback")):
        # What waits is few, and behind all that was skipped before.
        publish(s.here.admin, "tick", number)
        s.here.settle()
        assert [[n for _, n in received(s.here, name)] for name in ("to_all", "to_any")] == [[number], [number]]
        session = connect(dsn=s.here.dsn, autocommit=False)
        for name in ("to_all", "to_any"):
            call(session, "alter_subscription", name, "n < 60")
        with being_received(s, s.b.data(s.x, 1, number - 1, number, (10 * number, number))):
            pass
        s.here.settle()
        getattr(session, end)()
        for _ in range(2):
            # At once, before it is added; and afterwards.
            assert [received(s.here, name) for name in ("to_all", "to_any")] == [[], []]
            s.here.settle()


def test_newcomers_are_few_for_a_moment(scene: Scene) -> None:
    """Nothing is left of them when all that may not have seen them is dispatched."""
    left = "select count(*) from pgps_internal.newcomer"
    assert value(scene.here.admin, left) == 1

    def none() -> bool:
        publish(scene.here.admin, "tick", 1)
        scene.here.settle()
        return bool(value(scene.here.admin, left) == 0)

    wait_until(none, what="all newcomers are seen")


def test_newcomers_are_few_while_no_link_is_up(brokers: Brokers) -> None:
    a, b = made = brokers(2)
    for broker in made:
        make_type(broker.admin, "tick")
    with linked([(a, b)]) as links:
        settle(made, links)
        links.pop().close()
        for name in ("one", "two"):
            call(b.admin, "subscribe", name, "tick", "n > 1", scope="global")
        for number in range(5):
            publish(b.admin, "tick", number)
            b.settle()
            call(b.admin, "reclaim")

        def all_seen() -> bool:
            # One more batch for each try: whoever has a transaction open anywhere on the server is waited for.
            publish(b.admin, "tick", 0)
            b.settle()
            call(b.admin, "reclaim")
            return value(b.admin, "select count(*) = 0 from pgps_internal.newcomer") is True

        wait_until(all_seen, what="reclaim has found out what neighbours are asked for newcomers")
        publish(a.admin, "tick", 5)
        a.settle()
        links.append(open_link(a, b, "to_b"))
        settle(made, links)
        publish(a.admin, "tick", 6)
        settle(made, links)
        assert received(b, "one") == received(b, "two") == [("b", 2), ("b", 3), ("b", 4), ("a", 6)]


def test_event_types_and_subscriptions_unsettle_origins(scene: Scene) -> None:
    settled = "select is_settled from pgps_internal.origin where name = 'x'"
    news = "select count(*) from pgps_internal.unsettled"
    scene.b.hear()
    assert (value(scene.here.admin, settled), value(scene.here.admin, news)) == (True, 0)
    make_type(scene.here.admin, "tock")
    scene.subscribe("low", "n < 100")
    assert value(scene.here.admin, news) == 2
    scene.b.hear()
    assert value(scene.here.admin, news) == 0


def test_who_joins_an_event_type_late_gets_no_events_before_its_filter_is_in_force(
    brokers: Brokers, connect: Connect
) -> None:
    a, b = made = brokers(2)
    for broker in made:
        make_type(broker.admin, "tick")
    make_type(b.admin, "other")
    call(b.admin, "subscribe", "some", "tick", "n >= 5", scope="global")
    with linked([(a, b)]) as links:
        settle(made, links)
        with connect(dsn=b.dsn, autocommit=False) as changing:
            call(changing, "alter_event_type", "tick", add_attribute="m integer")
            call(b.admin, "subscribe", "all", "ti*", scope="global")
            # The neighbour is told what is wanted, while the subscription has not joined the type.
            for n in range(3):
                publish(b.admin, "other", n)
                b.settle()
                links[0].move()
            changing.rollback()
        for n in range(3):
            publish(b.admin, "other", n)
            b.settle()
        publish(a.admin, "tick", 7, 3)
        a.settle()
        links[0].out.move()
        b.settle()
        before = received(b, "all")
        settle(made, links)
        publish(a.admin, "tick", 8, 2)
        settle(made, links)
        assert before + received(b, "all") in ([("a", 8), ("a", 2)], [("a", n) for n in (7, 3, 8, 2)])
