"""Publication: INSERT, pgps.publish, advertisements, producer numbers, immediate and non-guaranteed events."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, endpoint, make_type, meanwhile, numbers, publish, refused, rows, take, value
from tests.fix_db import Connect, notifications
from tests.sql.dispatch.asleep import sleep_on

Name = Callable[..., str]


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    """A type and a subscription of one name."""
    made = name("tick")
    make_type(admin, made, "n integer, b text default 'x'")
    call(admin, "subscribe", made, made)
    return made


def test_every_form_of_insert_publishes(admin: psycopg.Connection, connect: Connect, tick: str) -> None:
    into = f"insert into {endpoint(tick)}"
    rows(admin, f"{into} values (1)")
    rows(admin, f"{into} (b, n) values ('y', 2), (default, 3)")
    rows(admin, f"{into} (n) select n from generate_series(4, 5) n order by n")
    assert rows(admin, f"{into} (n) values (6) returning n, b") == [(6, "x")]
    assert column(admin, f"with p as ({into} (n) values (7) returning n) select n from p") == [7]
    session = connect()  # the administrator's, kept from test to test, prepares nothing by itself
    session.execute(f"{into} (n) values (%s)".encode(), [8], prepare=True)
    assert column(session, "select count(*) from pg_prepared_statements where not from_sql") == [1]
    rows(admin, f"prepare p{tick} (integer) as {into} (n) values ($1)")
    rows(admin, f"execute p{tick} (9)")
    rows(admin, f"do $$ begin for n in 10..11 loop {into} (n) values (n); end loop; end $$")
    with session.cursor() as cursor:
        cursor.executemany(f"{into} (n) values (%s)".encode(), [[12], [13]])
    rows(admin, f"{into} default values")
    assert take(admin, tick) == [*range(1, 14), None]


def test_ten_thousand_rows_are_one_row_of_the_control_queue(admin: psycopg.Connection, tick: str) -> None:
    before = value(admin, "select count(*) from pgps_internal.control")
    rows(admin, f"insert into {endpoint(tick)} (n) select generate_series(1, 10000)")
    assert value(admin, "select count(*) from pgps_internal.control") == before + 1
    rows(admin, "select pgps.dispatch()")
    assert numbers(admin, tick, 20000) == list(range(1, 10001))
    assert call(admin, "ack", tick) == 10000


def test_what_a_statement_deletes_can_be_published_by_it(admin: psycopg.Connection, tick: str, name: Name) -> None:
    stage = name("stage")
    rows(admin, f"create table public.{stage} (n integer); insert into public.{stage} select generate_series(1, 3)")
    moved = (
        f"with moved as (delete from public.{stage} returning n) insert into {endpoint(tick)} (n) select n from moved"
    )
    rows(admin, f"{moved} order by n")
    assert take(admin, tick) == [1, 2, 3]
    published = f"with p as (insert into {endpoint(tick)} (n) values (4), (5) returning n)"
    rows(admin, f"{published} insert into public.{stage} select n from p")
    assert column(admin, f"select n from public.{stage} order by n") == [4, 5]
    assert take(admin, tick) == [4, 5]
    rows(admin, f"drop table public.{stage}")


def test_a_loop_over_what_it_returns_publishes_all_of_a_statement(admin: psycopg.Connection, tick: str) -> None:
    rows(
        admin,
        f"do $$ declare r record; begin for r in insert into {endpoint(tick)} (n) select generate_series(1, 100) "
        "returning n loop exit when r.n = 3; end loop; end $$",
    )
    assert take(admin, tick) == list(range(1, 101))


def test_the_number_of_rows_is_that_of_the_events(admin: psycopg.Connection, tick: str) -> None:
    assert admin.execute(f"insert into {endpoint(tick)} (n) values (1), (2), (3)".encode()).rowcount == 3
    assert admin.execute(f"insert into {endpoint(tick)} (n) select 1 where false".encode()).rowcount == 0


def test_a_statement_without_rows_leaves_nothing_behind(admin: psycopg.Connection, tick: str) -> None:
    publish(admin, tick, 1)
    before = value(admin, "select count(*) from pgps_internal.control")
    rows(admin, f"insert into {endpoint(tick)} (n) select 1 where false")
    rows(admin, f"with none as (select 1 as n where false) insert into {endpoint(tick)} (n) select n from none")
    assert value(admin, "select count(*) from pgps_internal.control") == before


def test_publishing_sets_up_few_functions_and_reads_no_check(admin: psycopg.Connection, tick: str) -> None:
    # Each function of the rule is set up by each statement, called or not; a check is parsed by each (decision 53).
    functions = value(
        admin,
        r"select count(*) from pg_rewrite r cross join regexp_matches(r.ev_action::text, '\{(FUNC|OP|NULLIF)EXPR', 'g')"
        " where r.ev_class = %s::regclass",
        [endpoint(tick)],
    )
    assert 0 < functions <= 28
    checked = "select count(*) from pg_constraint where contype = 'c' and conrelid = 'pgps_internal.control'::regclass"
    assert value(admin, checked) == 0


def test_what_settings_say_is_of_the_statement_and_a_raiser_needs_who_acts(
    connect: Connect, admin: psycopg.Connection, tick: str
) -> None:
    publisher = connect()
    rows(publisher, "set pgps.raiser = '1'; set pgps.reliability = 'non-guaranteed'; set pgps.handler = 'any'")
    publish(publisher, tick, 1)
    rows(publisher, "reset pgps.reliability; reset pgps.handler")
    publish(publisher, tick, 2)
    rows(publisher, "set pgps.client = '7'")
    publish(publisher, tick, 3)
    told = "select volatile, raiser::text, handler, client_id from pgps_internal.control where xid in (%s) order by hi"
    xids = f"select xid::text::xid8 from pgps_queue.{tick}_in where n in (1, 2, 3)"
    assert rows(admin, told % xids) == [
        (True, None, "any", None),
        (False, None, None, None),
        (False, None, None, 7),
    ]
    with refused("23514", 'invalid handler "some"', "Use all, any or raiser"):
        rows(publisher, "set pgps.handler = 'some'")
        publish(publisher, tick, 4)


def test_a_sleeping_dispatcher_is_told_at_commit_and_a_waking_one_is_not(
    connect: Connect, admin: psycopg.Connection, tick: str
) -> None:
    dispatcher, publisher = connect(), connect(autocommit=False)
    rows(dispatcher, "listen pgps_dispatch")
    publish(publisher, tick, 0)
    publisher.commit()
    # Nobody leads: whoever begins to, looks first.
    assert notifications(dispatcher) == []
    assert value(dispatcher, "select pgps.try_lead()")
    sleep_on(dispatcher)
    publish(publisher, tick, 1)
    assert notifications(dispatcher) == []
    publisher.rollback()
    assert notifications(dispatcher) == []
    for number in (2, 3):
        publish(publisher, tick, number)
    publisher.commit()
    assert [n.channel for n in notifications(dispatcher)] == ["pgps_dispatch"]
    assert value(dispatcher, "select pgps.stay_awake()")
    publish(publisher, tick, 4)
    publisher.commit()
    assert notifications(dispatcher) == []
    rows(dispatcher, "select pgps.fall_asleep()")
    assert column(admin, "select woken from pgps_internal.control order by hi desc limit 3") == [False, True, True]


def test_roles_advertise_a_type_at_once(connect: Connect, admin: psycopg.Connection, tick: str, role: Name) -> None:
    names = [role("first"), role("second")]
    rows(admin, f"grant insert on {endpoint(tick)} to {', '.join(names)}")
    first, second = (connect(each, autocommit=False) for each in names)
    call(first, "advertise", tick)
    with meanwhile(admin, second, lambda: call(second, "advertise", tick)):
        first.commit()
    second.commit()
    for number, session in enumerate((first, second)):
        publish(session, tick, number)
        session.commit()
    assert take(admin, tick) == [0, 1]
    for session in (first, second):
        call(session, "unadvertise", tick)
        with refused("55000", "advertised"):
            publish(session, tick, 2)
        session.rollback()


def test_copy_and_other_writing_are_refused(admin: psycopg.Connection, connect: Connect, role: Any, tick: str) -> None:
    # Without columns a row would lack those of a producer.
    for columns in ("(n)", ""):
        statement = f"copy {endpoint(tick)} {columns} from stdin"
        with refused("0A000", "INSERT"), admin.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write_row([1])
    writer = connect(role("writer"))
    for verb in ("update {} set n = 1", "delete from {}", "truncate {}"):
        with refused("42501"):
            rows(writer, verb.format(endpoint(tick)))
    for kind in ("in", "out", "exception"):
        queue = f"pgps_queue.{tick}_{kind}"
        for verb in (f"insert into {queue} (n) values (1)", f"update {queue} set n = 1", f"delete from {queue}"):
            for connection in (writer, admin):
                with pytest.raises(psycopg.Error):
                    rows(connection, verb)
        with pytest.raises(psycopg.Error):
            rows(admin, f"truncate {queue}")


def test_a_statement_inside_a_statement_publishes_its_own(admin: psycopg.Connection, tick: str) -> None:
    rows(
        admin,
        f"create function public.also_{tick}(n integer) returns integer language plpgsql as "
        f"$$ begin insert into {endpoint(tick)} (n) values (n + 100); return n; end $$",
    )
    rows(admin, f"insert into {endpoint(tick)} (n) select public.also_{tick}(n) from generate_series(1, 3) n")
    assert sorted(take(admin, tick)) == [1, 2, 3, 101, 102, 103]
    query = "select count(*) from pgps.receive(%s) where published_at is null"
    assert value(admin, query, [tick]) == 0


def test_savepoints_decide_what_is_published(connect: Connect, admin: psycopg.Connection, tick: str) -> None:
    session = connect(autocommit=False)
    publish(session, tick, 1)
    for number, end in ((2, "rollback to savepoint s"), (3, "release savepoint s"), (4, "rollback to savepoint s")):
        rows(session, "savepoint s")
        publish(session, tick, number)
        rows(session, end)
    rows(
        session,
        f"do $$ begin insert into {endpoint(tick)} (n) values (5); raise 'no'; exception when others then end $$",
    )
    publish(session, tick, 6)
    session.commit()
    assert take(admin, tick) == [1, 3, 6]


def test_what_is_rolled_back_was_never_published(connect: Connect, admin: psycopg.Connection, tick: str) -> None:
    session = connect(autocommit=False)
    publish(session, tick, 1)
    assert take(admin, tick) == []
    session.rollback()
    publish(session, tick, 2)
    session.commit()
    assert take(admin, tick) == [2]


def test_publish_takes_an_object_or_an_array_with_defaults(admin: psycopg.Connection, tick: str) -> None:
    first = call(admin, "publish", tick, json.dumps({"n": 1}))
    last = call(admin, "publish", tick, json.dumps([{"n": 2, "b": None}, {"b": "z"}, {"n": 3}, {}]))
    assert last == first + 4
    assert call(admin, "publish", tick, "[]") is None
    rows(admin, "select pgps.dispatch()")
    got = column(admin, "select payload from pgps.receive(%s)", [tick])
    assert [(p["n"], p["b"]) for p in got] == [(1, "x"), (2, None), (None, "z"), (3, "x"), (None, "x")]


@pytest.mark.parametrize(
    ("payload", "options", "sqlstate", "said"),
    [
        (None, {}, "22023", "null"),
        ("1", {}, "22023", "number"),
        ('[{}, "x"]', {}, "22023", "string"),
        ('{"nope": 1}', {}, "42703", "nope"),
        ('{"_producer": "p"}', {}, "42703", "_producer"),
        ("{}", {"visibility": "soon"}, "22023", "soon"),
        ("{}", {"reliability": "maybe"}, "22023", "maybe"),
        ("{}", {"handler": "who"}, "22023", "who"),
        ("{}", {"producer": "p"}, "22023", "producer_seq"),
        ("{}", {"producer_seq": 1}, "22023", "producer"),
        ("[{}, {}]", {"producer": "p", "producer_seq": 2**63 - 1}, "22023", "9223372036854775807"),
        ('{"_producer": "p", "_producer_seq": 1}', {"visibility": "immediate"}, "42703", "_producer"),
    ],
)
def test_a_bad_publication_is_refused(
    admin: psycopg.Connection, tick: str, payload: str | None, options: dict[str, Any], sqlstate: str, said: str
) -> None:
    with refused(sqlstate, said):
        call(admin, "publish", tick, payload, **options)
    assert take(admin, tick) == []


def test_publishing_an_unknown_type_is_refused(admin: psycopg.Connection) -> None:
    with refused("42704", "no_such"):
        call(admin, "publish", "no_such", "{}")
    with refused("42704", "no_such"):
        call(admin, "advertise", "no_such")


def test_a_role_publishes_only_what_it_may_and_has_advertised(
    admin: psycopg.Connection, connect: Connect, role: Any, name: Name
) -> None:
    made, publisher = name(), role("publisher")
    call(admin, "create_event_type", made, "n integer")
    with refused("55000", made, "advertise"):
        rows(admin, f"insert into {endpoint(made)} values (1)")
    session = connect(publisher)
    for attempt in (lambda: publish(session, made, 1), lambda: call(session, "publish", made, "{}")):
        with refused("42501"):
            attempt()
    with refused("42501", made):
        call(session, "advertise", made)
    rows(admin, f"grant insert on {endpoint(made)} to {publisher}")
    for attempt in (lambda: publish(session, made, 1), lambda: call(session, "publish", made, "{}")):
        with refused("55000", "advertise"):
            attempt()
    call(session, "advertise", made)
    call(session, "advertise", made)
    assert rows(session, "select role from pgps.advertisements where event_type = %s", [made]) == [(publisher,)]
    publish(session, made, 1)
    call(session, "unadvertise", made)
    with refused("55000", made):
        call(session, "unadvertise", made)
    with refused("55000", "advertise"):
        publish(session, made, 1)
    call(admin, "drop_event_type", made, True)


@pytest.mark.parametrize("form", ["insert", "publish", "type"])
def test_an_immediate_event_is_out_although_the_transaction_rolls_back(
    connect: Connect, admin: psycopg.Connection, name: Name, role: Any, form: str
) -> None:
    made, publisher = name(), role("publisher")
    make_type(admin, made, visibility="deferred" if form == "publish" else "immediate")
    call(admin, "subscribe", made, made)
    call(connect(publisher), "advertise", made)
    session = connect(publisher, autocommit=False)
    if form == "insert":
        publish(session, made, 1, 2)
    else:
        call(session, "publish", made, '[{"n": 1}, {"n": 2}]', "immediate" if form == "publish" else None)
    rows(admin, "select pgps.dispatch()")
    found = rows(admin, "select payload ->> 'n', publisher from pgps.receive(%s)", [made])
    assert found == [("1", publisher), ("2", publisher)]
    session.rollback()
    assert take(admin, made) == [1, 2]
    call(session, "publish", made, '{"n": 3}', "deferred")
    session.rollback()
    assert take(admin, made) == []


def test_a_non_guaranteed_event_is_tried_once(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, max_attempts=5)
    call(admin, "publish", made, '{"n": 1}', reliability="non-guaranteed")
    publish(admin, made, 2)
    rows(admin, "select pgps.dispatch()")
    for event_id in column(admin, "select event_id from pgps.receive(%s)", [made]):
        call(admin, "nack", made, event_id)
    call(admin, "ack", made)
    assert rows(admin, f"select n, attempts from pgps_queue.{made}_exception") == [(1, 1)]
    assert take(admin, made) == [2]


def test_settings_of_a_session_change_nothing_of_what_it_publishes(
    connect: Connect, admin: psycopg.Connection, role: Any, tick: str
) -> None:
    publisher = role("publisher")
    session = connect(publisher)
    call(session, "advertise", tick)
    for setting in ("pgps.publisher", "pgps.act_as"):
        rows(session, "select set_config(%s, 'postgres', false)", [setting])
    publish(session, tick, 1)
    rows(admin, "select pgps.dispatch()")
    assert column(admin, "select publisher from pgps.receive(%s)", [tick]) == [publisher]


@pytest.mark.parametrize("options", [{"reliability": "non-guaranteed"}, {"persistent": False}])
@pytest.mark.parametrize(
    "publishes",
    [
        "select pgps.publish('{t}', '{{\"n\": 1}}', reliability => 'guaranteed')",
        "select pgps.publish('{t}', '{{\"n\": 1}}', visibility => 'immediate', reliability => 'guaranteed')",
        "select pgps.execute('publish guaranteed {t} (1)')",
        "select pgps.execute('publish immediate guaranteed {t} (1)')",
        "insert into pgps_event.{t} (n) select 1 where set_config('pgps.reliability', 'guaranteed', true) <> ''",
    ],
)
def test_an_event_is_not_taken_as_guaranteed_that_a_crash_would_lose(
    admin: psycopg.Connection, name: Callable[..., str], options: dict[str, Any], publishes: str
) -> None:
    made = name()
    make_type(admin, made, **options)
    what = "is non-guaranteed" if "reliability" in options else "is not persistent"
    with refused("22023", f'event type "{made}" {what}', "without GUARANTEED"):
        rows(admin, publishes.format(t=made))
    call(admin, "subscribe", made, made, start="earliest")
    for plain in ("insert into pgps_event.{t} (n) values (2)", "select pgps.execute('publish non-guaranteed {t} (3)')"):
        rows(admin, plain.format(t=made))
    assert take(admin, made) == [2, 3]
    if "persistent" in options:
        call(admin, "alter_queue", f"{made}_in", persistent=True)
        rows(admin, publishes.format(t=made))
        assert take(admin, made) == [1]


@pytest.mark.parametrize("visibility", ["deferred", "immediate"])
def test_the_command_tag_counts_the_events(admin: psycopg.Connection, name: Name, visibility: str) -> None:
    made = name()
    make_type(admin, made, visibility=visibility)
    into = f"insert into {endpoint(made)} select generate_series(1, 3)"
    assert admin.execute(into.encode()).statusmessage == "INSERT 0 3"
    call(admin, "alter_event_type", made, add_attribute="b text")
    assert admin.execute(into.encode()).statusmessage == "INSERT 0 3"
