"""Completion and colours of the shell."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from pygments.lexers.sql import PostgresLexer
from pygments.token import Keyword, Name, _TokenType

from pgps.cli._format import quoted
from pgps.cli.shell.scan import has_words, split
from pgps.cli.shell.words import KEYWORDS, LANGUAGE_WORDS, PHRASES

__all__ = ["Lexer", "WordCompleter", "Words"]

Words = Mapping[str, Iterable[str]]

_WORD = re.compile(r'["\w.$]+$|\\\w*\+?$')

# Which names fit behind which words; the longest match decides, and nothing else is offered then.
_BEHIND: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (re.compile(rf"\b{pattern}\s+$", re.IGNORECASE), kinds)
    for pattern, kinds in (
        (r"(?:un)?advertise", ("event type",)),
        (r"(?:drop|on) event type", ("event type",)),
        (r"publish(?: immediate| deferred)?(?: guaranteed| non-guaranteed)?", ("event type",)),
        (r"alter queue", ("queue",)),
        (r"subscription \w+ on", ("event type",)),
        (r"drop subscription", ("subscription",)),
        (r"drop rule", ("rule",)),
        (r"(?:grant|revoke)\b.* (?:to|from)", ("role",)),
    )
)
_RELATIONS = re.compile(r"\b(?:from|join|into|update|table)\s+$", re.IGNORECASE)


class Lexer(PostgresLexer):
    """PostgreSQL's SQL with the words of the statement language."""

    name = "pgps"
    aliases: ClassVar[list[str]] = ["pgps"]
    filenames: ClassVar[list[str]] = []

    def get_tokens_unprocessed(self, text: str, *args: object) -> Iterator[tuple[int, _TokenType, str]]:
        """Yield pygments' tokens, names that are key words of the language as such."""
        for index, token, value in super().get_tokens_unprocessed(text, *args):  # type: ignore[no-untyped-call]
            known = token in Name and value.upper() in LANGUAGE_WORDS
            yield index, Keyword if known else token, value


class WordCompleter(Completer):
    """Complete key words, and names from the catalog by where they stand."""

    def __init__(self, commands: Mapping[str, str]) -> None:
        self._commands = commands
        self._names: dict[str, list[str]] = {}

    def learn(self, words: Iterable[tuple[str, str]]) -> None:
        """Replace what is known of the database with (kind, name) pairs."""
        names: dict[str, list[str]] = defaultdict(list)
        for kind, word in words:
            names[kind].append(word if kind in ("function", "view", "table", "role") else quoted(word))
        for word in names["event type"]:
            names["relation"].append(f"pgps_event.{word}")
        for word in names["queue"]:
            names["relation"].append(f"pgps_queue.{word}")
        self._names = {kind: sorted(set(found)) for kind, found in names.items()}

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield what fits behind the cursor."""
        text = document.text_before_cursor
        match = _WORD.search(text)
        word = match.group() if match else ""
        if not word and not complete_event.completion_requested:
            return
        before = text[: len(text) - len(word)].rpartition("\n")[2]
        if not before.lstrip().startswith("\\"):
            before = split(text[: len(text) - len(word)])[1]
        phrases = list(_phrases((before + word).lstrip()))
        yield from phrases
        if phrases and has_words(before):
            return
        seen: set[str] = set()
        for found, kind in self._candidates(before, word):
            if found.lower().startswith(word.lower()) and found not in seen:
                seen.add(found)
                yield Completion(_cased(found, word, kind), start_position=-len(word), display_meta=kind)

    def _candidates(self, before: str, word: str) -> Iterator[tuple[str, str]]:
        if not has_words(before):
            if word.startswith("\\"):
                yield from self._commands.items()
            return
        line = re.sub(r"\s+", " ", before)
        if line.startswith("\\"):
            yield from self._of("event type", "subscription", "queue")
            return
        for pattern, kinds in _BEHIND:
            if pattern.search(line):
                yield from self._of(*kinds)
                return
        if _RELATIONS.search(line):
            yield from self._of("table", "relation", "view")
            return
        yield from self._of("attribute", "event type", "subscription", "queue", "rule", "table", "relation", "view")
        yield from self._of("function")
        yield from ((keyword, "") for keyword in sorted(KEYWORDS))

    def _of(self, *kinds: str) -> Iterator[tuple[str, str]]:
        for kind in kinds:
            yield from ((name, kind) for name in self._names.get(kind, ()))


def _phrases(statement: str) -> Iterator[Completion]:
    """Yield the beginnings of statements that what has been typed of one fits."""
    lines, _, typed = statement.rpartition("\n")
    if has_words(lines):
        return
    for phrase in PHRASES:
        if phrase.startswith(typed.upper()) and phrase != typed.upper():
            text = phrase.lower() if typed and typed == typed.lower() else phrase
            yield Completion(text, start_position=-len(typed), display_meta="statement")


def _cased(found: str, typed: str, kind: str) -> str:
    """Return key words in the case they were begun in, names as they are."""
    if kind == "" and typed and typed == typed.lower() and typed != typed.upper():
        return found.lower()
    return found
