"""The tables about a network that are printed at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from pgps_demo.network.withheld import Finding
from pgps_demo.report import plain_table

__all__ = ["show_brokers", "show_findings", "show_links", "show_states", "tick"]


def tick(is_right: object) -> Text:
    """Return a green tick or a red cross."""
    return Text("✓ ", "bold green") if is_right else Text("✗ ", "bold red")


def show_links(console: Console, links: Sequence[Mapping[str, Any]]) -> None:
    """Print how many events have crossed each link."""
    table = plain_table("link", "events", "wanted behind it", right=[False, True, True])
    for link in links:
        name = tick(link["ok"]).append(f"{_name(link['from'])} → {_name(link['to'])}", "")
        table.add_row(name, f"{link['events']:,}", f"{link['expected']:,}")
    console.print(table)


def show_findings(console: Console, findings: Sequence[Finding], searched: Mapping[str, Mapping[str, int]]) -> None:
    """Print how often what is withheld was found."""
    columns = ("domain", "may not have", "in rows", "in bytes", "as attribute", "for comparison")
    table = plain_table(*columns, right=[False, False, True, True, True, False])
    for each in findings:
        numbers = [
            Text(str(count), "bold red" if count else "green") for count in (each.rows, each.bytes, each.attributes)
        ]
        there = Text(f"{each.there:,} in rows of {each.elsewhere}", "dim" if each.there else "bold red")
        table.add_row(tick(each.ok).append(each.domain, ""), f"{each.of}: {each.what}", *numbers, there)
    console.print(table)
    sizes = (f"{name} {size['rows']:,} rows, {size['bytes'] / 1e6:,.0f} MB" for name, size in searched.items())
    console.print(Text(f"searched: {'; '.join(sizes)}", "dim"))


def show_states(console: Console, states: Sequence[Mapping[str, Any]]) -> None:
    """Print for each step what every database has stored: of whom the advertisement, and how many filters."""
    databases = list(states[0]["advertised_by"])
    table = plain_table("step", *map(_name, databases), right=[False] * (len(databases) + 1))
    for state in states:
        cells = [
            "\n".join([*_advertised(state["advertised_by"][each]), *_filters(state["filters_received"].get(each, {}))])
            for each in databases
        ]
        table.add_row(tick(state["ok"]).append(state["name"], ""), *cells)
        table.add_section()
    console.print(table)
    told = (
        "t by 3: has an advertisement of DB_3; 2 of 4: has two filters of DB_4. ✓ as in the text; but for DB_1:",
        "the paper has a_2 stored by DB_3 alone; here DB_1 hears of the other publisher, too, and can subscribe",
    )
    console.print(Text("\n".join(told), "dim"))


def show_brokers(console: Console, state: Mapping[str, Any], covered: Mapping[str, Sequence[str]]) -> None:
    """Print what each database has in the end: filters of whom, what it sent to whom, and what it need not send."""
    table = plain_table("database", "filters received", "filters sent", "covered: not sent", right=[False] * 4)
    for name in state["advertised_by"]:
        received, sent = state["filters_received"].get(name, {}), state["filters_sent"].get(name, {})
        lines = [
            "\n".join(f"{_name(of)}: {text}" for of, texts in by.items() for text in texts) for by in (received, sent)
        ]
        table.add_row(_name(name), *lines, "\n".join(covered[name]))
    console.print()
    console.print(table)


def _advertised(via: Sequence[str]) -> list[str]:
    return [f"t by {' '.join(each.removeprefix('db_') for each in via)}"] if via else []


def _filters(by: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{len(texts)} of {of.removeprefix('db_')}" for of, texts in by.items()]


def _name(database: str) -> str:
    """Return a database's name as the paper writes it."""
    return database.upper() if database.startswith("db_") else database
