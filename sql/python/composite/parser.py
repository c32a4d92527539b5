"""Read an expression over events."""

from typing import Optional

from composite.syntax import BINDING, CONNECTIVES, OPERATOR_WORDS, TRANSACTION, Expression, print_name
from composite.times import next_cron, read_cron, read_duration, read_time, zone_of
from lexer import SqlTextError, Token, clip, tokenize
from token_lists import check_brackets, partners, write_tokens

CHARACTERS = 100_000
LEVELS = 100
LEAVES = 1000
# How many arguments at top level make a word before ( an operator.
ARGUMENTS = {
    "seq": (2, 2), "any": (2, LEAVES), "not": (1, 1), "a": (3, 3), "p": (3, 3), "plus": (2, 2), "repeat": (2, 3),
    "at": (1, 1), "every": (1, 1), "cron": (1, 1),
}  # fmt: skip
SPELLINGS = {"|": "or", "^": "and", "<<": "seq"}
NOT_SYNTAX = "Write not(E2)[E1, E3], or not(E2)[E1, + '5 min']."
SYNTAX = "Operators: or, and, ;, any, not(E2)[E1, E3], A, A*, P, P*, plus, repeat, at, every, cron."


def parse_expression(text: str, zone: str = "UTC") -> Expression:
    """Return the expression that a text stands for; `zone` is that of its calendars and of times without one.

    Raises SqlTextError: 42601 for what is not the language, 22023 for a number, duration or time that makes no
    sense, 42710 for an alias given twice, 54000 for what is too long or too deep.
    """
    if len(text) > CHARACTERS:
        hint = f"Use at most {CHARACTERS:,} characters."
        raise SqlTextError("the expression is too long", 1, hint, sqlstate="54000")
    tokens = tokenize(text)
    check_brackets(tokens, "expression")
    return Parser(tokens, len(text) + 1, zone).whole()


class Parser:
    """Read tokens by recursive descent; brackets have been checked."""

    def __init__(self, tokens: list[Token], end: int, zone: str) -> None:
        self.tokens = tokens
        self.nothing = Token("nothing", "", "", end)
        self.partners = partners(tokens)
        self.zone = zone
        self.at = 0
        self.aliases: set[str] = set()
        self.count = 0
        self.deep: dict[int, tuple[int, Expression]] = {}

    def whole(self) -> Expression:
        """Read the whole text."""
        found = self.binary(1)
        if self.at < len(self.tokens):
            raise self.refuse(self.peek())
        return found

    def peek(self, ahead: int = 0) -> Token:
        """Return a token further on."""
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else self.nothing

    def next(self) -> Token:
        """Step over a token."""
        token = self.peek()
        self.at += 1
        return token

    def refuse(self, token: Token, hint: str = SYNTAX, message: str = "", sqlstate: str = "42601") -> SqlTextError:
        """Return the error for a token that cannot be there."""
        what = f'syntax error at "{clip(token.text)}"' if token.text else "syntax error at the end of the expression"
        return SqlTextError(message or what, token.position, hint, sqlstate=sqlstate)

    def expect(self, symbol: str, hint: str = SYNTAX) -> None:
        """Step over a symbol, which has to be there."""
        if not self.peek().symbol(symbol):
            raise self.refuse(self.peek(), hint)
        self.next()

    def make(self, token: Token, expression: Expression) -> Expression:
        """Return an expression whose depth and size have been counted."""
        depth = 1 + max((self.deep[id(part)][0] for part in expression.parts), default=0)
        self.count += not expression.parts
        if depth > LEVELS or self.count > LEAVES:
            what = f"is nested deeper than {LEVELS} levels" if depth > LEVELS else f"has more than {LEAVES} leaves"
            hint = "Make a part of it a composite event of its own."
            raise self.refuse(token, hint, f"the expression {what}", "54000")
        self.deep[id(expression)] = (depth, expression)
        return expression

    def binary(self, level: int) -> Expression:
        """Read operands of `or`, `and`, or `;`; each binds to the left."""
        if level > 3:
            return self.shifted()
        found = self.binary(level + 1)
        while True:
            token = self.peek()
            op = "seq" if token.symbol(";") else SPELLINGS.get(token.value) if token.kind == "operator" else None
            op = token.value if token.word("or", "and") else op
            if op is None or BINDING[op] != level:
                return found
            self.next()
            found = self.make(token, Expression(op, (found, self.binary(level + 1))))

    def shifted(self) -> Expression:
        """Read an operand, and durations added to it."""
        found = self.primary()
        while self.peek().kind == "operator" and self.peek().value == "+":
            token = self.next()
            found = self.make(token, Expression("plus", (found,), amount=self.duration()))
        return found

    def primary(self) -> Expression:
        """Read an expression in parentheses, an operator with its arguments, or a leaf."""
        token = self.peek()
        if token.symbol("("):
            self.next()
            found = self.binary(1)
            self.expect(")")
            return found
        if token.word(*TRANSACTION):
            return self.make(self.next(), Expression(token.value))
        if token.word("begin", "end") and self.peek(1).kind in ("ident", "quoted"):
            self.next()
            return self.leaf(token.value)
        op = self.operator()
        if op:
            self.at += 3 if op.endswith("*") else 2
            return self.make(token, self.call(token, op))
        return self.leaf("")

    def operator(self) -> Optional[str]:
        """Return the operator that stands here, by its name and the number of its arguments, or None."""
        token = self.peek()
        star = token.word("a", "p") and self.peek(1).kind == "operator" and self.peek(1).value == "*"
        opening = self.at + 1 + star
        if not token.word(*ARGUMENTS) or not self.peek(1 + star).symbol("("):
            return None
        closing = self.partners[opening]
        inside = self.tokens[opening + 1 : closing]
        low, high = ARGUMENTS[token.value]
        if not star and not low <= count_arguments(inside) <= high:
            return None
        if token.word("at", "every", "cron") and [inner.kind for inner in inside] != ["string"]:
            return None
        return token.value + ("*" if star else "")

    def call(self, token: Token, op: str) -> Expression:
        """Read the arguments of an operator and the parenthesis behind them."""
        if op == "not":
            return self.negation()
        if op in ("at", "every", "cron"):
            found = self.temporal(op)
        elif op == "any":
            found = self.any_of(token)
        elif op == "repeat":
            found = self.repetition(token)
        else:
            found = self.operands(op)
        self.expect(")")
        return found

    def operands(self, op: str) -> Expression:
        """Read the arguments of seq, plus, A, A*, P and P*."""
        first = self.argument()
        if op == "plus":
            return Expression(op, (first,), amount=self.duration())
        if op == "seq":
            return Expression(op, (first, self.binary(1)))
        if op.startswith("p"):
            amount = self.duration()
            self.expect(",")
            return Expression(op, (first, self.binary(1)), amount=amount)
        second = self.argument()
        return Expression(op, (first, second, self.binary(1)))

    def argument(self) -> Expression:
        """Read an argument and the comma behind it."""
        found = self.binary(1)
        self.expect(",")
        return found

    def negation(self) -> Expression:
        """Read not(E2)[E1, E3] from E2 on."""
        second = self.binary(1)
        self.expect(")")
        self.expect("[", NOT_SYNTAX)
        first = self.binary(1)
        self.expect(",", NOT_SYNTAX)
        if self.peek().kind == "operator" and self.peek().value == "+":
            self.next()
            found = Expression("absence", (second, first), amount=self.duration())
        else:
            found = Expression("not", (second, first, self.binary(1)))
        self.expect("]", NOT_SYNTAX)
        return found

    def any_of(self, token: Token) -> Expression:
        """Read the arguments of any."""
        amount = self.number("any takes how many, and of which: any(2, E1, E2, E3).")
        parts = []
        while self.peek().symbol(","):
            self.next()
            parts.append(self.binary(1))
        if not 1 <= amount <= len(parts):
            message = f"any asks for {amount} of {len(parts)} events"
            raise self.refuse(token, f"Ask for 1 to {len(parts)} of them.", message, "22023")
        return Expression("any", tuple(parts), amount=amount)

    def repetition(self, token: Token) -> Expression:
        """Read the arguments of repeat."""
        part = self.argument()
        amount = upper = self.number("repeat takes an event and how often: repeat(E1, 3).")
        if self.peek().symbol(","):
            self.next()
            upper = self.number("repeat takes an event, the least and the most: repeat(E1, 3, 5).")
        if not 1 <= amount <= upper:
            message = f"repeat from {amount} to {upper} times makes no sense"
            raise self.refuse(token, "Give the least, which is 1 or more, and then the most.", message, "22023")
        return Expression("repeat", (part,), amount=amount, upper=0 if upper == amount else upper)

    def number(self, hint: str) -> int:
        """Read a number of events."""
        token = self.next()
        if token.kind != "integer" or len(token.value) > 9:
            raise self.refuse(token, hint)
        return int(token.value)

    def duration(self) -> int:
        """Read a duration in quotes."""
        token = self.next() if not self.peek().symbol(",") else self.peek()
        if token.kind != "string":
            raise self.refuse(token, "Write a duration in quotes, as '10 s' or '5 min'.")
        try:
            amount = read_duration(token.value)
        except ValueError as error:
            hint = "Write days, hours, minutes and seconds, as '1 day', '90 s' or '00:05:00'."
            raise self.refuse(token, hint, str(error), "22023") from None
        if amount == 0:
            raise self.refuse(token, "Write a duration above zero.", f'"{token.value}" is no time at all', "22023")
        return amount

    def temporal(self, op: str) -> Expression:
        """Read the argument of at, every or cron."""
        if op == "every":
            return Expression(op, amount=self.duration())
        token = self.next()
        hint = (
            "Write a time with its offset, as '2026-12-24 18:00+01'."
            if op == "at"
            else "Write minute, hour, day of the month, month and day of the week, as '0 8 * * 1-5'."
        )
        try:
            zone_of(self.zone)
            if op == "at":
                return Expression(op, amount=read_time(token.value, self.zone))
            if next_cron(read_cron(token.value), self.zone, 0) is None:
                raise ValueError(f'"{token.value}" never comes')
        except (ValueError, OverflowError) as error:
            raise self.refuse(token, hint, str(error), "22023") from None
        return Expression(op, text=" ".join(token.value.lower().split()), zone=self.zone)

    def leaf(self, moment: str) -> Expression:
        """Read an event type with its source, predicate and alias."""
        token = self.next()
        if token.kind not in ("ident", "quoted") or token.word(*CONNECTIVES):
            hint = SYNTAX
            if token.word(*CONNECTIVES):
                hint = f'"{token.value}" is a word of the language; as a name put it in double quotes.'
            raise self.refuse(token, hint)
        source = self.source()
        predicate = self.predicate() if self.peek().symbol("(") else ""
        alias = self.alias() if self.peek().kind in ("ident", "quoted") else ""
        if alias and self.peek().symbol("("):
            hint = f"A predicate stands before the alias: {print_name(token.value)} (...) {print_name(alias)}"
            raise self.refuse(self.peek(), hint)
        return self.make(
            token,
            Expression("leaf", type=token.value, moment=moment, source=source, predicate=predicate, alias=alias),
        )

    def source(self) -> str:
        """Read `@source` or `::source` where it stands."""
        mark = self.peek()
        if not (mark.symbol("::") or (mark.kind == "operator" and mark.value == "@")):
            return ""
        self.next()
        token = self.next()
        if token.kind not in ("ident", "quoted"):
            raise self.refuse(token, "Name the source behind @, as in rain@hilltop.")
        return token.value

    def predicate(self) -> str:
        """Read a predicate in parentheses; its one normal form. Only PostgreSQL can tell whether it is one."""
        opening = self.peek()
        closing = self.partners[self.at]
        inside = self.tokens[self.at + 1 : closing]
        if count_arguments(inside) != 1:
            hint = "Put one condition between the parentheses, or quote the name of the type before them."
            raise self.refuse(opening if not inside else inside[0], hint)
        for token in inside:
            if token.kind == "parameter" or token.symbol(";", "{", "}"):
                raise self.refuse(token, "A predicate is one SQL expression over the attributes of its event.")
        self.at = closing + 1
        return write_tokens(plain_names(inside))

    def alias(self) -> str:
        """Read an alias, unless a word of the language stands here."""
        token = self.peek()
        if token.word("or", "and"):
            return ""
        if token.word(*OPERATOR_WORDS):
            hint = f'"{token.value}" is a word of the language; as an alias put it in double quotes.'
            raise self.refuse(token, hint)
        if token.value in self.aliases:
            message = f"alias {print_name(token.value)} is given twice"
            raise self.refuse(token, "Give each leaf an alias of its own.", message, "42710")
        self.aliases.add(token.value)
        return self.next().value


def count_arguments(tokens: list[Token]) -> int:
    """Return how many arguments stand between two parentheses."""
    depth = 0
    count = 1 if tokens else 0
    for token in tokens:
        depth += token.symbol("(", "[") - token.symbol(")", "]")
        count += depth == 0 and token.symbol(",")
    return count


def plain_names(tokens: list[Token]) -> list[Token]:
    """Return tokens in which no word behind a dot is a key word."""
    return [
        token._replace(kind="quoted") if i and tokens[i - 1].symbol(".") and token.kind == "ident" else token
        for i, token in enumerate(tokens)
    ]
