"""What a filter means is settled where it was written: no setting of the session that dispatches changes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_broker import call, column, make_type, numbers, rows
from tests.fix_clients import Client
from tests.fix_db import Connect

Role = Callable[..., str]

_ATTRIBUTES = "n integer, s text, f double precision, b bytea, a integer[], x xml"
_EVENTS = r"""
    insert into pgps_event.tick select * from (values
        (1, 'walks', 0.1::float8 + 0.2::float8, decode('6100ff', 'hex'), array[1, null], '<a/>'::xml),
        (null, 'plain', null, null, null, null)) v"""

# A setting, what another session has instead, and filters that let event 1 through, or the one without a number.
_FILTERS = {
    "array_nulls": ("off", ["a = '{1,null}'", "n = any ('{1,null}')"]),
    "bytea_output": ("escape", [r"b::text = '\x6100ff'", r"s || b = 'walks\x6100ff'", r"format('%s', b) = '\x6100ff'"]),
    "extra_float_digits": ("-15", ["f || '' = '0.30000000000000004'", "to_json(f)::text = '0.30000000000000004'"]),
    "quote_all_identifiers": ("on", ["n = 1 and quote_ident(s) = s"]),
    "transform_null_equals": ("on", ["n = 1 or n = null", "exists (select where n = null) or n = 1"]),
    "xmlbinary": ("hex", ["xmlelement(name e, b)::text = '<e>YQD/</e>'"]),
    "xmloption": ("document", ["(coalesce(x::text, '') || s)::xml is not null and n = 1"]),
    "datestyle": ("German", ["n = 1 and (make_date(2024, 1, 2) + n)::text = '2024-01-03'"]),
    "default_text_search_config": ("pg_catalog.simple", ["to_tsvector(s) @@ to_tsquery('walk')"]),
    "timezone_abbreviations": (
        "India",
        ["('2024-01-01 00:00 IST' || left(s, 0))::timestamptz = '2024-01-01 00:00+02' and n = 1"],
    ),
    "timezone": ("Asia/Tokyo", ["extract(hour from to_timestamp(n)) = 0"]),
}


class Broker:
    """An administrator, who writes, and sessions of a worker with settings of their own."""

    def __init__(self, connect: Connect, role: Role, dsn: str) -> None:
        self.worker = role("worker", "pgps_worker")
        self.admin = connect(dsn=dsn)
        self._connect = connect
        self._dsn = dsn
        self._places = [f"database {conninfo_to_dict(dsn)['dbname']}", f"role {self.worker}"]
        rows(self.admin, "set timezone = 'UTC'; set default_text_search_config = 'pg_catalog.english'")
        make_type(self.admin, "tick", _ATTRIBUTES)

    def session(self) -> psycopg.Connection:
        return self._connect(self.worker, dsn=self._dsn)

    def dispatch(self) -> None:
        rows(self.admin, _EVENTS)
        rows(self.session(), "select pgps.dispatch()")

    def elsewhere(self, settings: dict[str, str], done: Callable[[psycopg.Connection], Any]) -> list[Any]:
        """Do it in sessions that have other settings, from the database and from their role."""
        found = []
        for place in self._places:
            for setting, told in settings.items():
                rows(self.admin, f"alter {place} set {setting} = {told!r}")
            found.append(done(self.session()))
            for setting in settings:
                rows(self.admin, f"alter {place} reset {setting}")
        return found


@pytest.fixture
def broker(connect: Connect, role: Role, own_database: str) -> Broker:
    return Broker(connect, role, own_database)


@pytest.mark.parametrize("setting", _FILTERS)
def test_a_filter_means_the_same_whatever_the_session_that_dispatches_has_set(broker: Broker, setting: str) -> None:
    told, filters = _FILTERS[setting]
    for place, condition in enumerate(filters):
        call(broker.admin, "subscribe", f"s{place}", "tick", filter=condition)
    broker.dispatch()
    usual = [numbers(broker.admin, f"s{place}") for place in range(len(filters))]
    assert all(len(found) == 1 for found in usual)

    def matched(session: psycopg.Connection) -> list[Any]:
        for place in range(len(filters)):
            call(broker.admin, "ack", f"s{place}")
        rows(broker.admin, _EVENTS)
        rows(session, "select pgps.dispatch()")
        return [numbers(broker.admin, f"s{place}") for place in range(len(filters))]

    assert broker.elsewhere({setting: told}, matched) == [usual, usual]
    assert rows(broker.admin, "select subscription, error from pgps.exceptions") == []


def test_past_events_are_matched_as_those_to_come(broker: Broker) -> None:
    rows(broker.admin, "select pgps.alter_queue('tick_in', auditable => true)")
    broker.dispatch()
    rows(broker.admin, "set extra_float_digits = -15; set transform_null_equals = on")
    condition = "f || '' = '0.30000000000000004' or n = null"
    call(broker.admin, "subscribe", "late", "tick", filter=condition, start="earliest")
    broker.dispatch()
    assert numbers(broker.admin, "late") == [1, 1]


def test_a_policy_means_the_same_whatever_the_session_that_dispatches_has_set(
    broker: Broker, connect: Connect, role: Role, own_database: str
) -> None:
    reader = role("reader")
    condition = r"b::text = '\x6100ff' and f::text = '0.30000000000000004' and (date '2024-01-02' + n)::text like '2%'"
    call(broker.admin, "create_policy", "tick", "p", reader, condition)
    session = connect(reader, dsn=own_database)
    call(session, "subscribe", "s", "tick")

    def seen(dispatcher: psycopg.Connection) -> list[int]:
        rows(broker.admin, _EVENTS)
        rows(dispatcher, "select pgps.dispatch()")
        return numbers(session, "s")

    settings = {"bytea_output": "escape", "extra_float_digits": "-15", "datestyle": "German", "row_security": "off"}
    assert broker.elsewhere(settings, seen) == [[1], [1, 1]]


def test_a_callback_and_a_request_run_with_the_settings_of_who_wrote_them(
    broker: Broker, connect: Connect, own_database: str
) -> None:
    rows(broker.admin, "create table public.seen (s text)")
    rows(
        broker.admin,
        "create function public.note(s text) returns void language sql as 'insert into public.seen values (s)'",
    )
    call(broker.admin, "subscribe", "s", "tick", "n = 1", execute="public.note(concat(f, b))")
    client = Client(connect(dsn=own_database), "client")

    def run(session: psycopg.Connection) -> list[Any]:
        broker.dispatch()
        rows(session, "call pgps.run_subscribers()")
        client.call("send_request", r"select '\x6100ff'::bytea as b, 0.1::float8 + 0.2::float8 as f, null = 1 as n")
        for (claimed,) in rows(session, "select request_no from pgps.claim_request()"):
            call(session, "run_request", claimed)
        reply = client.reply()
        return [column(broker.admin, "delete from public.seen returning s"), reply and reply["rows"]]

    expected = [[r"0.30000000000000004\x6100ff"], [{"b": r"\x6100ff", "f": 0.30000000000000004, "n": None}]]
    settings = {"bytea_output": "escape", "extra_float_digits": "-15", "transform_null_equals": "on"}
    assert broker.elsewhere(settings, run) == [expected, expected]


def test_all_that_others_wrote_runs_with_the_same_settings(broker: Broker, connect: Connect, own_database: str) -> None:
    """Filters that read tables, policies and callbacks: each runs in a function that sets all that is settled."""
    rows(broker.admin, "create table public.seen (n integer)")
    rows(
        broker.admin,
        "create function public.note(n integer) returns void language sql as 'insert into seen values (n)'",
    )
    call(broker.admin, "subscribe", "s", "tick", "n in (select w.n from public.seen w)", execute="public.note(n)")
    call(broker.admin, "create_policy", "tick", "p", broker.worker, "n > 1")
    rows(broker.admin, "grant select on pgps_event.tick to public")
    call(broker.session(), "subscribe", "t", "tick")
    broker.dispatch()
    made = "select distinct substring(p.proname, '^[a-z]+') from pg_proc p {} where p.prosecdef"
    made += " and p.pronamespace = 'pgps_internal'::regnamespace and p.proname ~ '^(match|visible|callback)_[0-9]' {}"
    assert column(broker.admin, made.format("", "order by 1")) == ["callback", "match", "visible"]
    settled = ("cross join pgps_internal.settled() s", "and format('%s=%s', s.name, s.value) <> all (p.proconfig)")
    assert column(broker.admin, made.format(*settled)) == []
