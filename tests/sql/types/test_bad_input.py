"""Bad input gets an error that names the value and the remedy; nothing is lost and nobody else is disturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import (
    call,
    column,
    endpoint,
    ids,
    make_type,
    numbers,
    publish,
    queue,
    quoted,
    refused,
    rows,
    value,
)
from tests.fix_db import Connect


@pytest.fixture
def quote(admin: psycopg.Connection, name: Callable[..., str]) -> str:
    """An event type that everybody may use."""
    made = name("quote")
    make_type(admin, made, "n integer not null, price numeric check (price > 0), word text")
    return made


@pytest.fixture
def witness(admin: psycopg.Connection, quote: str, name: Callable[..., str]) -> Iterator[str]:
    """A subscription that gets what is published after whatever the test does."""
    made = name("witness")
    call(admin, "subscribe", made, quote)
    yield made
    publish(admin, quote, 77)
    rows(admin, "select pgps.dispatch()")
    assert numbers(admin, made)[-1:] == [77]


UNKNOWN = [
    ("select pgps.subscribe('x', 'nosuch')", "nosuch"),
    ("select pgps.advertise('nosuch')", "nosuch"),
    ("select pgps.unadvertise('nosuch')", "nosuch"),
    ("select pgps.publish('nosuch', '{{}}')", "nosuch"),
    ("select pgps.drop_event_type('nosuch')", "nosuch"),
    ("select pgps.alter_event_type('nosuch', add_attribute => 'a integer')", "nosuch"),
    ("select pgps.alter_queue('nosuch_in', auditable => true)", "nosuch_in"),
    ("select pgps.create_policy('nosuch', 'p', 'postgres', 'true')", "nosuch"),
    ("select pgps.create_policy('{t}', 'p', 'nobody_here', 'true')", "nobody_here"),
    ("select pgps.drop_policy('{t}', 'nosuch')", "nosuch"),
    ("select pgps.create_rule('r', 'pg_class', 'insert', 'nosuch', array['1'])", "nosuch"),
    ("select pgps.drop_rule('nosuch')", "nosuch"),
    ("select pgps.unsubscribe('nosuch')", "nosuch"),
    ("select pgps.pause('nosuch')", "nosuch"),
    ("select pgps.resume('nosuch')", "nosuch"),
    ("select pgps.seek('nosuch', 'now')", "nosuch"),
    ("select * from pgps.receive('nosuch')", "nosuch"),
    ("select pgps.ack('nosuch')", "nosuch"),
    ("select pgps.nack('nosuch', 1)", "nosuch"),
    ("select pgps.nack_events('nosuch', array[1])", "nosuch"),
    ("select * from pgps.explain('nosuch', 1)", "nosuch"),
    ("select pgps.retry_exception('nosuch')", "nosuch"),
    ("select pgps.discard_exception('{t}', subscription => 'nosuch')", "nosuch"),
    ("select pgps.run_subscriber('nosuch')", "nosuch"),
    ("select pgps.drop_link('nosuch')", "nosuch"),
    ("select pgps.configure('nosuch', '1')", "nosuch"),
    ("select pgps.execute('ADVERTISE nosuch')", "nosuch"),
]


@pytest.mark.parametrize(("statement", "named"), UNKNOWN)
def test_an_unknown_name_is_named(admin: psycopg.Connection, quote: str, statement: str, named: str) -> None:
    with refused("42704", named) as caught:
        rows(admin, statement.format(t=quote))
    assert caught.value.diag.message_hint


WRONG = [
    ("select pgps.subscribe('x', '{t}', scope => 'planet')", "22023", "planet"),
    ("select pgps.subscribe('x', '{t}', max_attempts => 0)", "22023", "0"),
    ("select pgps.subscribe('x', '{t}', handler => 'both')", "22023", "both"),
    ("select pgps.subscribe('x', '{t}', start => 'yesterday')", "22023", "yesterday"),
    ("select pgps.subscribe(null, '{t}')", "22023", "name"),
    ("select pgps.subscribe('x', null)", "22023", "name"),
    ("select pgps.subscribe('x', '{t}', execute => 'no_such_function')", "42883", "no_such_function"),
    ("select pgps.publish('{t}', '{{\"n\": 1, \"colour\": 2}}')", "42703", "colour"),
    ("select pgps.publish('{t}', '7')", "22023", "number"),
    ("select pgps.publish('{t}', null)", "22023", "null"),
    ("select pgps.publish('{t}', '{{\"n\": 1}}', visibility => 'soon')", "22023", "soon"),
    ("select pgps.publish('{t}', '{{\"n\": 1}}', reliability => 'maybe')", "22023", "maybe"),
    ("select pgps.publish('{t}', '{{\"n\": 1}}', producer => 'p')", "22023", "producer"),
    ("select pgps.create_event_type('{t}', 'n integer')", "42710", "{t}"),
    ("select pgps.create_event_type('x', null)", "22023", "x"),
    ("select pgps.create_event_type('x', 'n integer', visibility => 'dark')", "22023", "dark"),
    ("select pgps.create_event_type('x', 'n integer', reliability => 'some')", "22023", "some"),
    ("select pgps.create_event_type('x', 'n integer', handler => 'none')", "22023", "none"),
    ("select pgps.alter_event_type('{t}')", "22023", "{t}"),
    ("select pgps.alter_event_type('{t}', drop_attribute => 'colour')", "42703", "colour"),
    ("select pgps.alter_queue('{t}_in', retention => '-1 day')", "22023", "-1 day"),
    ("select pgps.create_rule('r', 'pg_class', 'select', '{t}', array['1'])", "22023", '"select"'),
    ("select pgps.create_rule('r', null, 'insert', '{t}', array['1'])", "22023", "table_name"),
    ("select pgps.create_rule('r', 'pg_class', 'insert', '{t}', null)", "22023", "attributes"),
    ("select pgps.create_rule('r', 'pg_class', 'insert', '{t}', array['1', null])", "22023", "null"),
    ("select pgps.create_link('l', 'nonsense')", "22023", "l"),
    ("select pgps.create_link('l', 'host=x', 'up')", "22023", "up"),
    ("select pgps.nack('{w}', null)", "22023", "null"),
    ("select pgps.seek('{w}', null)", "22023", "null"),
    ("select pgps.create_policy('{t}', 'p', 'pgps_admin', null)", "22023", "null"),
    ("select * from pgps.receive('{w}', 0)", "22023", "0"),
    ("select pgps.dispatch(0)", "22023", "0"),
    ("select pgps.execute('nonsense')", "42601", "nonsense"),
    (
        "select pgps.create_rule('r', 'pg_class', 'insert', '{t}', '{{{{a,b}},{{c,d}}}}')",
        "22023",
        "more than one dimension",
    ),
    (
        "select pgps.create_composite_event('x', '{t} a ; {t} b', within => '2000000000 days')",
        "22023",
        "within 2000000000 days",
    ),
    (
        "select pgps.create_composite_event('x', '{t} a ; {t} b', within => '100000000 days')",
        "22023",
        "within 100000000 days",
    ),
    (
        "select pgps.create_composite_event('x', '{t} a', time_basis => 'occurrence', lateness => '400000 days')",
        "22023",
        "lateness 400000 days",
    ),
    ("select pgps.nack('{w}', 1, retry_in => '178000000 years')", "22023", "178000000 years"),
    ("select pgps.nack('{w}', 1, retry_in => '1001 years')", "22023", "retry_in 1001 years"),
    ("select pgps.nack_events('{w}', array[1], retry_in => '200000 years')", "22023", "200000 years"),
]


@pytest.mark.parametrize(("statement", "sqlstate", "named"), WRONG)
def test_a_bad_argument_is_named_with_its_remedy(
    admin: psycopg.Connection, quote: str, witness: str, statement: str, sqlstate: str, named: str
) -> None:
    with refused(sqlstate, named.format(t=quote)) as caught:
        rows(admin, statement.format(t=quote, w=witness))
    assert caught.value.diag.message_hint


FILTERS = [
    ("n > 1; select 1", "42601", ";"),
    ("n > 1) or (true", "42601", ")"),
    ("n >", "42601", ""),
    ("n > > 1 and", "42601", ""),
    ("colour = 1", "42703", "colour"),
    ("n + 1", "42804", "boolean"),
    ("n = 'one'", "22P02", "one"),
    ("n like 'a'", "42883", "operator"),
    ("no_such(n)", "42883", "no_such"),
    ("n in (select n from no_such_table)", "42P01", "no_such_table"),
    ("count(*) > 1", "42803", "aggregate"),
    ("", "22023", "empty"),
]


@pytest.mark.parametrize(("predicate", "sqlstate", "named"), FILTERS)
def test_a_filter_that_cannot_be_is_refused_where_it_is_wrong(
    admin: psycopg.Connection,
    quote: str,
    witness: str,
    name: Callable[..., str],
    predicate: str,
    sqlstate: str,
    named: str,
) -> None:
    found = name("s")
    with refused(sqlstate, named) as caught:
        call(admin, "subscribe", found, quote, predicate)
    error = caught.value.diag
    if sqlstate in ("42601", "42703", "42883", "42P01"):
        assert error.internal_position or error.statement_position or "At character" in (error.message_detail or "")
    assert rows(admin, "select * from pgps.subscriptions where name = %s", [found]) == []


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("insert into {e} (n) values (null)", "23502"),
        ("insert into {e} (n, price) values (1, -1)", "23514"),
        ("insert into {e} (n) values ('one')", "22P02"),
        ("insert into {e} (colour) values (1)", "42703"),
        ("select pgps.publish('{t}', '{{\"price\": 1}}')", "23502"),
        ("select pgps.publish('{t}', '{{\"n\": \"one\"}}')", "22P02"),
        ("select pgps.publish('{t}', '{{\"n\": null}}', visibility => 'immediate')", "23502"),
    ],
)
def test_an_event_that_breaks_its_type_is_not_published(
    admin: psycopg.Connection, quote: str, witness: str, statement: str, sqlstate: str
) -> None:
    with refused(sqlstate):
        rows(admin, statement.format(e=endpoint(quote), t=quote))
    assert rows(admin, f"select * from {queue(quote, 'in')}") == []


def test_two_subscriptions_of_one_name_are_refused(
    admin: psycopg.Connection, quote: str, witness: str, connect: Connect, role: Callable[..., str]
) -> None:
    for connection in (admin, connect(role())):
        with refused("42710", witness, "unsubscribe"):
            call(connection, "subscribe", witness, quote)


def test_a_type_nobody_advertises_cannot_be_subscribed_to(admin: psycopg.Connection, name: Callable[..., str]) -> None:
    made = name()
    call(admin, "create_event_type", made, "n integer")
    with refused("55000", made, "pgps.advertise"):
        call(admin, "subscribe", name("s"), made)
    with refused("55000", made, "pgps.advertise"):
        publish(admin, made, 1)


def test_without_the_right_nobody_subscribes_or_advertises(
    admin: psycopg.Connection, quote: str, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    rows(admin, f"revoke all on {endpoint(quote)} from public")
    alice = connect(role("alice"))
    with refused("42501", quote, "grant select"):
        call(alice, "subscribe", name("s"), quote)
    with refused("42501", quote, "grant insert"):
        call(alice, "advertise", quote)
    with refused("42501", quote):
        call(alice, "publish", quote, Jsonb({"n": 1}))
    with refused("42501", "grant pgps_admin"):
        call(alice, "create_event_type", name(), "n integer")


def test_only_what_was_received_is_acknowledged(admin: psycopg.Connection, quote: str, witness: str) -> None:
    publish(admin, quote, 1, 2, 3)
    rows(admin, "select pgps.dispatch()")
    assert call(admin, "ack", witness) == 0
    first = ids(admin, witness, 1)[0]
    for event in (first + 1, first + 1000, -1):
        with refused("55000", str(event), witness):
            call(admin, "ack", witness, event)
        with refused("55000", str(event), witness):
            call(admin, "nack", witness, event)
    assert call(admin, "ack", witness, first) == 1
    with refused("55000", str(first)):
        call(admin, "ack", witness, first)
    assert numbers(admin, witness) == [2, 3]


@pytest.mark.parametrize(
    ("body", "sqlstate"),
    [
        ("raise 'no' using errcode = 'ZZ001';", "ZZ001"),
        ("commit;", "2D000"),
        ("rollback;", "2D000"),
        ("perform 1 / 0;", "22012"),
    ],
)
def test_a_callback_that_raises_or_commits_fails_for_its_event_only(
    admin: psycopg.Connection, quote: str, witness: str, name: Callable[..., str], body: str, sqlstate: str
) -> None:
    function, found = name("f"), name("s")
    rows(
        admin,
        f"create function public.{function}(e {endpoint(quote)}) returns void language plpgsql as "
        f"$$ begin if (e).n = 2 then {body} end if; end $$",
    )
    call(admin, "subscribe", found, quote, execute=f"public.{function}", max_attempts=1)
    publish(admin, quote, 1, 2, 3)
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")
    failed = f"select n, sqlstate, state from {queue(quote, 'exception')}"
    assert rows(admin, failed) == [(2, sqlstate, "failed")]
    assert value(admin, "select delivered from pgps.subscriptions where name = %s", [found]) >= 2


def test_a_dropped_callback_suspends_its_subscription_and_keeps_the_events(
    admin: psycopg.Connection, quote: str, witness: str, name: Callable[..., str]
) -> None:
    function, found = name("f"), name("s")
    create = f"create function public.{function}(e {endpoint(quote)}) returns void language sql as 'select'"
    rows(admin, create)
    call(admin, "subscribe", found, quote, execute=f"public.{function}")
    rows(admin, f"drop function public.{function}")
    publish(admin, quote, 1)
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")
    state, error = rows(admin, "select state, last_error from pgps.subscriptions where name = %s", [found])[0]
    assert state == "suspended"
    assert function in error
    rows(admin, create)
    call(admin, "resume", found)
    rows(admin, "call pgps.run_subscribers()")
    assert rows(admin, f"select * from {queue(quote, 'exception')}") == []


def test_a_callback_without_end_is_stopped_by_the_timeout_and_disturbs_nobody(
    admin: psycopg.Connection, quote: str, witness: str, name: Callable[..., str]
) -> None:
    function, found = name("f"), name("s")
    rows(
        admin,
        f"create function public.{function}(e {endpoint(quote)}) returns void language plpgsql as "
        "$$ begin loop end loop; end $$",
    )
    call(admin, "subscribe", found, quote, execute=f"public.{function}", max_attempts=1)
    publish(admin, quote, 1)
    rows(admin, "select pgps.dispatch()")
    rows(admin, "set statement_timeout = '300ms'")
    with refused("57014"):
        call(admin, "run_subscriber", found)
    rows(admin, "reset statement_timeout")
    assert call(admin, "fail_delivery", found, "57014", "took too long") is not None
    assert column(admin, f"select sqlstate from {queue(quote, 'exception')}") == ["57014"]
    call(admin, "unsubscribe", found)


def test_a_payload_of_fifty_megabytes_arrives(admin: psycopg.Connection, quote: str, name: Callable[..., str]) -> None:
    found = name("s")
    call(admin, "subscribe", found, quote, "n = 5")
    rows(admin, f"insert into {endpoint(quote)} (n, word) values (5, repeat('x', 50 * 1024 * 1024))")
    rows(admin, "select pgps.dispatch()")
    length = "select length(payload ->> 'word') from pgps.receive(%s)"
    assert column(admin, length, [found]) == [50 * 1024 * 1024]
    call(admin, "ack", found)


def test_a_type_of_a_thousand_attributes_works(admin: psycopg.Connection, name: Callable[..., str]) -> None:
    made, found = name(), name("s")
    make_type(admin, made, ", ".join(f"a{number} integer" for number in range(1000)))
    call(admin, "subscribe", found, made, "a999 = 7 and a0 is null")
    rows(admin, f"insert into {endpoint(made)} (a999, a1) values (7, 1), (8, 2)")
    rows(admin, "select pgps.dispatch()")
    assert column(admin, "select (payload ->> 'a1')::integer from pgps.receive(%s)", [found]) == [1]
    assert value(admin, f"select count(*) from {queue(made, 'in')}") in (1, 2)


def test_more_attributes_than_a_table_can_have_are_refused(admin: psycopg.Connection, name: Callable[..., str]) -> None:
    made = name()
    with refused("54011"):
        call(admin, "create_event_type", made, ", ".join(f"a{number} integer" for number in range(1700)))
    assert rows(admin, "select * from pgps.event_types where name = %s", [made]) == []


@pytest.mark.parametrize("depth", [100, 3000, 30000])
def test_a_filter_nested_beyond_reason_is_refused_or_works(
    admin: psycopg.Connection, quote: str, witness: str, name: Callable[..., str], depth: int
) -> None:
    found = name("s")
    try:
        call(admin, "subscribe", found, quote, "(" * depth + "n = 1" + ")" * depth)
    except psycopg.Error as error:
        if error.sqlstate not in ("54001", "42601", "54000"):
            raise
        assert depth > 100


def test_a_huge_filter_works(admin: psycopg.Connection, quote: str, witness: str, name: Callable[..., str]) -> None:
    found = name("s")
    call(admin, "subscribe", found, quote, f"n in ({', '.join(str(number) for number in range(3000))})")
    publish(admin, quote, 2999, 3000)
    rows(admin, "select pgps.dispatch()")
    assert numbers(admin, found) == [2999]
    assert quoted(found)
