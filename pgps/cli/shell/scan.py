"""Cut a script into statements the way psql does, and tell pgps's own from SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Statement", "has_words", "is_language", "split"]

# What no character of matters for where a statement ends; the rest of the text is taken one character at a time.
_TOKEN = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*)
    | (?P<word>[^\W\d][\w$]*)
    | (?P<number>\d[\w.]*)
    | (?P<dollar>\$(?:[^\W\d]\w*)?\$)
    | (?P<comment>/\*)
    | (?P<string>')
    | (?P<name>")
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED_STRING = re.compile(r"[^'\\]*(?:\\.[^'\\]*)*'", re.DOTALL)

# The first words of the statement language; the server decides about those that begin like PostgreSQL's own.
_HEADS = (
    ("create", "event", "type"),
    ("drop", "event", "type"),
    ("alter", "queue"),
    ("advertise",),
    ("unadvertise",),
    ("publish",),
    ("create", "rule"),
    ("drop", "rule"),
    ("create", "subscription"),
    ("create", "local", "subscription"),
    ("create", "global", "subscription"),
    ("drop", "subscription"),
    ("create", "link"),
    ("grant", "publish", "on"),
    ("grant", "subscribe", "on"),
    ("revoke", "publish", "on"),
    ("revoke", "subscribe", "on"),
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement or backslash command, without its semicolon; `line` is where it begins, from 1."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


class _UnfinishedError(Exception):
    """The text ends inside a string, a quoted name or a comment."""


def _tokens(text: str, at: int = 0) -> Iterator[_Token]:
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None
        kind = str(match.lastgroup)
        end = match.end()
        if kind == "string":
            end = _find(text, "'", end)
        elif kind == "word" and match.group() in ("e", "E") and text[end : end + 1] == "'":
            kind, end = "string", _end_of_escaped_string(text, end + 1)
        elif kind == "name":
            end = _find(text, '"', end)
        elif kind == "dollar":
            end = _find(text, match.group(), end)
        elif kind == "comment":
            kind, end = "space", _end_of_comment(text, at)
        yield _Token(kind, text[at:end], at, end)
        at = end


def _find(text: str, closing: str, at: int) -> int:
    found = text.find(closing, at)
    if found < 0:
        raise _UnfinishedError
    return found + len(closing)


def _end_of_escaped_string(text: str, at: int) -> int:
    match = _ESCAPED_STRING.match(text, at)
    if match is None:
        raise _UnfinishedError
    return match.end()


def _end_of_comment(text: str, start: int) -> int:
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    raise _UnfinishedError


class _Nesting:
    """How deep in parentheses, and in the body of a BEGIN ATOMIC function, a statement is."""

    def __init__(self) -> None:
        self.parentheses = 0
        self.blocks = 0
        self.words: list[str] = []

    def take(self, token: _Token) -> None:
        if token.text == "(":
            self.parentheses += 1
        elif token.text == ")":
            self.parentheses = max(self.parentheses - 1, 0)
        elif token.kind == "word" and self.parentheses == 0:
            self._word(token.text.lower())

    def _word(self, word: str) -> None:
        self.words.append(word)
        head = [word for word in self.words[:4] if word not in ("or", "replace")][:2]
        if head not in (["create", "function"], ["create", "procedure"]):
            return
        if word == "begin" or (word == "case" and self.blocks):
            self.blocks += 1
        elif word == "end" and self.blocks:
            self.blocks -= 1

    @property
    def open(self) -> bool:
        return self.parentheses > 0 or self.blocks > 0


def split(text: str) -> tuple[list[Statement], str]:
    """Return the complete statements of a text, and what is left behind the last of them.

    A semicolon ends a statement, unless it stands in a string, a comment,
    parentheses, or a BEGIN ATOMIC body. Where a statement may begin, a
    backslash begins a command that ends with its line. Empty statements are
    left out.
    """
    statements: list[Statement] = []
    start = 0  # of the statement under way
    while True:
        try:
            end, statement = _next(text, start)
        except _UnfinishedError:
            return statements, text[start:]
        if end is None:
            return statements, text[start:]
        if statement is not None:
            statements.append(statement)
        start = end


def _next(text: str, start: int) -> tuple[int | None, Statement | None]:
    """Return where the statement that starts at an offset ends, and the statement; None when it does not end."""
    nesting = _Nesting()
    first: int | None = None
    for token in _tokens(text, start):
        if token.kind == "space":
            continue
        if first is None and token.text == "\\":
            end = text.find("\n", token.start)
            end = len(text) if end < 0 else end + 1
            return end, Statement(text[token.start : end].strip(), _line(text, token.start))
        if token.text == ";" and not nesting.open:
            if first is None:
                return token.end, None
            made = Statement(text[first : token.start].rstrip(), _line(text, first))
            return token.end, made
        if first is None:
            first = token.start
        nesting.take(token)
    return None, None


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def has_words(text: str) -> bool:
    """Tell whether a text holds more than white space and comments."""
    try:
        return any(token.kind != "space" for token in _tokens(text))
    except _UnfinishedError:
        return True


def is_language(text: str) -> bool:
    """Tell whether a statement begins like one of the statement language."""
    words: list[str] = []
    try:
        for token in _tokens(text):
            if token.kind == "space":
                continue
            if token.kind != "word" or len(words) == 3:
                break
            words.append(token.text.lower())
    except _UnfinishedError:
        return False
    return any(tuple(words[: len(head)]) == head for head in _HEADS)
