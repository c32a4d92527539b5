"""Where the client parses, the other rooms do what they do anywhere: lanes, spools, units of work, workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgps import parsing
from tests.fix_db import wait_until
from tests.fix_worker import Workers, workers  # noqa: F401 - a fixture

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def broker(bare: str) -> Iterator[psycopg.Connection]:
    """An administrator's connection, and an event type."""
    with psycopg.connect(bare, autocommit=True) as connection:
        parsing.define(connection, "select pgps.create_event_type('tick', 'n integer not null')")
        connection.execute("select pgps.advertise('tick'); create table wanted as select 7 as n")
        yield connection


def column(connection: psycopg.Connection, query: str) -> list[Any]:
    return [row[0] for row in connection.execute(query.encode())]


IN_TABLE = "select pgps.subscribe('wanted', 'tick', filter => 'n in (select w.n from public.wanted w)')"


def test_a_filter_over_a_table_is_asked_in_the_lane_of_its_owner(broker: psycopg.Connection) -> None:
    parsing.define(broker, IN_TABLE)
    broker.execute("insert into pgps_event.tick values (6), (7)")
    broker.execute("select pgps.dispatch()")
    assert column(broker, "select (payload ->> 'n')::integer from pgps.receive('wanted')") == [7]


def test_a_worker_dispatches_runs_callbacks_and_lanes(
    bare: str,
    broker: psycopg.Connection,
    workers: Workers,  # noqa: F811 - the fixture
) -> None:
    broker.execute("create table seen (n integer)")
    broker.execute("create function note(n integer) returns void language sql as 'insert into seen values (n)'")
    parsing.define(broker, IN_TABLE.replace("')", "', execute => 'note(n)')").replace("w')", "w)'"))
    parsing.define(broker, "select pgps.subscribe('high', 'tick', filter => 'n > 100', execute => 'note(n)')")
    workers(bare)
    broker.execute("insert into pgps_event.tick values (6), (7), (101)")
    wait_until(lambda: sorted(column(broker, "select n from seen")) == [7, 101], what="both callbacks have run")


def test_a_callback_that_is_renamed_is_followed(broker: psycopg.Connection) -> None:
    broker.execute("create table seen (n integer)")
    broker.execute("create function note(n integer) returns void language sql as 'insert into seen values (n)'")
    parsing.define(broker, "select pgps.subscribe('all', 'tick', execute => 'note(n)')")
    broker.execute("alter function note(integer) rename to noted")
    broker.execute("insert into pgps_event.tick values (1)")
    broker.execute("select pgps.dispatch()")
    broker.execute("call pgps.run_subscribers()")
    assert column(broker, "select n from seen") == [1]


def test_a_callback_in_the_publishers_transaction_may_refuse(broker: psycopg.Connection) -> None:
    broker.execute(
        "create function refuse(n integer) returns void language plpgsql as"
        " $$ begin raise 'too many' using errcode = '23514'; end $$"
    )
    parsing.define(
        broker,
        "select pgps.subscribe('limit', 'tick', filter => 'n > 9', execute => 'refuse(n)', coupling => 'immediate')",
    )
    broker.execute("insert into pgps_event.tick values (9)")
    with pytest.raises(psycopg.errors.CheckViolation):
        broker.execute("insert into pgps_event.tick values (10)")


def test_messages_are_spooled(broker: psycopg.Connection) -> None:
    parsing.define(broker, "select pgps.create_spool('people')")
    broker.execute("select pgps.spool('people', 1, '{\"name\": \"Ada\"}', keywords => '{add}')")
    broker.execute("select pgps.dispatch()")
    assert column(broker, "select message ->> 'name' from pgps.spooled_messages where spool = 'people'") == ["Ada"]


def test_a_unit_of_work_is_sent_and_received(broker: psycopg.Connection) -> None:
    parsing.define(broker, "select pgps.create_service('shop', 'orders', 'book', deferred => true)")
    broker.execute("select pgps.logon('front desk')")
    broker.execute("select pgps.send_message('one novel', to_service => 'shop/orders/book', option => 'commit')")
    broker.execute("select pgps.logoff()")
    broker.execute("select pgps.logon('clerk')")
    broker.execute("select pgps.register_service('shop', 'orders', 'book')")
    received = "select convert_from(message, 'utf8') from pgps.receive_message('any')"
    assert column(broker, received) == ["one novel"]
    broker.execute("select pgps.syncpoint('commit')")


@pytest.mark.parametrize(
    "change",
    [
        "select pgps.pause('wanted'), pgps.resume('wanted')",
        "select pgps.seek('wanted', 'earliest')",
        "select pgps.alter_subscription('wanted', priority => 3)",
        "select pgps.alter_event_type('tick', dedupe_retention => '1 day')",
    ],
)
def test_what_changes_no_text_needs_nobody_to_parse(broker: psycopg.Connection, change: str) -> None:
    parsing.define(broker, IN_TABLE)
    broker.execute("select pgps.dispatch()")
    broker.execute(change.encode())


def test_an_altered_filter_is_parsed(broker: psycopg.Connection) -> None:
    parsing.define(broker, IN_TABLE)
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        broker.execute("select pgps.alter_subscription('wanted', filter => 'n = 8')")
    parsing.define(broker, "select pgps.alter_subscription('wanted', filter => 'n = 8')")
    broker.execute("insert into pgps_event.tick values (7), (8)")
    broker.execute("select pgps.dispatch()")
    assert column(broker, "select (payload ->> 'n')::integer from pgps.receive('wanted')") == [8]
