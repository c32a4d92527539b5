"""Subscriptions as iterators and context managers; what is acknowledged when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from pgps import errors
from pgps.client import AsyncClient, Event, event_class
from pgps.client._async import runtime
from tests.client.asynchronous.rig import dispatch, numbers, until
from tests.fix_broker import column, make_type, publish, rows

pytestmark = pytest.mark.anyio
Name = Callable[..., str]


async def test_an_iterator_acknowledges_what_it_has_left_behind(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, watching = name(), name("s")
    make_type(admin, kind)
    async with AsyncClient(dsn) as client:
        async with client.subscribe(watching, kind, prefetch=4) as subscription:
            publish(admin, kind, *range(1, 11))
            dispatch(admin)
            seen = []
            async for event in subscription:
                seen.append(event.payload["n"])
                if event.payload["n"] == 6:
                    break
            assert seen == [1, 2, 3, 4, 5, 6]
        with pytest.raises(ZeroDivisionError):
            async with client.subscribe(watching) as subscription:
                async for event in subscription:
                    seen.append(event.payload["n"])
                    if event.payload["n"] == 8:
                        raise ZeroDivisionError
        async with client.subscribe(watching) as subscription:
            # The one that was in hand comes again.
            assert await numbers(subscription) == [8, 9, 10]
            again = await subscription.receive()
            assert [event.attempt for event in again] == [2, 2, 2]
            assert await subscription.ack(again[0]) == 1
            assert await subscription.ack() == 2
        await client.unsubscribe(watching)


async def test_batches_are_lists_of_at_most_so_many(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind = name()
    make_type(admin, kind)
    async with AsyncClient(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        publish(admin, kind, *range(10))
        dispatch(admin)
        seen = [[event.payload["n"] for event in batch] async for batch in subscription.batches(4, timeout=0.01)]
        assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert await subscription.receive() == []
        assert [event async for event in subscription.events(timeout=0.01)] == []


async def test_consumption_is_exactly_once_in_one_transaction(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind, table = name(), name("t")
    make_type(admin, kind)
    rows(admin, f"create table {table} (n integer)")
    async with AsyncClient(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        publish(admin, kind, 1, 2, 3)
        dispatch(admin)
        with pytest.raises(ZeroDivisionError):
            async with subscription.transaction() as batch:
                await batch.connection.execute(f"insert into {table} values (0)".encode())
                raise ZeroDivisionError
        async with subscription.transaction(2) as batch:
            for event in batch:
                await batch.connection.execute(f"insert into {table} values (%s)".encode(), [event.payload["n"]])
        async with client.transaction() as connection:  # the same with the application's own connection
            for event in await subscription.receive(connection=connection):
                await connection.execute(f"insert into {table} values (%s)".encode(), [event.payload["n"]])
            await subscription.ack(connection=connection)
        async with subscription.transaction(timeout=0.01) as batch:
            assert batch == []
    assert rows(admin, f"select n from {table} order by n") == [(1,), (2,), (3,)]
    rows(admin, f"drop table {table}")


async def test_an_event_put_back_comes_again_and_the_others_do_not(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    async with AsyncClient(dsn) as client:
        async with client.subscribe(name("s"), kind, temporary=True, max_attempts=2) as subscription:
            publish(admin, kind, 1, 2, 3)
            dispatch(admin)
            events = await subscription.receive()
            await subscription.nack(events[1], "not now")
            await subscription.nack(events[2:], "nor this")
            await subscription.ack()
            again = await subscription.receive()
            assert [(event.payload["n"], event.attempt) for event in again] == [(2, 2), (3, 2)]
            async with subscription.transaction() as batch:
                await batch.nack(batch, "never")
            assert await subscription.receive() == []
            told = column(admin, "select error from pgps.exceptions where event_type = %s", [kind])
            assert told == ["never", "never"]


async def test_a_pattern_gives_events_of_several_types_in_their_order(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    prefix = name("kind")
    one, two = name(f"{prefix}_a"), name(f"{prefix}_b")
    make_type(admin, one, "n integer, price numeric")
    make_type(admin, two, "n integer, at date")
    async with AsyncClient(dsn) as client, client.subscribe(name("s"), f"{prefix}*", temporary=True) as subscription:
        publish(admin, one, 1)
        publish(admin, two, 2)
        dispatch(admin)
        got = await subscription.receive()
    assert [(event.event_type, event.payload) for event in got] == [
        (one, {"n": 1, "price": None}),
        (two, {"n": 2, "at": None}),
    ]


async def test_clients_of_one_any_subscription_share_its_events(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, shared = name(), name("s")
    make_type(admin, kind)
    async with AsyncClient(dsn) as client:
        async with client.subscribe(shared, kind, handler="any") as first, client.subscribe(shared) as second:
            publish(admin, kind, 1, 2, 3, 4)
            dispatch(admin)
            mine = [event.payload["n"] for event in await first.receive(2)]
            theirs = [event.payload["n"] for event in await second.receive(2)]
            assert sorted(mine + theirs) == [1, 2, 3, 4]
            assert await first.ack() == 2
            assert await second.ack() == 2
        await client.unsubscribe(shared)


async def test_what_a_shared_subscription_gave_before_the_connection_was_lost_comes_again(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    """The answer was lost on its way: what nobody has seen must not be acknowledged with what came next."""
    kind, shared = name(), name("s")
    make_type(admin, kind)
    async with (
        AsyncClient(dsn, name=kind) as client,
        client.subscribe(shared, kind, handler="any", temporary=True) as one,
    ):
        publish(admin, kind, *range(8))
        dispatch(admin)
        lost = [event.event_id for event in await one.receive(3)]
        query = "select pg_terminate_backend(pid, 60000) from pg_stat_activity where application_name = %s"
        assert all(column(admin, query, [f"pgps-client/{kind}"]))
        again = await one.receive(5)
        assert [event.event_id for event in again[:3]] == lost
        assert [event.attempt for event in again] == [2, 2, 2, 1, 1]
        assert await one.ack() == 5
        assert [event.payload["n"] for event in await one.receive()] == [5, 6, 7]
        assert await one.ack() == 3


async def test_a_subscription_of_that_name_is_taken_as_it_is_or_refused(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, watching = name(), name("s")
    make_type(admin, kind)
    async with AsyncClient(dsn) as client:
        for _ in range(2):
            async with client.subscribe(watching, kind, filter="n > 1"):
                pass
        async with client.subscribe(watching):
            pass
        with pytest.raises(errors.AlreadyExists, match="filter 'n > 1'"):
            await client.subscribe(watching, kind).open()
        with pytest.raises(errors.UnknownName, match="does not exist"):
            await client.subscribe(f"{watching}_other").open()
        with pytest.raises(errors.BadDefinition):
            await client.subscribe(f"{watching}_other", kind, filter="n >").open()
        with pytest.raises(errors.BadArgument):
            client.subscribe(watching, prefetch=0)
        await client.unsubscribe(watching)


@dataclass(frozen=True, slots=True)
class _Quote:
    symbol: str
    n: int | None


async def test_a_class_is_checked_against_the_event_type_also_when_that_changes(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind, "symbol text not null, n integer, more numeric")
    async with AsyncClient(dsn) as client:
        async with client.subscribe(name("s"), kind, payload=_Quote, temporary=True) as subscription:
            rows(admin, f"insert into pgps_event.{kind} values ('A', 1, 2)")
            dispatch(admin)
            assert [event.payload for event in await subscription.receive()] == [_Quote("A", 1)]
            rows(admin, "select pgps.alter_event_type(%s, add_attribute => 'x integer')", [kind])
            assert [event.payload for event in await subscription.receive()] == [_Quote("A", 1)]
            rows(admin, "select pgps.alter_event_type(%s, drop_attribute => 'n')", [kind])
            with pytest.raises(errors.TypeMismatch) as told:
                await subscription.receive()
            assert (told.value.event_type, told.value.attribute, told.value.found) == (kind, "n", None)
        made = event_class(await client.shape(kind))
        async with client.subscribe(name("s"), kind, payload=made, start="earliest", temporary=True) as other:
            assert str((await other.receive())[0].payload).endswith("(symbol='A', more=Decimal('2'), x=None)")
        plain = client.subscribe(name("s"), kind, start="earliest", temporary=True)
        async with plain:
            assert (await plain.receive())[0].payload.keys() == {"symbol", "more", "x"}
            rows(admin, "select pgps.alter_event_type(%s, add_attribute => 'y integer')", [kind])
            assert (await plain.receive())[0].payload.keys() == {"symbol", "more", "x", "y"}


@dataclass
class _Wrong:
    symbol: int


async def test_a_class_that_does_not_fit_is_refused_with_its_attribute(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind, "symbol text")
    async with AsyncClient(dsn) as client, client.subscribe(name("s"), kind, payload=_Wrong, temporary=True) as refused:
        rows(admin, f"insert into pgps_event.{kind} values ('A')")
        dispatch(admin)
        with pytest.raises(errors.TypeMismatch) as told:
            await refused.receive()
        assert (told.value.attribute, told.value.expected, told.value.found) == ("symbol", "int", "text")


async def test_a_number_with_more_digits_than_python_takes_stops_nobody(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name("kind")
    make_type(admin, kind, "n numeric, document jsonb")
    async with (
        AsyncClient(dsn) as client,
        client.subscribe(name("s"), kind, temporary=True) as one,
        client.subscribe(name("t"), f"{kind}*", temporary=True) as several,
    ):
        rows(admin, f"insert into pgps_event.{kind} values (1e5000, '[1e5000, 7]')")
        dispatch(admin)
        for subscription in (one, several):
            (event,) = await subscription.receive()
            assert event.payload == {"n": Decimal("1e5000"), "document": [Decimal("1e5000"), 7]}


async def test_a_batch_in_whose_middle_the_program_fails_comes_again_whole(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, watching = name(), name("s")
    make_type(admin, kind)
    async with AsyncClient(dsn) as client:
        async with client.subscribe(watching, kind):
            publish(admin, kind, *range(1, 11))
            dispatch(admin)
        for first in (1, 5):
            with pytest.raises(ZeroDivisionError):
                async with client.subscribe(watching) as subscription:
                    async for batch in subscription.batches(4, timeout=0.0):
                        assert [event.payload["n"] for event in batch] == [*range(first, first + 4)]
                        raise ZeroDivisionError
            async with client.subscribe(watching) as subscription:
                async for batch in subscription.batches(4, timeout=0.0):
                    assert [event.payload["n"] for event in batch] == [*range(first, first + 4)]
                    break
        with pytest.raises(ZeroDivisionError):
            async with client.subscribe(watching) as subscription:
                async for event in subscription.events(timeout=0.0):
                    if event.payload["n"] == 10:
                        raise ZeroDivisionError
        async with client.subscribe(watching) as subscription:
            assert await numbers(subscription) == [10]
        await client.unsubscribe(watching)


async def test_a_subscription_that_is_opened_again_waits_and_calls_its_handler_again(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    async with AsyncClient(dsn, poll=60.0) as client:
        subscription = client.subscribe(name("s"), kind)
        async with subscription:
            assert await numbers(subscription) == []
        seen: list[int] = []
        async with subscription as again:
            looks: list[int] = []
            take = again._receiver.take

            async def counted(*args: Any, **options: Any) -> list[Event[dict[str, int]]]:
                found = await take(*args, **options)
                looks.append(len(found))
                return found

            async def look() -> None:
                async for batch in again.batches(timeout=60.0):
                    seen.extend(event.payload["n"] for event in batch)

            again._receiver.take = counted  # type: ignore[method-assign]
            looking = runtime.Task(look, "looking")
            await until(lambda: looks)
            publish(admin, kind, 1)
            dispatch(admin)
            await until(lambda: seen)
            assert looks[:2] == [0, 1]
        await looking.join()
        async with subscription as again:
            await again.start(lambda event: seen.append(event.payload["n"]))
            publish(admin, kind, 2)
            dispatch(admin)
            await until(lambda: 2 in seen)
        assert again.error is None
        await client.unsubscribe(subscription.name)


async def test_what_came_in_an_answer_that_nobody_saw_is_not_acknowledged(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name("kind")
    make_type(admin, kind)
    async with AsyncClient(dsn) as client:
        for of_type in (kind, f"{kind}*"):
            async with client.subscribe(name("s"), of_type, temporary=True) as subscription:
                publish(admin, kind, *range(5))
                dispatch(admin)
                reading = subscription._receiver._reading
                assert reading is not None
                take = reading.take

                async def lost(*args: Any, take: Any = take, **options: Any) -> None:
                    await take(*args, **options)
                    raise errors.TryAgain("nobody sees it")

                assert len(await subscription.receive(2)) == 2
                reading.take = lost  # type: ignore[assignment, method-assign]
                with pytest.raises(errors.TryAgain):
                    await subscription.receive()
                assert await subscription.ack() == 2
                assert await subscription.ack() == 0
                reading.take = take  # type: ignore[method-assign]
                assert await numbers(subscription) == [2, 3, 4]
                assert await subscription.ack() == 3


async def test_clients_whose_names_differ_behind_a_sharp_are_different_consumers(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, shared = name(), name("s")
    make_type(admin, kind)
    async with (
        AsyncClient(dsn, name="worker#1") as client,
        AsyncClient(dsn, name="worker#2") as other,
        AsyncClient(dsn, name="#3") as third,
        client.subscribe(shared, kind, handler="any", temporary=True) as first,
        other.subscribe(shared) as second,
        third.subscribe(shared) as last,
    ):
        publish(admin, kind, 1, 2, 3, 4, 5, 6)
        dispatch(admin)
        given = [[event.payload["n"] for event in await one.receive(2)] for one in (first, second, last)]
        assert sorted(n for part in given for n in part) == [1, 2, 3, 4, 5, 6]
        assert [await one.ack() for one in (first, second, last)] == [2, 2, 2]


async def test_a_subscription_that_looks_all_the_time_waits_too(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    async with AsyncClient(dsn, poll=0.0) as client:
        async with client.subscribe(name("s"), kind, temporary=True) as subscription:
            take, looks = subscription._receiver.take, [0]

            async def counted(*args: Any, **options: Any) -> list[Event[dict[str, int]]]:
                looks[0] += 1
                if looks[0] == 3:
                    publish(admin, kind, 1)
                    dispatch(admin)
                return await take(*args, **options)

            subscription._receiver.take = counted  # type: ignore[method-assign]
            assert await numbers(subscription, timeout=60.0) == [1]
            assert looks[0] >= 3
