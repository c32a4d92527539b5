"""Composite events of which a neighbour detects parts: only what it detects crosses, and nothing else is different."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, refused, rows, value
from tests.links.rig import Broker, Link, linked, settle

PLAN = "select expression, broker, forwards, reason from pgps.plan_composite_event('{}') where cardinality(parts) > 0"
PARTS = "select name from pgps.event_types where name like 'pgps\\_part\\_%'"
CONTEXTS = ("unrestricted", "recent", "chronicle", "continuous", "cumulative")


def found(broker: Broker, name: str) -> list[list[tuple[str, int | None]]]:
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
