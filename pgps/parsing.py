"""Definitions in a database without PL/Python: the client takes them apart, with the modules that the server would run.

    with psycopg.connect("dbname=mine user=postgres") as connection:
        parsing.define(connection, "select pgps.subscribe('mine', 'stock_quote', filter => 'price > 100')")

The server believes what is stored here, and it decides which code runs with whose rights. So only the role that
installed pgps, its members and superusers may store; see the how-to page about managed PostgreSQL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Composed

from pgps import _parsers
from pgps.errors import BadArgument

__all__ = [
    "Question",
    "answer",
    "define",
    "parser",
    "prepare",
    "questions_in",
    "repeat",
    "store",
    "store_for_subscriptions",
]

T = TypeVar("T")
# At once; a statement of the server should not grow without end.
PORTION = 1000
# A statement that still asks after so many answers will never end.
LIMIT = 1_000_000

_STORE = "select pgps.store_parsed(%s, %s::jsonb)"
_OF_SUBSCRIPTIONS = """
    select u.function, u.arguments::text from pgps_internal.texts_in_use(null) u
    where pgps_internal.find_parsed(u.function, u.arguments) is null
"""
_modules: dict[str, ModuleType] = {}


@dataclass(frozen=True, slots=True)
class Question:
    """What the server asks: the name of a parser (`parse_filter` …), and its arguments as a JSON array."""

    function: str
    arguments: str

    @classmethod
    def of(cls, function: str, *arguments: Any) -> Question:
        """Return the question of a call with these arguments: text, and lists of text."""
        return cls(function, json.dumps(arguments))


def parser() -> str:
    """Return the digest of the parser in this release; the server believes no other than its own."""
    return _parsers.parser_digest()


def answer(question: Question) -> str:
    """Return what the parser makes of the arguments, as JSON; an error in them is {"error": {…}}.

    Raises BadArgument for what is no question of pgps.
    """
    arguments = json.loads(question.arguments)
    if question.function not in _parsers.PARSERS or not _are_texts(arguments):
        raise BadArgument(
            f"not a question of pgps: {question.function} {question.arguments[:200]}",
            hint='Give the detail of the error as it stands: {"parser": …, "questions": […]}.',
            sqlstate="22023",
        )
    try:
        return _parser(question.function)(*arguments)
    except TypeError as error:
        raise BadArgument(f"{question.function} does not take {question.arguments[:200]}", sqlstate="22023") from error


@cache
def _parser(function: str) -> Callable[..., str]:
    module = _parsers.load(_parsers.PARSERS[function], _modules)
    call: Callable[..., str] = _modules["calling"].telling_errors(getattr(module, function))
    return call


def _are_texts(arguments: Any) -> bool:
    """Tell whether these are texts and lists of texts, as the parsers take them."""
    return isinstance(arguments, list) and all(
        isinstance(one, str) or (isinstance(one, list) and all(isinstance(x, str | None) for x in one))
        for one in arguments
    )


def questions_in(detail: str | None) -> list[Question]:
    """Return what the detail of an error asks; nothing when it is of another kind."""
    try:
        found = json.loads(detail or "")
        return [Question(one["function"], json.dumps(one["arguments"])) for one in found["questions"]]
    except (ValueError, TypeError, KeyError):
        return []


def store(connection: psycopg.Connection[Any], questions: Iterable[Question]) -> int:
    """Answer questions and store the answers, in the connection's transaction; return how many.

    Raises psycopg.Error: 42501 when the role is not that which installed pgps, nor a member of it or a superuser, 55000
    when the database has another release, or parses itself; and BadArgument.
    """
    asked = list(questions)
    return sum(_store(connection, asked[start : start + PORTION]) for start in range(0, len(asked), PORTION))


def _store(connection: psycopg.Connection[Any], questions: list[Question], *, forget: bool = False) -> int:
    """Store the answers, or with `forget` take them away."""
    results = ", ".join(
        f'{{"function": {json.dumps(one.function)}, "arguments": {one.arguments},'
        f' "result": {"null" if forget else answer(one)}}}'
        for one in questions
    )
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(_STORE, [parser(), f"[{results}]"]).fetchone()
    return int(row[0]) if row else 0


def store_for_subscriptions(connection: psycopg.Connection[Any]) -> int:
    """Store what subscriptions will need when they are moved or altered, as far as it is missing; return how many."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        return store(connection, [Question(*row) for row in cursor.execute(_OF_SUBSCRIPTIONS)])


def define(
    connection: psycopg.Connection[Any],
    statement: str | bytes | SQL | Composed,
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    store_with: psycopg.Connection[Any] | None = None,
) -> psycopg.Cursor[Any]:
    """Execute a statement and answer what the server asks meanwhile; return the cursor with its result.

    The answers are stored in the connection's transaction, or committed with the connection `store_with`, when the
    role that defines may not store them itself. What the statement has done before it asked is undone each time. A
    statement that asks nothing is executed as it stands, so this serves with and without PL/Python in the server.
    Raises what the statement raises (psycopg.Error): 0A000 where the role may not store answers.
    """
    query = statement.encode() if isinstance(statement, str) else statement
    return repeat(connection, lambda: connection.execute(query, parameters), store_with=store_with)


def prepare(
    connection: psycopg.Connection[Any],
    statement: str | bytes | SQL | Composed,
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
) -> None:
    """Store what a statement will ask when another role executes it; what it does itself is undone.

    It is executed with this connection's rights: read it first. What a role has been asked in an error's detail is
    answered without executing anything, by `store` and `questions_in`.
    """
    query = statement.encode() if isinstance(statement, str) else statement
    _repeat(connection, lambda: connection.execute(query, parameters), connection, set(), undone=True)


def repeat(
    connection: psycopg.Connection[Any],
    call: Callable[[], T],
    *,
    store_with: psycopg.Connection[Any] | None = None,
    first: Iterable[Question] = (),
) -> T:
    """As `define`, with a function that executes statements over the connection, and may do so several times.

    What it will ask may be answered `first`, so that it need not ask.
    """
    asked = set(first)
    try:
        return _repeat(connection, call, store_with or connection, asked, undone=False)
    finally:
        if store_with is not None:
            _forget(store_with, asked)


def _repeat(
    connection: psycopg.Connection[Any],
    call: Callable[[], T],
    other: psycopg.Connection[Any],
    asked: set[Question],
    *,
    undone: bool,
) -> T:
    """Call until nothing is asked any more; `asked` has what to answer first, and gets what was asked."""
    with connection.transaction():
        if asked and not _may_store(other, asked):
            asked.clear()
        while True:
            try:
                with connection.transaction(force_rollback=undone):
                    result = call()
                break
            except psycopg.errors.FeatureNotSupported as error:
                new = [one for one in questions_in(error.diag.message_detail) if one not in asked]
                if not new or len(asked) > LIMIT or not _may_store(other, new):
                    raise
                asked.update(new)
        if other is connection and not undone:
            _forget(connection, asked)
        return result


def _may_store(connection: psycopg.Connection[Any], questions: Iterable[Question]) -> bool:
    """Store answers; return False when this role may not."""
    try:
        with connection.transaction():
            store(connection, questions)
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def _forget(connection: psycopg.Connection[Any], asked: Iterable[Question]) -> None:
    """Take away what was stored of statements: they may hold passwords, and are not asked for again."""
    statements = [one for one in asked if one.function == "parse_statement"]
    if statements:
        with connection.transaction():
            _store(connection, statements, forget=True)
