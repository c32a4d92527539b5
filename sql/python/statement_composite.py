"""The statements about composite events: what is detected, and what is done about it."""

from typing import Any, Optional

from lexer import Token
from statement_reader import StatementReader

CONTEXT_WORDS = ("unrestricted", "recent", "chronicle", "continuous", "cumulative")
COUPLINGS = ("detached", "deferred", "immediate")


def create_composite_event(reader: StatementReader) -> dict[str, Any]:
    """Return name, expression, scope; context, partition_by, within, filter, attributes, each None if left out."""
    reader.expect("create")
    scope = "global" if reader.accept("global") else "local"
    reader.expect("composite", "event")
    name = reader.name()
    reader.expect("on")
    found: dict[str, Optional[str]] = dict.fromkeys(("context", "partition_by", "within", "filter", "attributes"))
    expression = pattern(reader)
    if reader.accept("context"):
        found["context"] = reader.one_of(*CONTEXT_WORDS)
    if reader.accept("partition", "by"):
        found["partition_by"] = reader.source(until_clause(reader, ("within", "where", "as")))
    if reader.accept("within"):
        reader.accept("interval")
        token = reader.next()
        if token.kind != "string":
            raise reader.refuse(token)
        found["within"] = token.value
    if reader.accept("where"):
        found["filter"] = reader.source(reader.expression("as"))
    if reader.accept("as"):
        found["attributes"] = reader.source(reader.parenthesised())
    return {"name": name, "scope": scope, "expression": expression, **found}


def pattern(reader: StatementReader) -> str:
    """Read an expression over events; `;` is an operator in it, but not at its end."""
    tokens = until_clause(reader, ("context", "partition", "within", "where", "as"))
    while tokens and tokens[-1].symbol(";"):
        tokens.pop()
    if not tokens:
        raise reader.refuse(reader.peek())
    return reader.source(tokens)


def until_clause(reader: StatementReader, words: tuple[str, ...]) -> list[Token]:
    """Read tokens up to a word that begins the next clause."""
    tokens: list[Token] = []
    depth = 0
    while reader.peek().text:
        token = reader.peek()
        if depth == 0 and tokens and token.word(*words) and begins_clause(token, reader.peek(1)):
            break
        depth += token.symbol("(", "[") - token.symbol(")", "]")
        tokens.append(reader.next())
    return tokens


def begins_clause(token: Token, after: Token) -> bool:
    """Tell whether a word begins a clause, and is no alias: by what comes behind it."""
    if token.value == "context":
        return after.word(*CONTEXT_WORDS)
    if token.value == "partition":
        return after.word("by")
    if token.value == "within":
        return after.kind == "string" or after.word("interval")
    return token.value == "where" or after.symbol("(")


def create_event_rule(reader: StatementReader) -> dict[str, Any]:
    """Return name, event_type, execute as SQL, args; filter, coupling, priority, each None if left out."""
    reader.expect("create", "rule")
    name = reader.name()
    reader.expect("on")
    event_type = reader.pattern()
    condition = coupling = priority = None
    if reader.accept("where"):
        condition = reader.source(reader.expression("execute"))
    reader.expect("execute")
    execute = reader.qualified()
    args = reader.source(reader.parenthesised()) or None
    if reader.accept("coupling"):
        coupling = reader.one_of(*COUPLINGS)
    if reader.accept("with"):
        if not reader.peek(1).symbol("("):
            reader.accept("priority")
        priority = reader.integer()
    return {
        "name": name, "event_type": event_type, "scope": "local", "filter": condition, "execute": execute,
        "args": args, "coupling": coupling, "priority": priority,
    }  # fmt: skip
