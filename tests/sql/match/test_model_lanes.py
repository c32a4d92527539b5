"""Lanes against a model: whatever is subscribed, paused and published, each gets what it wants, once and in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fix_broker import call, make_type, publish, rows
from tests.fix_db import Connect
from tests.sql.match.lane_steps import cut, run_lanes, take_only

Role = Callable[..., str]


@pytest.fixture
def server_database(own_database: str, connect: Connect) -> psycopg.Connection:
    """A broker that all examples of one test share."""
    return connect(dsn=own_database)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(["pa", "pb", "pc"]), st.integers(1, 4)),
        st.sampled_from([("cut",), ("lanes",), ("dispatch",), ("type",)]),
        st.tuples(st.just("take"), st.sampled_from(["safe", "lane", "pattern", "wild", "shared"]), st.integers(1, 4)),
    ),
    max_size=25,
)


@settings(max_examples=25)
@given(actions=ACTIONS)
def test_each_subscription_gets_what_it_wants_in_order_and_once(
    server_database: psycopg.Connection, actions: list[tuple[Any, ...]]
) -> None:
    broker = server_database
    rows(broker, "select pgps.drop_event_type(name, true) from pgps.event_types")
    rows(broker, "select pgps.unsubscribe(name) from pgps.subscriptions")
    rows(broker, "create or replace function public.even(n integer) returns boolean language sql as 'select n % 2 = 0'")
    make_type(broker, "pa")
    make_type(broker, "pb")
    wanted: dict[str, Callable[[str, int], bool]] = {
        "safe": lambda t, n: t == "pa" and n > 3,
        "lane": lambda t, n: t == "pa" and n % 2 == 0,
        "pattern": lambda t, n: n % 2 == 0,
        "wild": lambda t, n: True,
        "shared": lambda t, n: t == "pb" and n % 2 == 0,
    }
    call(broker, "subscribe", "safe", "pa", "n > 3")
    call(broker, "subscribe", "lane", "pa", "public.even(n)")
    call(broker, "subscribe", "pattern", "p*", "public.even(n)")
    call(broker, "subscribe", "wild", "p*")
    call(broker, "subscribe", "shared", "pb", "public.even(n)", handler="any")
    types, number = ["pa", "pb"], 0
    expected: dict[str, list[int]] = {name: [] for name in wanted}
    seen: dict[str, list[int]] = {name: [] for name in wanted}
    for action in actions:
        match action:
            case ("publish", name, many) if name in types:
                fresh = list(range(number + 1, number + many + 1))
                number += many
                publish(broker, name, *fresh)
                for who, wants in wanted.items():
                    expected[who] += [n for n in fresh if wants(name, n)]
            case ("cut",):
                cut(broker)
            case ("lanes",):
                run_lanes(broker)
            case ("dispatch",):
                rows(broker, "select pgps.dispatch()")
            case ("type",) if "pc" not in types:
                make_type(broker, "pc")
                types.append("pc")
            case ("take", who, many):
                seen[who] += take_only(broker, who, many)
    cut(broker)
    run_lanes(broker)
    for who in wanted:
        seen[who] += take_only(broker, who, 1000)
    assert seen == expected
