"""The exception queue: what is put back, what is dropped, by whom; also when the log has gone on long since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, ids, make_type, numbers, publish, refused, rows, sink, sunk, take, value
from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.sql.log.test_reclaim import kept, reclaim, roll

FAILED = "select n, subscription, state from pgps_queue.tick_exception order by n, subscription"
RETRY, DISCARD = "retry_exception", "discard_exception"


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    return connection


@pytest.fixture
def reader(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: Callable[..., str]
) -> psycopg.Connection:
    """A plain role that sees events with an odd number, and may put functions into schema public."""
    who = role("reader")
    rows(broker, f"grant create on schema public to {who}")
    call(broker, "create_policy", "tick", "odd", who, "n % 2 = 1")
    return connect(who, dsn=own_database)


def fail(broker: psycopg.Connection, reader: psycopg.Connection, subscription: str, *failing: int) -> None:
    """Dispatch, receive everything, give these numbers up and acknowledge the others."""
    rows(broker, "select pgps.dispatch()")
    received = "select event_id, (payload ->> 'n')::integer from pgps.receive(%s)"
    for event_id, n in rows(reader, received, [subscription]):
        if n in failing:
            call(reader, "nack", subscription, event_id, f"not {n}")
    call(reader, "ack", subscription)


def test_all_one_event_or_one_subscription_is_put_back_or_dropped(broker: psycopg.Connection) -> None:
    for subscription in ("a", "b"):
        call(broker, "subscribe", subscription, "tick", max_attempts=1)
    publish(broker, "tick", 1, 2, 3, 4)
    for subscription in ("a", "b"):
        fail(broker, broker, subscription, 1, 2, 3)
    event: dict[int, int] = dict(rows(broker, "select n, event_id from pgps_queue.tick_exception"))
    assert call(broker, RETRY, "tick", event_id=event[1]) == 2
    assert call(broker, DISCARD, "tick", event_id=event[2], subscription="a") == 1
    assert call(broker, RETRY, "tick", subscription="b") == 2, "what is put back already is not failed"
    assert call(broker, DISCARD, "tick", event[1], "b") == 0
    assert (take(broker, "a"), take(broker, "b")) == ([1], [1, 2, 3])
    assert rows(broker, FAILED) == [(3, "a", "failed")]
    assert call(broker, DISCARD, "tick") == 1
    assert call(broker, RETRY, "tick") == 0
    assert take(broker, "a") == []


def test_attempts_are_counted_anew_after_a_retry(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick", max_attempts=2)
    publish(broker, "tick", 1)
    rows(broker, "select pgps.dispatch()")
    for _ in range(3):
        assert column(broker, "select attempt from pgps.receive('s')") == [1]
        call(broker, "nack", "s", ids(broker, "s")[0])
        assert column(broker, "select attempt from pgps.receive('s')") == [2]
        call(broker, "nack", "s", ids(broker, "s")[0], "no")
        assert rows(broker, FAILED) == [(1, "s", "failed")]
        assert call(broker, RETRY, "tick") == 1


@pytest.mark.parametrize("handler", ["all", "any"])
@pytest.mark.parametrize("is_received", [False, True])
def test_what_is_put_back_comes_also_when_the_subscription_goes_back_to_what_the_log_still_has(
    broker: psycopg.Connection, handler: str, is_received: bool
) -> None:
    call(broker, "subscribe", "s", "tick", handler=handler, max_attempts=1)
    publish(broker, "tick", 1, 2)
    fail(broker, broker, "s", 1)
    roll(broker)
    publish(broker, "tick", 3)
    assert take(broker, "s") == [3]
    reclaim(broker)
    assert kept(broker) == 1
    assert call(broker, RETRY, "tick") == 1
    if is_received:
        assert numbers(broker, "s") == [1]
    call(broker, "seek", "s", "earliest")
    assert sorted(take(broker, "s")) == [1, 3]
    call(broker, "seek", "s", "earliest")
    assert take(broker, "s") == [3]


def test_a_callback_is_tried_again_later_and_later(broker: psycopg.Connection, clock: Clock) -> None:
    clock.set("2026-03-01 12:00+00")
    call(broker, "configure", "retry_delay", "10 seconds")
    call(broker, "configure", "retry_delay_max", "35 seconds")
    table = sink(broker, "tick", body="perform 1 / (($1).n - 1);")
    call(broker, "subscribe", "s", "tick", execute=table)
    publish(broker, "tick", 1, 2)
    rows(broker, "select pgps.dispatch()")
    call(broker, "run_subscriber", "s")
    for attempt, wait in enumerate((10, 20, 35, 35), 1):
        assert rows(broker, "select attempts, state from pgps_internal.failure") == [(attempt, "retrying")]
        clock.advance(f"{wait} seconds - 1 millisecond")
        assert call(broker, "run_subscriber", "s") == 0, "not before its time"
        clock.advance("1 millisecond")
        call(broker, "run_subscriber", "s")
    assert rows(broker, FAILED) == [(1, "s", "failed")]
    assert sunk(broker, table) == [2]


def test_only_the_owner_and_administrators_settle_exceptions(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    owner, other, chief = (connect(role(*who), dsn=own_database) for who in (("o",), ("x",), ("c", "pgps_admin")))
    call(owner, "subscribe", "s", "tick", max_attempts=1)
    call(other, "subscribe", "theirs", "tick", max_attempts=1)
    publish(broker, "tick", 1)
    fail(broker, owner, "s", 1)
    for function in (RETRY, DISCARD):
        with refused("42501", "tick"):
            call(other, function, "tick", subscription="s")
        assert call(other, function, "tick") == 0, "of its own there are none"
        for wrong, options in (("no_such", {}), ("tick", {"subscription": "no_such"})):
            with refused("42704", "no_such"):
                call(owner, function, wrong, **options)
    assert call(owner, RETRY, "tick") == 1
    fail(broker, owner, "s", 1)
    assert call(chief, RETRY, "tick") == 1
    assert numbers(owner, "s") == [1]


@pytest.mark.parametrize("step", ["filter", "nack", "callback"])
def test_under_a_policy_an_event_is_put_back_when_its_segment_is_long_gone(
    broker: psycopg.Connection, reader: psycopg.Connection, step: str
) -> None:
    options: dict[str, dict[str, Any]] = {
        "filter": {"filter": "public.good(n)"},
        "nack": {"max_attempts": 1},
        "callback": {"execute": "public.done", "max_attempts": 1},
    }
    rows(reader, "create table public.got (n integer)")
    rows(reader, "create function public.good(n integer) returns boolean language sql as 'select 1 / (n - n) > 0'")
    rows(
        reader,
        "create function public.done(pgps_event.tick) returns void language sql as "
        "'insert into public.got values (($1).n / (($1).n - ($1).n))'",
    )
    call(reader, "subscribe", "s", "tick", **options[step])
    publish(broker, "tick", 1, 2, 3)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "call pgps.run_subscribers()")
    if step == "nack":
        fail(broker, reader, "s", 1, 3)
    roll(broker)
    reclaim(broker)
    assert (kept(broker), kept(broker, "tick_kept")) == (0, 2)
    shown = "select n from pgps_queue.tick_exception order by n"
    assert column(reader, shown) == [1, 3]
    rows(reader, "create or replace function public.good(n integer) returns boolean language sql as 'select n = 3'")
    rows(
        reader,
        "create or replace function public.done(pgps_event.tick) returns void language sql as "
        "'insert into public.got values (($1).n)'",
    )
    assert call(reader, RETRY, "tick") == (1 if step == "filter" else 2)
    rows(broker, "call pgps.run_subscribers()")
    got = column(reader, "select n from public.got order by n") if step == "callback" else numbers(reader, "s")
    if step != "callback":
        call(reader, "ack", "s")
    assert got == ([3] if step == "filter" else [1, 3])
    assert column(reader, shown) == []
    call(broker, "drop_policy", "tick", "odd")
    reclaim(broker)
    assert kept(broker, "tick_kept") == 0


def test_what_a_policy_hides_by_now_is_not_put_back(broker: psycopg.Connection, reader: psycopg.Connection) -> None:
    call(reader, "subscribe", "s", "tick", max_attempts=1)
    publish(broker, "tick", 1, 3)
    fail(broker, reader, "s", 1, 3)
    call(broker, "drop_policy", "tick", "odd")
    call(broker, "create_policy", "tick", "three", reader.info.user, "n = 3")
    assert call(reader, RETRY, "tick") == 2
    assert numbers(reader, "s") == [3]
    call(reader, "ack", "s")
    assert numbers(reader, "s") == []


@pytest.mark.parametrize("auditable", [False, True])
def test_an_auditable_exception_queue_remembers_what_was_dropped(broker: psycopg.Connection, auditable: bool) -> None:
    call(broker, "alter_queue", "tick_exception", auditable=auditable)
    call(broker, "subscribe", "s", "tick", max_attempts=1)
    publish(broker, "tick", 1)
    fail(broker, broker, "s", 1)
    call(broker, DISCARD, "tick")
    assert rows(broker, FAILED) == ([(1, "s", "discarded")] if auditable else [])
    assert value(broker, "select count(*) from pgps.exceptions") == 0


def test_what_was_put_back_is_neither_put_back_nor_discarded_again(
    admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    made = name()
    make_type(admin, made)
    fails = sink(admin, made, body="raise 'no';")
    call(admin, "subscribe", made, made, execute=fails, max_attempts=1)
    publish(admin, made, 1, 2)
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")
    first, _ = column(admin, f"select event_id from pgps_queue.{made}_exception order by 1")
    assert call(admin, "retry_exception", made, first) == 1
    assert (call(admin, "retry_exception", made, first), call(admin, "discard_exception", made, first)) == (0, 0)
    assert call(admin, "discard_exception", made) == 1, "the other one"
    assert column(admin, f"select event_id from pgps_queue.{made}_out") == [first]
    assert column(admin, f"select event_id from pgps_queue.{made}_exception where state = 'failed'") == []
    rows(admin, "call pgps.run_subscribers()")
    assert column(admin, f"select event_id from pgps_queue.{made}_exception where state = 'failed'") == [first]


@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize("handler", ["all", "any"])
@pytest.mark.parametrize(
    ("mended", "wanted"), [("n >= 0", [0, 2]), ("", [0, 2]), ("10 / (n + 1) > 1", [0, 2]), ("n > 1", [2])]
)
def test_who_mends_a_filter_and_puts_back_at_once_gets_what_it_had_failed_on(
    admin: psycopg.Connection, name: Callable[..., str], mended: str, wanted: list[int], handler: str, dispatched: bool
) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, filter="10 / n > 1", handler=handler)
    publish(admin, made, 0, 2)
    rows(admin, "select pgps.dispatch()")
    failed = "select count(*) from pgps.exceptions where subscription = %s and state = 'failed'"
    assert value(admin, failed, [made]) == 1
    call(admin, "alter_subscription", made, filter=mended)
    if dispatched:
        rows(admin, "select pgps.dispatch()")
    assert call(admin, RETRY, made) == len(wanted) - 1
    assert value(admin, failed, [made]) == 0
    rows(admin, "select pgps.dispatch()")
    assert sorted(take(admin, made)) == wanted
    publish(admin, made, 3)
    rows(admin, "select pgps.dispatch()")
    assert take(admin, made) == [3], "the new filter is in force"


def test_what_fails_again_stays_an_exception(admin: psycopg.Connection, name: Callable[..., str]) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, filter="10 / n > 1")
    publish(admin, made, 0)
    rows(admin, "select pgps.dispatch()")
    assert call(admin, RETRY, made) == 0
    found = "select sqlstate, attempts from pgps.exceptions where subscription = %s"
    assert rows(admin, found, [made]) == [("22012", 2)]
