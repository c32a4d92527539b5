"""Take apart the list of an event type's attributes, which is written as the columns of CREATE TABLE."""

from typing import Any, Optional

from keywords import NOT_A_COLUMN, RESERVED
from lexer import SqlTextError, Token, clip, tokenize
from token_lists import check_brackets, operands_end, write_tokens

LIST_CHARACTERS = 100_000
PRODUCER = ("_producer", "_producer_seq")
# The words that a constraint on the whole table begins with, after its name.
TABLE_CONSTRAINTS = ("check", "exclude", "foreign", "primary", "unique")
# The words that a column constraint begins with; they also end the expression of a DEFAULT and a list of words.
COLUMN_CONSTRAINTS = (
    "check", "collate", "compression", "constraint", "default", "deferrable", "generated", "initially", "not", "null",
    "primary", "references", "storage", "unique",
)  # fmt: skip
# Data types that may have several words, and the words that may follow the first one.
TYPE_WORDS = {
    "bit": ("varying",),
    "char": ("varying",),
    "character": ("varying",),
    "double": ("precision",),
    "interval": ("year", "month", "day", "hour", "minute", "second", "to"),
    "national": ("char", "character", "varying"),
    "nchar": ("varying",),
}
EXAMPLE = "Give attributes as columns: symbol text not null, price numeric(12, 2) default 0 check (price >= 0)."
ONE_LIST = "Give what stands between the parentheses of CREATE TABLE, without a statement around it or behind it."


def parse_attributes(attributes: str) -> dict[str, Any]:
    """Return the parts of a list of attributes as a dict that can be written as JSON.

    text: the list in one normal form; it cannot leave the parentheses it is put between, and reads the same
    whatever standard_conforming_strings is. Empty when the list is.
    names: of the attributes, in order, folded unless quoted.
    Raises SqlTextError: 42601, 0A000 for clauses that an event type cannot have, 42701 for the columns that it
    has anyway and for a name given twice, 54000 when too long or nested too deep.
    """
    if len(attributes) > LIST_CHARACTERS:
        raise SqlTextError(
            f"attribute list of {len(attributes)} characters is longer than {LIST_CHARACTERS}",
            LIST_CHARACTERS + 1,
            "Use fewer attributes, or one of type jsonb.",
            sqlstate="54000",
        )
    tokens: list[Token] = []
    for token in tokenize(attributes):
        # SQL lets names behind a dot be key words.
        behind_dot = bool(tokens) and tokens[-1].symbol(".") and token.kind == "ident"
        tokens.append(token._replace(kind="quoted") if behind_dot else token)
    check_brackets(tokens, "attribute list")
    refuse_strays_of_list(tokens)
    end = Token("end", "", "", len(attributes) + 1)
    names: list[str] = []
    for item in items_of(tokens, end):
        name = AttributeReader(item, end).element()
        if name in names:
            hint = "Give each attribute once, under a name of its own."
            raise SqlTextError(f'attribute "{name}" is given twice', item[0].position, hint, sqlstate="42701")
        if name is not None:
            names.append(name)
    return {"text": write_tokens(tokens), "names": names}


def refused_in_list(token: Token, hint: str = EXAMPLE) -> SqlTextError:
    """Return the error for a token that cannot be there."""
    at = f'at "{clip(token.text)}"' if token.text else "at its end"
    return SqlTextError(f"syntax error in the attribute list {at}", token.position, hint)


def unsupported(token: Token, hint: str) -> SqlTextError:
    """Return the error for a clause of CREATE TABLE that an event type cannot have."""
    message = f'an event type cannot have "{clip(token.text)}" in its attribute list'
    return SqlTextError(message, token.position, hint, sqlstate="0A000")


def refuse_strays_of_list(tokens: list[Token]) -> None:
    """Raise SqlTextError for tokens that no list of columns can have, wherever they stand."""
    brackets = 0
    for token in tokens:
        brackets += token.symbol("[") - token.symbol("]")
        if token.symbol(";"):
            raise refused_in_list(token, ONE_LIST)
        if token.kind == "parameter" or token.symbol("..", "{", "}", ":=") or (token.symbol(":") and not brackets):
            raise refused_in_list(token)


def items_of(tokens: list[Token], end: Token) -> list[list[Token]]:
    """Return the tokens between the commas of a list; none may be missing between two."""
    items: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += token.symbol("(", "[") - token.symbol(")", "]")
        if depth or not token.symbol(","):
            items[-1].append(token)
        elif items[-1]:
            items.append([])
        else:
            raise refused_in_list(token)
    if tokens and not items[-1]:
        raise refused_in_list(end)
    return items if tokens else []


class AttributeReader:
    """Read one element of the list: a column, or a constraint on the whole table."""

    def __init__(self, tokens: list[Token], end: Token) -> None:
        self.tokens = tokens
        self.behind = end
        self.complete = operands_end(tokens)
        self.at = 0

    def peek(self, ahead: int = 0) -> Token:
        """Return a token further on; behind the end one that matches nothing."""
        index = self.at + ahead
        return self.tokens[index] if index < len(self.tokens) else self.behind

    def accept(self, *words: str) -> bool:
        """Step over one of several key words if it is there."""
        found = self.peek().word(*words)
        self.at += found
        return found

    def expect(self, found: object) -> None:
        """Refuse the token at hand unless something was found."""
        if not found:
            raise refused_in_list(self.peek())

    def name(self) -> str:
        """Read a name; folded unless quoted."""
        token = self.peek()
        self.expect(token.kind == "quoted" or (token.kind == "ident" and token.value not in NOT_A_COLUMN))
        self.at += 1
        return token.value

    def group(self) -> list[Token]:
        """Read parentheses or square brackets with all that is between them; return what is between."""
        start = self.at
        self.expect(self.peek().symbol("(", "["))
        depth = 0
        while True:
            depth += self.peek().symbol("(", "[") - self.peek().symbol(")", "]")
            self.at += 1
            if not depth:
                return self.tokens[start + 1 : self.at - 1]

    def element(self) -> Optional[str]:
        """Read the whole element and return the name of its column; None for a constraint."""
        if self.peek().word("like"):
            raise unsupported(self.peek(), "Write the columns out, or publish rows of the table with a rule.")
        named = self.peek().word("constraint")
        if named:
            self.at += 1
            self.name()
        if named or self.peek().word(*TABLE_CONSTRAINTS):
            self.table_constraint()
            return None
        first = self.peek()
        name = self.name()
        if name in PRODUCER:
            hint = "It is there to have repeats dropped: see _producer and _producer_seq. Choose another name."
            message = f'every event type has an attribute "{name}" already'
            raise SqlTextError(message, first.position, hint, sqlstate="42701")
        self.type()
        while self.at < len(self.tokens):
            self.column_constraint()
        return name

    def table_constraint(self) -> None:
        """Read CHECK (..), or a key or exclusion, of which only the kinds of its parts are looked at."""
        if self.accept("check"):
            self.condition()
        else:
            self.expect(self.accept(*TABLE_CONSTRAINTS))
            self.words()
            while self.accept("default", "deferrable", "initially", "not", "null", "references"):
                self.words()
        self.expect(self.at == len(self.tokens))

    def words(self) -> None:
        """Step over names, brackets and commas up to the next constraint."""
        while self.at < len(self.tokens) and not self.peek().word(*COLUMN_CONSTRAINTS):
            token = self.peek()
            if token.symbol("(", "["):
                self.group()
            else:
                self.expect(token.kind in ("ident", "quoted") or token.symbol("."))
                self.at += 1

    def type(self) -> None:
        """Read a data type with its modifiers, its time zone and the brackets of an array."""
        first = self.peek()
        more = TYPE_WORDS.get(first.value, ()) if first.kind == "ident" else ()
        self.expect(first.kind == "quoted" or (first.kind == "ident" and first.value not in RESERVED))
        self.at += 1
        while self.accept(*more):
            pass
        while self.peek().symbol("."):
            self.at += 1
            self.expect(self.peek().kind in ("ident", "quoted"))
            self.at += 1
        if self.peek().symbol("("):
            self.modifiers()
        if self.peek().word("with", "without") and self.peek(1).word("time"):
            self.at += 2
            self.expect(self.accept("zone"))
        if self.accept("array") and self.peek().symbol("["):
            self.bounds()
        while self.peek().symbol("["):
            self.bounds()

    def modifiers(self) -> None:
        """Read what a data type has between parentheses: constants and names, as in geometry(point, 4326)."""
        opening = self.peek()
        inside = self.group()
        if not inside:
            raise refused_in_list(opening)
        for token in inside:
            plain = token.kind in ("integer", "decimal", "string", "ident", "quoted")
            if not (plain or token.symbol(",") or (token.kind == "operator" and token.value in ("-", "+"))):
                raise refused_in_list(token)

    def bounds(self) -> None:
        """Read the square brackets of an array, with or without a size."""
        for token in self.group():
            if token.kind != "integer":
                raise refused_in_list(token)

    def column_constraint(self) -> None:
        """Read one constraint of a column."""
        token = self.peek()
        if token.word("generated"):
            raise unsupported(token, "Give the value when you publish, or use DEFAULT.")
        if self.accept("constraint"):
            self.name()
        elif self.accept("not"):
            self.expect(self.accept("null", "deferrable"))
        elif self.accept("default"):
            self.expression()
        elif self.accept("check"):
            self.condition()
        elif self.accept("collate"):
            self.name()
            while self.peek().symbol("."):
                self.at += 1
                self.name()
        elif self.accept("storage", "compression"):
            self.expect(self.peek().kind == "ident")
            self.at += 1
        elif not self.accept("null"):
            self.key()

    def condition(self) -> None:
        """Read what stands behind CHECK."""
        self.expect(self.peek().symbol("("))
        self.group()
        if self.accept("no"):
            self.expect(self.accept("inherit"))

    def key(self) -> None:
        """Read PRIMARY KEY, UNIQUE or REFERENCES, or when it is checked: an event type does not keep them."""
        self.expect(self.accept("deferrable", "initially", "primary", "references", "unique"))
        self.words()
        if self.peek(-1).word("nulls") and self.accept("not"):
            self.words()  # UNIQUE NULLS NOT DISTINCT
        while self.peek(-1).word("set") and self.accept("null", "default"):
            self.words()  # ON DELETE SET NULL

    def expression(self) -> None:
        """Read the expression of a DEFAULT: up to a word that begins a constraint where an operator could stand."""
        start = self.at
        while self.at < len(self.tokens):
            ended = self.at > start and self.complete[self.at - 1]
            if ended and self.peek().word(*COLUMN_CONSTRAINTS):
                break
            if self.peek().symbol("(", "["):
                self.group()
            else:
                self.at += 1
        self.expect(self.at > start)
