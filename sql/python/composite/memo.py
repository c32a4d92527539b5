"""Conditions that are asked as sets: the detector runs, notes what it would ask, and runs again with the answers."""

import json
from typing import Any, Optional

from composite.limits import WRITTEN, TooMuch
from composite.raised import RaisedError
from composite.stepping import Predicate

ASKED_AT_ONCE = 20_000


class TooManyAsked(Exception):
    """Say that enough is asked for one set."""


class Memo:
    """Hold the answers to conditions.

    A condition whose answer is not known yet counts as false for the time of the run: what it closes stays open, so
    that the run asks whatever the next one may ask, and a few runs are enough.
    """

    def __init__(self, texts: list[str]) -> None:
        self.texts = list(dict.fromkeys(texts))
        self.known: dict[tuple[str, str], Any] = {}
        self.asked: dict[tuple[str, str], None] = {}
        self.size = 0

    def callbacks(self) -> dict[str, Predicate]:
        """Return for each condition what answers it."""
        self.asked = {}
        return {text: self.callback(text) for text in self.texts}

    def callback(self, text: str) -> Predicate:
        """Return what answers one condition, or notes that it is asked."""

        def ask(bound: dict[str, Any]) -> Optional[bool]:
            mark = (text, write_given(bound))
            if mark in self.known:
                answer = self.known[mark]
                if isinstance(answer, RaisedError):
                    raise answer
                return answer  # type: ignore[no-any-return]
            if len(self.asked) < ASKED_AT_ONCE:
                self.asked[mark] = None
                self.size += len(mark[1])
                if self.size > WRITTEN:
                    raise TooMuch(f"{WRITTEN >> 20:,} MB of what conditions are asked about")
            return False

        return ask

    def learn(self, answers: dict[tuple[str, str], Any]) -> None:
        """Take answers over."""
        self.known.update(answers)


def write_given(bound: dict[str, Any]) -> str:
    """Return as JSON what the names of a condition stand for; what is not bound is left out."""
    parts = [
        f"{json.dumps(name)}: {'[' + ', '.join(value) + ']' if isinstance(value, list) else value}"
        for name, value in bound.items()
        if value is not None
    ]
    return "{" + ", ".join(parts) + "}"
