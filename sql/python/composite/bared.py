"""Conditions over events of which jsonb does not take every attribute: asked without those, when they read others only.

The type json takes what jsonb does not: "\\u0000", half of a surrogate pair, 1e400000.
"""

import json
from collections.abc import Callable, Iterator
from typing import Optional

from lexer import Token, tokenize

SPACE = " \t\n\r"
DECODER = json.JSONDecoder(parse_int=str, parse_float=str)  # Python refuses to make a number of many digits
Takes = Callable[[str], bool]


def bare(condition: str, given: str, takes: Takes) -> Optional[str]:
    """Return what a condition is asked about, with null for each attribute's value that jsonb does not take.

    condition: its text. given: a JSON object of what its names stand for. takes: tells of a JSON text whether jsonb
    takes it. None when there is nothing to be left out, or when the condition may read what would be.
    """
    try:
        return bare_members(tokenize(condition), given, takes)
    except RecursionError:
        return None


def bare_members(tokens: list[Token], given: str, takes: Takes) -> Optional[str]:
    """Return the same of a condition's tokens; RecursionError for JSON that is too deep."""
    parts: list[str] = []
    left_out = False
    for name, text in members(given):
        events = [text[start:end] for start, end in elements(text)] if text.startswith("[") else [text]
        written = []
        for event in events:
            bad = {attribute for attribute, value in members(event) if not takes(value)}
            if bad and reads(tokens, name, bad):
                return None
            left_out = left_out or bool(bad)
            written.append(without(event, bad) if bad else event)
        parts.append(f"{json.dumps(name)}: {'[' + ', '.join(written) + ']' if text.startswith('[') else written[0]}")
    return "{" + ", ".join(parts) + "}" if left_out else None


def without(event: str, bad: set[str]) -> str:
    """Return the JSON of an event with null for some attributes."""
    parts = (f"{json.dumps(name)}: {'null' if name in bad else value}" for name, value in members(event))
    return "{" + ", ".join(parts) + "}"


def reads(tokens: list[Token], alias: str, attributes: set[str]) -> bool:
    """Tell whether an expression may read one of some attributes of an alias: by its name, or with the whole event."""
    names = {token.value for token in tokens if token.kind in ("ident", "quoted")}
    if names & attributes:
        return True
    for i, token in enumerate(tokens):
        if token.kind in ("ident", "quoted") and token.value == alias and not (i and tokens[i - 1].symbol(".", "::")):
            after = tokens[i + 1 : i + 3]
            if len(after) < 2 or not after[0].symbol(".") or after[1].kind not in ("ident", "quoted"):
                return True
    return False


def members(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a JSON object with the text of each value, as it is written; nothing for what is no object."""
    if not text.startswith("{"):
        return
    at = skip(text, 1)
    while text[at] != "}":
        name, at = DECODER.raw_decode(text, at)
        start = skip(text, skip(text, at) + 1)
        end = DECODER.raw_decode(text, start)[1]
        yield name, text[start:end]
        at = skip(text, end)
        if text[at] == ",":
            at = skip(text, at + 1)


def elements(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each element of a JSON array begins and ends."""
    at = skip(text, 1)
    while text[at] != "]":
        end = DECODER.raw_decode(text, at)[1]
        yield at, end
        at = skip(text, end)
        if text[at] == ",":
            at = skip(text, at + 1)


def skip(text: str, at: int) -> int:
    """Return where the next character that is no space stands."""
    while text[at] in SPACE:
        at += 1
    return at
