"""PostgreSQL's own load generator."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict

from pgps.embedded import find_binaries

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["pgbench"]


def pgbench(dsn: str, script: str, *options: str, seconds: int, clients: int, mode: str = "prepared") -> float:
    """Run a script and return its transactions a second; raises when one failed."""
    process = start(dsn, script, options, seconds=seconds, clients=clients, mode=mode)
    output, _ = process.communicate()
    return rate(output)


def start(
    dsn: str, script: str, options: Sequence[str] = (), *, seconds: int, clients: int, mode: str = "prepared"
) -> subprocess.Popen[str]:
    """Start a script; its report is on standard output when it ends."""
    given = conninfo_to_dict(dsn)
    with tempfile.NamedTemporaryFile("w", suffix=".sql", delete=False) as file:
        file.write(script)
    command = [find_binaries().program("pgbench"), "--no-vacuum", "--file", file.name, "--protocol", mode]
    command += ["--client", str(clients), "--jobs", str(min(2, clients)), "--time", str(seconds), *options]
    command += ["--host", str(given["host"]), "--port", str(given["port"]), "--username", str(given["user"])]
    process = subprocess.Popen(
        [*command, str(given["dbname"])], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    # pgbench has read the script when it prints; the file is small, and removed when the process ends.
    _LEFT.append(Path(file.name))
    return process


_LEFT: list[Path] = []


def rate(output: str) -> float:
    """Return the transactions a second of a report; raises RuntimeError when there are none or some failed."""
    while _LEFT:
        _LEFT.pop().unlink(missing_ok=True)
    found = re.search(r"^tps = ([\d.]+)", output, re.MULTILINE)
    failed = re.search(r"number of failed transactions: ([1-9]\d*)", output)
    if found is None or failed or "aborted" in output:
        raise RuntimeError(f"pgbench failed:\n{output}")
    return float(found.group(1))
