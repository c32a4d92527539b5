"""Help, wrong usage, and what is told when there is no database."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from psycopg.conninfo import conninfo_to_dict

import pgps
from pgps.cli.__main__ import app
from tests.cli.conftest import Pgps


def commands() -> list[list[str]]:
    """Every command there is, as the words that name it."""

    def walk(command: object, path: list[str]) -> list[list[str]]:
        inner = getattr(command, "commands", None)
        if not inner:
            return [path]
        return [found for name, one in inner.items() for found in walk(one, [*path, name])]

    return walk(typer.main.get_command(app), [])


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_help_with_the_shared_options(
    command: list[str], pgps_without_database: Pgps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    result = pgps_without_database(*command, "--help")
    assert result.status == 0
    if command[0] != "demo":
        assert "--dsn" in result.out
        assert "--json" in result.out
    # A switch takes no value, so its help names none.
    assert "<bool>" not in result.out
    assert result.err == ""


def test_groups_and_the_other_programs_say_no_type_of_a_switch(
    pgps_without_database: Pgps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    for arguments in ([], ["sub"], ["event"]):
        said = pgps_without_database(*arguments, "--help").out
        assert "--help" in said
        assert "<bool>" not in said
    for program in (["pgps_worker"], ["pgps_spark"], ["pgps_spark", "run"]):
        done = subprocess.run([sys.executable, "-m", *program, "--help"], capture_output=True, text=True, check=True)
        assert "--help" in done.stdout
        assert "<bool>" not in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["type", "ls", "--bogus"],
        ["type", "create", "only_a_name"],
        ["type", "grant", "t", "steal", "--role", "x"],
        ["type", "alter", "t"],
        ["queue", "set", "q"],
        ["publish", "t"],
        ["publish", "t", "{}", "--file", "x.csv"],
        ["publish", "t", "{}", "--dry-run", "--visibility", "immediate"],
        ["sub", "create", "s", "t", "--max-attempts", "0"],
        ["listen", "s", "--max", "many"],
        ["sub", "rm", "s"],
        ["type", "drop", "t", "--cascade"],
        ["exceptions", "discard", "t"],
        ["link", "add", "l"],
        ["link", "resume"],
        ["link", "resume", "l", "--as", "clone"],
        ["link", "rm", "l"],
        ["topology", "--mermaid", "--svg", "x.svg"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2_with_an_error_and_a_hint(arguments: list[str], pgps_without_database: Pgps) -> None:
    result = pgps_without_database(*arguments)
    assert result.status == 2
    assert result.out == ""
    error, hint = result.err.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: pgps ")
    assert hint.endswith(" --help")


def test_wrong_usage_is_json_when_json_is_asked_for(pgps_without_database: Pgps) -> None:
    result = pgps_without_database("type", "ls", "--json", "--bogus")
    assert json.loads(result.err)["hint"] == "pgps type ls --help"


@pytest.mark.parametrize("arguments", [[], ["type"], ["type", "policy"]], ids=str)
def test_a_noun_alone_shows_its_verbs(arguments: list[str], pgps_without_database: Pgps) -> None:
    result = pgps_without_database(*arguments)
    assert result.status == 2
    assert result.out.count("Usage: ") == 1


def test_the_version_is_printed(pgps_without_database: Pgps) -> None:
    assert pgps_without_database("--version").out == f"pgps {pgps.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["type", "ls"], ["doctor"], ["sql", "-c", "select 1"], ["install"], ["top", "--once"]],
    ids=" ".join,
)
def test_no_server_is_status_1_with_one_line_and_a_hint(arguments: list[str], pgps_without_database: Pgps) -> None:
    result = pgps_without_database(*arguments)
    assert result.status == 1
    assert result.out == ""
    error, hint = result.err.splitlines()
    assert "/nonexistent" in error
    assert "--dsn" in hint


def test_pg_variables_say_where_to_go(pgps_without_database: Pgps, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in conninfo_to_dict(dsn).items():
        variable = {"dbname": "PGDATABASE"}.get(name, f"PG{name.upper()}")
        monkeypatch.setenv(variable, str(value))
    assert pgps_without_database("status", "--dsn", "").status == 0


def test_a_service_file_says_where_to_go(
    pgps_without_database: Pgps, dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = [f"{name}={value}" for name, value in conninfo_to_dict(dsn).items()]
    (tmp_path / "service").write_text("\n".join(["[broker]", *lines]))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "service"))
    assert pgps_without_database("status", "--dsn", "service=broker").status == 0


def test_a_malformed_dsn_is_told_of(pgps_without_database: Pgps) -> None:
    result = pgps_without_database("type", "ls", "--dsn", "host=")
    assert result.status == 1
    result = pgps_without_database("type", "ls", "--dsn", "nonsense")
    assert result.status == 1
    assert result.err.startswith("error: ")
    for command in (("type", "ls", "--dsn"), ("install",)):
        result = pgps_without_database(*command, "host=a..b dbname=x")
        assert result.status == 1
        assert result.err.startswith("error: no host has such a name")


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "pgps.cli", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"pgps {pgps.__version__}\n"
