"""Read a statement word by word."""

import re
from collections.abc import Callable
from typing import Optional

from keywords import NOT_A_COLUMN
from lexer import SqlTextError, Token, clip, quoted_token, skip_space, token_at
from token_lists import check_brackets, infix_position, operands_end, write_tokens

BARE_RE = re.compile(r"[^\s;]+")
ROLE_WORDS = ("current_role", "current_user", "session_user")


class StatementReader:
    """Read the parts of a statement one after the other.

    Nothing is cut into tokens before it is asked for, since an address or a password need not be made of
    them. Whatever is not as expected raises SqlTextError 42601 with the right syntax as its hint.
    """

    def __init__(self, text: str, syntax: str) -> None:
        self.text = text
        self.syntax = syntax
        self.at = 0

    def peek(self, ahead: int = 0) -> Token:
        """Return a token further on; behind the end one that matches nothing."""
        at = skip_space(self.text, self.at)
        for _ in range(ahead):
            if at < len(self.text):
                at = skip_space(self.text, token_at(self.text, at).end)
        return token_at(self.text, at) if at < len(self.text) else Token("nothing", "", "", at + 1)

    def next(self) -> Token:
        """Step over a token."""
        token = self.peek()
        self.at = token.end
        return token

    def refuse(self, token: Token, hint: Optional[str] = None) -> SqlTextError:
        """Return the error for a token that cannot be there."""
        message = f'syntax error at "{clip(token.text)}"' if token.text else "syntax error at the end of the statement"
        return SqlTextError(message, token.position, hint or self.syntax)

    def accept(self, *words: str) -> bool:
        """Step over key words if they are there, all of them, one behind the other."""
        found = all(self.peek(ahead).word(word) for ahead, word in enumerate(words))
        for _ in words if found else ():
            self.next()
        return found

    def expect(self, *words: str) -> None:
        """Step over key words, which have to be there."""
        for word in words:
            if not self.accept(word):
                raise self.refuse(self.peek())

    def one_of(self, *words: str) -> str:
        """Step over one of several key words and return it; words written with a hyphen are such."""
        for word in words:
            if word.startswith("non-"):
                if self.peek().word("non") and self.peek(1).value == "-" and self.peek(2).word(word[4:]):
                    self.next(), self.next(), self.next()
                    return word
            elif self.accept(word):
                return word
        raise self.refuse(self.peek())

    def accept_symbol(self, symbol: str) -> bool:
        """Step over a symbol if it is there."""
        found = self.peek().symbol(symbol)
        if found:
            self.next()
        return found

    def accept_operator(self, operator: str) -> bool:
        """Step over an operator if it is there."""
        found = self.peek().kind == "operator" and self.peek().value == operator
        if found:
            self.next()
        return found

    def name(self) -> str:
        """Read a name; folded unless quoted."""
        token = self.peek()
        if token.word(*NOT_A_COLUMN):
            raise self.refuse(token, f'"{token.value}" is a reserved word of SQL; as a name put it in double quotes.')
        if token.kind not in ("ident", "quoted"):
            raise self.refuse(token)
        return self.next().value

    def role(self) -> str:
        """Read the name of a role, or one of the words that stand for the present one."""
        return self.next().value if self.peek().word(*ROLE_WORDS) else self.name()

    def names(self, read: Callable[[], str]) -> list[str]:
        """Read one or more names with commas between them."""
        found = [read()]
        while self.accept_symbol(","):
            found.append(read())
        return found

    def pattern(self) -> str:
        """Read the name of an event type, or the beginning of one with a * behind it, or * alone."""
        token = self.peek()
        name = "" if token.kind == "operator" else self.name()
        return name + "*" if self.accept_operator("*") or not name else name

    def qualified(self) -> str:
        """Read a name that may have a schema; return it as SQL, quoted where that is needed."""
        parts = [Token("quoted", "", self.name())]
        while self.accept_symbol("."):
            token = self.next()
            if token.kind not in ("ident", "quoted"):
                raise self.refuse(token)
            parts += [Token("symbol", ".", "."), Token("quoted", "", token.value)]
        return write_tokens(parts)

    def more(self) -> bool:
        """Tell whether something comes before the next semicolon; it need not be a token."""
        return BARE_RE.match(self.text, skip_space(self.text, self.at)) is not None

    def bare(self) -> str:
        """Read an address or a password: a string, or all up to the next space or semicolon as it stands."""
        start = skip_space(self.text, self.at)
        match = BARE_RE.match(self.text, start)
        if match is None:
            raise self.refuse(self.peek())
        if re.match("[Ee]?'", match.group()):
            token = quoted_token(self.text, start)
            self.at = token.end
            return token.value
        self.at = match.end()
        return match.group()

    def integer(self) -> int:
        """Read a whole number, which may have a sign."""
        sign = -1 if self.accept_operator("-") else 1
        token = self.next()
        if token.kind != "integer" or len(token.value) > 10:
            raise self.refuse(token)
        return sign * int(token.value)

    def parenthesised(self) -> list[Token]:
        """Read what stands between two parentheses, and these."""
        opening = self.peek()
        if not opening.symbol("("):
            raise self.refuse(opening)
        tokens = [self.next()]
        depth = 1
        while depth:
            token = self.next()
            if token.kind in ("nothing", "parameter") or token.symbol(";", "{", "}"):
                raise self.refuse(token)
            depth += token.symbol("(", "[") - token.symbol(")", "]")
            tokens.append(token)
        check_brackets(tokens, "statement")
        return tokens[1:-1]

    def expression(self, *stops: str) -> list[Token]:
        """Read an expression up to one of the words that may follow it, or up to the end."""
        tokens: list[Token] = []
        depth = 0
        while True:
            token = self.peek()
            if token.kind == "nothing" or (depth == 0 and (token.symbol(";") or self.stops(tokens, token, stops))):
                break
            if token.kind == "parameter" or token.symbol(";", "{", "}"):
                raise self.refuse(token)
            if tokens and tokens[-1].symbol("."):
                token = token._replace(kind="quoted") if token.kind == "ident" else token
            depth += token.symbol("(", "[") - token.symbol(")", "]")
            tokens.append(token)
            self.at = token.end
        check_brackets(tokens, "statement")
        if not tokens:
            raise self.refuse(self.peek())
        return tokens

    def stops(self, tokens: list[Token], token: Token, stops: tuple[str, ...]) -> bool:
        """Tell whether an expression ends before a token: one of the words, where an operator could stand."""
        if not token.word(*stops) or (token.word("with") and self.peek(1).word("time")):
            return False
        return infix_position([*tokens, token], operands_end(tokens), len(tokens))

    def source(self, tokens: list[Token]) -> str:
        """Return tokens as they were written; comments before and behind them are left out."""
        return self.text[tokens[0].position - 1 : tokens[-1].end] if tokens else ""

    def sources(self, tokens: list[Token]) -> list[str]:
        """Return the expressions of a list as they were written; none may be missing between commas."""
        found: list[str] = []
        item: list[Token] = []
        depth = 0
        for token in tokens:
            depth += token.symbol("(", "[") - token.symbol(")", "]")
            if depth > 0 or not token.symbol(","):
                item.append(token)
            elif item:
                found.append(self.source(item))
                item = []
            else:
                raise self.refuse(token)
        if found and not item:
            raise self.refuse(tokens[-1])
        return [*found, self.source(item)] if item else found

    def end(self) -> None:
        """Step over semicolons to the end of the text."""
        while self.accept_symbol(";"):
            pass
        token = self.peek()
        if token.text:
            before = self.text[: token.position - 1].rstrip()
            raise self.refuse(token, "Give one statement at a time." if before.endswith(";") else None)
