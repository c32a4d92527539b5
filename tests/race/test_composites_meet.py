"""Composite events and clients, and calls that meet: nothing is lost or detected twice, and what is gone is said."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, meanwhile, publish, refused, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect

DETECT = "select pgps.detect(shared => true)"
PAIR = """
    select pgps.create_composite_event('pair', 'a x ; b y', context => 'chronicle', partition_by => 'n',
        max_open => 100)
"""
SEVERAL = range(1, 21)


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    for name in ("a", "b", "c"):
        make_type(connection, name)
    return connection


@pytest.fixture
def workers(own_database: str, connect: Connect) -> list[psycopg.Connection]:
    """Two sessions that detect."""
    return [connect(dsn=own_database) for _ in range(2)]


def detected(broker: psycopg.Connection, workers: list[psycopg.Connection]) -> int:
    """Let the workers detect all; return the pairs that came."""
    for _ in range(4):
        for worker in workers:
            rows(broker, "select pgps.dispatch_batch()")
            rows(worker, DETECT)
    return len(rows(broker, "select pgps.receive('got')"))


@pytest.mark.parametrize(
    "change",
    ["reset_composite_event('pair')", "alter_composite_event('pair', max_open => 200)"],
    ids=["reset", "alter"],
)
def test_what_is_open_is_changed_by_nobody_who_sees_an_old_moment(
    broker: psycopg.Connection, own_database: str, connect: Connect, change: str
) -> None:
    session = connect(dsn=own_database, autocommit=False)
    rows(broker, PAIR)
    rows(session, "set transaction isolation level repeatable read")
    with refused("25001"):
        rows(session, f"select pgps.{change}")


def test_reclaim_leaves_what_a_share_needs_that_has_taken_no_step_yet(
    broker: psycopg.Connection, workers: list[psycopg.Connection]
) -> None:
    rows(broker, "select pgps.create_composite_event('seed', 'c x ; c y', partition_by => 'n')")
    for worker in workers:
        rows(worker, DETECT)
    rows(broker, PAIR)
    call(broker, "subscribe", "got", "pair")
    rows(workers[0], DETECT)
    assert value(broker, "select max(shares) from pgps_internal.composite_share") == 2
    for name in ("a", "b"):
        publish(broker, name, *SEVERAL)
    rows(broker, "select pgps.dispatch_batch()")
    rows(workers[0], DETECT)
    rows(broker, "select setval('pgps_internal.event_id_seq', 65536 + 10)")
    publish(broker, "c", 1)
    rows(broker, "select pgps.dispatch_batch()")
    for _ in range(3):
        rows(broker, "select pgps.reclaim(10)")
    assert detected(broker, list(reversed(workers))) == len(SEVERAL)


def test_who_alters_a_composite_event_holds_the_shares_that_were_made_while_he_waited(
    broker: psycopg.Connection, workers: list[psycopg.Connection], own_database: str, connect: Connect
) -> None:
    altering = connect(dsn=own_database, autocommit=False)
    rows(broker, PAIR)
    call(broker, "subscribe", "got", "pair")
    rows(workers[0], DETECT)
    workers[1].autocommit = False
    rows(workers[1], DETECT)
    with meanwhile(broker, altering, lambda: call(altering, "alter_composite_event", "pair", max_open=200)):
        workers[1].commit()
    workers[1].autocommit = True
    publish(broker, "a", *SEVERAL)
    rows(broker, "select pgps.dispatch_batch()")
    first, second = workers
    with (
        meanwhile(broker, first, lambda: rows(first, DETECT)),
        meanwhile(broker, second, lambda: rows(second, DETECT)),
    ):
        altering.commit()
    detected(broker, workers)
    publish(broker, "b", *SEVERAL)
    assert detected(broker, workers) == len(SEVERAL)


def test_who_registers_anew_for_a_type_that_is_being_dropped_is_told_that_it_is_gone(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    dropping, session = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    client = Client(session, "c")
    client.register("a")
    call(dropping, "drop_event_type", "a", cascade=True)
    with refused("42704"), meanwhile(broker, session, lambda: client.register("a")):
        dropping.commit()


@pytest.mark.parametrize(
    "query",
    ["select pgps.commit_event('c', session => %s)", "select pgps.send_request('c', 'select 1', session => %s)"],
    ids=["commit", "request"],
)
def test_who_waits_for_a_client_that_is_being_dropped_is_told_that_it_is_gone(
    broker: psycopg.Connection, own_database: str, connect: Connect, query: str
) -> None:
    holding = connect(dsn=own_database, autocommit=False)
    dropping, waiting = connect(dsn=own_database), connect(dsn=own_database)
    client = Client(connect(dsn=own_database), "c")
    rows(holding, "select pgps.commit_event('c', session => %s)", [client.session])
    with (
        meanwhile(broker, dropping, lambda: call(dropping, "drop_client", "c")),
        refused("42704"),
        meanwhile(broker, waiting, lambda: rows(waiting, query, [client.session])),
    ):
        holding.commit()


def test_who_connects_as_a_client_that_is_being_dropped_is_a_new_one(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    holding = connect(dsn=own_database, autocommit=False)
    dropping, waiting = connect(dsn=own_database), connect(dsn=own_database)
    old = Client(connect(dsn=own_database), "c")
    old.register("a")
    rows(holding, "select pgps.commit_event('c', session => %s)", [old.session])
    made: list[Client] = []
    with (
        meanwhile(broker, dropping, lambda: call(dropping, "drop_client", "c")),
        meanwhile(broker, waiting, lambda: made.append(Client(waiting, "c", take_over=True))),
    ):
        holding.commit()
    assert rows(broker, "select * from pgps.registrations") == []
    made[0].register("a")
    publish(broker, "a", 1)
    rows(broker, "select pgps.dispatch()")
    assert made[0].taken() == [[1]]


def test_two_that_a_role_creates_at_once_are_both_counted(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    bob = role("bob")
    first, second = connect(bob, dsn=own_database, autocommit=False), connect(bob, dsn=own_database)
    call(broker, "configure", "composite_events_per_role", "1")
    call(first, "create_composite_event", "c1", "a p ; a q")
    with (
        refused("54000"),
        meanwhile(broker, second, lambda: call(second, "create_composite_event", "c2", "a p ; a q")),
    ):
        first.commit()
    assert value(broker, "select count(*) from pgps.composite_events") == 1


def test_two_links_that_are_made_at_once_do_not_confirm_each_other_for_ever(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    first, second = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    for name in ("x", "y"):
        make_type(broker, name, "id bigint, ok boolean")
    call(first, "link_confirm_event", "x", "y")
    with refused("22023"), meanwhile(broker, second, lambda: call(second, "link_confirm_event", "y", "x")):
        first.commit()


def test_who_resets_a_composite_event_that_was_dropped_meanwhile_is_told_so(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    first, second = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    rows(broker, PAIR)
    call(first, "drop_event_type", "pair")
    with refused("42704"), meanwhile(broker, second, lambda: call(second, "reset_composite_event", "pair")):
        first.commit()


def test_who_waits_for_a_name_subscribes_to_no_type_that_was_dropped_meanwhile(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    first, second = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    call(broker, "subscribe", "s", "a")
    call(first, "unsubscribe", "s")
    call(first, "drop_event_type", "a", cascade=True)
    with refused("42704"), meanwhile(broker, second, lambda: call(second, "subscribe", "s", "a")):
        first.commit()


def test_a_client_reads_nothing_before_a_type_that_was_made_while_it_registered_is_there(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    making, registering = (connect(dsn=own_database, autocommit=False) for _ in range(2))
    client = Client(connect(dsn=own_database), "c")
    make_type(broker, "q0")
    call(broker, "subscribe", "other", "q0")
    make_type(making, "q1")
    rows(registering, "select pgps.register_for_event('c', 'q*', session => %s)", [client.session])
    making.commit()
    publish(broker, "q1", 1)
    publish(broker, "q0", 2)
    rows(broker, "select pgps.dispatch()")
    registering.commit()
    found = client.taken()
    rows(broker, "select pgps.dispatch()")
    client.call("commit_event")
    assert found + client.taken() == [[1], [2]]


_MADE_OF_N = {
    "filter": "filter => 'x.n < y.n'",
    "attributes": "attributes => 'v integer = x.n'",
    "partition": "partition_by => 'n'",
    "time": "time_basis => 'event'",
}


@pytest.mark.parametrize("what", _MADE_OF_N)
def test_who_creates_one_sees_what_was_taken_away_while_he_waited(
    broker: psycopg.Connection, own_database: str, connect: Connect, what: str
) -> None:
    other, creating = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    rows(broker, "select pgps.alter_event_type('a', add_attribute => 'at timestamptz', time_attribute => 'at'), "
                 "pgps.alter_event_type('b', add_attribute => 'at timestamptz', time_attribute => 'at')")  # fmt: skip
    rows(other, "select pgps.alter_event_type('a', time_attribute => '')" if what == "time"
         else "select pgps.alter_event_type('a', drop_attribute => 'n')")  # fmt: skip
    create = f"select pgps.create_composite_event('made', 'a x ; b y', {_MADE_OF_N[what]})"

    def refused_when_it_is_seen() -> None:
        with pytest.raises(psycopg.Error) as told:
            rows(creating, create)
        assert told.value.sqlstate in ("42703", "42704", "22023")

    with meanwhile(broker, creating, refused_when_it_is_seen):
        other.commit()
    assert rows(broker, "select name from pgps.composite_events") == []


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_who_takes_an_attribute_away_sees_a_filter_that_was_given_while_he_waited(
    broker: psycopg.Connection, own_database: str, connect: Connect, ends: str
) -> None:
    altering, other = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    rows(broker, "select pgps.create_composite_event('made', 'a x ; b y')")
    rows(altering, "select pgps.alter_composite_event('made', filter => 'x.n < y.n')")

    def drops() -> None:
        drop = "select pgps.alter_event_type('a', drop_attribute => 'n')"
        if ends == "rollback":
            rows(other, drop)
        else:
            with refused("2BP01", 'composite event "made"'):
                rows(other, drop)

    with meanwhile(broker, other, drops):
        getattr(altering, ends)()


@pytest.mark.parametrize("function", ["re_receive_event", "fetch_tuples", "commit_event", "receive_event"])
def test_a_client_that_waits_for_a_type_that_is_dropped_finds_nothing_of_it(
    broker: psycopg.Connection, own_database: str, connect: Connect, function: str
) -> None:
    dropping, client = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    rows(client, "select * from pgps.connect_client('c')")
    rows(client, "select * from pgps.register_for_event('c', 'a')")
    publish(broker, "a", 1, 2)
    rows(broker, "select pgps.dispatch()")
    assert len(rows(client, "select * from pgps.receive_event('c')")) == 1
    rows(dropping, "select pgps.drop_event_type('a', cascade => true)")
    found: list[object] = []
    with meanwhile(broker, client, lambda: found.append(rows(client, f"select * from pgps.{function}('c')"))):
        dropping.commit()
    assert function == "commit_event" or found == [[]]
    assert rows(client, f"select * from pgps.{function}('c')") in ([], [(None,)])


def test_a_client_that_fetches_of_a_type_that_is_dropped_finds_nothing_of_it(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    dropping, client, listening = (connect(dsn=own_database, autocommit=n > 0) for n in range(3))
    rows(client, "select * from pgps.connect_client('c')")
    rows(client, "select * from pgps.register_for_event('c', 'a', 'direct')")
    channel = value(client, "select channels[1] from pgps.registrations where client = 'c'")
    rows(listening, f'listen "{channel}"')
    publish(broker, "a", 1)
    (note,) = listening.notifies(timeout=30, stop_after=1)
    rows(dropping, "select pgps.drop_event_type('a', cascade => true)")
    found: list[object] = []
    fetch = "select * from pgps.fetch_direct('c', array[%s])"
    with meanwhile(broker, client, lambda: found.append(rows(client, fetch, [note.payload]))):
        dropping.commit()
    assert found == [[]]
