"""Cut SQL text into tokens exactly as PostgreSQL does, with standard_conforming_strings on.

Source: PostgreSQL's src/backend/parser/scan.l and parser.c, versions 13 to 18. Where versions differ the
newest is followed if the older ones refuse the text (`0x1F`); if they take it for something else, it is
refused (`1a`, once a number followed by a name).
"""

import re
from typing import NamedTuple

NAME_BYTES = 63
NUMBER_CHARACTERS = 1000  # for 0x, 0o and 0b: Python refuses to convert more than 4300 digits


class SqlTextError(ValueError):
    """Say what is wrong with a text, at which character (from 1), and what to do."""

    def __init__(self, message: str, position: int, hint: str, *, sqlstate: str = "42601") -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.hint = hint
        self.sqlstate = sqlstate


class Token(NamedTuple):
    """Hold one token.

    kind: ident (a name or key word, not quoted), quoted (a name), string, bits (B'' and X''), integer,
        decimal, operator, parameter ($1), or symbol, which is one of `( ) [ ] { } , ; : . .. :: := =>`.
    text: the source, character by character.
    value: names folded and cut at 63 bytes, strings decoded, numbers in decimal, `!=` as `<>`.
    position: of the first character, from 1. slot: a literal that stands for a parameter.
    """

    kind: str
    text: str
    value: str
    position: int = 0
    slot: bool = False

    @property
    def end(self) -> int:
        """Return the offset, from 0, of the character behind the token."""
        return self.position - 1 + len(self.text)

    def word(self, *words: str) -> bool:
        """Tell whether the token is one of the given key words, not quoted."""
        return self.kind == "ident" and self.value in words

    def symbol(self, *symbols: str) -> bool:
        """Tell whether the token is one of the given symbols."""
        return self.kind == "symbol" and self.value in symbols


# What may begin a name, and what may go on with it: said by what may not, because each session of the server compiles
# these, and for a range through all of Unicode that takes 6 ms.
NAME_START = r"[^\x00-@\[-^`{-\x7f]"
NAME_PART = r"[^\x00-/:-@\[-^`{-\x7f]"
NAME_PART_OR_DOLLAR = r"[^\x00-#%-/:-@\[-^`{-\x7f]"
SPACE = " \t\n\r\f"
SPACE_RE = re.compile(f"[{SPACE}]+|--[^\n\r]*")
# What may stand between the parts of one string constant: at least one end of line, no /* comment */.
CONTINUATION_RE = re.compile(r"(?:[ \t\f]|--[^\n\r]*)*[\n\r](?:[ \t\n\r\f]|--[^\n\r]*[\n\r])*'")
NAME_RE = re.compile(f"{NAME_START}{NAME_PART_OR_DOLLAR}*")
DOLLAR_RE = re.compile(f"\\$(?:{NAME_START}{NAME_PART}*)?\\$")
PARAMETER_RE = re.compile(r"\$[0-9]+")
RADIX_RE = re.compile(r"0(?:[xX](?:_?[0-9A-Fa-f])+|[oO](?:_?[0-7])+|[bB](?:_?[01])+)")
DIGITS = r"[0-9](?:_?[0-9])*"
DECIMAL_RE = re.compile(rf"(?:{DIGITS}(?:\.(?!\.)(?:{DIGITS})?)?|\.{DIGITS})(?:[eE][-+]?{DIGITS})?")
OPERATOR_RE = re.compile(r"[-~!@#^&|`?+*/%<>=]+")
SYMBOL_RE = re.compile(r"::|:=|\.\.|[][(){},;:.]")
STRING_RE = re.compile(r"[EeBbXx]?'|[Uu]&['\"]|\"")
UESCAPE_RE = re.compile(f"[uU][eE][sS][cC][aA][pP][eE](?!{NAME_PART_OR_DOLLAR})")
NO_BACKSLASH = {"'": re.compile(r"[^']*(?:''[^']*)*"), '"': re.compile(r'[^"]*(?:""[^"]*)*')}
BACKSLASH = re.compile(r"[^'\\]*(?:(?:''|\\.)[^'\\]*)*", re.DOTALL)
SIMPLE_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
E_ESCAPE_RE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)


def tokenize(text: str) -> list[Token]:
    """Return all tokens of a text; SqlTextError 42601 when PostgreSQL could not cut it either."""
    check_characters(text)
    tokens: list[Token] = []
    at = skip_space(text, 0)
    while at < len(text):
        tokens.append(token_at(text, at))
        at = skip_space(text, tokens[-1].end)
    return tokens


def check_characters(text: str) -> None:
    """Raise SqlTextError for what is no character to PostgreSQL."""
    bad = re.search("[\x00\ud800-\udfff]", text)
    if bad:
        raise SqlTextError(
            "the text contains a character that PostgreSQL cannot store",
            bad.start() + 1,
            "Leave out the zero character and halves of surrogate pairs.",
        )


def skip_space(text: str, at: int) -> int:
    """Return the offset of the first character from `at` on that is neither white space nor in a comment."""
    while True:
        match = SPACE_RE.match(text, at)
        if match:
            at = match.end()
        elif text.startswith("/*", at):
            at = skip_block_comment(text, at)
        else:
            return at


def skip_block_comment(text: str, start: int) -> int:
    """Return the offset behind a /* comment */, which may hold others."""
    depth = 0
    for mark in re.finditer(r"/\*|\*/", text[start:]):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return start + mark.end()
    raise SqlTextError("unterminated /* comment", start + 1, "Close the comment with */.")


def token_at(text: str, at: int) -> Token:
    """Return the token that starts at an offset, which is not white space."""
    name = NAME_RE.match(text, at)
    if STRING_RE.match(text, at):
        token = quoted_token(text, at)
    elif name:
        national = name.group() in ("n", "N") and text.startswith("'", name.end())  # N'..' is NCHAR '..'
        token = Token("ident", name.group(), "nchar" if national else clip_name(fold(name.group())), at + 1)
    elif DECIMAL_RE.match(text, at):
        token = number_token(text, at)
    elif text[at] == "$":
        token = dollar_token(text, at)
    elif OPERATOR_RE.match(text, at):
        token = operator_token(text, at)
    else:
        symbol = SYMBOL_RE.match(text, at)
        if symbol is None:
            hint = "No SQL token starts with this character."
            raise SqlTextError(f'syntax error at "{text[at]}"', at + 1, hint)
        token = Token("symbol", symbol.group(), symbol.group(), at + 1)
    return token


def fold(name: str) -> str:
    """Return a name with only A to Z put in lower case, as PostgreSQL folds in a multi-byte encoding."""
    return "".join(c.lower() if "A" <= c <= "Z" else c for c in name)


def clip_name(name: str) -> str:
    """Return a name cut to the 63 bytes that PostgreSQL keeps."""
    return name.encode()[:NAME_BYTES].decode(errors="ignore")


def number_token(text: str, at: int) -> Token:
    """Return the number at an offset; its value has no `_` and is decimal."""
    match = RADIX_RE.match(text, at) or DECIMAL_RE.match(text, at)
    assert match is not None
    digits = match.group()
    if NAME_RE.match(text, match.end()):
        raise SqlTextError(
            f'trailing junk after the number "{clip(digits)}"',
            at + 1,
            "Put a space or an operator behind the number.",
        )
    value = digits.replace("_", "").lower()
    if value[1:2] in ("x", "o", "b"):
        if len(value) > NUMBER_CHARACTERS:
            raise SqlTextError("number too long", at + 1, "Write a shorter number.", sqlstate="54000")
        value = str(int(value, 0))
    return Token("integer" if value.isdigit() else "decimal", digits, value, at + 1)


def dollar_token(text: str, at: int) -> Token:
    """Return the dollar-quoted string or the parameter at an offset."""
    match = DOLLAR_RE.match(text, at)
    if match:
        close = text.find(match.group(), match.end())
        if close < 0:
            raise SqlTextError(
                f'unterminated dollar-quoted string at "{clip(text[at:])}"',
                at + 1,
                f"Close the string with {match.group()}.",
            )
        return Token("string", text[at : close + len(match.group())], text[match.end() : close], at + 1)
    match = PARAMETER_RE.match(text, at)
    if not match or NAME_RE.match(text, match.end()):
        raise SqlTextError(f'syntax error at "{clip(text[at:])}"', at + 1, "A $ starts a dollar-quoted string: $$..$$.")
    return Token("parameter", match.group(), match.group(), at + 1)


def operator_token(text: str, at: int) -> Token:
    """Return the operator at an offset: the longest, without a comment or the sign of what follows."""
    match = OPERATOR_RE.match(text, at)
    assert match is not None
    name = re.split(r"/\*|--", match.group())[0]
    if not re.search(r"[~!@#^&|`?%]", name):
        name = name[0] + name[1:].rstrip("+-")
    if len(name) > NAME_BYTES:
        raise SqlTextError(f'operator too long at "{clip(name)}"', at + 1, "Operators have at most 63 characters.")
    if name == "=>":
        return Token("symbol", name, name, at + 1)
    return Token("operator", name, "<>" if name == "!=" else name, at + 1)


def quoted_token(text: str, at: int) -> Token:
    """Return the quoted name or string at an offset, with its continuation lines and its UESCAPE clause."""
    match = STRING_RE.match(text, at)
    assert match is not None
    quote, prefix = match.group()[-1], match.group()[:-1].lower()
    parts, end = quoted_parts(text, match.end(), quote, NO_BACKSLASH[quote] if prefix != "e" else BACKSLASH)
    if prefix == "e":
        value = "".join(decode_backslashes(part, at + 1) for part in parts)
    else:
        value = "".join(parts).replace(quote * 2, quote)
    if prefix == "u&":
        escape, end = uescape(text, end)
        value = decode_unicode(value, escape, at + 1)
    if prefix in ("b", "x") and re.search("[^01]" if prefix == "b" else "[^0-9A-Fa-f]", value):
        raise SqlTextError(
            f'invalid digit in "{clip(text[at:end])}"', at + 1, "Write binary digits in B'', others in X''."
        )
    if quote == "'":
        return Token("bits" if prefix in ("b", "x") else "string", text[at:end], value, at + 1)
    if not value:
        raise SqlTextError('zero-length name at """"', at + 1, "Write a name between the double quotes.")
    return Token("quoted", text[at:end], clip_name(value), at + 1)


def quoted_parts(text: str, at: int, quote: str, inside: "re.Pattern[str]") -> tuple[list[str], int]:
    """Return the source between the quotes, in pieces if continued, and the offset behind the last quote."""
    parts: list[str] = []
    while True:
        match = inside.match(text, at)
        assert match is not None
        if not text.startswith(quote, match.end()):
            what = "quoted string" if quote == "'" else "quoted name"
            raise SqlTextError(f'unterminated {what} at "{clip(text[at - 1 :])}"', at, f"Close it with {quote}.")
        parts.append(match.group())
        again = CONTINUATION_RE.match(text, match.end() + 1) if quote == "'" else None
        if again is None:
            return parts, match.end() + 1
        at = again.end()


def decode_backslashes(source: str, position: int) -> str:
    """Return the value of one piece of an E'' string; its escapes make bytes, which have to be UTF-8."""
    value = bytearray()
    at = 0
    high = 0  # the first half of a surrogate pair; the second has to follow at once
    while at < len(source):
        match = E_ESCAPE_RE.match(source, at)
        code = int(match.group(3) or match.group(4) or "0", 16) if match else 0
        if high and not 0xDC00 <= code <= 0xDFFF:
            raise bad_surrogates(position)
        if match is None:
            value += source[at].encode()
            at += 2 if source[at] == "'" else 1
            continue
        at = match.end()
        if match.group(3) or match.group(4):
            high, character = join_surrogates(high, code, position)
            value += character.encode()
        elif match.group(1) or match.group(2):
            value.append(int(match.group(1), 8) & 255 if match.group(1) else int(match.group(2), 16))
        elif match.group(5) in "uU":
            raise SqlTextError("invalid Unicode escape", position, "Write \\uXXXX or \\UXXXXXXXX.")
        else:
            value += SIMPLE_ESCAPES.get(match.group(5), match.group(5)).encode()
    try:
        decoded = value.decode()
    except UnicodeDecodeError:
        decoded = "\0"
    if high or "\0" in decoded:
        raise SqlTextError("the escapes in a string make no valid text", position, "Escape whole characters of UTF-8.")
    return decoded


def decode_unicode(source: str, escape: str, position: int) -> str:
    """Return the value of the inside of a U&'' string or U&"" name."""
    mark = re.escape(escape)
    pattern = re.compile(f"{mark}(?:({mark})|([0-9A-Fa-f]{{4}})|\\+([0-9A-Fa-f]{{6}})|)")
    value: list[str] = []
    at = high = 0
    while at < len(source):
        match = pattern.match(source, at)
        code = int(match.group(2) or match.group(3) or "0", 16) if match else 0
        if match and match.end() == at + 1:
            raise SqlTextError("invalid Unicode escape", position, "Write \\XXXX or \\+XXXXXX.")
        if high and not 0xDC00 <= code <= 0xDFFF:
            raise bad_surrogates(position)
        if match is None or match.group(1):
            value.append(source[at])
        else:
            high, character = join_surrogates(high, code, position)
            value.append(character)
        at = match.end() if match else at + 1
    if high:
        raise bad_surrogates(position)
    return "".join(value)


def join_surrogates(high: int, code: int, position: int) -> tuple[int, str]:
    """Return the pending first half of a surrogate pair, or 0, and the character that is complete, if any."""
    if 0xD800 <= code <= 0xDBFF and not high:
        return code, ""
    if 0xDC00 <= code <= 0xDFFF:
        if not high:
            raise bad_surrogates(position)
        return 0, chr(0x10000 + ((high & 0x3FF) << 10) + (code & 0x3FF))
    if not 0 < code <= 0x10FFFF:
        raise SqlTextError("invalid Unicode escape value", position, "Values go from 1 to 10FFFF.")
    return 0, chr(code)


def bad_surrogates(position: int) -> SqlTextError:
    """Return the error for half a pair."""
    return SqlTextError(
        "invalid Unicode surrogate pair", position, "Write both halves of the pair, one behind the other."
    )


def uescape(text: str, at: int) -> tuple[str, int]:
    """Return the escape character of a U& token that ends at an offset, and the offset behind its UESCAPE."""
    word = UESCAPE_RE.match(text, skip_space(text, at))
    if word is None:
        return "\\", at
    start = skip_space(text, word.end())
    token = token_at(text, start) if start < len(text) else None
    if token is None or token.kind != "string" or token.text[0] in "uU":
        raise SqlTextError("UESCAPE must be followed by a simple string", word.start() + 1, "Write UESCAPE '!'.")
    if len(token.value.encode()) != 1 or re.fullmatch(f"[0-9A-Fa-f+'\"{SPACE}]", token.value):
        raise SqlTextError(
            f'invalid Unicode escape character "{clip(token.value)}"', token.position, "Write UESCAPE '!'."
        )
    return token.value, token.end


def clip(text: str) -> str:
    """Return the beginning of a text, fit to be quoted in a message."""
    return text if len(text) <= 40 else text[:40] + "..."
