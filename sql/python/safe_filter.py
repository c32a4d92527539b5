"""Recognise filters that can read nothing but the event they are asked about.

Such a filter may be run with anybody's rights. Only names are looked at: whoever runs it pins search_path to
pg_catalog and looks up what the operators mean for the types of the attributes.
"""

from typing import NamedTuple, Optional

from keywords import NOT_A_COLUMN
from lexer import Token

SAFE_OPERATORS = frozenset("= <> < <= > >= + - * / % || ~~ ~~* !~~ !~~*".split())
SAFE_FUNCTIONS = frozenset(
    "abs btrim ceil ceiling char_length floor left length lower ltrim mod position right round rtrim sign"
    " starts_with strpos substr substring trunc upper".split()
)
# What the catalogue calls a type that SQL calls otherwise.
SAFE_TYPES = {
    "bigint": "int8",
    "bool": "bool",
    "boolean": "bool",
    "bpchar": "bpchar",
    "char": "bpchar",
    "character": "bpchar",
    "date": "date",
    "dec": "numeric",
    "decimal": "numeric",
    "float": "float8",
    "float4": "float4",
    "float8": "float8",
    "int": "int4",
    "int2": "int2",
    "int4": "int4",
    "int8": "int8",
    "integer": "int4",
    "interval": "interval",
    "numeric": "numeric",
    "real": "float4",
    "smallint": "int2",
    "text": "text",
    "time": "time",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "timetz": "timetz",
    "uuid": "uuid",
    "varchar": "varchar",
}
PRECISE_TYPES = frozenset("bpchar interval numeric time timestamp timestamptz timetz varchar".split())
OPERATOR_WORDS = {
    "like": "~~",
    "ilike": "~~*",
    "in": "=",
    "between": ">= <=",
    "not like": "!~~",
    "not ilike": "!~~*",
    "not in": "<>",
    "not between": "< >",
}


class UnsafeError(Exception):
    """Say that a token is outside the safe subset."""


class SafeNames(NamedTuple):
    """Hold what a safe filter uses.

    references: (index of the first token, number of tokens, attribute). The sets hold names as in the
    catalogue.
    """

    references: list[tuple[int, int, str]]
    functions: set[str]
    operators: set[str]
    types: set[str]


def read_safe(tokens: list[Token], type_name: str, attributes: list[str]) -> Optional[SafeNames]:
    """Return what a filter uses, or None when it is not made of the safe subset alone.

    Whether operators and operands make sense is left to PostgreSQL; only the kinds of the parts matter here.
    """
    reader = SafeReader(tokens, type_name, attributes)
    try:
        reader.expression()
    except UnsafeError:
        return None
    return reader.names if reader.at == len(tokens) else None


class SafeReader:
    """Read an expression of the safe subset, token by token."""

    def __init__(self, tokens: list[Token], type_name: str, attributes: list[str]) -> None:
        self.tokens = tokens
        self.type_name = type_name
        self.attribute_names = frozenset(attributes)
        self.names = SafeNames([], set(), set(), set())
        self.at = 0

    def peek(self, ahead: int = 0) -> Token:
        """Return a token further on; behind the end one that matches nothing."""
        index = self.at + ahead
        return self.tokens[index] if index < len(self.tokens) else Token("end", "", "")

    def accept_word(self, *words: str) -> bool:
        """Step over a key word if it is there."""
        found = self.peek().word(*words)
        self.at += found
        return found

    def accept_symbol(self, symbol: str) -> bool:
        """Step over a symbol if it is there."""
        found = self.peek().symbol(symbol)
        self.at += found
        return found

    def expect(self, found: object) -> None:
        """Give up unless something was found."""
        if not found:
            raise UnsafeError

    def expression(self, *, words: bool = True) -> None:
        """Read operands and the operators between them; without `words` none that is a word, such as IN."""
        while True:
            while (words and self.accept_word("not")) or self.sign():
                pass
            self.operand()
            while self.accept_symbol("::"):
                self.type()
            if not (self.infix_operator() or (words and self.suffixes_and_connective())):
                return

    def sign(self) -> bool:
        """Step over a plus or minus sign."""
        token = self.peek()
        found = token.kind == "operator" and token.value in ("+", "-")
        if found:
            self.names.operators.add(token.value)
            self.at += 1
        return found

    def infix_operator(self) -> bool:
        """Step over an operator of the safe ones; any other is the end of it."""
        token = self.peek()
        if token.kind != "operator":
            return False
        self.expect(token.value in SAFE_OPERATORS)
        self.names.operators.add(token.value)
        self.at += 1
        return True

    def suffixes_and_connective(self) -> bool:
        """Step over IS .. and IN (..), then over a word that asks for an operand; tell if there was one."""
        while True:
            if self.accept_word("isnull", "notnull"):
                continue
            if self.accept_word("is"):
                self.accept_word("not")
                if self.accept_word("distinct"):
                    self.expect(self.accept_word("from"))
                    self.names.operators.add("=")
                    return True
                self.expect(self.accept_word("null", "true", "false", "unknown"))
                continue
            negated = "not " if self.peek().word("not") else ""
            word = self.peek(1 if negated else 0)
            if word.kind != "ident" or negated + word.value not in OPERATOR_WORDS:
                return self.accept_word("and", "or")
            self.names.operators.update(OPERATOR_WORDS[negated + word.value].split())
            self.at += 2 if negated else 1
            if word.value != "in":
                if word.value == "between":
                    self.accept_word("symmetric", "asymmetric")
                return True
            self.arguments()
            if self.infix_operator():
                return True

    def operand(self) -> None:
        """Read a literal, an attribute, a call, a CASE or something between parentheses."""
        token = self.peek()
        if token.kind in ("string", "integer", "decimal"):
            self.at += 1
        elif self.accept_symbol("("):
            self.expression()
            self.expect(self.accept_symbol(")"))
        elif token.word("case"):
            self.case()
        elif self.typed_literal():
            pass
        elif token.kind == "ident" and self.peek(1).symbol("("):
            self.call()
        elif not self.accept_word("null", "true", "false"):
            self.attribute()

    def attribute(self) -> None:
        """Read a reference to an attribute, with or without the name of the event type."""
        start = self.at
        if self.peek(1).symbol("."):
            qualifier = self.peek()
            self.expect(qualifier.kind in ("ident", "quoted") and qualifier.value == self.type_name)
            self.expect(not qualifier.word(*NOT_A_COLUMN))
            self.at += 2
        token = self.peek()
        self.expect(token.kind in ("ident", "quoted") and token.value in self.attribute_names)
        self.expect(self.at > start or not token.word(*NOT_A_COLUMN))
        self.at += 1
        self.names.references.append((start, self.at - start, token.value))

    def case(self) -> None:
        """Read CASE .. END."""
        self.at += 1
        if not self.peek().word("when"):
            self.expression()
            self.names.operators.add("=")
        self.expect(self.peek().word("when"))
        while self.accept_word("when"):
            self.expression()
            self.expect(self.accept_word("then"))
            self.expression()
        if self.accept_word("else"):
            self.expression()
        self.expect(self.accept_word("end"))

    def call(self) -> None:
        """Read a call of one of the safe functions, or of what SQL writes as one."""
        name = self.peek().value
        self.at += 1
        if name == "cast":
            self.at += 1
            self.expression()
            self.expect(self.accept_word("as"))
            self.type()
            self.expect(self.accept_symbol(")"))
            return
        if name == "nullif":
            self.names.operators.add("=")
        elif name not in ("coalesce", "greatest", "least"):
            self.expect(name in SAFE_FUNCTIONS)
            self.names.functions.add(name)
        if name == "position":
            self.at += 1
            self.expression(words=False)
            self.expect(self.accept_word("in"))
            self.expression(words=False)
            self.expect(self.accept_symbol(")"))
        else:
            self.arguments()

    def arguments(self) -> None:
        """Read one or more expressions between parentheses."""
        self.expect(self.accept_symbol("("))
        self.expression()
        while self.accept_symbol(","):
            self.expression()
        self.expect(self.accept_symbol(")"))

    def typed_literal(self) -> bool:
        """Step over a literal such as date '2020-01-01'."""
        start = self.at
        types = set(self.names.types)
        if self.peek().kind == "ident" and self.peek().value in (*SAFE_TYPES, "double"):
            try:
                self.type()
            except UnsafeError:
                self.at = start
            if self.at > start and self.peek().kind == "string":
                self.at += 1
                return True
        self.at = start
        self.names.types.intersection_update(types)
        return False

    def type(self) -> None:
        """Read the name of one of the safe types, with its precision."""
        token = self.peek()
        self.expect(token.kind == "ident")
        name = token.value
        self.at += 1
        if name == "double":
            self.expect(self.accept_word("precision"))
            name = "float8"
        elif name in ("char", "character") and self.accept_word("varying"):
            name = "varchar"
        self.expect(name in SAFE_TYPES)
        name = SAFE_TYPES[name]
        if self.accept_symbol("("):
            self.expect(name in PRECISE_TYPES and self.peek().kind == "integer")
            self.at += 1
            if self.accept_symbol(","):
                self.expect(self.peek().kind == "integer")
                self.at += 1
            self.expect(self.accept_symbol(")"))
        if name in ("time", "timestamp") and self.peek().word("with", "without") and self.peek(1).word("time"):
            self.expect(self.peek(2).word("zone"))
            name += "tz" if self.peek().word("with") else ""
            self.at += 3
        self.names.types.add(name)
