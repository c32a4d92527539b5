"""Confirming events: once each, exactly, whatever became of the transaction."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, publish, quoted, refused, rows, value
from tests.fix_db import Connect

Name = Callable[..., str]
Pair = tuple[str, str]


@pytest.fixture
def pair(admin: psycopg.Connection, name: Name) -> Pair:
    """An immediate event type, the one that confirms it, and a subscription named as that to both of them."""
    original, confirming = name("attempt"), name("outcome")
    make_type(admin, original, visibility="immediate")
    make_type(admin, confirming, "attempt_id bigint, committed boolean")
    call(admin, "link_confirm_event", confirming, original)
    call(admin, "subscribe", original, original)
    call(admin, "subscribe", confirming, confirming)
    return original, confirming


def outcomes(admin: psycopg.Connection, pair: Pair) -> dict[int, list[bool | None]]:
    """Return what has been confirmed: the number of the original, and each flag that came for it."""
    original, confirming = pair
    rows(admin, "select pgps.dispatch()")
    rows(admin, "select pgps.raise_confirming()")
    rows(admin, "select pgps.dispatch()")
    numbers: dict[int, int] = dict(
        rows(admin, "select event_id, (payload ->> 'n')::integer from pgps.receive(%s, 10000)", [original])
    )
    found: dict[int, list[bool | None]] = {}
    query = "select (payload ->> 'attempt_id')::bigint, payload -> 'committed' from pgps.receive(%s, 10000)"
    for event_id, committed in rows(admin, query, [confirming]):
        found.setdefault(numbers[event_id], []).append(committed)
    return found


def test_immediate_events_are_confirmed_when_their_transaction_has_ended(
    admin: psycopg.Connection, connect: Connect, pair: Pair
) -> None:
    sessions = [connect(autocommit=False) for _ in range(4)]
    for number, session in enumerate(sessions):
        publish(session, pair[0], number, number + 10)
    assert outcomes(admin, pair) == {}
    assert value(admin, "select open from pgps.confirm_events where confirming = %s", [pair[1]]) == 4
    sessions[0].commit()
    sessions[1].rollback()
    rows(admin, "select pg_terminate_backend(%s, 60000)", [sessions[2].info.backend_pid])
    publish(admin, pair[0], 5)
    known = {0: [True], 10: [True], 1: [False], 11: [False], 2: [False], 12: [False], 5: [True]}
    assert outcomes(admin, pair) == known
    assert outcomes(admin, pair) == known, "once each"
    sessions[3].commit()
    assert outcomes(admin, pair) == known | {3: [True], 13: [True]}


def test_a_savepoint_that_is_rolled_back_is_not_the_transaction(
    admin: psycopg.Connection, connect: Connect, pair: Pair
) -> None:
    session = connect(autocommit=False)
    rows(session, "savepoint here")
    publish(session, pair[0], 1)
    rows(session, "rollback to here")
    session.commit()
    assert outcomes(admin, pair) == {1: [True]}


def test_deferred_events_are_confirmed_when_they_come(
    admin: psycopg.Connection, connect: Connect, pair: Pair, name: Name
) -> None:
    deferred = name("attempt")
    make_type(admin, deferred)
    call(admin, "link_confirm_event", pair[1], deferred)
    call(admin, "subscribe", deferred, deferred)
    session = connect(autocommit=False)
    publish(session, deferred, 1)
    session.rollback()
    publish(session, deferred, 2)
    session.commit()
    assert outcomes(admin, (deferred, pair[1])) == {2: [True]}


def test_a_look_that_rolls_back_is_made_again(admin: psycopg.Connection, connect: Connect, pair: Pair) -> None:
    publish(admin, pair[0], 1, 2)
    rows(admin, "select pgps.dispatch()")
    worker = connect(autocommit=False)
    assert rows(worker, "select done from pgps.raise_confirming()") != [(0,)]
    assert rows(admin, "select done from pgps.raise_confirming()") == [(0,)], "one at a time, nobody waits"
    worker.rollback()
    assert outcomes(admin, pair) == {1: [True], 2: [True]}


def test_a_link_whose_events_cannot_be_raised_says_why_and_goes_on_later(admin: psycopg.Connection, pair: Pair) -> None:
    publish(admin, pair[0], 1)
    call(admin, "unadvertise", pair[1])
    assert outcomes(admin, pair) == {}
    said = value(admin, "select last_error from pgps.confirm_events where confirming = %s", [pair[1]])
    assert "has not advertised" in said
    call(admin, "advertise", pair[1])
    assert outcomes(admin, pair) == {1: [True]}
    assert value(admin, "select last_error from pgps.confirm_events where confirming = %s", [pair[1]]) is None


def test_a_link_is_checked_and_can_be_dropped(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], pair: Pair, name: Name
) -> None:
    original, confirming = pair
    odd = name("odd")
    make_type(admin, odd, "committed boolean, attempt_id bigint")
    with refused("42804", "cannot confirm"):
        call(admin, "link_confirm_event", odd, original)
    with refused("42710"):
        call(admin, "link_confirm_event", confirming, original)
    with refused("22023", "would confirm itself"):
        call(admin, "link_confirm_event", confirming, confirming)
    with refused("42704"):
        call(admin, "link_confirm_event", confirming, name("nothing"))
    with refused("42501"):
        call(connect(role("anybody")), "link_confirm_event", confirming, odd)
    steward = connect(role("steward", "pgps_admin"))
    with refused("55000", "has not advertised"):
        call(steward, "link_confirm_event", confirming, odd)
    with refused("42501"):
        call(connect(role("anybody")), "drop_confirm_event", confirming, original)
    call(admin, "drop_confirm_event", confirming, original)
    with refused("42704", "does not confirm"):
        call(admin, "drop_confirm_event", confirming, original)
    publish(admin, original, 1)
    assert outcomes(admin, pair) == {}


def test_a_type_in_a_link_can_be_dropped(admin: psycopg.Connection, pair: Pair, name: Name) -> None:
    call(admin, "drop_event_type", quoted(pair[1]), cascade=True)
    publish(admin, pair[0], 1)
    assert value(admin, "select count(*) from pgps.confirm_events where original = %s", [pair[0]]) == 0
