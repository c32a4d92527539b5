"""Consumers that name themselves: what was received belongs to the name, whatever session it comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, meanwhile, publish, queue, refused, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect

Name = Callable[..., str]


@pytest.fixture
def shared(admin: psycopg.Connection, name: Name) -> str:
    """A shared subscription for which six events wait."""
    return _ready(admin, name("shared"), "any")


@pytest.fixture
def single(admin: psycopg.Connection, name: Name) -> str:
    """A subscription with one consumer for which six events wait."""
    return _ready(admin, name("single"), "all")


def _ready(admin: psycopg.Connection, made: str, handler: str) -> str:
    make_type(admin, made)
    call(admin, "subscribe", made, made, handler=handler, max_attempts=2)
    publish(admin, made, *range(6))
    rows(admin, "select pgps.dispatch()")
    return made


def _receive(connection: psycopg.Connection, name: str, most: int, consumer: str | None = None) -> list[int]:
    query = "select event_id from pgps.receive(%s, %s, %s)"
    return column(connection, query, [name, most, consumer])


def test_who_shares_a_session_acknowledges_only_what_is_its_own(admin: psycopg.Connection, shared: str) -> None:
    mine, other = _receive(admin, shared, 3, "a"), _receive(admin, shared, 3, "b")
    assert len({*mine, *other}) == 6
    with refused("55000", str(mine[0]), "consumer"):
        call(admin, "ack", shared, mine[0], consumer="b")
    with refused("55000", str(mine[0])):
        call(admin, "nack", shared, mine[0], consumer="b")
    with refused("55000", str(mine[0])):
        call(admin, "ack", shared, mine[0])
    assert call(admin, "ack", shared) == 0
    assert call(admin, "ack", shared, consumer="b") == 3
    call(admin, "nack", shared, mine[2], "no", consumer="a")
    assert call(admin, "ack", shared, mine[0], consumer="a") == 1
    assert value(admin, "select acked from pgps.ack_each(array[%s], consumer => 'a')", [shared]) == 1
    query = "select event_id from pgps.take(%s, consumer => 'c')"
    assert column(admin, query, [shared]) == [mine[2]]


def test_a_name_may_come_in_another_session(admin: psycopg.Connection, connect: Connect, shared: str) -> None:
    _receive(admin, shared, 4, "a")
    assert call(connect(), "ack", shared, consumer="a") == 4


def test_what_a_consumer_holds_comes_again_whoever_asks_under_its_name(
    admin: psycopg.Connection, connect: Connect, shared: str
) -> None:
    """A restarted consumer must not acknowledge what only its predecessor has seen."""
    first = _receive(connect(), shared, 3, "a")
    other = _receive(admin, shared, 1, "b")
    query = "select event_id, attempt from pgps.receive(%s, %s, 'a')"
    again = rows(admin, query, [shared, 4])
    assert [one for one, _ in again] == [*first, other[0] + 1]
    assert [attempt for _, attempt in again] == [2, 2, 2, 1]
    assert rows(admin, query, [shared, 2]) == [(one, 2) for one in first[:2]]
    for later in (first[2], again[3][0]):
        with refused("55000", "newest pgps.receive"):
            call(admin, "ack", shared, later, consumer="a")
        with refused("55000", str(later)):
            call(admin, "nack", shared, later, consumer="a")
    assert call(admin, "ack", shared, consumer="a") == 2
    assert call(admin, "ack", shared, consumer="a") == 0
    assert rows(admin, query, [shared, 9]) == [(first[2], 2), (again[3][0], 2), (again[3][0] + 1, 1)]
    assert _receive(admin, shared, 9, "b") == other
    assert (call(admin, "ack", shared, consumer="a"), call(admin, "ack", shared, consumer="b")) == (3, 1)


def test_of_two_that_live_under_one_name_none_acknowledges_what_only_the_other_has_seen(
    admin: psycopg.Connection, connect: Connect, shared: str
) -> None:
    first, second = connect(), connect()
    seen = _receive(first, shared, 2, "a")
    others = _receive(second, shared, 4, "a")
    second.close()
    for what in (None, seen[0], others[3]):
        with refused("55000", "another session", "a#1"):
            call(first, "ack", shared, what, consumer="a")
    with refused("55000", "another session"):
        call(first, "nack", shared, seen[0], consumer="a")
    assert value(admin, f"select count(*) from pgps_queue.{shared}_out") == 6
    assert _receive(first, shared, 9, "a")[:4] == others
    assert call(first, "ack", shared, consumer="a") == 6


def test_who_was_overtaken_stays_so_until_it_receives_again(
    admin: psycopg.Connection, connect: Connect, shared: str
) -> None:
    first, second = connect(), connect()
    _receive(first, shared, 1, "a")
    _receive(second, shared, 2, "a")
    assert call(second, "ack", shared, consumer="a") == 2
    _receive(second, shared, 2, "a")
    with refused("55000", "another session"):
        call(first, "ack", shared, consumer="a")
    # A session that has not received, as behind a pooler, acknowledges for the newest.
    assert call(connect(), "ack", shared, consumer="a") == 2
    _receive(first, shared, 1, "a")
    assert call(first, "ack", shared, consumer="a") == 1


def test_programs_of_one_name_tell_themselves_apart_by_tokens_whatever_their_sessions(
    admin: psycopg.Connection, shared: str, single: str
) -> None:
    seen = _receive(admin, shared, 2, "a#1")
    others = _receive(admin, shared, 4, "a#2")
    assert others[:2] == seen
    with refused("55000", '"a#1"', '"a#2"', "Receive again"):
        call(admin, "ack", shared, consumer="a#1")
    with refused("55000", "a#2"):
        call(admin, "nack", shared, seen[0], consumer="a")
    with refused("55000", "a#2"):
        call(admin, "ack", shared, seen[0], consumer="a")
    assert call(admin, "ack", shared, consumer="a#2") == 4
    assert call(admin, "ack", shared, consumer="a#1") == 0
    _receive(admin, single, 2, "a#1")
    _receive(admin, single, 4, "a#2")
    with refused("55000", '"a#1"', '"a#2"'):
        call(admin, "ack", single, consumer="a#1")


def test_a_repeat_is_no_further_attempt(admin: psycopg.Connection, shared: str) -> None:
    for _ in range(4):
        held = _receive(admin, shared, 2, "a")
    call(admin, "nack", shared, held[0], "once", "0", consumer="a")
    query = "select event_id, attempt from pgps.receive(%s, 2, 'a')"
    assert rows(admin, query, [shared]) == [(one, 2) for one in held]
    call(admin, "nack", shared, held[0], "twice", "0", consumer="a")
    assert column(admin, "select error from pgps.exceptions where subscription = %s", [shared]) == ["twice"]


def test_events_that_another_session_of_the_name_has_locked_are_not_covered(
    admin: psycopg.Connection, connect: Connect, shared: str
) -> None:
    """The predecessor was acknowledging when it died, and the server has not noticed yet."""
    held = _receive(admin, shared, 3, "a")
    predecessor = connect(autocommit=False)
    rows(
        predecessor,
        "delete from pgps_internal.share s using pgps_internal.subscription u "
        "where s.subscription_id = u.subscription_id and u.name = %s and s.event_id = any (%s)",
        [shared, held[:2]],
    )
    assert _receive(admin, shared, 2, "a") == [held[2], held[2] + 1]
    predecessor.rollback()
    assert call(admin, "ack", shared, consumer="a") == 2
    assert call(admin, "ack", shared, consumer="a") == 0
    assert _receive(admin, shared, 9, "a")[:2] == held[:2]


def test_sessions_of_one_name_take_turns(admin: psycopg.Connection, connect: Connect, shared: str) -> None:
    first, second = connect(autocommit=False), connect()
    _receive(admin, shared, 1, "a")
    held = _receive(first, shared, 3, "a")
    found: list[int] = []
    with meanwhile(admin, second, lambda: found.extend(_receive(second, shared, 4, "a"))):
        first.commit()
    assert found[:3] == held, "what the first was given meanwhile comes again"
    assert call(second, "ack", shared, consumer="a") == 4


def test_who_lost_a_lease_settles_nothing_by_a_later_event(
    admin: psycopg.Connection, shared: str, clock: Clock
) -> None:
    """His transaction has written for all that he was given: it has to fail as a whole."""
    given = _receive(admin, shared, 6, "slow")
    assert call(admin, "ack", shared, given[0], consumer="slow") == 1
    call(admin, "nack", shared, given[1], "no", "1 day", consumer="slow")
    clock.advance("2 minutes")
    assert call(admin, "ack", shared, given[2], consumer="slow") == 1, "nobody has taken any"
    assert _receive(admin, shared, 1, "quick") == [given[3]]
    with refused("55000", "1 of the events", shared):
        call(admin, "ack", shared, given[5], consumer="slow")
    assert call(admin, "ack", shared, consumer="quick") == 1
    with refused("55000", "1 of the events"):
        call(admin, "ack", shared, given[5], consumer="slow")
    # What is left comes again, and is settled as what was received last.
    assert _receive(admin, shared, 6, "slow") == given[4:]
    clock.advance("2 minutes")
    assert call(admin, "ack", shared, given[5], consumer="slow") == 2


def test_who_loses_a_lease_while_it_acknowledges_settles_nothing_by_a_later_event(
    admin: psycopg.Connection, connect: Connect, shared: str, clock: Clock
) -> None:
    clock.set(clock.now())
    mine = _receive(admin, shared, 6, "a")
    lease = value(admin, "select extract(epoch from value::interval) from pgps_internal.setting where name = 'lease'")
    clock.advance(f"{lease - 1} seconds 500 milliseconds")
    holding, late = connect(autocommit=False), connect()
    rows(holding, "select from pgps_internal.share where event_id = %s for update", [mine[0]])
    with refused("55000", "lease"), meanwhile(admin, late, lambda: call(late, "ack", shared, mine[5], consumer="a")):
        clock.advance("1 second")
        other = column(admin, "select event_id from pgps.take(%s, 2, 'b')", [shared])
        holding.rollback()
    assert other == mine[1:3]
    assert _receive(admin, shared, 6, "c") == [mine[0], *mine[3:]]


def test_what_a_former_release_gave_is_settled(admin: psycopg.Connection, shared: str, clock: Clock) -> None:
    given = _receive(admin, shared, 3, "a")
    rows(admin, "update pgps_internal.consumer set given = null")
    assert call(admin, "ack", shared, given[0], consumer="a") == 1
    clock.advance("2 minutes")
    assert call(admin, "ack", shared, given[2], consumer="a") == 2


@pytest.mark.parametrize("rows_function", [False, True])
@pytest.mark.parametrize("handler", ["shared", "single"])
def test_a_paused_subscription_gives_nothing_and_nothing_is_acknowledged(
    admin: psycopg.Connection, request: pytest.FixtureRequest, handler: str, rows_function: bool
) -> None:
    made = request.getfixturevalue(handler)
    receive = f"{queue(made, 'receive')}(array[%s], 3, 'a')" if rows_function else "pgps.receive(%s, 3, 'a')"
    held = _receive(admin, made, 3, "a")
    call(admin, "nack", made, held[0], "later", "0", consumer="a")
    assert _receive(admin, made, 3, "a")[:1] == held[:1]
    call(admin, "pause", made)
    assert rows(admin, f"select from {receive}", [made]) == []
    assert call(admin, "ack", made, consumer="a") == 0
    call(admin, "resume", made)
    assert sorted(_receive(admin, made, 3, "a")) == held
    call(admin, "pause", made)
    assert call(admin, "ack", made, consumer="a") == 3, "it was received before"


def test_take_leaves_nothing_to_acknowledge(admin: psycopg.Connection, shared: str, single: str) -> None:
    for made in (shared, single):
        held = _receive(admin, made, 4, "a")
        assert column(admin, "select event_id from pgps.take(%s, 2, 'a')", [made]) == held[:2]
        assert call(admin, "ack", made, consumer="a") == 0
        assert _receive(admin, made, 2, "a") == held[2:]


def test_only_what_was_put_back_is_acknowledged_when_nothing_else_came(admin: psycopg.Connection, single: str) -> None:
    """The predecessor has received more than its successor asks for."""
    held = _receive(admin, single, 5, "a")
    rows(admin, "select pgps.nack_events(%s, %s, 'no', '0', 'a')", [single, held[:2]])
    assert _receive(admin, single, 2, "a") == held[:2]
    assert call(admin, "ack", single, consumer="a") == 2
    query = "select event_id, attempt from pgps.receive(%s, 9, 'a')"
    assert rows(admin, query, [single]) == [*((one, 2) for one in held[2:]), (held[-1] + 1, 1)]


def test_consumers_that_hold_nothing_are_forgotten(
    admin: psycopg.Connection, connect: Connect, shared: str, clock: Clock
) -> None:
    def known() -> list[str]:
        query = (
            "select c.holder from pgps_internal.consumer c join pgps_internal.subscription s using (subscription_id) "
            "where s.name = %s order by 1"
        )
        return column(admin, query, [shared])

    for consumer in ("done", "holding", "busy"):
        _receive(admin, shared, 1, consumer)
    assert call(admin, "ack", shared, consumer="done") == 1
    busy = connect(autocommit=False)
    assert call(busy, "ack", shared, consumer="busy") == 1
    rows(admin, "select pgps_internal.sweep_consumers()")
    assert len(known()) == 3
    clock.advance("2 hours")
    rows(admin, "select pgps_internal.sweep_consumers()")
    assert known() == ["consumer/busy", "consumer/holding"]
    busy.commit()
    call(admin, "unsubscribe", shared)
    rows(admin, "select pgps_internal.sweep_consumers()")
    assert rows(admin, "select from pgps_internal.consumer where holder in ('consumer/busy', 'consumer/holding')") == []


def test_without_a_name_it_is_said_when_another_transaction_received(
    admin: psycopg.Connection, connect: Connect, shared: str
) -> None:
    """Through a transaction pooler two clients may have received in one server process."""
    said: list[str] = []
    admin.add_notice_handler(lambda notice: said.append(f"{notice.severity}: {notice.message_primary}"))
    _receive(admin, shared, 1)
    assert call(admin, "ack", shared) == 1
    with admin.transaction():
        assert _receive(admin, shared, 1) == _receive(admin, shared, 1)
    for _ in range(2):
        _receive(admin, shared, 1, "a")
    assert (call(admin, "ack", shared), call(admin, "ack", shared, consumer="a")) == (1, 1)
    assert said == []
    _receive(admin, shared, 1)
    assert len(_receive(admin, shared, 2)) == 2
    assert call(admin, "ack", shared) == 2
    (warning,) = said
    assert warning.startswith("WARNING: an earlier transaction of this server process received 1 of these events")


def test_another_application_on_the_same_session_is_not_taken_for_the_first(
    admin: psycopg.Connection, shared: str
) -> None:
    rows(admin, "set application_name = 'first'")
    (mine,) = _receive(admin, shared, 1)
    rows(admin, "set application_name = 'second'")
    for up_to in (None, mine):
        with refused("55000", "application_name", "second"):
            call(admin, "ack", shared, up_to)
    rows(admin, "set application_name = 'first'")
    assert call(admin, "ack", shared) == 1


def test_names_can_be_made_a_duty(own_database: str, connect: Connect) -> None:
    admin = connect(dsn=own_database)
    made = _ready(admin, "tick", "any")
    call(admin, "configure", "named_consumers", "true")
    with refused("55000", "has to name itself", "consumer =>"):
        _receive(admin, made, 1)
    assert len(_receive(admin, made, 1, "a")) == 1
    assert len(column(admin, "select event_id from pgps.take(%s, 1)", [made])) == 1


@pytest.mark.parametrize("rows_function", [False, True])
def test_a_single_consumer_is_told_that_there_are_two(
    admin: psycopg.Connection, single: str, rows_function: bool
) -> None:
    def received(most: int, consumer: str | None) -> list[int]:
        if not rows_function:
            return _receive(admin, single, most, consumer)
        query = f"select pgps_event_id from {queue(single, 'receive')}(array[%s], %s, %s)"
        return column(admin, query, [single, most, consumer])

    mine = received(2, "a")
    assert received(4, "b")[:2] == mine
    for consumer in ("a", None):
        for verb, args in (("ack", ()), ("ack", (mine[0],)), ("nack", (mine[0],))):
            with refused("55000", 'by consumer "b"', "handler => 'any'"):
                call(admin, verb, single, *args, consumer=consumer)
        with refused("55000", 'by consumer "b"'):
            rows(admin, "select pgps.ack_each(array[%s], %s)", [single, consumer])
    call(admin, "nack", single, mine[1], "no", "0", consumer="b")
    assert call(admin, "ack", single, mine[0], consumer="b") == 1
    # What was put back alone, by another one.
    assert received(1, "a") == [mine[1]]
    with refused("55000", 'by consumer "a"'):
        call(admin, "ack", single, consumer="b")
    assert call(admin, "ack", single, consumer="a") == 1
    assert call(admin, "ack", single, consumer="c") == 0
    assert len(received(9, None)) == 4
    with refused("55000", "without the name"):
        call(admin, "ack", single, consumer="a")
    assert value(admin, "select acked from pgps.ack_each(array[%s])", [single]) == 4


def test_a_name_gives_no_rights(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], shared: str
) -> None:
    (mine,) = _receive(admin, shared, 1, "a")
    stranger = connect(role("stranger"))
    attempts: list[tuple[str, list[Any]]] = [
        ("select pgps.receive(%s, 1, 'a')", [shared]),
        ("select pgps.ack(%s, %s, 'a')", [shared, mine]),
        ("select pgps.nack(%s, %s, consumer => 'a')", [shared, mine]),
        ("select pgps.ack_each(array[%s], 'a')", [shared]),
    ]
    for query, params in attempts:
        with refused("42501", shared):
            rows(stranger, query, params)
    assert call(admin, "ack", shared, consumer="a") == 1


@pytest.mark.parametrize("consumer", ["", "x" * 201])
def test_a_name_is_a_name(admin: psycopg.Connection, shared: str, single: str, consumer: str) -> None:
    for made in (shared, single):
        with refused("22023", "invalid consumer"):
            _receive(admin, made, 1, consumer)
    with refused("22023", "invalid consumer"):
        rows(admin, f"select * from {queue(single, 'receive')}(array[%s], 1, %s)", [single, consumer])
