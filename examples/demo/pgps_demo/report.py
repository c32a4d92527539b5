"""The report at the end: queries with their results, and the verdict on each subscription."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

import rich.box
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from pgps_demo.after import Answer
from pgps_demo.prove import Verdict
from pgps_demo.tally import Tally

__all__ = ["plain_table", "show_answer", "show_title", "show_verdicts", "summary", "verdict_dicts"]

_FOLDED = {"wants", "error", "may not have"}
_SEEN_RIGHT = {True: Text("yes", "green"), False: Text("no", "bold red"), None: Text("shared", "dim")}


def show_title(console: Console, title: str) -> None:
    """Print a heading."""
    console.print()
    console.print(Text(title, "bold"))


def show_answer(console: Console, answer: Answer) -> None:
    """Print a query as typed, and its result."""
    console.print(Text(f"{answer.role}=>", "dim"))
    console.print(
        Syntax(answer.query + ";", "postgresql", theme="ansi_dark", background_color="default", word_wrap=True)
    )
    if answer.rows:
        table = plain_table(*answer.columns, right=[isinstance(value, int) for value in answer.rows[0]])
        for row in answer.rows:
            table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
        console.print(table)


def show_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Print the proof."""
    columns = ("subscription", "of", "wants", "expected", "got", "missing", "extra", "in order")
    table = plain_table(*columns, right=[False, False, False, True, True, True, True, False])
    for each in verdicts:
        wrong = "bold red" if each.missing or each.extra else "dim"
        table.add_row(
            Text.assemble(("✓ " if each.ok else "✗ ", "bold green" if each.ok else "bold red"), each.subscription),
            each.owner,
            each.what,
            f"{each.expected:,}",
            f"{each.received:,}",
            Text(str(each.missing), wrong),
            Text(str(each.extra), wrong),
            Text(f"all but {each.late:,}", "green") if each.in_order and each.late else _SEEN_RIGHT[each.in_order],
        )
    console.print(table)


def summary(tally: Tally, verdicts: Sequence[Verdict], **more: Any) -> dict[str, Any]:
    """Return the result for programs."""
    return {
        **more,
        "published": dict(tally.published),
        "transactions": {
            "committed": tally.transactions,
            "rolled_back": tally.rolled_back,
            "rolled_back_in_part": tally.savepoints,
            "committed_late": tally.late,
            "consumers_rolled_back": tally.consumer_rollbacks,
        },
        "latency_ms": {"median": median_latency(tally)},
        "subscriptions": verdict_dicts(verdicts),
    }


def verdict_dicts(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return verdicts for programs."""
    return [{**asdict(each), "ok": each.ok} for each in verdicts]


def median_latency(tally: Tally) -> float | None:
    """Return milliseconds from an event's INSERT to the consumer that has it; None when nothing came."""
    return round(statistics.median(tally.latencies) * 1000, 1) if tally.latencies else None


def plain_table(*columns: str, right: Sequence[bool]) -> Table:
    """Return an empty table."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for column, is_number in zip(columns, right, strict=True):
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column not in _FOLDED)
    return table
