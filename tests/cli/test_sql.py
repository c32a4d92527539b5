"""`pgps sql`, without and with a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from pgps.cli._session import Options, Session
from pgps.cli.shell.repl import converse
from pgps.cli.shell.run import Runner
from tests.cli.conftest import Pgps

Name = Callable[..., str]


def test_language_and_sql_are_mixed(pgps: Pgps, name: Name) -> None:
    quote, sub = name("quote"), name("sub")
    result = pgps(
        "sql",
        stdin=f"""
        create event type {quote} as (symbol text, price numeric);
        ADVERTISE {quote};
        Create Subscription {sub} on {quote} where price < 80;
        publish {quote} ('IBM', 79.5);
        select pgps.dispatch();
        select payload ->> 'symbol' as symbol from pgps.receive('{sub}')
        """,
    )
    assert result.status == 0, result.err
    assert result.out.splitlines()[-2:] == ["symbol", "IBM"]


@pytest.mark.parametrize(
    "statement",
    [
        "insert into pgps_event.{0} values (1) on conflict do nothing",
        "merge into pgps_event.{0} e using (values (1)) v (n) on e.n = v.n when not matched then insert values (v.n)",
        "merge into pgps_queue.{0}_in e using (values (1)) v (n) on e.n = v.n when matched then delete",
    ],
)
def test_what_postgresql_refuses_at_an_endpoint_has_a_hint(pgps: Pgps, name: Name, statement: str) -> None:
    made = name("tick")
    assert pgps("sql", "-c", f"create event type {made} as (n integer); advertise {made}").status == 0
    result = pgps("sql", "-c", statement.format(made))
    assert result.status == 1
    assert "hint: An event has no key and is not changed" in result.err
    assert "_producer_seq" in result.err


def test_the_first_failure_ends_the_run_with_its_line_and_place(pgps: Pgps) -> None:
    result = pgps("sql", stdin="select 1;\n\nselect\n  bogus;\nselect 2;")
    assert result.status == 1
    assert result.out.splitlines() == ["?column?", "       1"]
    assert result.err.splitlines() == [
        "(1 row)",
        'error: line 3: column "bogus" does not exist',
        "line 4:   bogus",
        "          ^",
    ]


def test_an_error_of_the_language_has_its_place_and_the_syntax(pgps: Pgps) -> None:
    result = pgps("sql", "-c", "advertise 7")
    assert result.status == 1
    error, line, caret, *_, hint = result.err.splitlines()
    assert error.startswith("error: line 1: syntax error")
    assert caret.index("^") == line.index("7")
    assert hint == "hint: Syntax: ADVERTISE t"


def test_postgresql_s_own_statements_stay_sql(pgps: Pgps, name: Name) -> None:
    table = name("t")
    done = pgps(
        "sql",
        "-c", f"create table public.{table} (a int)",
        "-c", f"create rule r as on delete to public.{table} do instead nothing",
        "-c", f"drop rule r on public.{table}; drop table public.{table}",
    )  # fmt: skip
    assert done.status == 0, done.err


def test_results_are_json_with_types_when_it_is_asked_for(pgps: Pgps) -> None:
    out = pgps(
        "sql", "--json", "-c", "select 1.50 as n, null as x, '{\"a\": 1}'::jsonb as j, 'infinity'::timestamptz as t"
    ).out
    assert out == '[{"n": 1.50, "x": null, "j": {"a": 1}, "t": "infinity"}]\n'
    error = json.loads(pgps("sql", "--json", "-c", "select 1/0").err)
    assert error["sqlstate"] == "22012"


def test_columns_of_one_name_stay_apart(pgps: Pgps) -> None:
    assert pgps("sql", "-c", "select 1 as a, 2 as a").out.splitlines() == ["a  a", "1  2"]


def test_one_transaction_is_all_or_nothing(pgps: Pgps, name: Name) -> None:
    table = name("t")
    assert pgps("sql", "-1", "-c", f"create table public.{table} (a int); select 1/0").status == 1
    assert pgps("sql", "-c", f"table public.{table}").status == 1
    left = pgps("sql", "-1", "-c", f"create table public.{table} (a int); \\q", "-c", "select 1/0")
    assert left.status == 0
    assert pgps("sql", "-c", f"table public.{table}; drop table public.{table}").status == 0, "who quits has not failed"


def test_a_file_is_run_and_may_include_others(pgps: Pgps, tmp_path: Path) -> None:
    (tmp_path / "inner.sql").write_text("select 'inner';")
    (tmp_path / "outer.sql").write_text(f"\\i {tmp_path / 'inner.sql'}\nselect 'outer'; \\q\nselect 'never'")
    result = pgps("sql", "-f", str(tmp_path / "outer.sql"))
    assert result.status == 0
    assert "inner" in result.out
    assert "outer" in result.out
    assert "never" not in result.out
    assert pgps("sql", "-f", str(tmp_path / "none.sql")).status == 1


def test_copy_goes_out_but_not_in(pgps: Pgps) -> None:
    assert pgps("sql", "-c", "copy (values (1, 'a'), (2, 'b')) to stdout").out == "1\ta\n2\tb\n"
    result = pgps("sql", "-c", "copy pg_class from stdin")
    assert (result.status, "pgps publish" in result.err) == (1, True)


def test_backslash_commands_show_the_broker(pgps: Pgps, name: Name) -> None:
    quote = name("quote")
    pgps("type", "create", quote, "symbol text")
    for command in ("\\dt", "\\dq", f"\\d {quote}", f"\\d {quote}_in", "\\d"):
        assert quote in pgps("sql", "-c", command).out, command
    for command in ("\\ds", "\\da", "\\dr", "\\dx", "\\dw", "\\?", "\\h", "\\conninfo", "\\x", "\\timing"):
        assert pgps("sql", "-c", command).status == 0, command
    assert pgps("sql", "-c", "\\bogus").err.splitlines()[1] == "hint: \\? lists the commands"
    assert pgps("sql", "-c", "\\d no_such_thing").status == 1


def test_expanded_rows_have_a_line_for_each_column(pgps: Pgps) -> None:
    assert pgps("sql", "-x", "-c", "select 1 as a, 'x' as long").out == "-[ row 1 ]-\na     1\nlong  x\n"


def test_data_does_not_drive_the_terminal(pgps: Pgps) -> None:
    assert "\x1b" not in pgps("sql", "-c", "select e'\\x1b[2J' as boo").out
    assert "\x1b" not in pgps("sql", "-c", "do $$ begin raise exception e'\\x1b[2J'; end $$").err


@pytest.fixture
def typed(
    dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[str, str]]:
    """Type into the interactive shell; give what it wrote to stdout and stderr."""
    monkeypatch.setenv("PGPS_HISTORY", str(tmp_path / "history"))

    def run(keys: str) -> tuple[str, str]:
        session = Session(Options(dsn=dsn))
        with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
            pipe.send_text(keys)
            try:
                converse(Runner(session, interactive=True))
            finally:
                session.close()
        return capsys.readouterr()

    return run


def test_the_shell_waits_for_the_semicolon(typed: Callable[..., tuple[str, str]]) -> None:
    out, err = typed("select 'first\nsecond' as a\n, 2 as b\n;\n\\q\n")
    assert "first\\nsecond  2" in out
    assert "(1 row)" in err


def test_the_shell_goes_on_after_an_error(typed: Callable[..., tuple[str, str]]) -> None:
    out, err = typed("select bogus;\nselect 'still here' as a;\n\x04")
    assert 'error: column "bogus" does not exist' in err
    assert "still here" in out


def test_the_shell_makes_a_new_connection_when_its_own_is_lost(typed: Callable[..., tuple[str, str]]) -> None:
    out, err = typed("select pg_terminate_backend(pg_backend_pid());\nselect 'back' as again;\n\\q\n")
    assert "the connection is lost" in err
    assert "hint: Say which database" not in err
    assert "back" in out


def test_the_shell_tells_of_a_transaction_left_open(typed: Callable[..., tuple[str, str]]) -> None:
    _, err = typed("begin;\nselect 1;\n\\q\n")
    assert "the open transaction is rolled back" in err


def test_a_password_is_not_kept_in_the_history(typed: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    typed("select 1 as kept;\nselect 'password' as forgotten;\n\\q\n")
    history = (tmp_path / "history").read_text()
    assert "kept" in history
    assert "forgotten" not in history
    assert (tmp_path / "history").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("statements", "prompt"),
    [([], "=# "), (["begin"], "=*# "), (["begin", "select 1/0"], "=!# ")],
)
def test_the_prompt_shows_the_transaction(dsn: str, statements: list[str], prompt: str) -> None:
    from pgps.cli.shell.repl import _prompt
    from pgps.cli.shell.scan import Statement

    session = Session(Options(dsn=dsn))
    try:
        runner = Runner(session, interactive=True)
        for statement in statements:
            runner.run(Statement(statement, 1))
        assert _prompt(runner).endswith(prompt)
    finally:
        session.close()
