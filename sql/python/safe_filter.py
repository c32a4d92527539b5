"""Recognise filters that can read nothing but the event they are asked about.

Such a filter may be run with anybody's rights. Only names are looked at: whoever runs it pins search_path to
pg_catalog and looks up what the operators mean for the types of the attributes.
"""

import re
from typing import NamedTuple, Optional

from keywords import NOT_A_COLUMN
from lexer import Token

SAFE_OPERATORS = frozenset("= <> < <= > >= + - * / % || ~~ ~~* !~~ !~~*".split())
SAFE_FUNCTIONS = frozenset(
    "abs btrim ceil ceiling char_length floor left length lower ltrim mod position right round rtrim sign"
    " starts_with strpos substr substring trunc upper".split()
)
# A number of a hundred thousand digits is a few characters long (1e131071), and arithmetic with it takes seconds.
# No float8 has more digits than these.
NUMBER_DIGITS = 400
# A text that a filter puts together or cuts may be a number that none of its literals is, and is cast to no numeric.
TEXT_MAKERS = frozenset("btrim left ltrim right rtrim substr substring".split())
NUMBER_RE = re.compile(r"\s*[+-]?(?:0[xob][0-9a-f]+|(?=\.?\d)(\d*\.?\d*)(?:e([+-]?\d+))?)\s*", re.IGNORECASE)
# Of calls, casts and operators that may take long with a long operand, so many may be in a filter: within an expression
# the server does not look whether it is to stop.
COSTLY_PARTS = 50
COSTLY_OPERATORS = frozenset("* / % ||".split())
# What is searched for in an attribute of any length is a literal of so many characters at most.
PATTERN_CHARACTERS = 1000
LIKE_OPERATORS = frozenset("~~ ~~* !~~ !~~*".split())
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


def is_long_number(text: str) -> bool:
    """Tell whether a literal, a string or not, is a number of more digits than a safe filter may write."""
    match = NUMBER_RE.fullmatch(text.replace("_", ""))
    if match is None:
        return False
    return len(text) > NUMBER_DIGITS or len(match[1] or "") + abs(int(match[2] or "0")) > NUMBER_DIGITS


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
    if reader.makes_texts and reader.makes_numbers:
        return None
    return reader.names if reader.at == len(tokens) else None


class SafeReader:
    """Read an expression of the safe subset, token by token."""

    def __init__(self, tokens: list[Token], type_name: str, attributes: list[str]) -> None:
        self.tokens = tokens
        self.type_name = type_name
        self.attribute_names = frozenset(attributes)
        self.names = SafeNames([], set(), set(), set())
        self.costly = 0
        # Whether there are texts that are neither attributes nor literals, and casts to numeric of what is neither.
        self.makes_texts = False
        self.makes_numbers = False
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

    def spend(self) -> None:
        """Count a part that may take long, and give up when there are many."""
        self.costly += 1
        self.expect(self.costly <= COSTLY_PARTS)

    def pattern(self) -> None:
        """Look ahead whether what is searched for is a short literal, and nothing else."""
        token, behind = self.peek(), self.peek(1)
        self.expect(token.word("null") or (token.kind == "string" and len(token.value) <= PATTERN_CHARACTERS))
        self.expect(behind.kind != "operator" and not behind.symbol("::"))

    def expression(self, *, words: bool = True) -> None:
        """Read operands and the operators between them; without `words` none that is a word, such as IN."""
        while True:
            while (words and self.accept_word("not")) or self.sign():
                pass
            start = self.at
            self.operand()
            while self.peek().symbol("::"):
                self.spend()
                self.cast(start)
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

    def cast(self, start: int) -> None:
        """Step over the symbol or word in front of a type, and over that, to which what begins at start is cast."""
        given = self.tokens[start : self.at]
        self.at += 1
        made = self.type()
        if made == "numeric" and len(given) > 1 and not (len(given) == 3 and given[1].symbol(".")):
            self.makes_numbers = True

    def infix_operator(self) -> bool:
        """Step over an operator of the safe ones; any other is the end of it."""
        token = self.peek()
        if token.kind != "operator":
            return False
        self.expect(token.value in SAFE_OPERATORS)
        self.names.operators.add(token.value)
        self.at += 1
        self.makes_texts |= token.value == "||"
        if token.value in COSTLY_OPERATORS:
            self.spend()
        elif token.value in LIKE_OPERATORS:
            self.pattern()
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
                else:
                    self.pattern()
                return True
            self.arguments()
            if self.infix_operator():
                return True

    def operand(self) -> None:
        """Read a literal, an attribute, a call, a CASE or something between parentheses."""
        token = self.peek()
        if token.kind in ("string", "integer", "decimal"):
            self.expect(not is_long_number(token.value))
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
        self.spend()
        if name == "cast":
            self.at += 1
            start = self.at
            self.expression()
            self.expect(self.peek().word("as"))
            self.cast(start)
            self.expect(self.accept_symbol(")"))
            return
        if name == "nullif":
            self.names.operators.add("=")
        elif name not in ("coalesce", "greatest", "least"):
            self.expect(name in SAFE_FUNCTIONS)
            self.names.functions.add(name)
            self.makes_texts |= name in TEXT_MAKERS
        if name == "position":
            self.at += 1
            self.pattern()
            self.expression(words=False)
            self.expect(self.accept_word("in"))
            self.expression(words=False)
            self.expect(self.accept_symbol(")"))
        else:
            self.arguments(name)

    def arguments(self, function: str = "") -> None:
        """Read one or more expressions between parentheses; what the second is of some functions takes long."""
        self.expect(self.accept_symbol("("))
        self.expression()
        place = 1
        while self.accept_symbol(","):
            place += 1
            if place == 2 and function in ("btrim", "ltrim", "rtrim", "strpos"):
                self.pattern()
            elif place == 2 and function == "substring":
                # A text there is a regular expression, which may take as long as it likes.
                self.sign()
                self.expect(self.peek().kind == "integer" and self.peek(1).symbol(",", ")"))
            self.expression()
        self.expect(function != "substring" or place > 1)
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
                self.expect(not is_long_number(self.peek().value))
                self.at += 1
                return True
        self.at = start
        self.names.types.intersection_update(types)
        return False

    def type(self) -> str:
        """Read the name of one of the safe types, with its precision, and return what the catalogue calls it."""
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
            self.makes_texts |= name in ("bpchar", "varchar")
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
        return name
