"""What a callback can be: a function of an event, a batch or a record, or a call with SQL over the attributes."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, refused, rows, value
from tests.fix_db import Connect

Name = Callable[..., str]
Role = Callable[..., str]


@pytest.fixture
def quote(admin: psycopg.Connection, name: Name) -> str:
    """An event type with a symbol and a price, and a schema of its name with functions that note what they get."""
    made = name("quote")
    make_type(admin, made, "symbol text, price numeric")
    rows(admin, f"create schema {made}; create table {made}.seen (place bigserial, what text)")
    note = f"insert into {made}.seen (what) values"
    for function, body in {
        f"event(e pgps_event.{made})": "'event ' || e.symbol",
        f"batch(e pgps_event.{made}[])": "'batch ' || cardinality(e)",
        "a_record(r record)": "'record ' || (r).symbol",
        f"all_three(e pgps_event.{made})": "'event'",
        f"all_three(e pgps_event.{made}[])": "'batch'",
        "all_three(e record)": "'record'",
        "taking(price numeric, symbol text, more integer = 7)": "format('%s %s %s', price, symbol, more)",
        "taking(word text)": "'text ' || word",
        "nothing()": "'nothing'",
        '"Of Me"("A b" text)': '"A b"',
    }.items():
        rows(
            admin,
            f"create function {made}.{function} returns void language plpgsql as $$ begin {note} ({body}); end $$",
        )
    return made


def seen(admin: psycopg.Connection, quote: str) -> list[str]:
    """Publish two events, run the callbacks, and return what they noted."""
    rows(admin, f"insert into pgps_event.{quote} values ('A', 1), ('B', 2)")
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")
    failed = rows(admin, "select sqlstate, error from pgps.exceptions where event_type = %s", [quote])
    assert failed == []
    return column(admin, f"select what from {quote}.seen order by place")


SPELLINGS = {
    "{q}.event": ["event A", "event B"],
    "{q}.event(pgps_event.{q})": ["event A", "event B"],
    "{q}.event({q})": ["event A", "event B"],
    "{q}.event({q}.*)": ["event A", "event B"],
    "{q}.batch": ["batch 2"],
    "{q}.batch(pgps_event.{q}[])": ["batch 2"],
    "{q}.a_record": ["record A", "record B"],
    "{q}.a_record(record)": ["record A", "record B"],
    "{q}.a_record({q})": ["record A", "record B"],
    "{q}.all_three": ["event", "event"],
    "{q}.all_three(pgps_event.{q})": ["event", "event"],
    "{q}.all_three(pgps_event.{q} [])": ["batch"],
    "{q}.ALL_THREE( Record )": ["record", "record"],
    "{q}.taking(price, symbol)": ["1 A 7", "2 B 7"],
    "{q}.taking(symbol => symbol, price => price * 2)": ["2 A 7", "4 B 7"],
    "{q}.taking({q}.price, 'x)' || symbol, (select count(*)::integer from {q}.seen))": ["1 x)A 0", "2 x)B 0"],
    "{q}.taking(lower(symbol))": ["text a", "text b"],
    "{q}.taking($$;'$$ || case when price in (2) then '(' else ')' end -- the end)\n)": ["text ;')", "text ;'("],
    '{q}."Of Me"(symbol)': ["A", "B"],
    "{q}.nothing()": ["nothing", "nothing"],
    "{q}.event()": ["event A", "event B"],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_way_to_write_a_callback(admin: psycopg.Connection, quote: str, name: Name, spelling: str) -> None:
    call(admin, "subscribe", name("s"), quote, execute=spelling.format(q=quote))
    assert seen(admin, quote) == SPELLINGS[spelling]


@pytest.mark.parametrize(
    ("execute", "expected"),
    [
        ("{q}.taking(price, symbol)", ["1 A 7", "2 B 7"]),
        ("{q}.event()", ["event A", "event B"]),
        ("{q}.a_record(record)", ["record A", "record B"]),
        ("{q}.batch(pgps_event.{q}[])", ["batch 2"]),
        ("{q}.taking(symbol || ';' -- the end\n)", ["text A;", "text B;"]),
    ],
)
def test_the_statement_language_passes_the_arguments(
    admin: psycopg.Connection, quote: str, name: Name, execute: str, expected: list[str]
) -> None:
    subscription = name("s")
    statement = (
        f"create subscription {subscription} on {quote} where price < 9 execute {execute.format(q=quote)} with 3"
    )
    assert call(admin, "execute", statement) == "CREATE SUBSCRIPTION"
    assert value(admin, "select priority from pgps.subscriptions where name = %s", [subscription]) == 3
    assert seen(admin, quote) == expected


def test_the_view_shows_the_callback_as_it_can_be_given_again(
    admin: psycopg.Connection, quote: str, name: Name
) -> None:
    rows(admin, f"set search_path = {quote}, public")
    for execute, shown in {
        "taking(price, symbol)": f"{quote}.taking(price, symbol)",
        "a_record(record)": f"{quote}.a_record(record)",
        "all_three": f"{quote}.all_three",
        f"all_three(pgps_event.{quote}[])": f"{quote}.all_three(pgps_event.{quote}[])",
    }.items():
        subscription = name("s")
        call(admin, "subscribe", subscription, quote, execute=execute)
        assert value(admin, "select execute from pgps.subscriptions where name = %s", [subscription]) == shown
        call(admin, "subscribe", name("s"), quote, execute=shown)
    rows(admin, "reset search_path")


@pytest.mark.parametrize(
    ("execute", "state", "said"),
    [
        ("{q}.taking(symbol, price)", "42883", "price numeric"),
        ("{q}.taking(nosuch)", "42703", "price numeric"),
        ("{q}.nosuch(price)", "42883", "price numeric"),
        ("{q}.nosuch", "42883", "{q}.nosuch(attribute"),
        ("{q}.event(record)", "42883", "record"),
        ("{q}.batch(pgps_event.{q})", "42883", "does not exist"),
        ("{q}.event(pgps_event.other)", "42883", "pgps_event.other"),
        ("count(price)", "42809", "aggregate"),
        ("{q}.taking(symbol) over ()", "42601", "over"),
        ("{q}.taking(price); drop table {q}.seen", "42601", "drop"),
        ("{q}.taking(symbol)) from {q}.seen; drop table {q}.seen; --", "42601", ")"),
        ("{q}.taking(symbol); end; $$; drop table {q}.seen", "42601", "end"),
        ("{q}.taking($1)", "42601", "$1"),
        ("1 + 1", "42601", "1"),
        ("", "42601", "end of the statement"),
    ],
)
def test_a_callback_that_cannot_be_called_is_refused_when_given(
    admin: psycopg.Connection, quote: str, name: Name, execute: str, state: str, said: str
) -> None:
    with refused(state, said.format(q=quote)) as caught:
        call(admin, "subscribe", name("s"), quote, execute=execute.format(q=quote))
    assert caught.value.diag.message_hint


def test_arguments_are_evaluated_with_the_rights_of_the_subscriber(
    admin: psycopg.Connection, connect: Connect, role: Role, quote: str, name: Name
) -> None:
    who = role("reader")
    rows(admin, f"grant usage on schema {quote} to {who}; grant select on pgps_event.{quote} to {who}")
    rows(admin, f"create table {quote}.secret as select 'secret'::text as word")
    reader = connect(who)
    with refused("42501", "secret"):
        call(reader, "subscribe", name("s"), quote, execute=f"{quote}.taking((select word from {quote}.secret))")
    rows(admin, f"revoke all on function {quote}.taking(text) from public")
    with refused("42501", "taking"):
        call(reader, "subscribe", name("s"), quote, execute=f"{quote}.taking(symbol)")
    rows(admin, f"grant all on function {quote}.taking(text) to {who}; grant select on {quote}.secret to {who}")
    rows(admin, f"grant all on {quote}.seen to {who}; grant all on all sequences in schema {quote} to {who}")
    found = name("s")
    call(
        reader, "subscribe", found, quote, execute=f"{quote}.taking((select word from {quote}.secret))", max_attempts=1
    )
    assert seen(admin, quote) == ["text secret"] * 2
    rows(admin, f"revoke all on {quote}.secret from {who}; insert into pgps_event.{quote} values ('A', 1)")
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")
    assert column(admin, "select sqlstate from pgps.exceptions where subscription = %s", [found]) == ["42501"]


def test_a_forged_callback_is_a_call_all_the_same(admin: psycopg.Connection, quote: str) -> None:
    given = {"types": {"event_type": quote, "pattern": False, "types": [quote]}, "scope": "local", "priority": 0}
    given |= {"start": "now", "max_attempts": 5, "schemas": [], "name": "forged"}
    for function, arguments in (
        (f"{quote}.taking", "symbol); end if; drop table x; if (true"),
        (f"{quote}.taking(symbol); --", None),
        (f"{quote}.taking -- ", "symbol"),
        (f"{quote}.taking(symbol)", "price"),
    ):
        forged = given | {"callback": {"function": function, "arguments": arguments}}
        with refused("42601"):
            rows(admin, "select pgps._call('subscribe', %s)", [psycopg.types.json.Jsonb(forged)])


def test_a_callback_with_arguments_outlives_a_new_attribute_and_stops_without_its_function(
    admin: psycopg.Connection, quote: str, name: Name
) -> None:
    found = name("s")
    call(admin, "subscribe", found, quote, execute=f"{quote}.taking(price, symbol)")
    call(admin, "alter_event_type", quote, add_attribute="size integer")
    assert seen(admin, quote) == ["1 A 7", "2 B 7"]
    rows(admin, f"drop function {quote}.taking(numeric, text, integer), {quote}.taking(text)")
    rows(admin, f"insert into pgps_event.{quote} values ('A', 1)")
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")
    assert value(admin, "select state from pgps.subscriptions where name = %s", [found]) == "suspended"


def test_a_prefix_takes_a_callback_with_arguments(admin: psycopg.Connection, quote: str, name: Name) -> None:
    call(admin, "subscribe", name("s"), f"{quote}*", execute=f"{quote}.taking(price, symbol)")
    make_type(admin, f"{quote}_2", "price numeric, symbol text")
    rows(admin, f"insert into pgps_event.{quote}_2 values (3, 'C')")
    assert seen(admin, quote) == ["3 C 7", "1 A 7", "2 B 7"]
    call(admin, "drop_event_type", f"{quote}_2", True)


@pytest.mark.parametrize(
    ("execute", "change"),
    [
        ("{q}.event", "alter function {q}.event rename to happened"),
        ("event", "alter function {q}.event rename to happened"),
        ("{q}.event", "alter function {q}.event set schema {q}_new"),
        ("event", "alter function {q}.event set schema {q}_new"),
        ("{q}.event(pgps_event.{q})", "alter routine {q}.event(pgps_event.{q}) rename to \"Odd; name\""),
        ('{q}."Of Me"(symbol)', 'alter function {q}."Of Me" rename to "of me"'),
        ("{q}.event", "alter schema {q} rename to {q}_renamed; alter schema {q}_renamed rename to {q}_again"),
        ("event", "alter schema {q} rename to {q}_renamed"),
    ],
)  # fmt: skip
def test_a_callback_goes_on_when_its_function_is_renamed(
    admin: psycopg.Connection, name: Name, quote: str, execute: str, change: str
) -> None:
    rows(admin, f"create schema {quote}_new; alter table {quote}.seen set schema {quote}_new")
    for function in ("event", '"Of Me"'):
        body = f"begin insert into {quote}_new.seen (what) values ('got'); end"
        taken = f"e pgps_event.{quote}" if function == "event" else '"A b" text'
        rows(
            admin,
            f"create or replace function {quote}.{function}({taken}) returns void language plpgsql as $${body}$$",
        )
    rows(admin, f"set search_path = public, {quote}")
    call(admin, "subscribe", quote, quote, execute=execute.format(q=quote))
    rows(admin, "reset search_path")
    rows(admin, change.format(q=quote))
    rows(admin, f"insert into pgps_event.{quote} values ('A', 1), ('B', 2)")
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")
    assert rows(admin, "select sqlstate, error from pgps.exceptions where event_type = %s", [quote]) == []
    assert column(admin, f"select what from {quote}_new.seen") == ["got", "got"]


def test_who_renames_one_of_several_functions_of_a_name_is_told_of_the_callback(
    admin: psycopg.Connection, quote: str
) -> None:
    call(admin, "subscribe", quote, quote, execute=f"{quote}.all_three")
    said: list[str | None] = []
    admin.add_notice_handler(lambda notice: said.append(notice.message_primary))
    rows(admin, f"alter function {quote}.all_three(record) rename to one")
    assert [text for text in said if quote in str(text) and f"{quote}.one" in str(text)]
    rows(admin, f"alter function {quote}.one rename to all_three")
    assert seen(admin, quote) == ["event", "event"]
