"""Publishing: one, many, in whose transaction, and once however often it is tried."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgps import errors
from pgps.client import AsyncClient, _calls, event_type
from pgps.embedded import EmbeddedCluster
from tests.client.asynchronous.rig import dispatch, numbers
from tests.fix_broker import column, make_type, rows, value

pytestmark = pytest.mark.anyio
Name = Callable[..., str]


async def test_one_event_and_many_arrive_with_their_values(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind = name()
    make_type(admin, kind, "n integer not null, price numeric, at timestamptz, tags text[], doc jsonb, b bytea")
    at = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    sent = [
        {
            "n": 1,
            "price": decimal.Decimal("1.10"),
            "at": at,
            "tags": ["x", "y"],
            "doc": {"a": [1.5, None]},
            "b": b"\0a",
        },
        {"n": 2, "price": None, "at": None, "tags": None, "doc": None, "b": None},
    ]
    async with AsyncClient(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        first = await client.publish(kind, sent[0])
        last = await client.publish(kind, sent)
        assert first is not None
        assert last == first + 2
        dispatch(admin)
        got = await subscription.receive()
    assert [event.payload for event in got] == [sent[0], *sent]
    assert [event.event_id for event in got] == [first, first + 1, last]


async def test_attributes_left_out_take_their_defaults_and_kinds_may_be_mixed(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind, "n integer default 7, price numeric, on_day date")
    async with AsyncClient(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        await client.publish(kind, [{"price": 1}, {"n": 2, "price": 2.5}])
        await client.publish(kind, [{"price": decimal.Decimal("0.1")}, {"price": 3}, {"price": None}, {"price": "4.5"}])
        await client.publish(kind, [{"on_day": dt.date(2024, 1, 2), "n": 1}, {"on_day": "2024-01-03", "n": None}])
        dispatch(admin)
        got = [event.payload for event in await subscription.receive()]
    assert [one["n"] for one in got] == [7, 2, 7, 7, 7, 7, 1, None]
    assert [str(one["price"]) for one in got[:6]] == ["1", "2.5", "0.1", "3", "None", "4.5"]
    assert [one["on_day"] for one in got[6:]] == [dt.date(2024, 1, 2), dt.date(2024, 1, 3)]


async def test_a_publication_joins_the_callers_transaction_and_never_commits_it(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    async with AsyncClient(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as connection:
                await client.publish(kind, [{"n": 1}, {"n": 2}], connection=connection)
                await client.publish(kind, {"n": 3}, connection=connection)
                raise ZeroDivisionError
        async with client.transaction() as connection:
            await client.publish(kind, {"n": 4}, connection=connection)
            dispatch(admin)
            assert await numbers(subscription) == []
        dispatch(admin)
        assert await numbers(subscription) == [4]


async def test_an_immediate_event_is_out_although_its_transaction_rolls_back(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    async with AsyncClient(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as connection:
                await client.publish(kind, [{"n": 1}, {"n": 2}], visibility="immediate", connection=connection)
                raise ZeroDivisionError
        dispatch(admin)
        assert await numbers(subscription) == [1, 2]


async def test_numbers_kept_by_the_library_make_a_repeated_publication_one(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    async with (
        AsyncClient(dsn, producer="p") as client,
        client.subscribe(name("s"), kind, temporary=True) as subscription,
    ):
        sent = client._publisher._insert

        async def sent_and_lost(connection: psycopg.AsyncConnection, *args: object) -> int:
            client._publisher._insert = sent  # type: ignore[method-assign]
            await sent(connection, *args)  # type: ignore[arg-type]
            await connection.close()
            raise errors.ConnectionLost("the answer was lost")

        for payload in ({"n": 1}, [{"n": 2}, {"n": 3}]):
            client._publisher._insert = sent_and_lost  # type: ignore[assignment, method-assign]
            await client.publish(kind, payload)
        dispatch(admin)
        assert await numbers(subscription) == [1, 2, 3]
    assert value(admin, "select repeats from pgps.activity where event_type = %s", [kind]) == 3


async def test_numbered_events_of_different_shapes_are_one_publication(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind, "n integer, b text default 'b'")
    async with AsyncClient(dsn, producer="p") as client:
        last = await client.publish(kind, [{"n": 1}, {"b": "x"}, {"n": 3, "b": None}])
        again = await client.publish(kind, {"n": 4}, visibility="immediate")
    assert again is not None
    assert last is not None
    assert again > last
    dispatch(admin)
    query = (
        "select r.producer_seq - min(r.producer_seq) over (), r.event_id = %s from pgps_internal.receipt r "
        "join pgps_internal.event_type t using (type_id) where t.name = %s order by 1"
    )
    assert rows(admin, query, [last, kind]) == [(0, False), (1, False), (2, True), (3, False)]


async def test_without_numbers_a_lost_answer_is_an_error_and_a_lost_connection_is_not(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    async with AsyncClient(dsn, name=kind) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        await client.publish(kind, {"n": 1})
        value(
            admin,
            "select count(pg_terminate_backend(pid, 60000)) from pg_stat_activity where application_name = %s",
            [f"pgps-client/{kind}"],
        )
        await client.publish(kind, {"n": 2})
        dispatch(admin)
        assert await numbers(subscription) == [1, 2]


@event_type("ignored")
@dataclass(frozen=True, slots=True)
class _Reading:
    n: int
    price: decimal.Decimal | None = None


async def test_dataclass_objects_are_published_by_their_fields(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind = name()
    make_type(admin, kind, "n integer, price numeric")
    async with AsyncClient(dsn) as client:
        subscription = client.subscribe(name("s"), kind, payload=_Reading, temporary=True)
        async with subscription:
            sent = [_Reading(1), _Reading(2, decimal.Decimal(3))]
            await client.publish(kind, sent)
            await client.publish(kind, _Reading(4))
            dispatch(admin)
            assert [event.payload for event in await subscription.receive()] == [*sent, _Reading(4)]


async def test_errors_say_what_is_wrong_in_fields(
    dsn: str, admin: psycopg.Connection, name: Name, role: Callable[..., str]
) -> None:
    kind = name()
    make_type(admin, kind, "n integer not null check (n > 0)")
    async with AsyncClient(dsn) as client:
        with pytest.raises(errors.ConstraintViolated) as broken:
            await client.publish(kind, {"n": -1})
        assert broken.value.constraint is not None
        with pytest.raises(errors.ConstraintViolated) as missing:
            await client.publish(kind, [{"n": 1}, {"n": None}])
        assert missing.value.attribute == "n"
        with pytest.raises(errors.BadArgument):
            await client.publish(kind, {"n": "many"})
        with pytest.raises(errors.UnknownName, match="nosuch"):
            await client.publish(kind, {"nosuch": 1})
        with pytest.raises(errors.UnknownName, match="nothing"):
            await client.publish("nothing", {"n": 1})
        with pytest.raises(errors.BadArgument, match="mapping"):
            await client.publish(kind, 7)
        assert await client.publish(kind, []) is None
        alice = role("alice")
        async with AsyncClient(dsn, user=alice, password="test") as other:
            with pytest.raises(errors.WrongState, match="advertise"):
                await other.publish(kind, {"n": 1})
            await other.advertise(kind)
            assert await other.publish(kind, {"n": 1})


async def test_wrong_credentials_show_at_once(dsn: str) -> None:
    with pytest.raises(errors.ConnectionLost):
        async with AsyncClient(dsn, user="nobody_of_that_name", password="wrong"):
            pass
    with pytest.raises(errors.ConfigError):
        AsyncClient("host=x nonsense")
    client = AsyncClient(dsn)
    await client.connect()
    await client.close()
    with pytest.raises(errors.ClientClosed):
        await client.publish("x", {"n": 1})


async def test_it_connects_by_a_service_file_and_insists_on_ssl_as_libpq_does(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = conninfo_to_dict(dsn)
    (tmp_path / "services").write_text("[mine]\n" + "".join(f"{key}={text}\n" for key, text in given.items()))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    async with AsyncClient("service=mine") as client:
        assert await client.execute("select current_database()") == [(given["dbname"],)]
    with pytest.raises(errors.ConnectionLost, match="SSL"):
        await AsyncClient("service=mine", host="127.0.0.1", sslmode="require").connect()


async def test_settings_of_the_database_change_nothing(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind = name('Odd "')
    make_type(admin, kind, "n integer, at timestamptz, day date, iv interval, f double precision")
    at = dt.datetime(2024, 2, 1, tzinfo=dt.UTC)
    sent = {"n": 1, "at": at, "day": dt.date(2024, 2, 1), "iv": dt.timedelta(days=-1, hours=-2), "f": 0.1 + 0.2}
    settings = "-c datestyle=German -c intervalstyle=sql_standard -c default_transaction_isolation=serializable"
    async with AsyncClient(dsn, options=f"{settings} -c extra_float_digits=-3") as client:
        quoted = '"' + kind.replace('"', '""') + '"'
        async with client.subscribe(name("Odd"), quoted) as subscription:
            await client.publish(quoted, sent)
            dispatch(admin)
            (event,) = await subscription.receive()
            assert event.payload == sent
            await subscription.ack()
        await client.unsubscribe(subscription.name)


async def test_numbers_are_others_each_time_in_one_transaction_whoever_takes_them(
    dsn: str, admin: psycopg.Connection, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_calls, "NUMBERS_EACH", 3)
    kind = name()
    make_type(admin, kind)
    async with (
        AsyncClient(dsn, producer="p") as client,
        AsyncClient(dsn, producer="p") as other,
        client.subscribe(name("s"), kind, temporary=True) as subscription,
    ):
        async with client.transaction() as connection:
            await client.publish(kind, [{"n": 1}, {"n": 2}], connection=connection)
            await client.publish(kind, [{"n": 3}, {"n": 4}], connection=connection)
            await other.publish(kind, {"n": 5}, connection=connection)
            await other.publish(kind.upper(), {"n": 6}, connection=connection)
            await client.publish(kind, [{"n": n} for n in range(7, 12)], connection=connection)
        await client.publish(kind, {"n": 12})
        dispatch(admin)
        assert await numbers(subscription) == list(range(1, 13))
        query = f"select n from pgps_internal.{kind}_log where _producer_seq >= 1::bigint << 62 order by n"
        assert column(admin, query) == [7, 8, 9, 10, 11]
        monkeypatch.setattr(_calls, "NUMBERS_AT_MOST", 4)
        with pytest.raises(errors.BadArgument, match="at once"):
            await client.publish(kind, [{"n": n} for n in range(5)])


async def test_the_end_of_a_transaction_tells_what_its_block_has_hidden(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    table = name("t")
    rows(admin, f"create table {table} (n integer primary key, of integer references {table} initially deferred)")
    async with AsyncClient(dsn) as client:
        with pytest.raises(errors.ConstraintViolated):
            async with client.transaction() as connection:
                await connection.execute(f"insert into {table} values (1, 2)".encode())
        with pytest.raises(errors.ConnectionLost):
            async with client.transaction() as connection:
                await connection.execute(f"insert into {table} values (3, null)".encode())
                with contextlib.suppress(psycopg.Error):
                    await connection.execute(b"select pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with client.transaction() as connection:
                await connection.execute(b"select 1 / 0")
        async with client.transaction() as connection:
            await connection.execute(f"insert into {table} values (4, null)".encode())
    assert rows(admin, f"select n from {table}") == [(4,)]
    rows(admin, f"drop table {table}")


async def test_numbers_that_were_drawn_before_a_crash_are_not_drawn_again(own_cluster: EmbeddedCluster) -> None:
    dsn = own_cluster.dsn()
    with psycopg.connect(dsn, autocommit=True) as admin:
        make_type(admin, "tick")
        # Only what waits for the disk gets there before the crash.
        rows(admin, "alter system set wal_writer_delay = '10s'")
        rows(admin, "select pg_reload_conf()")
        rows(admin, "checkpoint")
    drawn: list[int | None] = []
    async with AsyncClient(dsn, producer="p", reconnect_timeout=120.0) as client:
        drawn.append(await client._publisher._number("tick", 1))
        own_cluster.kill9()
        own_cluster.start()
    async with AsyncClient(dsn, producer="p") as client:
        drawn.append(await client._publisher._number("tick", 1))
    assert drawn[0] != drawn[1]
