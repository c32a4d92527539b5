# Made by tools/unasync_client.py from tests/client/asynchronous/test_pooler.py: change that, then `make generate`.
"""Through a transaction pooler: one server process serves everybody, and nobody takes what is another's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgps.client import Client
from pgps.client._sync.session import is_pooled
from pgps.errors import WrongState
from tests.client.synchronous.rig import dispatch, numbers, until
from tests.fix_broker import column, make_type, value
from tests.fix_pooler import Pooler

pytestmark = pytest.mark.anyio
Name = Callable[..., str]


def test_two_clients_share_the_work_and_a_server_process(pooler: Pooler, admin: psycopg.Connection, name: Name) -> None:
    made = name()
    make_type(admin, made)
    with Client(pooler.dsn, name="a") as first, Client(pooler.dsn, name="b") as second:
        assert first._core.session.run(is_pooled)
        mine = first.subscribe(made, made, handler="any", temporary=True)
        other = second.subscribe(made)
        with mine, other:
            assert first.publish(made, [{"n": n} for n in range(6)])
            dispatch(admin)
            taken = mine.receive(3), other.receive(3)
            assert sorted(event.payload["n"] for part in taken for event in part) == list(range(6))
            # In this database: beside it another test may have clients of its own.
            query = "select pid from pg_stat_activity where application_name ~ '^pgps-client' and datname = %s"
            assert len(set(column(admin, query, [admin.info.dbname]))) <= 1
            assert other.ack() == 3
            mine.nack(taken[0][0], "no", retry_in=0)
            assert mine.ack() == 2
            assert numbers(other) == [taken[0][0].payload["n"]]
            assert other.ack() == 1
            assert value(admin, "select depth from pgps.subscriptions where name = %s", [made]) == 0


def test_a_client_publishes_and_consumes_exactly_once(pooler: Pooler, admin: psycopg.Connection, name: Name) -> None:
    made = name()
    make_type(admin, made, "n integer, since interval, at timestamptz")
    with (
        Client(pooler.dsn, producer="p") as client,
        client.subscribe(made, made, temporary=True) as subscription,
        client.subscribe(made + "all", made + "*", temporary=True) as pattern,
    ):
        for n in range(5):
            client.publish(made, {"n": n}, connection=None)
        with client.transaction() as connection:
            client.publish(made, [{"n": n} for n in range(5, 10)], connection=connection)
        dispatch(admin)
        found: list[int] = []
        for batch in subscription.batches(4, timeout=0):
            found += [event.payload["n"] for event in batch]
        assert found == list(range(10))
        with pattern.transaction(7, timeout=0) as events:
            assert [event.payload["n"] for event in events] == list(range(7))
        assert numbers(pattern) == [7, 8, 9]
        assert pattern.ack() == 3


@pytest.mark.parametrize("knows_another_way", [False, True])
def test_who_waits_is_told_or_looks(
    pooler: Pooler,
    admin: psycopg.Connection,
    name: Name,
    caplog: pytest.LogCaptureFixture,
    knows_another_way: bool,
) -> None:
    made = name()
    make_type(admin, made)
    direct: dict[str, Any] = {"direct": pooler.direct} if knows_another_way else {}
    with caplog.at_level(logging.WARNING, "pgps.client"):
        with (
            Client(pooler.dsn, poll=60.0, **direct) as client,
            client.subscribe(made, made, temporary=True) as subscription,
        ):
            found: list[int] = []
            subscription.start(lambda event: found.append(event.payload["n"]))
            client.publish(made, {"n": 1})
            dispatch(admin)
            until(lambda: found == [1])
    said = [record.getMessage() for record in caplog.records if "pooler" in record.getMessage()]
    assert len(said) == (0 if knows_another_way else 1)
    assert all("direct=" in one for one in said)


def test_a_client_known_by_name_is_refused(pooler: Pooler, admin: psycopg.Connection) -> None:
    with Client(pooler.dsn, direct=pooler.direct) as client:
        with pytest.raises(WrongState, match="pooler"):
            client.identify("somebody").connect()


def test_nothing_is_left_in_the_session_that_others_get(pooler: Pooler, admin: psycopg.Connection) -> None:
    with Client(pooler.dsn) as client:
        with client.transaction() as connection:
            cursor = connection.execute("show transaction_isolation")
            assert cursor.fetchone() == ("read committed",)
        for _ in range(7):
            client.execute("select %s::integer", [1])
    with psycopg.connect(pooler.dsn, autocommit=True) as other:
        other.prepare_threshold = None
        assert value(other, "select count(*) from pg_prepared_statements") == 0
        changed = "select name from pg_settings where source = 'session' and name not in ('application_name')"
        assert set(column(other, changed)) <= {
            "client_encoding",
            "DateStyle",
            "TimeZone",
            "standard_conforming_strings",
        }
