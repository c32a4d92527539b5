"""Data on stdout, talk on stderr; as JSON, as tables for people, as aligned columns for pipes."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TextIO, TypeAlias

import rich.box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgps.cli._format import plain, printable

__all__ = ["Column", "Output", "RawJson", "dumps", "table"]

Row: TypeAlias = Mapping[str, Any]


class RawJson(str):
    """A jsonb value as the server wrote it: no number loses a digit on its way through."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: which key of the row, its heading, how a value reads.

    `style` gives a rich style for a value, "" for none.
    """

    key: str
    title: str = ""
    format: Callable[[Any], str] = plain
    right: bool = False
    style: Callable[[Any], str] | None = None

    @property
    def heading(self) -> str:
        """Return the title, or the key with blanks."""
        return self.title or self.key.replace("_", " ")


def dumps(value: Any) -> str:
    """Return JSON on one line; `RawJson` goes in as it stands."""
    if isinstance(value, RawJson):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(k))}: {dumps(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(dumps, value)) + "]"
    if isinstance(value, decimal.Decimal):
        return str(value) if value.is_finite() else json.dumps(str(value))
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return json.dumps(value.isoformat())
    if isinstance(value, bytes):
        return json.dumps("\\x" + value.hex())
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(str(value))
    if value is None or isinstance(value, str | int | float):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(str(value), ensure_ascii=False)


class Output:
    """Where a command writes. `json` is what --json asked for."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        # Made for each command, not at import: tests and pipes exchange sys.stdout.
        self.stdout = _console(sys.stdout)
        self.stderr = _console(sys.stderr)

    def say(self, text: str) -> None:
        """Tell a person something; not data."""
        self.stderr.print(Text(printable(text, keep="\n")), soft_wrap=True)

    def line(self, text: str) -> None:
        """Write one line of data, exactly."""
        sys.stdout.write(text + "\n")

    def flush(self) -> None:
        """Hand over what was written; raises BrokenPipeError when nobody reads any more."""
        sys.stdout.flush()

    def rows(self, columns: Sequence[Column], rows: Sequence[Row], *, nothing: str) -> None:
        """Write a list: a JSON array with every key, or a table of the columns; `nothing` when it is empty."""
        if self.json:
            self.line("[" + ",\n ".join(map(dumps, rows)) + "]")
        elif not rows:
            self.say(nothing)
        else:
            self.table(columns, rows)

    def record(self, row: Row, *, columns: Sequence[Column] | None = None) -> None:
        """Write one thing: a JSON object, or a line for each column."""
        if self.json:
            self.line(dumps(row))
            return
        shown = columns or [Column(key) for key in row]
        width = max(cell_len(column.heading) for column in shown)
        for column in shown:
            value = column.format(row[column.key])
            heading = Text(f"{column.heading:<{width}}  ", style="bold")
            style = column.style(row[column.key]) if column.style else ""
            line = heading + Text(value, style=style)
            line.rstrip()
            self.stdout.print(line, soft_wrap=True)

    def heading(self, text: str) -> None:
        """Write a heading between two tables; nothing as JSON."""
        if not self.json:
            self.stdout.print()
            self.stdout.print(Text(text, style="bold"))

    def table(self, columns: Sequence[Column], rows: Sequence[Row], *, headed: bool = True) -> None:
        """Write a table: with rules on a terminal, aligned and nothing else in a pipe; without headings to go on.

        A terminal too narrow for the words of a line gets each row as a record: a name that is broken cannot be typed.
        """
        if self.stdout.is_terminal and _is_too_narrow(_texts(columns, rows)[1:], self.stdout.width):
            for number, row in enumerate(rows):
                if number or not headed:
                    self.stdout.print()
                self.record(row, columns=columns)
        elif self.stdout.is_terminal:
            self.stdout.print(table(columns, rows, headed=headed, width=self.stdout.width))
        else:
            for text in islice(_aligned(columns, rows), 0 if headed else 1, None):
                self.line(text)


def _console(stream: TextIO) -> Console:
    """Return a console of the terminal's width; what is not a terminal has none, and nothing is cut for it."""
    width = None if stream.isatty() else 10_000
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def table(
    columns: Sequence[Column], rows: Iterable[Row], *, wrap: bool = True, headed: bool = True, width: int | None = None
) -> Table:
    """Return a rich table of the rows; without `wrap` each row stays on one line, and loses what does not fit.

    Where a `width` is too small for the lines, but not for the words, no word is broken: names are typed as they stand.
    """
    made = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, show_header=headed)
    rows = list(rows)
    widths = _widths(_texts(columns, rows), width) if wrap and width else []
    for number, column in enumerate(columns):
        made.add_column(
            column.heading,
            justify="right" if column.right else "left",
            overflow="fold" if wrap else "ellipsis",
            no_wrap=not wrap,
            min_width=None if headed else cell_len(column.heading),
            width=widths[number] if widths else None,
        )
    for row in rows:
        made.add_row(*(_cell(column, row[column.key]) for column in columns))
    return made


def _widths(lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return how wide each column is so that no word is broken, or at least none below the headings.

    [] when all fits as it is, or even the words do not.
    """
    room = _room(lines, width)
    wanted = _longest(lines, str.splitlines)
    if sum(wanted) <= room:
        return []
    for part in (lines, lines[1:]):
        least = _longest(part, str.split)
        over = room - sum(least)
        if part and over >= 0:
            more = [want - word for want, word in zip(wanted, least, strict=True)]
            return [word + over * wish // sum(more) for word, wish in zip(least, more, strict=True)]
    return []


def _is_too_narrow(lines: Sequence[Sequence[str]], width: int) -> bool:
    """Tell whether a word of some column has to be broken for a table of this width."""
    return sum(_longest(lines, str.split)) > _room(lines, width)


def _room(lines: Sequence[Sequence[str]], width: int) -> int:
    return width - 2 * (len(lines[0]) - 1)


def _longest(lines: Sequence[Sequence[str]], parts: Callable[[str], list[str]]) -> list[int]:
    """Return how wide the widest part of each column is."""
    columns = zip(*lines, strict=True)
    return [max(1, *(cell_len(part) for cell in column for part in parts(cell)), 1) for column in columns]


def _cell(column: Column, value: Any) -> Text:
    return Text(column.format(value), style=column.style(value) if column.style else "")


def _texts(columns: Sequence[Column], rows: Iterable[Row]) -> list[list[str]]:
    """Return the headings, and the text of each cell."""
    headings = [column.heading for column in columns]
    return [headings, *([column.format(row[column.key]) for column in columns] for row in rows)]


def _aligned(columns: Sequence[Column], rows: Iterable[Row]) -> Iterable[str]:
    """Yield the lines of a table without rules, padded to the widest cell."""
    cells = _texts(columns, rows)
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (
            " " * (width - cell_len(cell)) + cell if column.right else cell + " " * (width - cell_len(cell))
            for column, cell, width in zip(columns, line, widths, strict=True)
        )
        yield "  ".join(padded).rstrip()
