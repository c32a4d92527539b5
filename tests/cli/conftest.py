"""Fixtures for the command line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from pgps.cli.__main__ import run


@dataclass(frozen=True)
class Result:
    """What a command line came to."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The objects of an output with one JSON value a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Pgps(Protocol):
    """Runs `pgps` with arguments, in this process."""

    def __call__(self, *arguments: str, stdin: str | bytes = "", dsn: str | None = None) -> Result: ...


@pytest.fixture
def pgps_without_database(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Pgps:
    """Run `pgps` with no database to go to, unless the arguments name one."""

    def called(*arguments: str, stdin: str | bytes = "", dsn: str | None = None) -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        monkeypatch.setenv("PGPS_DSN", dsn or "host=/nonexistent")
        capsys.readouterr()
        status = run(arguments)
        out, err = capsys.readouterr()
        return Result(status, out, err)

    return called


@pytest.fixture
def pgps(pgps_without_database: Pgps, dsn: str) -> Pgps:
    """Run `pgps` on this process's database, as the superuser unless `dsn` says otherwise."""
    default = dsn

    def called(*arguments: str, stdin: str | bytes = "", dsn: str | None = None) -> Result:
        return pgps_without_database(*arguments, stdin=stdin, dsn=dsn or default)

    return called


@pytest.fixture
def done(pgps: Pgps) -> Callable[..., str]:
    """Run `pgps` and insist that it goes well; return its stdout."""

    def called(*arguments: str, stdin: str | bytes = "", dsn: str | None = None) -> str:
        result = pgps(*arguments, stdin=stdin, dsn=dsn)
        assert result.status == 0, result
        return result.out

    return called
