"""The last part: publish the quotes through Spark's JDBC writer to a broker of its own, archive them, report.

Spark runs as a process of its own, as `pgps_spark` does everywhere. Without PySpark, Java or the
JDBC driver this part is left out, with a message.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from rich.console import Console
from rich.text import Text

from pgps import install
from pgps.embedded import EmbeddedCluster
from pgps.errors import PgpsError
from pgps_demo.data import Data, Quote
from pgps_demo.display import Steps
from pgps_demo.report import show_title

__all__ = ["missing", "run"]

_ATTRIBUTES = "symbol text not null, day date not null, open numeric, close numeric not null, volume bigint not null"
_FILTERS: dict[str, tuple[str | None, Callable[[Quote], bool]]] = {
    "everything": (None, lambda _: True),
    "ibm": ("symbol = 'IBM'", lambda quote: quote.symbol == "IBM"),
    "dear": ("close > 500", lambda quote: quote.close > 500),
    "busy": ("volume > 50000000", lambda quote: quote.volume > 50_000_000),
}
_PASSWORD = "demo"  # noqa: S105 - of a server that lives for a minute
_TIMEOUT = 600.0


def missing() -> str | None:
    """Return what Spark lacks here, None when it can run."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed: pip install 'pgps[spark]'"
    check = "from pgps_spark.sessions import *; require_spark(); require_java(); driver_jar()"
    said = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    return said.stderr.strip().splitlines()[-2 if "HINT" in said.stderr else -1] if said.returncode else None


def run(data: Data, steps: Steps, out: Console, *, output: Path) -> dict[str, Any]:
    """Run this part; return the result for programs. The report stays in `output`."""
    lacking = missing()
    if lacking is not None:
        out.print(Text(f"Spark is left out. {lacking}", "yellow"))
        return {"ok": True, "left_out": lacking}
    with EmbeddedCluster(f"demo-{os.getpid()}-spark", keep=False) as cluster:
        with steps.step("a broker for Spark"):
            install.install(cluster.dsn())
            _build(cluster.dsn())
        step = steps.step("Spark: JDBC write, the same once more, archive, report")
        with (
            tempfile.TemporaryDirectory() as directory,
            _worker(make_conninfo(cluster.dsn(), user="broker_worker")),
            step,
        ):
            done = _spark(cluster.dsn(tcp=True), data, Path(directory), output)
    return _judged(done, data, out)


def _build(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(f"create role lake login password '{_PASSWORD}'".encode())
        connection.execute("create role broker_worker login in role pgps_worker")
        connection.execute("select pgps.create_event_type('quote', %s, auditable => true)", [_ATTRIBUTES])
        connection.execute(b"grant insert, select on pgps_event.quote to lake; set role lake")
        connection.execute("select pgps.advertise('quote')")
        for name, (condition, _) in _FILTERS.items():
            connection.execute("select pgps.subscribe(%s, 'quote', filter => %s)", [name, condition])
        connection.execute("select pgps.subscribe('archive', 'quote')")


class _worker:  # noqa: N801 - used as a function
    """A worker on the broker for as long as a block lasts."""

    def __init__(self, dsn: str) -> None:
        self._command = [sys.executable, "-m", "pgps_worker", "--dsn", dsn, "--name", "lake"]

    def __enter__(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _spark(dsn: str, data: Data, directory: Path, output: Path) -> dict[str, Any]:
    file = directory / "quotes.csv"
    with file.open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(["symbol", "day", "open", "close", "volume", "number"])
        for number, quote in enumerate(data.quotes):
            writer.writerow([quote.symbol, quote.day, quote.open, quote.close, quote.volume, number])
    pipeline = directory / "pipeline.toml"
    pipeline.write_text(_configuration(make_conninfo(dsn, user="lake", password=_PASSWORD), directory, output))
    process = subprocess.run(
        [sys.executable, "-m", "pgps_spark.act", str(pipeline), "quote", str(file)],
        capture_output=True, text=True, check=False, timeout=_TIMEOUT, start_new_session=True,
    )  # fmt: skip
    if process.returncode:
        tail = "\n".join(process.stderr.splitlines()[-15:])
        raise PgpsError(f"Spark ended with status {process.returncode}:\n{tail}")
    return dict(json.loads(process.stdout.splitlines()[-1]))


def _configuration(dsn: str, directory: Path, output: Path) -> str:
    texts = {name: json.dumps(str(value)) for name, value in (("d", directory), ("o", output), ("s", dsn))}
    return f"""
[pipeline]
dsn = {texts["s"]}
directory = {texts["d"]}
[spark]
"spark.ui.enabled" = "false"
"spark.ui.showConsoleProgress" = "false"
"spark.sql.shuffle.partitions" = "2"
[jobs.archive]
kind = "archive"
event_type = "quote"
subscription = "archive"
directory = {json.dumps(str(directory / "archive"))}
[jobs.report]
kind = "report"
title = "The quotes of the demonstration"
directory = {json.dumps(str(directory / "archive"))}
output = {texts["o"]}
"""


def _judged(done: dict[str, Any], data: Data, out: Console) -> dict[str, Any]:
    wanted = {name: sum(map(wants, data.quotes)) for name, (_, wants) in _FILTERS.items()}
    wanted = {name: count for name, count in {**wanted, "archive": len(data.quotes)}.items() if count}
    counted = done["published"] == done["archived"] == done["distinct"] == len(data.quotes)
    show_title(out, "Spark: published through JDBC, twice; archived once")
    out.print(f"  {done['published']:,} quotes published, {done['archived']:,} in the archive, as plain Python counts")
    out.print(f"  tables and plots: {done['page']}")
    return {**done, "wanted": wanted, "ok": counted and done["matches"] == wanted}
