"""The vectors of the literature, through SQL: published, dispatched in several cuts, and read from the log."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call
from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.sql.composite.histories import Detected, Player, expected
from tests.unit.composite.histories import CONTEXTS
from tests.unit.composite.test_vectors import VECTORS


@pytest.fixture
def player(connect: Connect, own_database: str, clock: Clock) -> Player:
    return Player(connect(dsn=own_database), clock)


def options_of(expression: str, context: str) -> dict[str, object]:
    return {"context": context, "max_open": 1000}


def test_each_vector_is_detected_as_the_detector_alone_does(player: Player) -> None:
    """H1 to H6 in five contexts each, with cuts behind no event, every event, and every other one."""
    for expression, text, _ in VECTORS:
        wanted: dict[str, list[Detected]] = {}
        for context in CONTEXTS:
            player.create(context, expression, **options_of(expression, context))
            wanted[context] = expected(expression, text, player.base, 100, context=context, max_open=1000)
            assert wanted[context]
        for cuts in (None, range(0, 100, 2)):
            for context in CONTEXTS:
                call(player.connection, "reset_composite_event", context)
            before = {context: len(player.found(context)) for context in CONTEXTS}
            player.go_on(1000)
            player.play(text, 100, cuts)
            for context in CONTEXTS:
                found = player.found(context)[before[context] :]
                assert sorted(found, key=repr) == sorted(wanted[context], key=repr), f"{expression} in {context}"
        for context in CONTEXTS:
            player.drop(context)


def test_intervals_keep_their_order_where_composite_events_are_nested(player: Player) -> None:
    """H8: e1[1,2] e2[3,4] e3[5,6] gives e1;(e2;e3), and not e2;(e1;e3)."""
    for number in (1, 2, 3):
        player.create(f"e{number}", f"a (k = {number}) ; b (k = {number})")
    player.create("inner", "e2 ; e3")
    player.create("outer", "e1 ; inner")
    player.create("crossing", "e1 ; e3")
    player.create("wrong", "e2 ; crossing")
    for number, at in ((1, 1), (2, 3), (3, 5)):
        player.publish("a", f"a{number}", at, number)
        player.publish("b", f"b{number}", at + 1, number)
    for later in range(10, 16):
        player.at(later)
        player.dispatch()
    assert [one[1:3] for one in player.found("inner")] != []
    assert len(player.found("outer")) == 1
    assert player.found("crossing") != []
    assert player.found("wrong") == []


def test_what_is_recorded_is_the_time_of_the_history(player: Player) -> None:
    player.create("pair", "a x ; b y", attributes="first text = x.name, both text = x.name || y.name")
    player.publish("a", "a1", 5)
    player.publish("b", "b1", 9)
    player.at(50)
    player.dispatch()
    assert player.found("pair") == [(9, 5, 9, [("x", "a1"), ("y", "b1")])]


def test_ticks_of_a_pause_come_once_and_in_order(player: Player) -> None:
    player.create("tock", "every('1 s')")
    player.at(5_500_000)
    player.dispatch()
    player.dispatch()
    # It was made at a full second, which is its first tick.
    assert [one[0] for one in player.found("tock")] == list(range(0, 5_500_000, 1_000_000))
    player.at(6_500_000)
    player.dispatch()
    assert [one[0] for one in player.found("tock")] == list(range(0, 6_500_000, 1_000_000))


def test_nobody_else_publishes_it(player: Player) -> None:
    player.create("pair", "a ; b")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="by the detector alone"):
        player.connection.execute("insert into pgps_event.pair (starts_at) values (now())")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="by the detector alone"):
        call(player.connection, "publish", "pair", "{}")
