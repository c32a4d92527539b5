# Made by tools/unasync_client.py from tests/client/asynchronous/test_lists.py: change that, then `make generate`.
"""Lists of events: each of them is what it would be alone."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import ipaddress
import uuid
from collections.abc import Callable

import psycopg
import pytest

from pgps import errors
from pgps.client import Client
from tests.fix_broker import make_type, rows

pytestmark = pytest.mark.anyio
Name = Callable[..., str]


def test_events_are_the_same_whether_published_one_by_one_or_together(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    zone = dt.timezone(dt.timedelta(hours=-5))
    values: dict[str, list[object]] = {
        "smallint": [-1, 32767],
        "bigint": [1, 2**62],
        "numeric": [decimal.Decimal("0." + "1234567890" * 4), decimal.Decimal("NaN")],
        "numeric(6,2)": [1, 1234],
        "real": [0.5, -1.0],
        "double precision": [0.1 + 0.2, float("inf")],
        "boolean": [True, False],
        "text": ['naïve ☃, {"quoted"}\\', ""],
        "varchar(3)": ["abc", "d"],
        "date": ["2024-02-29", "infinity"],
        "bytea": [b"\0\xff", b""],
        "uuid": [uuid.UUID(int=7), uuid.UUID(int=2**127)],
        "time": [dt.time(1, 2, 3, 4), dt.time(23, 59)],
        "timestamp": [dt.datetime(2024, 2, 29, 1), dt.datetime(1, 1, 1)],  # noqa: DTZ001
        "timestamptz": [dt.datetime(2024, 2, 29, 1, tzinfo=dt.UTC), dt.datetime(2024, 2, 29, 1, tzinfo=zone)],
        "interval": [dt.timedelta(days=-1, seconds=5), dt.timedelta(microseconds=1)],
        "inet": [ipaddress.ip_address("10.0.0.1"), ipaddress.ip_network("10.0.0.0/8")],
    }
    kind = name()
    make_type(admin, kind, ", ".join(f"a{n} {of}" for n, of in enumerate(values)))
    sent = [{f"a{n}": pair[place] for n, pair in enumerate(values.values())} for place in (0, 1)]
    sent.append(dict.fromkeys(sent[0]))
    with Client(dsn) as client:
        client.publish(kind, sent)
        for one in sent:
            client.publish(kind, one)
    got = rows(
        admin, f"select to_jsonb(l) from (select {', '.join(sent[0])} from pgps_queue.{kind}_in order by event_id) l"
    )
    assert got[:3] == got[3:]


@dataclasses.dataclass
class Point:
    x: int
    t: str | None = None


@pytest.mark.parametrize("producer", [None, "p"])
def test_values_of_composite_types_are_mappings_or_objects_one_or_many(
    dsn: str, admin: psycopg.Connection, name: Name, producer: str | None
) -> None:
    kind, of = name(), name("t")
    rows(admin, f"create type {of} as (x integer, t text)")
    make_type(admin, kind, f"n integer, one {of}, many {of}[]")
    some = {"one": {"x": 1, "t": "a"}, "many": [{"x": 1, "t": 'b"'}, None, Point(2)]}
    with Client(dsn, producer=producer) as client:
        client.publish(kind, some)
        client.publish(kind, {"many": some["many"]})
        client.publish(kind, [some, {"many": [{"x": 3}]}])
        client.publish(kind, {"many": [(1, "b")]})
        with pytest.raises(errors.BadArgument, match="JSON cannot have"):
            client.publish(kind, {"many": [{"x": object()}]})
    got = rows(admin, f"select one::text, many::text from pgps_queue.{kind}_in order by event_id")
    whole = ("(1,a)", '{"(1,\\"b\\"\\"\\")",NULL,"(2,)"}')
    assert got == [whole, (None, whole[1]), whole, (None, '{"(3,)"}'), (None, '{"(1,b)"}')]
    admin.execute(f"select pgps.drop_event_type('{kind}', cascade => true)")
    rows(admin, f"drop type {of}")


@pytest.mark.parametrize("producer", [None, "p"])
def test_a_list_has_the_lengths_of_its_attributes_as_one_event_has(
    dsn: str, admin: psycopg.Connection, name: Name, producer: str | None
) -> None:
    kind = name()
    make_type(admin, kind, "a char(5), b bit(3), c varbit(8), d varchar(3), e character, f numeric(4, 1), g char(2)[]")
    sent = {"a": "abcde", "b": "101", "c": "10101", "d": "abc", "e": "x", "f": 1.25}
    refused = [("a", "abcdef"), ("b", "10"), ("b", "1011"), ("c", "1" * 9), ("d", "abcd"), ("e", "xy"), ("f", 1234.5)]
    with Client(dsn, producer=producer) as client:
        client.publish(kind, sent)
        client.publish(kind, [sent, sent])
        client.publish(kind, [sent | {"g": ["ab", None]}] * 2)
        for attribute, wrong in [*refused, ("g", ["abc"])]:
            said = set()
            for payload in ({attribute: wrong}, [{attribute: wrong}] * 2):
                with pytest.raises(errors.PgpsError) as raised:
                    client.publish(kind, payload)
                said.add((raised.value.sqlstate, raised.value.message))
            assert len(said) == 1, said
    got = rows(admin, f"select a, b::text, c::text, d, e, f::text, g::text from pgps_queue.{kind}_in order by event_id")
    assert [row[:-1] for row in got] == [("abcde", "101", "10101", "abc", "x", "1.3")] * 5
    assert [row[-1] for row in got] == [None] * 3 + ["{ab,NULL}"] * 2


def test_numbers_that_json_does_not_have_are_taken_however_they_are_published(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind, "a float8[], b float4[], c numeric[], d float8, e jsonb, f integer")
    odd = [float("nan"), float("inf"), -float("inf"), 1.5]
    sent = {"a": odd, "b": [odd, odd[:]], "c": odd, "d": odd[1]}
    with Client(dsn) as client:
        client.publish(kind, sent)
        client.publish(kind, [sent, sent])
        client.publish(kind, [sent, sent | {"e": "NaN"}])
        client.publish(kind, sent, visibility="immediate")
        for wrong in ({"e": odd}, {"e": {"x": odd}}, {"f": odd[0]}):
            for payload in (wrong, [wrong, wrong]):
                with pytest.raises(errors.BadArgument):
                    client.publish(kind, payload)
    got = rows(admin, f"select a::text, b::text, c::text, d from pgps_queue.{kind}_in")
    spelled = "{NaN,Infinity,-Infinity,1.5}"
    assert got == [(spelled, f"{{{spelled},{spelled}}}", spelled, odd[1])] * 6
