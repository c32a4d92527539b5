"""Arguments that no call can take: an error of pgps that names the value and says what to give."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from pgps import errors
from pgps.client import AsyncClient, Handling
from tests.client.asynchronous.rig import dispatch
from tests.fix_broker import make_type, publish, rows

pytestmark = pytest.mark.anyio
Name = Callable[..., str]
Call = Callable[[AsyncClient, str], Awaitable[Any]]
HALF = "\ud800"


async def subscribed(client: AsyncClient, *args: Any, **options: Any) -> None:
    async with client.subscribe(*args, temporary=True, **options) as subscription:
        await subscription.receive()


async def received(client: AsyncClient, kind: str, *args: Any, **options: Any) -> None:
    async with client.subscribe(f"{kind}_s", kind, temporary=True) as subscription:
        await subscription.receive(*args, **options)


async def put_back(client: AsyncClient, kind: str, *args: Any, **options: Any) -> None:
    async with client.subscribe(f"{kind}_s", kind, temporary=True) as subscription:
        await subscription.nack(*args, **options)


async def handled(client: AsyncClient, kind: str, handler: Any, how: Any) -> None:
    async with client.subscribe(f"{kind}_s", kind, temporary=True) as subscription:
        await subscription.run(handler, how=how, timeout=0.0)


async def joined(client: AsyncClient, name: Any) -> None:
    async with client.group(name, "me") as group:
        await group.receive()


async def served(client: AsyncClient, service: Any) -> None:
    async with client.logon() as party:
        await party.register(service)


async def sent(client: AsyncClient, message: Any) -> None:
    async with client.logon() as party:
        await party.send(message, service="a/b/c")


async def waited(client: AsyncClient, timeout: Any) -> None:
    async with client.logon() as party:
        await party.receive(timeout=timeout)


async def polled(client: AsyncClient, kind: str, *args: Any, **options: Any) -> None:
    async with client.identify(f"{kind}_c") as me:
        try:
            await me.get_event(*args, **options)
        finally:
            await client.execute("select pgps.drop_client(%s)", [f"{kind}_c"])


def of(event_type: Any, payload: Any = None, **options: Any) -> Call:
    return lambda client, _: client.publish(event_type, payload or {"n": 1}, **options)


def about(payload: Any, **options: Any) -> Call:
    return lambda client, kind: client.publish(kind, payload, **options)


WRONG: dict[str, tuple[Call, str]] = {
    "type of no kind": (of(5), "an event type is a string or a class, not int: 5"),
    "no type": (of(None), "not NoneType: None"),
    "bytes as a type": (of(b"quote"), "not bytes: b'quote'"),
    "half in a type": (of(HALF), r"'\\ud800' has half of a surrogate pair"),
    "NUL in a type": (of("a\0b"), r"'a\\x00b' has the character NUL"),
    "advertise": (lambda client, _: client.advertise(1.5), "not float: 1.5"),  # type: ignore[arg-type]
    "shape": (lambda client, _: client.shape([]), r"not list: \[\]"),  # type: ignore[arg-type]
    "half in one": (about({"t": HALF}), r'"t": \'\\ud800\' has half of a surrogate pair'),
    "half in many": (about([{"t": "a"}, {"t": f"b{HALF}"}]), r'"t": \'b\\ud800\' has half'),
    "half in some": (about([{"t": "a"}, {"n": 1, "t": HALF}]), r'"t": \'\\ud800\' has half'),
    "half in a list": (about({"many": ["a", HALF]}), r'"many": \'\\ud800\' has half'),
    "NUL in one": (about({"t": "a\0b"}), r'"t": \'a\\x00b\' has the character NUL'),
    "NUL in many": (about([{"t": "a"}, {"t": "\0"}]), r'"t": \'\\x00\' has the character NUL'),
    "NUL in some": (about([{"t": "a"}, {"n": 1, "t": "\0"}]), r'"t": \'\\x00\' has the character NUL'),
    "NUL in a document": (about({"d": {"a": ["\0"]}}), r"'\\x00' has the character NUL"),
    "NaN in a document": (about({"d": {"a": math.nan}}), r"JSON cannot have .*nan"),
    "no value": (about({"t": object()}), r'"t": no type of PostgreSQL takes object: <object'),
    "no value in many": (about([{"t": "a"}, {"t": object()}]), r'"t": no type of PostgreSQL takes object'),
    "no value in some": (about([{"t": "a"}, {"n": 1, "t": object()}]), r"JSON cannot have .*object"),
    "bytes as an attribute": (about({b"t": 1}), r"JSON cannot have \{b't': 1\}"),
    "half in a handler": (about({"n": 1}, handler=HALF), r'"handler": \'\\ud800\' has half'),
    "no connection": (about({"n": 1}, connection=5), "a connection is a .*Connection of psycopg, not 5"),
    "name of a subscription": (
        lambda client, kind: subscribed(client, 5, kind),
        "subscription is a string, not int: 5",
    ),
    "half in a name": (lambda client, kind: subscribed(client, HALF, kind), r"'\\ud800' has half"),
    "half in a filter": (
        lambda client, kind: subscribed(client, "s", kind, filter=f"t = '{HALF}'"),
        r'"filter": .*half',
    ),
    "NUL in a filter": (lambda client, kind: subscribed(client, "s", kind, filter="t = '\0'"), r'"filter": .*NUL'),
    "no dataclass": (lambda client, kind: subscribed(client, "s", kind, payload=5), "5 is no dataclass"),
    "prefetch": (lambda client, kind: subscribed(client, "s", kind, prefetch="x"), "whole number, not str: 'x'"),
    "max_events": (
        lambda client, kind: received(client, kind, {1: 2}),
        r"max_events is a whole number, not dict: \{1: 2\}",
    ),
    "error": (
        lambda client, kind: put_back(client, kind, 1, ValueError("no")),
        "the error is a string, not ValueError",
    ),
    "how": (lambda client, kind: handled(client, kind, print, "batch"), "a Handling, not 'batch'"),
    "handler": (lambda client, kind: handled(client, kind, 5, None), "a handler is a function, not 5"),
    "no query": (lambda client, _: client.execute(None), "a query is a string, not NoneType: None"),  # type: ignore[arg-type]
    "half in a query": (lambda client, _: client.execute(f"select '{HALF}'"), "half of a surrogate pair"),
    "NUL in a query": (lambda client, _: client.execute("select 1\0 + 1"), "the character NUL"),
    "half in a parameter": (lambda client, _: client.execute("select %s::text", [HALF]), r"'\\ud800' has half"),
    "no parameters": (lambda client, _: client.execute("select %s", 5), "a sequence or a mapping, not int: 5"),
    "other parameters": (lambda client, _: client.execute("select %s", {"a": 1}), "require a sequence of parameters"),
    "too few parameters": (lambda client, _: client.execute("select %s, %s", [1]), "2 placeholders"),
    "bytes in a spool": (lambda client, _: client.spool("s", 1, b"x"), "JSON cannot have b'x'"),
    "NUL in a spool": (lambda client, _: client.spool("s", 1, "\0"), r"'\\x00' has the character NUL"),
    "half in a spool": (lambda client, _: client.spool("s", 1, {"a": HALF}), r"'\\ud800' has half"),
    "no messages": (lambda client, _: client.spool_many("s", 5), "messages are a list of mappings, not 5"),  # type: ignore[arg-type]
    "group": (lambda client, _: joined(client, 5), "a name is a string, not int: 5"),
    "half in a group": (lambda client, _: joined(client, HALF), r"'\\ud800' has half"),
    "service": (lambda client, _: served(client, 5), "a service is a string, not int: 5"),
    "half in a service": (lambda client, _: served(client, HALF), r"'\\ud800' has half"),
    "message": (lambda client, _: sent(client, {}), r"a message is bytes or text, not dict: \{\}"),
    "half in a message": (lambda client, _: sent(client, HALF), r"'\\ud800' has half"),
}


async def test_a_wrong_argument_is_named_and_so_is_the_remedy(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind = name()
    make_type(admin, kind, "n integer, t text, many text[], d jsonb")
    async with AsyncClient(dsn) as client:
        for what, (call, says) in WRONG.items():
            print(what)
            with pytest.raises(errors.BadArgument, match=says) as told:
                await call(client, kind)
            assert told.value.hint
            assert (told.value.sqlstate or "")[:2] == "22"
        await client.publish(kind, {"n": 1, "t": "ä\U0001f600", "d": {"a": "\\ud800 \\u0000 \U0001f600"}})
    assert rows(admin, f"select n from pgps_event.{kind}") == []


TIMED: dict[str, Callable[[AsyncClient, str, Any], Awaitable[Any]]] = {
    "receive": lambda client, kind, timeout: received(client, kind, timeout=timeout),
    "get_event": lambda client, kind, timeout: polled(client, kind, timeout=timeout),
    "spool_wait": lambda client, _, timeout: client.spool_wait(5, timeout=timeout),
    "party": lambda client, _, timeout: waited(client, timeout),
}


async def test_a_timeout_is_a_number_of_seconds(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind = name()
    make_type(admin, kind)
    async with AsyncClient(dsn) as client:
        for what, call in TIMED.items():
            print(what)
            for wrong in (math.nan, "1", b"1", [], object()):
                with pytest.raises(errors.BadArgument, match="timeout is a number of seconds, not") as told:
                    await call(client, kind, wrong)
                assert told.value.hint
            for short in (-1, -math.inf, -(10**400), 0):
                await call(client, kind, short)


@pytest.mark.parametrize("timeout", [math.inf, 10**400], ids=["infinity", "large"])
async def test_a_timeout_may_be_longer_than_any_clock_counts(
    dsn: str, admin: psycopg.Connection, name: Name, timeout: float
) -> None:
    kind = name()
    make_type(admin, kind)
    seen: list[int] = []
    async with AsyncClient(dsn, poll=timeout, grace=timeout, reconnect_timeout=timeout) as client:
        async with client.subscribe(name("s"), kind, temporary=True, poll=timeout) as subscription:
            publish(admin, kind, 1)
            dispatch(admin)
            assert len(await subscription.receive(timeout=timeout)) == 1
            how = Handling(timeout=timeout)
            await subscription.run(lambda event: seen.append(event.payload["n"]), how=how, timeout=0.0)
            assert seen == [1]


@pytest.mark.parametrize("option", ["poll", "grace", "reconnect_timeout"])
async def test_the_times_of_a_client_are_numbers(dsn: str, option: str) -> None:
    for wrong in (math.nan, "1"):
        with pytest.raises(errors.BadArgument, match=f"{option} is a number of seconds, not"):
            AsyncClient(dsn, **{option: wrong})  # type: ignore[arg-type]
    for time in ("timeout", "retry_in"):
        with pytest.raises(errors.BadArgument, match=f"{time} is a number of seconds, not nan"):
            Handling(**{time: math.nan})  # type: ignore[arg-type]


async def test_what_a_client_connects_with_is_text(dsn: str) -> None:
    with pytest.raises(errors.BadArgument, match="the name of a client is a string, not int: 5"):
        AsyncClient(dsn, name=5)  # type: ignore[arg-type]
    for parameter in ("\0", HALF):
        with pytest.raises(errors.ConfigError, match=r"invalid connection string: .* has"):
            AsyncClient(dsn, name=f"a{parameter}")
        with pytest.raises(errors.ConfigError, match=r"invalid connection string: .* has"):
            AsyncClient(f"{dsn} application_name={parameter}")
    with pytest.raises(errors.ConfigError, match="no host has such a name"):
        await AsyncClient(dsn, host="x" * 5000).connect()
