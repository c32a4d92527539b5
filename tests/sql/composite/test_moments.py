"""Leaves that are moments: the beginning and the end of table operations, of composite events and of transactions."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, refused, rows, value
from tests.fix_db import Connect


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "starting", "by_whom text")
    make_type(connection, "order_in", "id integer, price numeric")
    rows(connection, "create table public.orders (id integer primary key, price numeric)")
    call(connection, "create_rule", "starts", "public.orders", "insert or update", "starting",
         ["current_user::text"], moment="begin")  # fmt: skip
    call(connection, "create_rule", "ends", "public.orders", "insert", "order_in", ["new.id", "new.price"])
    return connection


def dispatch(connection: psycopg.Connection) -> None:
    for _ in range(2):
        rows(connection, "select pgps.dispatch()")


def found(connection: psycopg.Connection, name: str) -> list[tuple[str, ...]]:
    """Return what was detected, each as the payloads of its constituents."""
    type_id = value(connection, "select type_id from pgps_internal.event_type where name = %s", [name])
    query = f"""
        select array(select p ->> 'event_type' || coalesce(' ' || (p -> 'payload' ->> 'id'), '')
            from jsonb_array_elements(constituents) p) from pgps_entry.log_{type_id} order by pgps_event_id"""
    return [tuple(one) for (one,) in rows(connection, query)]


def test_a_rule_at_the_beginning_publishes_once_a_statement(broker: psycopg.Connection) -> None:
    assert rows(broker, "select name, moment from pgps.rules order by 1") == [("ends", "end"), ("starts", "begin")]
    # Both moments of an event that somebody publishes are the same.
    call(broker, "create_composite_event", "taken", "begin starting s ; end order_in (price > 10) o",
         context="chronicle", max_open=10)  # fmt: skip
    call(broker, "create_composite_event", "many", "A*(starting, order_in, starting)", context="recent")
    rows(broker, "insert into public.orders select n, 10 * n from generate_series(1, 3) n")
    rows(broker, "update public.orders set price = 0")
    rows(broker, "insert into public.orders values (4, 100)")
    dispatch(broker)
    assert found(broker, "taken") == [("starting", "order_in 2"), ("starting", "order_in 4")]
    assert found(broker, "many") == [("starting", "order_in 1", "order_in 2", "order_in 3", "starting")]


def test_there_are_no_rows_at_the_beginning(broker: psycopg.Connection) -> None:
    for attributes, condition in ((["new.id::text"], None), (["'x'"], "old.price > 1")):
        with refused("42P01", "missing FROM-clause entry"):
            call(broker, "create_rule", "r", "public.orders", "update", "starting", attributes, condition,
                 moment="begin")  # fmt: skip
    with refused("22023", 'invalid moment "middle"'):
        call(broker, "create_rule", "r", "public.orders", "update", "starting", ["'x'"], moment="middle")
    assert value(broker, "select count(*) from pgps.rules") == 2


def test_the_moments_of_a_composite_event_are_its_bounds(broker: psycopg.Connection) -> None:
    """One interval begins within another, and ends behind it."""
    call(broker, "create_composite_event", "pair", "order_in (price < 10) ; order_in (price > 100)")
    for moment in ("begin", "end", ""):
        call(broker, "create_composite_event", f"before_{moment}", f"starting ; {moment} pair")
    rows(broker, "insert into pgps_event.order_in values (1, 1)")
    rows(broker, "insert into pgps_event.starting values ('inner')")
    rows(broker, "insert into pgps_event.order_in values (2, 200)")
    dispatch(broker)
    dispatch(broker)
    query = "select name, detected from pgps.composite_events order by name"
    assert rows(broker, query) == [("before_", 0), ("before_begin", 0), ("before_end", 1), ("pair", 1)]


def test_transactions_begin_and_end(broker: psycopg.Connection) -> None:
    """An order whose transaction inserts nothing after it; transactions are whole, however many are dispatched."""
    call(broker, "create_composite_event", "alone", "not(order_in)[starting s, commit]", context="chronicle",
         max_open=100)  # fmt: skip
    call(broker, "create_composite_event", "first", "begin_transaction ; order_in o", context="chronicle", max_open=100,
         attributes="id integer = o.id")  # fmt: skip
    for number in (1, 2, 3):
        with broker.transaction():
            rows(broker, "insert into pgps_event.starting values ('a')")
            if number != 2:
                rows(broker, "insert into pgps_event.order_in values (%s, 1), (%s, 1)", [number, 10 + number])
        if number == 1:
            dispatch(broker)
    dispatch(broker)
    assert rows(broker, "select name, detected from pgps.composite_events order by name") == [
        ("alone", 1),
        ("first", 2),
    ]
    type_id = value(broker, "select type_id from pgps_internal.event_type where name = 'first'")
    assert rows(broker, f"select id from pgps_entry.log_{type_id} order by id") == [(1,), (3,)]


def test_events_of_rules_have_one_moment(broker: psycopg.Connection) -> None:
    """One event type, published at both moments and by hand: before, within and behind the statements of rules."""
    make_type(broker, "work", "id integer, v integer")
    rows(broker, "create table public.works (id integer, v integer)")
    call(broker, "create_rule", "wb", "public.works", "insert", "work", ["1", "null"], moment="begin")
    names = {
        "only_begin": "begin work",
        "only_end": "end work",
        "any_work": "work",
        "pairs": "begin work x ; end work y",
    }
    for name, expression in names.items():
        call(broker, "create_composite_event", name, expression)
    # One rule is older than what asks for its moment, and one younger.
    call(broker, "create_rule", "we", "public.works", "insert", "work", ["new.id", "new.v"], "new.v > 0")
    with broker.transaction():
        rows(broker, "insert into public.works values (7, 8), (9, 10)")
        rows(broker, "insert into pgps_event.work values (11, 1)")
        # The rule at the end publishes nothing here; what follows is nobody's.
        rows(broker, "insert into public.works values (12, 0)")
        rows(broker, "insert into pgps_event.work values (13, 1)")
    dispatch(broker)
    wanted: dict[str, list[tuple[str, ...]]] = {
        "only_begin": [("work 1",), ("work 11",), ("work 1",), ("work 13",)],
        "only_end": [("work 7",), ("work 9",), ("work 11",), ("work 13",)],
        "any_work": [("work 1",), ("work 7",), ("work 9",), ("work 11",), ("work 1",), ("work 13",)],
        "pairs": [("work 1", "work 7"), ("work 1", "work 9"), ("work 1", "work 11"), ("work 1", "work 13")],
    }
    assert {name: found(broker, name) for name in wanted} == wanted
    query = """
        select array_agg(o -> 'constituents' -> 0 -> 'payload' ->> 'id' order by n)
        from pgps.try_composite_event(%s) with ordinality t(o, n)"""
    for name in ("only_begin", "only_end", "any_work"):
        assert value(broker, query, [names[name]]) == [one[0].split()[1] for one in wanted[name]]
    call(broker, "drop_event_type", "pairs")
    rows(broker, "select pgps_internal.drop_features()")
    assert value(broker, "select count(*) from pgps_internal.feature where name = 'moment'") == 1
    for name in ("only_begin", "only_end"):
        call(broker, "drop_event_type", name)
    rows(broker, "select pgps_internal.drop_features()")
    noted = "select count(*) from pgps_internal.rule_moment"
    before = value(broker, noted)
    rows(broker, "insert into public.works values (14, 1)")
    assert (value(broker, noted), before) == (before, 8)


def test_coupled_rules_tell_moments(broker: psycopg.Connection) -> None:
    """In the transaction of the publisher, also when a rule publishes the same type in consequence."""
    make_type(broker, "work", "id integer")
    rows(broker, "create table public.works (id integer); create table public.seen (name text, id integer)")
    call(broker, "create_rule", "wb", "public.works", "insert", "work", ["1"], moment="begin")
    call(broker, "create_rule", "we", "public.works", "insert", "work", ["new.id"])
    rows(broker, """
        create function public.note(id integer, name text) returns void language plpgsql as $$
        begin
            insert into public.seen values (name, id);
            if name = 'immediate begin' and id = 1 then
                insert into pgps_event.work values (100);
            end if;
        end $$""")  # fmt: skip
    for moment in ("begin", "end"):
        call(broker, "create_composite_event", f"at_{moment}", f"{moment} work x", attributes="id integer = x.id")
        for coupling in ("immediate", "deferred"):
            call(broker, "subscribe", f"{coupling}_{moment}", f"at_{moment}", coupling=coupling,
                 execute=f"public.note(id, '{coupling} {moment}')")  # fmt: skip
    rows(broker, "insert into public.works values (7), (8)")
    seen: dict[str, list[int]] = dict(rows(broker, "select name, array_agg(id order by id) from seen group by 1"))
    assert seen == {
        "immediate begin": [1, 100],
        "immediate end": [7, 8, 100],
        "deferred begin": [1, 100],
        "deferred end": [7, 8, 100],
    }


@pytest.fixture
def parted(broker: psycopg.Connection) -> psycopg.Connection:
    """A broker that dispatches a transaction of more than 24,000 events in parts of 8,000."""
    call(broker, "configure", "max_part_events", "8000")
    call(broker, "configure", "max_batch_events", "10000")
    make_type(broker, "step", "n integer")
    make_type(broker, "done", "n integer")
    call(broker, "create_composite_event", "undone", "not(done)[step s, commit]", "continuous", max_open=100_000)
    call(broker, "create_composite_event", "whole", "A*(begin_transaction, step s, commit)", max_open=100_000,
         attributes="steps integer = count(s)")  # fmt: skip
    return broker


def publish_large(connection: psycopg.Connection) -> None:
    with connection.transaction():
        rows(connection, "insert into pgps_event.step select n from generate_series(1, 30000) n")
        rows(connection, "insert into pgps_event.done values (1)")


def test_a_transaction_that_is_several_batches_begins_and_ends_once(parted: psycopg.Connection) -> None:
    for number in (1, 2):
        publish_large(parted)
        # What comes behind it is a transaction of its own.
        rows(parted, "insert into pgps_event.step select n from generate_series(1, 3) n")
        dispatch(parted)
        assert rows(parted, "select name, detected, last_error from pgps.composite_events order by 1") == [
            ("undone", 3 * number, None),
            ("whole", 2 * number, None),
        ]
    assert column(parted, "select steps from pgps_internal.whole_log order by event_id") == [30_000, 3, 30_000, 3]


def test_no_step_ends_inside_a_transaction(parted: psycopg.Connection) -> None:
    rows(parted, "insert into pgps_event.step values (0)")
    dispatch(parted)
    before = value(parted, "select (pgps_internal.last_batch()).batch_id")
    publish_large(parted)
    rows(parted, "select pgps.dispatch()")
    last = value(parted, "select (pgps_internal.last_batch()).batch_id")
    assert last >= before + 4
    goes = "select pgps_internal.whole_upto(%s, %s)"
    for batch in range(before + 1, last + 1):
        assert value(parted, goes, [batch, last]) == value(parted, goes, [batch, last + 7]) == last
        # A lane, or a suspended filter, is behind.
        assert batch == last or value(parted, goes, [batch, batch]) == before
    assert value(parted, goes, [before, last]) == value(parted, goes, [before, before]) == before
