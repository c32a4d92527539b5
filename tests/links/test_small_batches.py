"""Small batches: their events travel in the answer, and one statement receives them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, refused, rows, value
from tests.fix_db import notifications
from tests.links.rig import Broker, Lane, Link, linked, received, settle

Brokers = Callable[[int], list[Broker]]

_ATTRIBUTES = [
    ("flag boolean", "true", "false"),
    ("i2 smallint", "-32768", "0"),
    ("i8 bigint", "9223372036854775807", "0"),
    ("f4 real", "'NaN'", "'Infinity'"),
    ("f8 double precision", "0.1::float8 + 0.2", "1e-310"),
    ("num numeric", "1.5000", "'NaN'"),
    ("fixed numeric(12, 4)", "1.5", "-0.0001"),
    ("words text", "e'a \"b\" \\\\ (c), d\\n\\t e''f'", "'é€'"),
    ('"Odd, Name" varchar(20)', "''", "' '"),
    ("padded char(5)", "'ab'", "''"),
    ("raw bytea", "'\\x00ff5c22'", "''"),
    ("day date", "'0044-03-15 BC'", "'infinity'"),
    ("clock time", "'24:00'", "'00:00'"),
    ("clock_tz timetz", "'12:00:00.000001+05:30'", "'00:00-15:59'"),
    ("at timestamp", "'infinity'", "'-infinity'"),
    ("at_tz timestamptz", "'2024-02-29 12:34:56.789012+00'", "'-infinity'"),
    ("span interval", "'-1 year -2 days +03:04:05.000006'", "'0'"),
    ("id uuid", "'3b241101-e2bb-4255-8caf-4136c566a962'", "'00000000-0000-0000-0000-000000000000'"),
    ("doc json", '\'{"b": 1,  "a":2, "b" : [1.10]}\'', "'null'"),
    ("docb jsonb", '\'{"n": 1.10, "s": "é"}\'', "'null'"),
    ("net inet", "'10.0.0.1/8'", "'::1'"),
    ("mac macaddr", "'08:00:2b:01:02:03'", "'ff:ff:ff:ff:ff:ff'"),
    ("bits bit varying", "B'0101'", "''"),
    ("cash money", "'-1234.56'", "'0'"),
    ("spot point", "'(1.1,2e-300)'", "'(NaN,Infinity)'"),
    ("many integer[]", "'[2:3]={1,NULL}'", "'{}'"),
    ("names text[]", "array[null, '', 'NULL', 'a,\"b\"']", "'{}'"),
    ("days tstzrange", "'[\"2024-01-01 00:00+00\",)'", "'empty'"),
    ("spans int8multirange", "'{[1,3),[5,9)}'", "'{}'"),
    ("mood mood", "'so, so'", "'sad'"),
    ("small small", "7", "1"),
    ("pair pair", "row(null, null)", "row(0, '')"),
    ("pairs pair[]", "array[row(1, 'x, \"y\"')::pair, null]", "'{}'"),
]
"""Definitions, each with two values."""


def _types(broker: Broker) -> None:
    rows(broker.admin, "create type mood as enum ('so, so', 'sad')")
    rows(broker.admin, "create domain small as integer check (value < 10)")
    rows(broker.admin, "create type pair as (a integer, b text)")


@contextmanager
def small(a: Broker, b: Broker) -> Iterator[tuple[list[Link], Lane]]:
    """A link by which b gets all ticks, in small batches."""
    with linked([(a, b)]) as links:
        links[0].out.with_rows = links[0].back.with_rows = 32
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        yield links, links[0].out


@pytest.mark.parametrize(
    "kinds",
    [".", "(date|timestamp|timestamptz)", "(boolean|smallint|bigint|numeric|text|uuid|json|jsonb|inet|integer\\[\\])"],
    ids=["all", "times", "what depends on no setting"],
)
def test_values_of_every_type_arrive_as_they_are_whatever_the_session_is_set_to(brokers: Brokers, kinds: str) -> None:
    attributes = [one for one in _ATTRIBUTES if kinds == "." or re.search(f" {kinds}$", one[0])]
    assert len(attributes) >= 3
    a, b = brokers(2)
    for broker in (a, b):
        _types(broker)
        make_type(broker.admin, "tick", ", ".join(definition for definition, _, _ in attributes))
    with small(a, b) as (links, lane):
        for session in (lane.source, lane.target):
            for name, set_to in (
                ("datestyle", "German"),
                ("intervalstyle", "sql_standard"),
                ("extra_float_digits", "-15"),
                ("bytea_output", "escape"),
                ("timezone", "Asia/Kolkata"),
            ):
                rows(session, f"set {name} = '{set_to}'")
        nothing = ["null"] * len(attributes)
        for values in ([one for _, one, _ in attributes], nothing, [other for _, _, other in attributes]):
            rows(a.admin, f"insert into pgps_event.tick values ({', '.join(values)})")
            settle([a, b], links)
            assert lane.taken
        names = column(
            a.admin,
            "select quote_ident(attname) from pg_attribute where attrelid = 'pgps_event.tick'::regclass"
            " and attnum > 0 and not attisdropped and attname !~ '^_producer' order by attname",
        )
        logs = [
            rows(
                broker.admin,
                f"select {', '.join(f'{n}::text' for n in names)} from pgps_internal.tick_log l order by event_id",
            )
            for broker in (a, b)
        ]
        assert len(logs[0]) == 3
        assert logs[0] == logs[1]


def test_a_type_whose_text_means_something_else_elsewhere_goes_by_copy(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick", "n integer, r regclass")
    with small(a, b) as (links, lane):
        rows(a.admin, "insert into pgps_event.tick values (1, 'pg_class')")
        settle([a, b], links)
        assert not lane.taken
        assert [n for _, n in received(b, "all")] == [1]


def test_statements_of_one_batch_and_events_of_a_transaction_stay_together_and_in_order(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with small(a, b) as (links, lane):
        with a.admin.transaction():
            publish(a.admin, "tick", 1, 2)
            publish(a.admin, "tick", 3)
        publish(a.admin, "tick", 4)
        settle([a, b], links)
        assert lane.taken
        assert [n for _, n in received(b, "all")] == [1, 2, 3, 4]
        statements = "select hi - lo + 1 from pgps_internal.control where hi > 0 order by hi"
        assert column(b.admin, statements) == column(a.admin, statements) == [2, 1, 1]
        published = "select published_at from pgps_internal.control order by hi"
        assert column(b.admin, published) == column(a.admin, published)


def test_a_small_batch_says_of_each_event_what_a_large_one_says(brokers: Brokers) -> None:
    """Of statements that ran side by side, of one transaction and of several, in one item and in several."""
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with small(a, b) as (links, lane), psycopg.connect(a.dsn) as other:
        publish(a.admin, "tick", 1, 2)
        rows(other, "insert into pgps_event.tick (n) values (3)")
        publish(a.admin, "tick", 4)
        rows(other, "insert into pgps_event.tick (n) values (5), (6)")
        other.commit()
        a.settle()
        publish(a.admin, "tick", 7)
        a.settle()
        batch = lane.next(refresh=False)
        (wire,) = batch["types"]
        assert [int(row.strip("()").split(",")[1]) for row in wire["rows"]] == [1, 2, 3, 4, 5, 6, 7]
        assert [run["n"] for run in wire["runs"]] == [2, 1, 1, 2, 1]
        lane.with_rows = 0
        (as_copied,) = lane.next(refresh=False)["types"]
        assert wire["runs"] == as_copied["runs"]
        lane.with_rows = 32
        settle([a, b], links)
        assert received(b, "all") == [(a.name, n) for n in range(1, 8)]


@pytest.mark.parametrize(("kind", "events"), [("text", 1), ("text[]", 3)])
def test_an_event_that_is_too_long_for_a_small_batch_goes_by_copy(brokers: Brokers, kind: str, events: int) -> None:
    """Without being written as text before: that may fit into no JSON, and then the link would break each time."""
    a, b = brokers(2)
    make_type(a.admin, "tick", f"n integer, s {kind}")
    made = {"text": "repeat('x', {})", "text[]": "array[repeat('x', {})]"}
    count = 0
    with small(a, b) as (links, lane):
        for length in (10, 270_000_000):
            with a.admin.transaction():
                for n in range(events):
                    long = made[kind].format(length if n == 0 else 1)
                    rows(a.admin, f"insert into pgps_event.tick values ({count + n}, {long})")
            count += events
            settle([a, b], links)
            assert lane.taken == (length == 10)
            assert column(b.admin, "select n from pgps_queue.tick_in order by event_id") == list(range(count))


def test_a_batch_that_comes_again_is_not_taken_again_and_one_behind_a_missing_one_is_refused(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with small(a, b) as (links, lane):
        publish(a.admin, "tick", 1)
        a.settle()
        first = json.dumps(lane.next())
        publish(a.admin, "tick", 2)
        a.settle()
        take = "select pgps.link_take(%s::jsonb)"
        assert value(lane.target, take, [first])["taken"] == 1
        again = value(lane.target, take, [first])
        assert again == {"last": json.loads(first)["upto"]}
        later = json.loads(first)
        with refused("55000", "behind"):
            value(lane.target, take, [json.dumps(later | {"after": later["upto"] + 1, "upto": later["upto"] + 2})])
        lane.last, lane.mark = later["upto"], None
        settle([a, b], links)
        assert [n for _, n in received(b, "all")] == [1, 2]


def test_an_event_that_a_constraint_refuses_is_among_the_exceptions_and_the_next_batch_is_small_again(
    brokers: Brokers,
) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    make_type(b.admin, "tick", "n integer check (n <> 3)")
    with small(a, b) as (links, lane):
        publish(a.admin, "tick", 1, 3, 4)
        settle([a, b], links)
        taken = [lane.taken]
        publish(a.admin, "tick", 5)
        settle([a, b], links)
        assert [*taken, lane.taken] == [False, True]
        assert [n for _, n in received(b, "all")] == [1, 4, 5]
        assert column(b.admin, "select event_id is not null from pgps.exceptions where event_type = 'tick'") == [True]


def test_what_the_neighbour_may_not_publish_or_has_otherwise_is_refused(
    brokers: Brokers, role: Callable[..., str]
) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with small(a, b) as (_, lane):
        publish(a.admin, "tick", 1)
        a.settle()
        batch = lane.next()
        take = "select pgps.link_take(%s::jsonb)"
        wire = batch["types"][0]
        only = wire["attributes"][0]
        more = {"name": "m", "type": "integer", "as_text": False}
        others = {"55000": [[only | {"type": "bigint"}], [only, more]], "40001": [[only | {"as_text": True}]]}
        for state, attributes in ((state, a) for state, several in others.items() for a in several):
            forged = json.dumps(batch | {"types": [wire | {"attributes": attributes}]})
            with refused(state):
                value(lane.target, take, [forged])
        with refused("55000", "were said"):
            value(lane.target, take, [json.dumps(batch | {"types": [wire | {"rows": []}]})])
        bare = {key: found for key, found in wire.items() if key != "rows"}
        with refused("22023"):
            value(lane.target, take, [json.dumps(batch | {"types": [bare]})])
        neighbour = role("neighbour")
        rows(b.admin, "update pgps_internal.neighbour set role = %s::regrole", [neighbour])
        with refused("42501", "may not publish"):
            value(lane.target, take, [json.dumps(batch)])
        rows(b.admin, f"grant insert on pgps_event.tick to {neighbour}")
        assert value(lane.target, take, [json.dumps(batch)])["taken"] == 1


@pytest.mark.parametrize(("member", "state"), [(False, "42501"), (True, "55000")])
def test_who_has_opened_no_link_takes_nothing(
    brokers: Brokers, role: Callable[..., str], member: bool, state: str
) -> None:
    (a,) = brokers(1)
    who = role("who", "pgps_link") if member else role("who")
    with a.admin.transaction(force_rollback=True):
        rows(a.admin, f"set local role {who}")
        with refused(state):
            rows(a.admin, "select pgps.link_take('{}')")


def test_whoever_serves_links_hears_at_once_that_one_is_made_paused_or_leads_elsewhere(brokers: Brokers) -> None:
    (a,) = brokers(1)
    with psycopg.connect(a.dsn, autocommit=True) as worker:
        rows(worker, "listen pgps_link")
        for change in (
            "select pgps.create_link('l', 'dbname=x')",
            "select pgps.alter_link('l', enabled => false)",
            "select pgps.alter_link('l', conninfo => 'dbname=y')",
            "select pgps.alter_link('l', enabled => true)",
            "select pgps.drop_link('l')",
        ):
            rows(a.admin, change)
            assert [n.channel for n in notifications(worker)] == ["pgps_link"], change


def _noted(session: psycopg.Connection, batch: dict[str, Any]) -> tuple[list[Any], ...]:
    """Receive a batch, and return what is written then, but for the numbers that are drawn; and roll back."""
    arrivals = """
        select lseq, mark, origin_id, attachment, upto, horizon, events, hi - lo, pgps_internal.count_ids(ids),
            tallies::text, hops::text
        from pgps_internal.arrival where lseq > %s order by arrival_id
        """
    statements = """
        select hi - lo, type_id, publisher::text, volatile, published_at, origin_id from pgps_internal.control
        where xid = pg_current_xact_id() order by hi
        """
    findings = """
        select kind, what, neighbour, origin_id, type_id, after_batch, upto, there, here
        from pgps_internal.audit_finding
        """
    with session.transaction(force_rollback=True):
        told = value(session, "select pgps.link_take(%s::jsonb)", [json.dumps(batch)])
        return [told], rows(session, arrivals, [batch["after"]]), rows(session, statements), rows(session, findings)


@pytest.mark.parametrize("more", [0, 1], ids=["as said", "one event more is said than comes"])
def test_what_is_noted_together_is_the_same_as_item_by_item(brokers: Brokers, more: int) -> None:
    a, b = brokers(2)
    for broker in (a, b):
        make_type(broker.admin, "tick")
    settled = "select is_settled from pgps_internal.look_at_items((select n from pgps_internal.neighbour n), %s::jsonb)"
    with small(a, b) as (links, lane):
        publish(a.admin, "tick", 0)
        settle([a, b], links)
        for numbers in ((1,), (2, 3), (4,)):
            publish(a.admin, "tick", *numbers)
            a.settle()
        batch = lane.next(refresh=False)
        assert [item["events"] for item in batch["items"]] == [1, 2, 1]
        batch["items"][1]["events"] += more
        assert value(b.admin, settled, [json.dumps(batch["items"])])
        together = _noted(lane.target, batch)
        assert [len(found) for found in together] == [1, 3, 3, more]
        rows(b.admin, "update pgps_internal.origin set is_settled = false")
        assert not value(b.admin, settled, [json.dumps(batch["items"])])
        assert _noted(lane.target, batch) == together


def test_a_batch_is_received_without_the_turn_of_routes_though_nobody_wants_anything_of_its_neighbour(
    brokers: Brokers,
) -> None:
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        for link in links:
            link.out.with_rows = link.back.with_rows = 32
        settle(made, links)
        call(c.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        settle(made, links)
        publish(a.admin, "tick", 2)
        a.settle()
        assert links[0].move()
        b.settle()
        lane = links[1].out
        batch = lane.next()
        lane.mark = None
        with lane.target.transaction(force_rollback=True):
            assert "taken" in call(lane.target, "link_take", json.dumps(batch))
            turns = "select relation::regclass::text from pg_locks where pid = %s and mode = 'ExclusiveLock'"
            held = column(c.admin, turns, [lane.target.info.backend_pid])
            assert "pgps_internal.turn_of_routes" not in held
        lane.carry(batch)
        settle(made, links)
        assert received(c, "all") == [("a", 1), ("a", 2)]
