"""Where the parts of composite events are detected, and by whom their events are forwarded."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, refused, rows
from tests.fix_db import Connect
from tests.links.conftest import brokers  # noqa: F401 - a fixture
from tests.links.rig import Broker, linked, settle

PLAN = "select expression, broker, forwards, behind from pgps.plan_composite_event('it')"


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    call(connection, "configure", "broker", "here")
    for name in ("rain", "wind", "snow"):
        make_type(connection, name)
    return connection


def test_what_is_local_is_detected_here(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "it", "(rain a ; rain b) or rain c + '4 s'")
    # Leaves that differ in their aliases alone are one node, which says all of them.
    whole = "rain a ; rain b or plus(rain c, '4 s')"
    assert rows(broker, PLAN) == [
        (expression, "here", None, None)
        for expression in (whole, "plus(rain c, '4 s')", "rain a ; rain b", "rain a, b, c")
    ]
    nodes = "select node from pgps.plan_composite_event('{}') where expression like 'rain %'"
    call(broker, "create_composite_event", "other", "rain z ; snow")
    # The event of a leaf is the same node in both: an alias makes no difference.
    shared = set(rows(broker, nodes.format("it"))) & set(rows(broker, nodes.format("other")))
    assert len(shared) == 1


def test_a_sub_expression_that_stands_twice_is_one_node_without_the_names_that_differ(
    broker: psycopg.Connection,
) -> None:
    call(broker, "create_composite_event", "it", "(rain a ; wind) and (rain b ; wind) and snow c")
    assert [row[0] for row in rows(broker, PLAN)][1:] == [
        "snow c",
        "rain a ; wind and rain b ; wind",
        "rain ; wind",
        "wind",
        "rain a, b",
    ]


def test_a_plan_needs_the_event_and_the_right(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    call(broker, "create_composite_event", "it", "rain")
    with refused("42704", 'composite event "nothing" does not exist'):
        rows(broker, "select * from pgps.plan_composite_event('nothing')")
    with refused("42704", 'composite event "rain" does not exist'):
        rows(broker, "select * from pgps.plan_composite_event('rain')")
    alice = connect(role("alice"), dsn=own_database)
    with refused("42501", 'composite event "it" belongs to role'):
        rows(alice, PLAN)
    call(alice, "create_composite_event", "hers", "rain")
    assert rows(alice, "select expression, broker from pgps.plan_composite_event('hers')") == [("rain", "here")]


def test_leaves_of_other_brokers_are_forwarded_by_neighbours(
    brokers: Callable[[int], list[Broker]],  # noqa: F811
) -> None:
    a, b, c = brokers(3)
    for broker, names in ((a, ("rain", "wind", "both")), (b, ("hail",)), (c, ("snow", "both"))):
        for name in names:
            make_type(broker.admin, name)
    with linked([(a, b), (b, c)]) as links:
        settle([a, b, c], links)
        call(c.admin, "create_source", "hilltop", "a")
        expression = "(rain ; wind (n > 0) w) and (snow or (both x ; both@hilltop y) ; hail)"
        call(c.admin, "create_composite_event", "it", expression, scope="global")
        whole = "rain ; wind (n > 0) w and (snow or both x ; both@hilltop y ; hail)"
        assert rows(c.admin, PLAN) == [
            (whole, "c", None, None),
            ("snow or both x ; both@hilltop y ; hail", "c", None, None),
            ("both x ; both@hilltop y ; hail", "c", None, None),
            ("hail", "b", "b", "b"),
            ("both x ; both@hilltop y", "c", None, None),
            ("both@hilltop y", "a", "b", "b"),
            ("both x", "c", None, None),
            ("both x", "a", "b", None),
            ("snow", "c", None, None),
            # All of it lies behind b; what is put together of it is put together here.
            ("rain ; wind (n > 0) w", "c", None, "b"),
            ("wind (n > 0) w", "a", "b", "b"),
            ("rain", "a", "b", "b"),
        ]
        call(c.admin, "drop_event_type", "it")
        call(c.admin, "create_composite_event", "it", "hail ; both@hilltop")
        assert {row[1:] for row in rows(c.admin, PLAN)} == {("c", None, None)}
        call(c.admin, "drop_event_type", "it")
        call(c.admin, "create_source", "gone", "nowhere")
        call(c.admin, "create_composite_event", "it", "hail@gone", scope="global")
        assert rows(c.admin, PLAN) == [("hail@gone", None, None, None)]
