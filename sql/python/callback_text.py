"""Take the text that names a callback apart."""

from typing import Any, Optional

from lexer import Token, check_characters
from statement_reader import StatementReader

SYNTAX = "Give a function, f, or a call of one with SQL over the attributes: f(price, symbol)."


def parse_callback(text: str) -> dict[str, Any]:
    """Return function, schema, name, arguments and types of `f` or `f(arguments)`.

    function is SQL, quoted where that is needed; schema is None when none is given. arguments is source text
    with balanced brackets, to be followed by a new line; None without parentheses. types is what stands
    between them, part by part, when it could be the type of one argument: record, a.b or a.b[]. Raises
    SqlTextError 42601.
    """
    check_characters(text)
    reader = StatementReader(text, SYNTAX)
    start = reader.at
    parts = [reader.name()]
    while reader.accept_symbol("."):
        parts.append(reader.next().value)
    reader.at = start
    function = reader.qualified()
    tokens = reader.parenthesised() if reader.peek().symbol("(") else None
    reader.end()
    return {
        "function": function,
        "schema": parts[-2] if len(parts) > 1 else None,
        "name": parts[-1],
        "arguments": None if tokens is None else reader.source(tokens),
        "types": None if tokens is None else type_of(tokens),
    }


def type_of(tokens: list[Token]) -> Optional[list[str]]:
    """Return the parts of record, a.b or a.b[], names folded unless quoted; None for anything else."""
    if len(tokens) == 1 and tokens[0].word("record"):
        return ["record"]
    name, brackets = tokens[:3], tokens[3:]
    if len(name) < 3 or not name[1].symbol(".") or {name[0].kind, name[2].kind} - {"ident", "quoted"}:
        return None
    if brackets and not (len(brackets) == 2 and brackets[0].symbol("[") and brackets[1].symbol("]")):
        return None
    return [name[0].value, name[2].value, *(["[]"] if brackets else [])]
