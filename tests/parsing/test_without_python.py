"""On a server that has no PL/Python, the client takes definitions apart; everything else is as anywhere."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from pgps import install, parsing
from pgps.errors import BadArgument, InstallError
from tests.fix_server import Server

pytestmark = pytest.mark.timeout(600)

STORED = "select function, arguments from pgps_internal.parsed_text order by function, arguments::text"


@contextlib.contextmanager
def session(dsn: str, role: str | None = None) -> Iterator[psycopg.Connection]:
    """An autocommit connection of the superuser, or of a role, which is made when it is new."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        if role is not None:
            if connection.execute("select to_regrole(%s) is null", [role]).fetchone() == (True,):
                connection.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
            connection.execute(sql.SQL("set session authorization {}").format(sql.Identifier(role)))
        yield connection


def make_quote(connection: psycopg.Connection) -> None:
    parsing.define(connection, "select pgps.create_event_type('quote', 'symbol text not null, price numeric')")
    connection.execute("select pgps.advertise('quote'); grant select, insert on pgps_event.quote to public")


def subscribe(name: str, condition: str) -> str:
    return f"select pgps.subscribe('{name}', 'quote', filter => $f${condition}$f$)"


def asked_by(raised: pytest.ExceptionInfo[psycopg.Error]) -> list[parsing.Question]:
    return parsing.questions_in(raised.value.diag.message_detail)


def test_without_the_option_the_installer_names_it(bare_server: Server) -> None:
    with psycopg.connect(bare_server.base, autocommit=True) as connection:
        connection.execute("create database without_option")
    dsn = bare_server.dsn("without_option")
    with pytest.raises(InstallError, match="the server has no PL/Python 3") as raised:
        install.install(dsn)
    assert "pgps install --parser client" in str(raised.value.hint)
    assert raised.value.sqlstate == "58P01"
    assert not install.status(dsn).installed
    bare_server.drop("without_option")


def test_an_upgrade_keeps_who_parses(bare: str) -> None:
    before = install.status(bare)
    assert (before.parser, before.up_to_date, before.has_language) == ("client", True, False)
    with session(bare) as connection:
        connection.execute("update pgps_internal.installation set value = 'older' where key = 'code_digest'")
    assert not install.status(bare).up_to_date
    assert install.upgrade(bare) == before
    with session(bare) as connection:
        assert connection.execute("select pgps.parser()").fetchone() == ("client",)
    with pytest.raises(InstallError, match="the server has no PL/Python 3"):
        install.upgrade(bare, parser="server")


def test_an_event_is_published_matched_received_and_acknowledged(bare: str) -> None:
    with session(bare) as connection:
        make_quote(connection)
        parsing.define(connection, subscribe("dear", "price > 100 and symbol in ('IBM', 'AAPL')"))
        parsing.define(connection, "select pgps.subscribe('all', 'quote')")
        connection.execute("insert into pgps_event.quote (symbol, price) values ('IBM', 120), ('AAPL', 20), ('X', 200)")
        connection.execute("select pgps.dispatch()")
        rows = connection.execute("select payload ->> 'symbol' from pgps.receive('dear')").fetchall()
        assert rows == [("IBM",)]
        connection.execute("select pgps.ack('dear')")
        assert connection.execute("select count(*) from pgps.receive('all')").fetchone() == (3,)
        # To move a subscription takes its filter apart again, which was stored.
        connection.execute("select pgps.seek('dear', 'earliest')")
        assert connection.execute("select count(*) from pgps.receive('dear')").fetchone() == (1,)
        connection.execute("select pgps.reclaim(), pgps.health(), (select count(*) from pgps.metrics())")


def test_a_callback_a_rule_and_a_policy_are_defined_and_run(bare: str) -> None:
    with session(bare) as connection:
        make_quote(connection)
        connection.execute("create table seen (symbol text); create table trade (symbol text, price numeric)")
        connection.execute(
            "create function note(symbol text) returns void language sql as 'insert into seen values (symbol)'"
        )
        parsing.define(connection, "select pgps.subscribe('noted', 'quote', execute => 'note(symbol)')")
        parsing.define(
            connection,
            "select pgps.create_rule('traded', 'trade', 'insert', 'quote', array['new.symbol', 'new.price'],"
            " condition => 'new.price > 10')",
        )
        connection.execute("create role modest")
        connection.execute("grant modest to current_user")
        parsing.define(connection, "select pgps.create_policy('quote', 'cheap', 'modest', 'price < 40')")
        connection.execute("insert into trade values ('IBM', 5), ('IBM', 50)")
        connection.execute("select pgps.dispatch()")
        connection.execute("call pgps.run_subscribers()")
        assert connection.execute("select symbol from seen").fetchall() == [("IBM",)]
        connection.execute("drop owned by modest; drop role modest")


def test_what_is_refused_is_told_as_anywhere(bare: str) -> None:
    with session(bare) as connection:
        make_quote(connection)
        with pytest.raises(psycopg.errors.SyntaxError) as raised:
            parsing.define(connection, subscribe("wrong", "price > 1) or (true"))
        assert "At character" in str(raised.value.diag.message_detail)
        with pytest.raises(psycopg.errors.UndefinedColumn):
            parsing.define(connection, subscribe("wrong", "prize > 100"))
        parsing.define(connection, "select pgps.subscribe('twice', 'quote')")
        with pytest.raises(psycopg.errors.DuplicateObject):
            parsing.define(connection, "select pgps.subscribe('twice', 'quote')")


def test_who_only_publishes_and_receives_needs_nobody_to_parse(bare: str) -> None:
    with session(bare) as connection:
        make_quote(connection)
        connection.execute("select pgps.subscribe('all', 'quote')")
    with session(bare, "publisher") as connection:
        connection.execute("select pgps.advertise('quote')")
        connection.execute("insert into pgps_event.quote (symbol, price) values ('IBM', 1)")
    with session(bare) as connection:
        connection.execute("select pgps.dispatch()")
        assert connection.execute("select count(*) from pgps.receive('all')").fetchone() == (1,)
        assert connection.execute("select count(*) from pgps_internal.parsed_text").fetchone() == (1,)


def test_a_role_that_may_not_store_is_told_what_to_ask_for_and_its_own_call_succeeds_then(bare: str) -> None:
    with session(bare) as admin:
        make_quote(admin)
        with session(bare, "reader") as reader:
            call = subscribe("mine", "price > 100")
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="nobody has stored") as raised:
                reader.execute(call.encode())
            assert "pgps parse" in str(raised.value.diag.message_hint)
            assert asked_by(raised) == [
                parsing.Question.of("parse_filter", "price > 100", "quote", ["symbol", "price"])
            ]
            # The client of a role that may not store says the same, and changes nothing.
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="nobody has stored"):
                parsing.define(reader, call)
            parsing.store(admin, asked_by(raised))
            reader.execute(call.encode())
            # With another connection that may.
            parsing.define(reader, subscribe("other", "price < 3"), store_with=admin)
            names = reader.execute("select name, owner::text from pgps.subscriptions order by name").fetchall()
            assert names == [("mine", "reader"), ("other", "reader")]
            # What was parsed gives nobody a right.
            admin.execute("revoke select on pgps_event.quote from public")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(subscribe("third", "price > 100").encode())


# A result that claims that a filter over a table can read nothing but the event, so that the dispatcher asks it with
# the rights of the broker.
_POISON = {
    "text": "price > (select count(*) from secret)", "shape": "price > (select count(*) from public.secret)",
    "parameters": [], "safe": True, "attributes": ["price"], "functions": [], "operators": [">"], "types": [],
    "keys": [], "in_select": False, "pushed": None,
}  # fmt: skip


def poison() -> str:
    question = parsing.Question.of("parse_filter", "price > 1", "quote", ["symbol", "price"])
    return json.dumps([
        {"function": question.function, "arguments": json.loads(question.arguments), "result": _POISON}
    ])  # fmt: skip


@pytest.mark.parametrize("member_of", [None, "pgps_admin", "pgps_worker", "pgps_link", "subscriber"])
def test_nobody_but_the_installer_stores_what_was_parsed(bare: str, member_of: str | None) -> None:
    role = f"stranger_{member_of or 'of_all'}"
    with session(bare) as admin:
        make_quote(admin)
        admin.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
        if member_of == "subscriber":
            admin.execute(sql.SQL("grant create on schema public to {}").format(sql.Identifier(role)))
        elif member_of is not None:
            admin.execute(sql.SQL("grant {} to {}").format(sql.Identifier(member_of), sql.Identifier(role)))
        with session(bare, role) as stranger:
            for statement in (
                "select pgps.store_parsed(%(parser)s, %(results)s::jsonb)",
                "select pgps._call('store_parsed', jsonb_build_object('parser', %(parser)s::text))",
                "insert into pgps_internal.parsed_text select '', 'parse_filter', '[]', %(parser)s, '{}', now()",
                "update pgps_internal.parsed_text set result = '{}'",
                "delete from pgps_internal.parsed_text",
                "select * from pgps_internal.parsed_text",
                "select pgps_internal.find_parsed('parse_filter', '[]')",
                "alter table pgps_internal.parsed_text disable trigger all",
                "create or replace function pgps.parser() returns text language sql as 'select null::text'",
            ):
                with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidParameterValue)):
                    stranger.execute(statement.encode(), {"parser": parsing.parser(), "results": poison()})
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                stranger.execute(subscribe("mine", "price > 1").encode())
        assert admin.execute("select count(*) from pgps.subscriptions").fetchone() == (0,)
        assert admin.execute(
            b"select count(*) from pgps_internal.parsed_text where function = 'parse_filter'"
        ).fetchone() == (0,)
        admin.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(role)))


def test_a_member_of_the_installing_role_may_store(bare: str) -> None:
    with session(bare) as admin:
        make_quote(admin)
        admin.execute("create role deputy; grant postgres to deputy; grant select on pgps_event.quote to deputy")
        with session(bare, "deputy") as deputy:
            parsing.define(deputy, subscribe("mine", "price > 1"))
            assert deputy.execute("select count(*) from pgps.subscriptions").fetchone() == (1,)
        admin.execute(
            "revoke postgres from deputy; select pgps.unsubscribe('mine'); drop owned by deputy; drop role deputy"
        )


@pytest.mark.parametrize(
    ("parser", "results", "sqlstate"),
    [
        ("of another release", "[]", "55000"),
        (None, "[]", "55000"),
        ("", "{}", "22023"),
        ("", None, "22023"),
        ("", '[{"function": "do_grant", "arguments": [], "result": {}}]', "22023"),
        ("", '[{"function": "parse_filter", "arguments": {}, "result": {}}]', "22023"),
        ("", '[{"function": "parse_filter", "arguments": [], "result": "x"}]', "22023"),
        ("", '[{"function": "parse_filter", "arguments": []}]', "22023"),
        ("", "[7]", "22023"),
    ],
)
def test_what_is_no_result_is_not_stored(bare: str, parser: str | None, results: str | None, sqlstate: str) -> None:
    with session(bare) as connection:
        given = parsing.parser() if parser == "" else parser
        with pytest.raises(psycopg.Error) as raised:
            connection.execute("select pgps.store_parsed(%s, %s::jsonb)", [given, results])
        assert raised.value.sqlstate == sqlstate
        assert raised.value.diag.message_hint
        assert connection.execute("select count(*) from pgps_internal.parsed_text").fetchone() == (0,)


def test_results_of_another_release_are_not_believed_and_an_upgrade_parses_anew(bare: str) -> None:
    with session(bare) as connection:
        make_quote(connection)
        parsing.define(connection, subscribe("mine", "price > 100"))
        connection.execute("""
            update pgps_internal.parsed_text set parser = 'older', result = '{"safe": true}'
            where function = 'parse_filter'
        """)
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            connection.execute("select pgps.seek('mine', 'earliest')")
        connection.execute("update pgps_internal.installation set value = 'older' where key = 'code_digest'")
    install.upgrade(bare)
    with session(bare) as connection:
        connection.execute("select pgps.seek('mine', 'earliest')")


def test_a_filter_is_taken_apart_again_when_its_event_type_changes(bare: str) -> None:
    with session(bare) as connection:
        make_quote(connection)
        parsing.define(connection, subscribe("one", "price > 100"))
        parsing.define(connection, subscribe("two", "price > 200"))
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            connection.execute("select pgps.alter_event_type('quote', add_attribute => 'venue text')")
        parsing.define(connection, "select pgps.alter_event_type('quote', add_attribute => 'venue text')")
        connection.execute("select pgps.seek('one', 'earliest'), pgps.seek('two', 'now')")
        connection.execute("insert into pgps_event.quote (symbol, price, venue) values ('IBM', 150, 'N')")
        connection.execute("select pgps.dispatch()")
        assert connection.execute("select count(*) from pgps.receive('one')").fetchone() == (1,)


def test_composite_events_are_refused_with_the_remedy(bare: str) -> None:
    with session(bare) as connection:
        make_quote(connection)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="composite events need PL/Python") as raised:
            parsing.define(connection, "select pgps.create_composite_event('pair', 'quote ; quote')")
        assert "pgps install --parser server" in str(raised.value.diag.message_hint)


def test_what_is_asked_again_although_it_was_answered_ends(bare: str) -> None:
    detail = json.dumps({"parser": parsing.parser(), "questions": [{"function": "parse_callback", "arguments": ["f"]}]})
    with session(bare) as connection, pytest.raises(psycopg.errors.FeatureNotSupported, match="for ever"):
        parsing.define(
            connection, f"do $$ begin raise 'for ever' using errcode = '0A000', detail = $d${detail}$d$; end $$"
        )


def test_statements_of_the_language_are_not_kept(bare: str) -> None:
    with session(bare) as connection:
        parsing.define(connection, "select pgps.execute('CREATE EVENT TYPE quote AS (symbol text)')")
        parsing.define(connection, "select pgps.execute(%s)", ["ADVERTISE quote"])
        assert connection.execute(STORED).fetchall() == [("parse_attributes", ["symbol text"])]


def test_what_nobody_needs_any_more_is_swept_after_thirty_days(bare: str) -> None:
    with session(bare) as connection:
        make_quote(connection)
        parsing.define(connection, subscribe("mine", "price > 100"))
        parsing.define(connection, subscribe("gone", "price > 200"))
        connection.execute("select pgps.unsubscribe('gone')")
        count = "select count(*) from pgps_internal.parsed_text where function = 'parse_filter'"
        connection.execute("select pgps_internal.sweep_parsed()")
        assert connection.execute(count.encode()).fetchone() == (2,)
        connection.execute("update pgps_internal.parsed_text set kept_at = kept_at - interval '31 days'")
        connection.execute("select pgps.reclaim()")
        assert connection.execute(STORED).fetchall() == [
            ("parse_filter", ["price > 100", "quote", ["symbol", "price"]])
        ]
        connection.execute("select pgps.seek('mine', 'earliest')")


def test_another_connection_in_an_older_snapshot_is_told(bare: str) -> None:
    """In REPEATABLE READ the answers that another connection commits stay unseen: it ends with what was asked."""
    with session(bare) as admin, session(bare, "reader") as reader:
        make_quote(admin)
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="nobody has stored"):
            parsing.define(reader, "select pgps.check_filter('quote', 'price > 100')", store_with=admin)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("parse_nothing", "[]"),
        ("parse_filter", "{}"),
        ("parse_filter", "[1]"),
        ("parse_filter", "[]"),
        ("parse_callback", '[["f"], 2]'),
    ],
)
def test_what_is_no_question_is_refused(function: str, arguments: str) -> None:
    with pytest.raises(BadArgument):
        parsing.answer(parsing.Question(function, arguments))


@pytest.mark.parametrize(
    "detail", [None, "", "At character 3 of the text.", "[]", '{"questions": 7}', '{"questions": [{}]}']
)
def test_other_details_ask_nothing(detail: str | None) -> None:
    assert parsing.questions_in(detail) == []
