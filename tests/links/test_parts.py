"""Composite events of which a neighbour detects parts: only what it detects crosses, and nothing else is different."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fix_broker import call, column, make_type, refused, rows, value
from tests.fix_db import Connect
from tests.links.peer import Origin
from tests.links.rig import Broker, Link, linked, open_link, settle
from tests.links.test_changing_paths import peers

PLAN = "select expression, broker, forwards, reason from pgps.plan_composite_event('{}') where cardinality(parts) > 0"
PARTS = "select name from pgps.event_types where name like 'pgps\\_part\\_%'"
CONTEXTS = ("unrestricted", "recent", "chronicle", "continuous", "cumulative")


def found(broker: Broker, name: str) -> list[list[list[str | None]]]:
    """Return what is in each occurrence, in order: the names and the numbers of events, null for ticks."""
    query = (
        "select (select jsonb_agg(jsonb_build_array(p ->> 'as', p -> 'payload' ->> 'n') order by o)"
        " from jsonb_array_elements(q.constituents) with ordinality x(p, o))"
        f" from pgps_queue.{name}_in q order by q.event_id"
    )
    return column(broker.admin, query)


def crossed(broker: Broker, name: str) -> int:
    """Return how many events of a type have been dispatched at a broker."""
    query = (
        "select count(*) from pgps_internal.batch_type b join pgps_internal.event_type t using (type_id)"
        " cross join unnest(b.ids) r cross join generate_series(lower(r), upper(r) - 1) where t.name = %s"
    )
    return int(value(broker.admin, query, [name]))


class Scene:
    """A home broker and a ward's, linked; and one where all happens at one place. Types a, b, n are the ward's."""

    def __init__(self, home: Broker, ward: Broker, alone: Broker, links: list[Link]) -> None:
        self.home, self.ward, self.alone, self.links = home, ward, alone, links

    def settle(self) -> None:
        settle([self.home, self.ward], self.links)
        settle([self.alone], [])

    def create(self, name: str, expression: str, **options: Any) -> None:
        for broker in (self.home, self.alone):
            call(broker.admin, "create_composite_event", name, expression, scope="global", **options)
        self.settle()

    def publish(self, kind: str, number: int, k: int = 1) -> None:
        """Publish one event where the type belongs and where all is, each known everywhere before the next."""
        for broker in (self.home if kind in "cd" else self.ward, self.alone):
            rows(broker.admin, f"insert into pgps_event.{kind} (n, k) values (%s, %s)", [number, k])
        self.settle()

    def compare(self, *names: str) -> list[int]:
        """Check that the same was found at both places; return how much it was."""
        for name in names:
            assert found(self.home, name) == found(self.alone, name), name
        return [len(found(self.home, name)) for name in names]

    def plan(self, name: str) -> list[tuple[Any, ...]]:
        return rows(self.home.admin, PLAN.format(name))

    def parts(self, broker: Broker) -> list[str]:
        return column(broker.admin, PARTS + " order by 1")


@pytest.fixture
def scene(brokers: Callable[[int], list[Broker]]) -> Iterator[Scene]:
    home, ward, alone = brokers(3)
    for broker, names in ((home, "cd"), (ward, "abn"), (alone, "abcdn")):
        for name in names:
            make_type(broker.admin, name, "n integer, k integer", auditable=True)
    with linked([(home, ward)]) as links:
        scene = Scene(home, ward, alone, links)
        scene.settle()
        yield scene


def test_only_what_is_detected_crosses_the_link(scene: Scene) -> None:
    scene.create("it", "(a ; b) and c", partition_by="k", auditable=True)
    assert scene.plan("it") == [("a ; b and c", "a", None, None), ("a ; b", "b", "b", None)]
    (part,) = scene.parts(scene.home)
    assert scene.parts(scene.ward) == [part]
    for kind, number, k in zip("aaanbbccbc", range(1, 11), (1, 1, 2, 1, 3, 2, 2, 2, 1, 1), strict=True):
        scene.publish(kind, number, k)
    assert scene.compare("it") == [3]
    # Of the ward's seven events two pairs came, and no event alone.
    assert {name: crossed(scene.home, name) for name in ("a", "b", "n", part)} == {"a": 0, "b": 0, "n": 0, part: 2}
    told = value(
        scene.home.admin,
        "select p from pgps_queue.it_in q, jsonb_array_elements(q.constituents) p where p ->> 'as' = 'a'"
        " order by q.event_id limit 1",
    )
    ids = column(scene.ward.admin, "select event_id from pgps_queue.a_in where n = 3")
    assert (told["origin"], told["broker"], told["event_id"]) == ("b", "b", ids[0])
    call(scene.home.admin, "drop_event_type", "it", cascade=True)
    scene.settle()
    assert scene.parts(scene.home) == scene.parts(scene.ward) == []
    assert rows(scene.ward.admin, "select * from pgps_internal.hosted_part") == []


def test_any_operator_and_context_finds_what_one_place_finds(scene: Scene) -> None:
    definitions = {
        "unrestricted": "(a ; b) and c",
        "recent": "A(c, any(2, a, b, n), d)",
        "chronicle": "(a or b) ; c",
        "continuous": "A*(a, b, n)",
        "cumulative": "not(a ; b)[c, d] or repeat(n, 2) and d",
    }
    for context, expression in definitions.items():
        scene.create(context, expression, context=context, max_open=100, auditable=True)
    assert len(scene.parts(scene.ward)) == len(definitions)
    for number, kind in enumerate("cabdcabnacbadnbcdanbc"):
        scene.publish(kind, number)
    counts = scene.compare(*definitions)
    assert all(counts), dict(zip(definitions, counts, strict=True))
    assert [crossed(scene.home, name) for name in "abn"] == [0, 0, 0]


def test_what_a_neighbour_refuses_is_detected_here(scene: Scene) -> None:
    call(scene.ward.admin, "configure", "composite_events_per_role", "1")
    scene.create("first", "a ; b", auditable=True)
    scene.create("second", "(a ; b) or c", auditable=True)
    assert scene.plan("first") == [("a ; b", "b", "b", None)]
    said = 'broker "b": role "pgps_neighbour" has 1 composite events, which is as many as it may have'
    assert scene.plan("second") == [("a ; b or c", "a", None, None), ("a ; b", "a", None, said)]
    rows(scene.home.admin, "update pgps_internal.neighbour set detects = false")
    scene.create("third", "n ; n y", auditable=True)
    assert scene.plan("third") == [("n ; n y", "a", None, "it runs a release that cannot")]
    for number, kind in enumerate("abcnabn"):
        scene.publish(kind, number)
    assert scene.compare("first", "second", "third") == [2, 3, 1]
    assert [crossed(scene.home, name) for name in "abn"] == [2, 2, 2]
    # What it has begun to detect and does not any more, it would else be silent about.
    (part,) = scene.parts(scene.ward)
    call(scene.ward.admin, "alter_composite_event", part, enabled=False)
    scene.settle()
    assert scene.plan("first") == [("a ; b", "a", None, 'broker "b": it was stopped there')]
    for number, kind in ((8, "a"), (9, "b")):
        scene.publish(kind, number)
    assert scene.compare("first") == [3]


def test_what_is_known_here_alone_is_detected_here(scene: Scene) -> None:
    rows(scene.home.admin, "create table bound (n integer)")
    call(scene.home.admin, "create_source", "desk", "b", "one")
    call(scene.home.admin, "create_source", "ward", "b")
    for name, (expression, options, reason) in {
        "reads": ("a (n in (select n from bound)) ; b", {}, "a predicate reads more than the event"),
        "asks": ("(a ; b) and c", {"filter": "a.n < b.n"}, "a condition of its filter is asked here"),
        "names": ("a@desk ; b", {}, "a client is known to its own broker alone"),
        "tells": ("begin a ; b", {}, "events over links count as both moments of an operation"),
        "begins": ("a ; b", {"start": "earliest"}, "its history begins with what is held here"),
    }.items():
        call(scene.home.admin, "create_composite_event", name, expression, scope="global", **options)
        assert scene.plan(name)[-1][1:] == ("a", None, reason)
    # What can be told of the origin travels, and follows a source that moves.
    told = "a@ward (n > 2) ; b"
    call(scene.home.admin, "create_composite_event", "from_ward", told, scope="global", auditable=True)
    scene.settle()
    assert scene.plan("from_ward") == [("a@ward (n > 2) ; b", "b", "b", None)]
    for number, kind in enumerate("aabaab"):
        scene.publish(kind, number)
    assert found(scene.home, "from_ward") == [[["a", "4"], ["b", "5"]]]
    call(scene.home.admin, "alter_source", "ward", "elsewhere")
    scene.settle()
    scene.publish("a", 7)
    scene.publish("b", 8)
    # Recent keeps the initiator; what is not the source's any more does not take its place.
    assert found(scene.home, "from_ward")[1:] == [[["a", "4"], ["b", "8"]]]


def test_what_its_owner_may_see_here_holds_for_what_a_neighbour_detects(
    scene: Scene, role: Callable[..., str], connect: Connect
) -> None:
    owner = role("owner")
    hidden = "a policy here says what its owner may see"

    def publish(*numbers: int) -> None:
        for number in numbers:
            for k in (1, 2):
                scene.publish("a", number, k)
                scene.publish("b", number, k)

    def create(name: str) -> None:
        for broker in (scene.home, scene.alone):
            rows(broker.admin, f"grant select on pgps_event.a, pgps_event.b, pgps_event.c to {owner}")
            call(
                connect(owner, dsn=broker.dsn), "create_composite_event", name, "(a ; b) or c",
                context="chronicle", max_open=9, partition_by="k", scope="global", auditable=True,
            )  # fmt: skip
        scene.settle()

    create("before")
    assert scene.plan("before")[1:] == [("a ; b", "b", "b", None)]
    publish(1, 2)
    # What was detected there is nobody's here: rights on the events may go, and would not take it with them.
    (part,) = scene.parts(scene.home)
    with refused("42501", part):
        rows(connect(owner, dsn=scene.home.dsn), f"select * from pgps_queue.{part}_in")
    # A policy that is made later holds: the neighbour does not know it, so it is detected here.
    for broker in (scene.home, scene.alone):
        call(broker.admin, "create_policy", "a", "first", owner, "k = 1")
    scene.settle()
    assert scene.plan("before")[1:] == [("a ; b", "a", None, hidden)]
    create("behind")
    assert scene.plan("behind")[1:] == [("a ; b", "a", None, hidden)]
    publish(3, 4)
    assert scene.compare("before", "behind") == [6, 2]
    assert scene.parts(scene.ward) == []


def test_who_names_the_type_of_a_part_has_no_other_rights_than_his_own(
    scene: Scene, connect: Connect, role: Callable[..., str]
) -> None:
    scene.create("it", "a ; b")
    (part,) = scene.parts(scene.home)
    chief = role("chief", "pgps_admin")
    session = connect(chief, dsn=scene.home.dsn)
    call(session, "create_composite_event", "spy", f"{part} (starts_at is not null) p")
    owners = "select distinct owner::text from pgps_internal.subscription where kind = 'composite' and filter <> ''"
    assert column(scene.home.admin, owners) == [chief]


def test_a_part_is_altered_and_reset_with_the_whole(scene: Scene) -> None:
    scene.create("it", "(a ; b) and c", context="chronicle", max_open=2, partition_by="k", auditable=True)

    def both(function: str, *args: Any, **named: Any) -> None:
        for broker in (scene.home, scene.alone):
            call(broker.admin, function, *args, **named)
        scene.settle()

    scene.publish("a", 1)
    both("alter_composite_event", "it", max_open=1, filter="c.n > 3")
    for number, kind in ((2, "a"), (3, "c"), (4, "c"), (5, "b"), (6, "a"), (7, "b"), (8, "c")):
        scene.publish(kind, number)
    scene.publish("a", 9, k=1)
    scene.publish("a", 10, k=2)
    both("reset_composite_event", "it", "[1]")
    for k in (1, 2):
        scene.publish("b", 10 + k, k)
        scene.publish("c", 20 + k, k)
    scene.publish("a", 31, k=2)
    both("reset_composite_event", "it")
    scene.publish("b", 32, k=2)
    scene.publish("c", 33, k=2)
    assert scene.compare("it") == [2]
    with refused("55000", 'the filter is about what broker "b" detects'):
        call(scene.home.admin, "alter_composite_event", "it", filter="a.n > b.n")
    assert [crossed(scene.home, name) for name in "ab"] == [0, 0]


def test_when_the_link_is_dropped_the_part_goes_on_here(scene: Scene) -> None:
    scene.create("it", "a ; b", auditable=True)
    scene.publish("a", 1)
    scene.publish("b", 2)
    call(scene.home.admin, "drop_link", "to_b")
    scene.settle()
    (link,) = scene.links
    link.remove()
    assert scene.plan("it") == [("a ; b", "a", None, None)]
    reason = "select reason from pgps_internal.composite_part"
    assert column(scene.home.admin, reason) == ['the link to broker "b" was dropped']
    assert scene.parts(scene.ward) == []
    # Somebody publishes the same events here now.
    for number, kind in ((3, "a"), (4, "b")):
        call(scene.home.admin, "advertise", kind)
        rows(scene.home.admin, f"insert into pgps_event.{kind} (n) values (%s)", [number])
        settle([scene.home], [])
    assert found(scene.home, "it") == [[["a", "1"], ["b", "2"]], [["a", "3"], ["b", "4"]]]


def test_a_neighbour_or_this_broker_is_restored_and_goes_on(scene: Scene, copied: Callable[[Broker], Broker]) -> None:
    scene.create("it", "a ; b", context="chronicle", max_open=10, auditable=True)
    scene.publish("a", 1)
    for name in ("ward", "home"):
        scene.links[0].close()
        backup = copied(getattr(scene, name))
        call(backup.admin, "resume_links", "restored")
        setattr(scene, name, backup)
        if name == "ward":
            call(scene.home.admin, "alter_link", "to_b", backup.dsn)
        scene.links[0] = open_link(scene.home, scene.ward, "to_b")
        scene.settle()
    scene.publish("b", 2)
    scene.publish("a", 3)
    scene.publish("b", 4)
    assert scene.compare("it") == [2]
    assert scene.plan("it") == [("a ; b", "b", "b", None)]
    assert [crossed(scene.home, name) for name in "ab"] == [0, 0]
    # Its brokers are gone before the scene is.
    scene.links.pop().close()


def test_two_neighbours_at_once_one_with_an_answer_and_one_with_news_do_not_wait_for_each_other(
    brokers: Callable[[int], list[Broker]],
) -> None:
    """What is detected here instead is subscribed to, while the other is receiving what changes the routes."""
    here = brokers(1)[0]
    for name in "ab":
        call(here.admin, "create_event_type", name, "n integer")
    one, two = Origin("one"), Origin("two")
    with peers(here, "d", "e") as (d, e):
        d.say(d.ad(one, types=("a", "b")))
        d.hear()
        e.hear()
        call(here.admin, "create_composite_event", "it", "a ; b", scope="global")
        (asked,) = [item["body"] for item in d.hear() if item["kind"] == "part"]
        with e.says.transaction():
            news, _ = e.batch(e.ad(two, types=("a",)))
            value(e.says, "select pgps.link_begin(%s::jsonb, false)", [json.dumps(news)])
            refusal = d.message("parted", name=asked["name"], reason="not here")
            rows(d.says, "set lock_timeout = '20s'")
            d.say(refusal)
            rows(e.says, "select pgps.link_apply(%s::jsonb)", [json.dumps(news)])
        assert column(here.admin, "select reason from pgps_internal.composite_part") == ['broker "d": not here']
        assert value(here.admin, "select count(*) from pgps_internal.offer") == 2
