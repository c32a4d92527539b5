"""Dispatch: batches of whole transactions, in commit order."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, numbers, publish, refused, rows, value
from tests.fix_db import Connect, notifications, wait_until
from tests.sql.dispatch.asleep import sleep_on

Open = Callable[..., psycopg.Connection]


@pytest.fixture
def opened(connect: Connect, own_database: str) -> Open:
    return lambda role=None, autocommit=True: connect(role, autocommit=autocommit, dsn=own_database)


@pytest.fixture
def broker(opened: Open) -> psycopg.Connection:
    connection = opened()
    make_type(connection, "tick")
    call(connection, "subscribe", "s", "tick")
    return connection


def test_dispatch_says_how_many_events(broker: psycopg.Connection) -> None:
    assert value(broker, "select pgps.dispatch()") == 0
    publish(broker, "tick", 1, 2, 3)
    publish(broker, "tick", 4)
    assert value(broker, "select pgps.dispatch()") == 4
    assert value(broker, "select pgps.dispatch()") == 0


def test_max_events_cuts_between_transactions(broker: psycopg.Connection, opened: Open) -> None:
    for first in (10, 20, 30):
        publish(broker, "tick", first, first + 1, first + 2)
    late = opened(autocommit=False)
    publish(late, "tick", 40)
    publish(broker, "tick", 50)
    assert [value(broker, "select pgps.dispatch(4)") for _ in range(2)] == [3, 3]
    late.commit()
    publish(broker, "tick", 60)
    dispatched = [value(broker, "select pgps.dispatch(4)") for _ in range(4)]
    assert sum(dispatched) == 6
    assert numbers(broker, "s") == [10, 11, 12, 20, 21, 22, 30, 31, 32, 50, 40, 60]
    for wrong in (0, -1):
        with refused("22023", str(wrong)):
            rows(broker, "select pgps.dispatch(%s)", [wrong])


def test_a_transaction_that_dispatches_loses_nothing_that_it_publishes(
    broker: psycopg.Connection, opened: Open
) -> None:
    """Its id is below that of one that has ended meanwhile, so that a snapshot alone would take it for ended, too."""
    later = opened()
    with broker.transaction():
        publish(broker, "tick", 1)
        value(later, "select pg_current_xact_id()")
        assert value(broker, "select pgps.dispatch()") == 0
        publish(later, "tick", 2)
        assert value(broker, "select pgps.dispatch()") == 1
        publish(broker, "tick", 3)
    assert value(broker, "select pgps.dispatch()") == 2
    assert numbers(broker, "s") == [2, 1, 3]


def test_a_subscription_gets_what_its_transaction_published_before(broker: psycopg.Connection) -> None:
    """It commits from now on, whether or not a savepoint was rolled back in between."""
    for name, inner in (("plain", False), ("after_savepoint", True)):
        with broker.transaction():
            publish(broker, "tick", 4)
            if inner:
                with broker.transaction(force_rollback=True):
                    publish(broker, "tick", 9)
            call(broker, "subscribe", name, "tick")
            publish(broker, "tick", 5)
        rows(broker, "select pgps.dispatch()")
        assert numbers(broker, name) == [4, 5]


def test_a_dispatch_of_all_ends_though_events_keep_coming(broker: psycopg.Connection) -> None:
    """A filter that publishes, in a transaction of its own, makes the next batch while one is matched."""
    rows(
        broker,
        "create function public.echo(n integer) returns boolean language plpgsql as "
        """$$ begin perform pgps.publish('tick', '{"n": 0}', visibility => 'immediate'); return true; end $$""",
    )
    # However long it takes on a busy machine: a lane that is ended publishes less.
    call(broker, "configure", "dispatch_lane_timeout", "1 hour")
    call(broker, "subscribe", "echo", "tick", "public.echo(n)")
    publish(broker, "tick", 1, 2)
    rows(broker, "set statement_timeout = '60s'")
    assert [value(broker, "select pgps.dispatch()") for _ in range(3)] == [2, 2, 2]
    assert numbers(broker, "s") == [1, 2, 0, 0, 0, 0]


def test_batches_are_numbered_densely(broker: psycopg.Connection) -> None:
    for number in range(6):
        publish(broker, "tick", number)
        rows(broker, "select pgps.dispatch()")
    assert column(broker, "select batch_id from pgps_internal.batch order by 1") == list(range(1, 7))


def test_a_committed_transaction_that_published_nothing_visible_makes_no_batch(broker: psycopg.Connection) -> None:
    rows(broker, "insert into pgps_event.tick select 1 where false")
    rows(broker, "select pgps.dispatch()")
    assert numbers(broker, "s") == []


def test_waiting_clients_are_told(broker: psycopg.Connection, opened: Open) -> None:
    listener = opened()
    rows(listener, f"listen {value(broker, 'select channel from pgps.subscriptions')}")
    publish(broker, "tick", 1)
    rows(broker, "select pgps.dispatch()")
    assert [n.payload for n in notifications(listener)] == [""]


def test_publishers_wake_a_sleeping_dispatcher_only(broker: psycopg.Connection, opened: Open) -> None:
    dispatcher = opened()
    rows(dispatcher, "listen pgps_dispatch")
    assert value(dispatcher, "select pgps.try_lead()")
    sleep_on(dispatcher)
    publish(broker, "tick", 1)
    assert len(notifications(dispatcher)) == 1
    assert value(dispatcher, "select pgps.stay_awake()")
    publish(broker, "tick", 2)
    since = value(dispatcher, "select pgps.fall_asleep()::text")
    # Other databases of the server may have transactions running.
    wait_until(lambda: value(dispatcher, "select pgps.all_ended(%s::pg_snapshot)", [since]))
    sleep_on(dispatcher)
    publish(broker, "tick", 3)
    assert len(notifications(dispatcher)) == 1


def test_one_session_leads_and_a_standby_takes_over(broker: psycopg.Connection, opened: Open) -> None:
    first, second = opened(), opened()
    assert value(first, "select pgps.try_lead()")
    assert value(first, "select pgps.try_lead()")
    assert not value(second, "select pgps.try_lead()")
    first.close()
    wait_until(lambda: value(second, "select pgps.try_lead()"))


def test_only_a_worker_or_an_administrator_dispatches(
    broker: psycopg.Connection, opened: Open, role: Callable[..., str]
) -> None:
    with refused("42501"):
        rows(opened(role("nobody")), "select pgps.dispatch()")
    publish(broker, "tick", 1)
    assert value(opened(role("worker", "pgps_worker")), "select pgps.dispatch()") == 1
    assert value(opened(role("chief", "pgps_admin")), "select pgps.dispatch()") == 0
