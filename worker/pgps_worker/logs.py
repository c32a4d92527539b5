"""Where the worker's log goes: to stderr, for people or, as JSON lines, for machines."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.logging import RichHandler

from pgps._printable import is_control, printable

__all__ = ["about", "set_up"]


def about(**fields: object) -> dict[str, dict[str, object]]:
    """Return what a message is about, as `extra`: a JSON line has each of them by itself; None: there is none."""
    return {"fields": {name: value for name, value in fields.items() if value is not None}}


class _Lines(logging.Formatter):
    """Lines for people: what a user's error says stays on its line, and does not drive the terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - so logging calls it
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return printable(super().formatException(ei), keep="\n")


class _JsonLines(logging.Formatter):
    def __init__(self, worker: str) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "worker": self._worker,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # JSON itself escapes only the first of them.
        return "".join(f"\\u{ord(c):04x}" if is_control(c) else c for c in json.dumps(line, ensure_ascii=False))


def set_up(level: str, *, as_json: bool, worker: str) -> None:
    """Send what is logged from `level` up to stderr; a terminal gets colours, a pipe plain lines."""
    handler: logging.Handler
    console = Console(stderr=True)
    if as_json:
        handler = logging.StreamHandler()
        handler.setFormatter(_JsonLines(worker))
    elif console.is_terminal:
        # Its own tracebacks would not come through the formatter.
        handler = RichHandler(console=console, show_path=False, markup=False)
        handler.setFormatter(_Lines("%(message)s", datefmt="[%X]"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The worker reports in its own words what asyncio and psycopg notice, so that they need not log it.
    for library in ("asyncio", "psycopg"):
        logging.getLogger(library).setLevel(logging.ERROR)
