"""The shell's backslash commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pgps import _catalogue
from pgps.cli import event_types, exceptions, queues, rules, subscriptions
from pgps.cli._errors import report
from pgps.cli._format import ago, yes_no
from pgps.cli._output import Column
from pgps.cli.shell.run import Runner
from pgps.cli.shell.scan import Statement, has_words, split
from pgps.errors import PgpsError, UnknownName

__all__ = ["COMMANDS", "Quit", "ScriptFailed", "run_script", "run_statement"]

_SYNTAX = """\
CREATE EVENT TYPE t AS (a1 type1, a2 type2, …)
DROP EVENT TYPE t [CASCADE]
ALTER QUEUE q SET [NON-AUDITABLE | AUDITABLE]
ADVERTISE t
UNADVERTISE t
PUBLISH [IMMEDIATE | DEFERRED] [NON-GUARANTEED | GUARANTEED] t (v1, v2, …)
CREATE RULE r AS ON {INSERT|UPDATE|DELETE} TO table [WHERE filter] PUBLISH t (v1, v2, …)
CREATE [LOCAL | GLOBAL] SUBSCRIPTION s ON t [WHERE filter] [EXECUTE f(args)] [WITH priority]
CREATE LINK l TO address port USING user password
GRANT | REVOKE {PUBLISH | SUBSCRIBE} ON EVENT TYPE t {TO | FROM} role"""

_ADVERTISEMENTS = [
    Column("event_type", "type"),
    Column("role"),
    Column("advertised_at", "since", format=ago),
    Column("origin"),
]
_WORKERS = [
    Column("worker"),
    Column("service"),
    Column("pid", right=True),
    Column("state"),
    Column("leader", format=yes_no),
]


class Quit(Exception):
    """The shell was asked to end."""


class ScriptFailed(Exception):
    """A statement of a script failed, and that has been told."""


@dataclass(frozen=True, slots=True)
class Command:
    """A backslash command: what it does, and how."""

    does: str
    run: Callable[[Runner, str], None]


def _help(runner: Runner, _argument: str) -> None:
    out = runner.session.out
    width = max(map(len, COMMANDS))
    for name, command in COMMANDS.items():
        out.line(f"{name:<{width}}  {command.does}")
    out.line("\nEverything else is SQL or a statement of the language (\\h), and ends with a semicolon.")


def _syntax(runner: Runner, _argument: str) -> None:
    runner.session.out.line(_SYNTAX)


def _quit(_runner: Runner, _argument: str) -> None:
    raise Quit


def _expanded(runner: Runner, _argument: str) -> None:
    runner.expanded = not runner.expanded
    runner.session.out.say(f"one line for each column: {'on' if runner.expanded else 'off'}")


def _timing(runner: Runner, _argument: str) -> None:
    runner.timing = not runner.timing
    runner.session.out.say(f"timing: {'on' if runner.timing else 'off'}")


def _conninfo(runner: Runner, _argument: str) -> None:
    info = runner.connection.info
    where = info.host if info.host.startswith("/") else f"{info.host} port {info.port}"
    runner.session.out.line(
        f'database "{info.dbname}" as "{info.user}" on {where}, PostgreSQL {info.server_version // 10_000}'
    )


def _include(runner: Runner, argument: str) -> None:
    if not argument:
        raise PgpsError("\\i needs a file", hint="\\i FILE")
    run_script(runner, Path(argument).expanduser().read_text(encoding="utf-8"))


def _show(runner: Runner, argument: str) -> None:
    """Show what has the name: a type, a subscription, or else a queue."""
    if not argument:
        _types(runner, "")
        return
    session = runner.session
    if session.rows(_catalogue.event_types(argument)):
        event_types.show_type(session, argument)
    elif session.rows(_catalogue.subscriptions(argument)):
        subscriptions.show_subscription(session, argument)
    elif row := session.rows(_catalogue.queues(argument)):
        session.out.record(row[0], columns=queues.COLUMNS)
    else:
        raise UnknownName(f'no event type, subscription or queue is called "{argument}"', hint="\\dt, \\ds or \\dq")


def _list(query: Callable[[], _catalogue.Query], columns: list[Column], nothing: str) -> Callable[[Runner, str], None]:
    def run(runner: Runner, _argument: str) -> None:
        runner.session.out.rows(columns, runner.session.rows(query()), nothing=nothing)

    return run


_types = _list(_catalogue.event_types, event_types.COLUMNS, "no event types")

COMMANDS: dict[str, Command] = {
    "\\?": Command("this help", _help),
    "\\h": Command("the statement language", _syntax),
    "\\q": Command("quit", _quit),
    "\\d": Command("[NAME] show an event type, a subscription or a queue", _show),
    "\\dt": Command("event types", _types),
    "\\dq": Command("queues", _list(_catalogue.queues, queues.COLUMNS, "no queues")),
    "\\ds": Command("subscriptions", _list(_catalogue.subscriptions, subscriptions.COLUMNS, "no subscriptions")),
    "\\da": Command("advertisements", _list(_catalogue.advertisements, _ADVERTISEMENTS, "no advertisements")),
    "\\dr": Command("rules", _list(_catalogue.rules, rules.COLUMNS, "no rules")),
    "\\dx": Command("exceptions", _list(lambda: _catalogue.exceptions(limit=100), exceptions.COLUMNS, "no exceptions")),
    "\\dw": Command("workers", _list(_catalogue.workers, _WORKERS, "no workers")),
    "\\x": Command("one line for each column, on or off", _expanded),
    "\\timing": Command("how long each statement takes, on or off", _timing),
    "\\conninfo": Command("where this shell is connected", _conninfo),
    "\\i": Command("FILE run the statements of a file", _include),
}


def run_statement(runner: Runner, statement: Statement) -> bool:
    """Run a statement or a backslash command; tell of a failure and return whether it went well."""
    if not statement.text.startswith("\\"):
        return runner.run(statement)
    name, _, argument = statement.text.partition(" ")
    try:
        if name not in COMMANDS:
            raise PgpsError(f"there is no command {name}", hint="\\? lists the commands")
        COMMANDS[name].run(runner, argument.strip().removesuffix(";"))
    except Quit:
        raise
    except ScriptFailed:
        return False  # it has been told
    except Exception as error:  # whatever it is, the shell goes on
        report(error, json=runner.session.out.json, verbose=runner.session.options.verbose)
        return False
    return True


def run_script(runner: Runner, text: str) -> None:
    """Run all statements of a text, the last with or without its semicolon; stop at the first that fails."""
    statements, rest = split(text)
    if has_words(rest):
        line = text.count("\n", 0, len(text) - len(rest.lstrip())) + 1
        statements.append(Statement(rest.strip(), line))
    for statement in statements:
        if not run_statement(runner, statement):
            raise ScriptFailed
    runner.session.out.flush()
