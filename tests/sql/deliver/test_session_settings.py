"""Sessions with settings of their own: a date is the day it is for its writer, and no setting breaks a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, endpoint, make_type, receive, refused, rows, take, value
from tests.fix_db import Connect

Name = Callable[..., str]

_ELSEWHERE = "set datestyle = 'SQL, DMY'; set intervalstyle = sql_standard; set timezone = 'Asia/Tokyo'"


@pytest.fixture
def elsewhere(connect: Connect) -> psycopg.Connection:
    """A session in which 01/02/2024 is in February, and midnight in Tokyo."""
    session = connect()
    rows(session, _ELSEWHERE)
    return session


@pytest.mark.parametrize(
    ("condition", "value_of_one"),
    [
        ("d = '01/02/2024'", "date '2024-02-01'"),
        ("d in ('01/02/2024', '13/02/2024')", "date '2024-02-01'"),
        ("d = any ('{01/02/2024}')", "date '2024-02-01'"),
        ("ts = '01/02/2024 00:00'", "timestamptz '2024-02-01 00:00+09'"),
        ("iv = '-1 2:00:00'", "interval '-1 day -2 hours'"),
        ("r = '[01/02/2024,02/02/2024)'", "daterange('2024-02-01', '2024-02-02')"),
    ],
)
def test_the_constants_of_a_filter_are_those_of_the_session_that_wrote_it(
    admin: psycopg.Connection, elsewhere: psycopg.Connection, name: Name, condition: str, value_of_one: str
) -> None:
    one, another = name("tick"), name("tick")
    attributes = "n integer, d date, ts timestamptz, iv interval, r daterange"
    make_type(admin, one, attributes)
    call(elsewhere, "subscribe", one, one, filter=condition)
    call(elsewhere, "subscribe", another, f"{another}*", filter=condition)
    make_type(admin, another, attributes)  # joined to the pattern here, under other settings
    attribute = condition.split(maxsplit=1)[0]
    for made in (one, another):
        rows(admin, f"insert into {endpoint(made)} (n, {attribute}) values (1, {value_of_one})")
        rows(admin, f"insert into {endpoint(made)} (n, d, ts, iv) values (2, '2024-01-02', '2024-01-02', '-1 day 2:0')")
        assert take(admin, made) == [1]
    call(admin, "unsubscribe", another)


def test_a_rule_and_a_policy_mean_what_they_meant_where_they_were_written(
    admin: psycopg.Connection, elsewhere: psycopg.Connection, connect: Connect, role: Any, name: Name
) -> None:
    tick, reader = name("tick"), role("reader")
    make_type(admin, tick, "n integer, d date")
    rows(admin, f"create table public.{tick} (n integer, d date)")
    call(elsewhere, "create_rule", tick, tick, "insert", tick, ["new.n", "'01/02/2024'"], "new.d >= '01/02/2024'")
    call(elsewhere, "create_policy", tick, tick, reader, "d = '01/02/2024' and n < 9")
    call(connect(reader), "subscribe", tick, tick)
    rows(admin, f"insert into public.{tick} values (1, '2024-02-01'), (2, '2024-01-02'), (9, '2024-02-02')")
    rows(admin, "select pgps.dispatch()")
    assert receive(connect(reader), tick) == [{"n": 1, "d": "2024-02-01"}]


@pytest.mark.parametrize("form", ["insert", "publish"])
def test_an_immediate_event_has_the_values_that_a_deferred_one_has(
    admin: psycopg.Connection, elsewhere: psycopg.Connection, name: Name, form: str
) -> None:
    made = {visibility: name("tick") for visibility in ("deferred", "immediate")}
    rows(elsewhere, "set extra_float_digits = -10")
    for visibility, tick in made.items():
        make_type(
            admin,
            tick,
            "d date, r daterange, tr tstzrange, iv interval, f float8, ts timestamptz, "
            "day date default '2024-02-01 23:30+00'::timestamptz::date",
            visibility=visibility,
        )
        call(admin, "subscribe", tick, tick)
        if form == "insert":
            rows(
                elsewhere,
                f"insert into {endpoint(tick)} values ('01/02/2024', '[01/02/2024,03/02/2024)',"
                " '[01/02/2024 10:00,)', '-1 2:00:00', 0.1::float8 + 0.2::float8, '01/02/2024 10:00')",
            )
        else:
            event = '{"d": "01/02/2024", "r": "[01/02/2024,03/02/2024)", "iv": "-1 2:00:00", "ts": "01/02/2024 10:00"}'
            call(elsewhere, "publish", tick, event)
    rows(admin, "select pgps.dispatch()")
    seen = [receive(admin, tick)[0] for tick in made.values()]
    assert seen[0] == seen[1]
    assert seen[0]["d"] == "2024-02-01"


def test_strings_with_escapes_break_no_function(connect: Connect, name: Name) -> None:
    session, tick = connect(), name("tick")
    rows(session, "set standard_conforming_strings = off; set escape_string_warning = off")
    make_type(session, tick, "n integer, s text")
    call(session, "subscribe", tick, f"{tick}*", filter=r"s like 'a\\_%' or n = 2".replace(r"\\", "\\"))
    rows(session, f"insert into {endpoint(tick)} values (1, 'a_b'), (3, 'axb')")
    call(session, "execute", f"publish {tick} (2, 'x')")
    assert take(session, tick) == [1, 2]
    call(session, "seek", tick, "now")
    call(session, "unsubscribe", tick)


def test_names_are_folded_as_sql_folds_them(admin: psycopg.Connection, name: Name) -> None:
    tick = name("Ärger")
    call(admin, "create_event_type", tick.replace("rger", "RGER"), "n integer")
    call(admin, "advertise", tick)
    rows(admin, f"insert into pgps_event.{tick} values (1)")
    assert value(admin, "select count(*) from pgps.event_types where name = %s", [tick]) == 1


def test_what_replication_applies_is_published(connect: Connect, name: Name) -> None:
    session, tick = connect(), name("tick")
    for visibility in ("deferred", "immediate"):
        made = f"{tick}_{visibility[0]}"
        make_type(session, made, visibility=visibility)
        call(session, "subscribe", made, made)
        rows(session, "set session_replication_role = replica")
        rows(session, f"insert into {endpoint(made)} values (1)")
        with refused("0A000"), session.cursor().copy(f"copy {endpoint(made)} (n) from stdin".encode()) as copy:
            copy.write_row((2,))
        rows(session, "reset session_replication_role")
        assert take(session, made) == [1]
        call(session, "drop_event_type", made, cascade=True)
