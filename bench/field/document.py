"""docs/performance.md: generated from raw results between its markers; the text around them is written by hand."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from bench.field import plots
from bench.field.field import ordered, short

__all__ = ["write"]

_DOCS = Path(__file__).resolve().parents[2] / "docs"
_PAGE = _DOCS / "performance.md"
_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"
_PREFACE = f"""# Performance

What pgps does beside what one would use instead, on one machine. `make field` measures it and writes the part between
the markers from the newest raw results, which are in `bench/results`, a file for each experiment; what is compared was
measured in one run, in turns. In every round each subscriber's set of events was compared with the set that was due.

{_BEGIN}
{_END}
"""


def write(results: dict[str, Any]) -> Path:
    """Write the page and the plots; return the page. Raises RuntimeError for a quick run: its figures mean nothing."""
    if results["quick"]:
        raise RuntimeError("a quick run shows that the harness works; its figures are not for the page")
    page = _PAGE.read_text() if _PAGE.exists() else _PREFACE
    before, _, rest = page.partition(_BEGIN)
    after = rest.partition(_END)[2]
    pictures = plots.draw(results, _DOCS / "images")
    text = "\n\n".join([_machine(results), *(_experiment(name, results, pictures) for name in results["experiments"])])
    _PAGE.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{after}")
    return _PAGE


def _machine(results: dict[str, Any]) -> str:
    machine, server = results["machine"], results["server"]
    kept = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "autovacuum")
    settings = ", ".join(f"`{name} = {server[name]}`" for name in kept if name in server)
    systems = "; ".join(f"{title}: {version}" for title, version in results["systems"].items())
    where = f"{machine['cpus']} processors ({machine['architecture']}), {machine['memory_gb']} GB of memory"
    load = "server, workers, brokers and clients share it"
    turns = "Medians of rounds in which the systems take turns in changing order, after rounds that do not count."
    lines = [
        f"**Machine.** {where}, {machine['system']}; {load}.",
        f"**Server.** PostgreSQL {server['server_version']}; {settings}; every system in a database of its own.",
        f"**Systems.** {systems}.",
        f"**Rounds.** {turns}",
    ]
    if results["skipped"]:
        lines.append("**Skipped.** " + "; ".join(f"{title}: {why}" for title, why in results["skipped"].items()) + ".")
    return "\n\n".join(lines)


def _experiment(name: str, results: dict[str, Any], pictures: dict[str, list[str]]) -> str:
    experiment = results["experiments"][name]
    # The first line of the method is the title.
    parts = [f"## {experiment['title']}", experiment["method"].partition("\n\n")[2]]
    # A search is one round, however many others have.
    rounds = max((len(figure["samples"]) for figure in experiment["figures"]), default=experiment["runs"])
    times = f"{rounds} round{'s' if rounds > 1 else ''}"
    parts.append(f"{times}, {experiment['date'][:10]}, load before {experiment['load']:.1f}.")
    parts += [f"![{experiment['title']}](images/{file})" for file in pictures.get(name, [])]
    # Many successive rounds are easier to read in the plot than in a table.
    tables = dict.fromkeys(cell["table"] for cell in experiment["cells"]) if experiment["plot"] != "lines" else ()
    for title in tables:
        parts.append(_table(title, [cell for cell in experiment["cells"] if cell["table"] == title]))
    if experiment["figures"]:
        parts.append(_figures(experiment["figures"]))
    for sheet in experiment["sheets"]:
        head = ["| " + " | ".join(sheet["columns"]) + " |", "|---" * len(sheet["columns"]) + "|"]
        rows = ["| " + " | ".join(row) + " |" for row in sheet["rows"]]
        parts += [f"**{sheet['title']}**", "\n".join([*head, *rows])]
    failures = dict.fromkeys(
        f"{cell['series']}, {cell['x']}: {cell['error']}" for cell in experiment["cells"] if cell["error"]
    )
    parts += [f"- {note}" for note in [*experiment["notes"], *failures]]
    return "\n\n".join(parts)


def _table(title: str, cells: list[dict[str, Any]]) -> str:
    points = ordered(cell["x"] for cell in cells)
    rows = [f"| {title} | " + " | ".join(points) + " |", "|---|" + "---:|" * len(points)]
    for series in dict.fromkeys(cell["series"] for cell in cells):
        found = {cell["x"]: cell for cell in cells if cell["series"] == series}
        values = (_value(found[point]) if point in found else "" for point in points)
        rows.append(f"| {series} | " + " | ".join(values) + " |")
    return "\n".join(rows)


def _value(cell: dict[str, Any]) -> str:
    if cell["error"] or not cell["samples"]:
        return "failed"
    return short(statistics.median(cell["samples"]))


def _figures(figures: list[dict[str, Any]]) -> str:
    rows = ["| paired | target | ratio | spread |", "|---|---|---:|---:|"]
    for one in figures:
        target = one["target"]
        aim = f"{'≤' if target['sense'] == 'at most' else '≥'} {target['value']:g} {target['unit']}" if target else ""
        reached = f"{short(one['reached'])} x" if one["other"] else f"{short(one['reached'])} {one['unit']}"
        low, high = one["spread"]
        shown = f"**{reached}**" if one["met"] else reached
        rows.append(f"| {one['what']} | {aim} | {shown} | {short(low)} … {short(high)} |")
    return "\n".join(rows)
