"""How PL/Python functions call what is in the modules: with text, and for JSON."""

import json
from collections.abc import Callable
from typing import Any

from lexer import SqlTextError


def telling_errors(function: Callable[..., Any]) -> Callable[..., str]:
    """Make a call that returns an error in the text as a value, for a function that looks at nothing but the text."""
    asked: tuple[Any, ...] = ()
    answer = ""

    def call(*arguments: Any) -> str:
        nonlocal asked, answer
        # Subscribing asks twice, once with the rights of the caller and once with those of the owner.
        if asked != arguments or not answer:
            try:
                result = function(*arguments)
            except SqlTextError as error:
                fields = ("message", "position", "hint", "sqlstate")
                result = {"error": {field: getattr(error, field) for field in fields}}
            asked, answer = arguments, json.dumps(result)
        return answer

    return call


def in_session(function: Callable[..., Any], db: Any, memory: dict[str, Any]) -> Callable[..., str]:
    """Make a call of a function that runs statements, and has a memory in this session."""

    def call(*arguments: Any) -> str:
        try:
            return json.dumps(function(db, memory, *arguments))
        except SqlTextError as error:
            db.error(error.message, sqlstate=error.sqlstate, hint=error.hint)
            raise

    return call
