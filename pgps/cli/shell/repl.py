"""The interactive shell: prompt, history, completion, colours."""

from __future__ import annotations

import os
import re
from pathlib import Path

import platformdirs
import psycopg
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory
from prompt_toolkit.lexers import PygmentsLexer
from psycopg.pq import TransactionStatus

import pgps
from pgps.cli import _statements
from pgps.cli.shell.complete import Lexer, WordCompleter
from pgps.cli.shell.meta import COMMANDS, Quit, run_statement
from pgps.cli.shell.run import Runner
from pgps.cli.shell.scan import Statement, has_words, split

__all__ = ["converse"]

_MARKS = {TransactionStatus.INTRANS: "*", TransactionStatus.ACTIVE: "*", TransactionStatus.INERROR: "!"}
# After these the catalog may hold other names.
_DEFINES = re.compile(r"\s*(?:create|drop|alter|select|call|commit|rollback)\b", re.IGNORECASE)
_SECRET = re.compile(r"\bpassword\b|\bcreate\s+link\b|_link\s*\(", re.IGNORECASE)


class _History(FileHistory):
    """History that forgets at once what may hold a password."""

    def store_string(self, string: str) -> None:
        if not _SECRET.search(string):
            super().store_string(string)


def converse(runner: Runner) -> None:
    """Read statements and run them until Ctrl-D or \\q."""
    os.environ.setdefault("LESS", "-FRSX")
    completer = WordCompleter({name: command.does for name, command in COMMANDS.items()})
    prompt: PromptSession[str] = PromptSession(
        history=_History(str(_history_file())),
        lexer=PygmentsLexer(Lexer),
        completer=completer,
        complete_while_typing=True,
        auto_suggest=AutoSuggestFromHistory(),
        multiline=Condition(lambda: _unfinished(get_app().current_buffer.text)),
        prompt_continuation=lambda width, _line, _wrapped: "-> ".rjust(width),
    )
    runner.session.out.say(f"pgps {pgps.__version__}; \\? helps, \\h shows the statements, Ctrl-D leaves")
    _learn(runner, completer)
    while True:
        try:
            text = prompt.prompt(_prompt(runner))
            _run(runner, text)
        except KeyboardInterrupt:
            continue  # the line, or the statement, is given up
        except (EOFError, Quit):
            break
        if _DEFINES.match(text):
            _learn(runner, completer)
    if runner.transaction != TransactionStatus.IDLE:
        runner.session.out.say("the open transaction is rolled back")


def _run(runner: Runner, text: str) -> None:
    statements, rest = split(text)
    if has_words(rest):
        statements.append(Statement(rest.strip(), 1))
    for statement in statements:
        if not run_statement(runner, statement):
            return


def _prompt(runner: Runner) -> str:
    """Return `database=> `, with * in a transaction, ! in a failed one, # for a superuser."""
    info = runner.connection.info
    superuser = info.parameter_status("is_superuser") == "on"
    return f"{info.dbname}={_MARKS.get(info.transaction_status, '')}{'#' if superuser else '>'} "


def _unfinished(text: str) -> bool:
    """Tell whether Enter should begin another line."""
    if text.lstrip().startswith("\\"):
        return False
    return has_words(split(text)[1])


def _learn(runner: Runner, completer: WordCompleter) -> None:
    """Read the names for completion, unless that would disturb a transaction."""
    if runner.transaction != TransactionStatus.IDLE:
        return
    try:
        completer.learn([(row["kind"], row["word"]) for row in runner.connection.execute(_statements.WORDS)])
    except psycopg.Error:
        completer.learn([])  # not installed, or not allowed: key words still complete


def _history_file() -> Path:
    """Return PGPS_HISTORY, or a file in the user's state directory, for nobody else to read."""
    given = os.environ.get("PGPS_HISTORY")
    file = Path(given).expanduser() if given else platformdirs.user_state_path("pgps") / "sql_history"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.touch(mode=0o600, exist_ok=True)
    return file
