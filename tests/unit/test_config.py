"""A setting comes from the argument, else from PGPS_*, else from PG*, else from the default."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgps import config


def test_the_argument_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGPS_DSN", "dbname=environment")
    monkeypatch.setenv("PGPS_PG_BIN", "/environment")
    assert config.load().dsn == "dbname=environment"
    given = config.load(dsn="dbname=argument", home=tmp_path, server_bin=tmp_path)
    assert given == config.Settings(dsn="dbname=argument", home=tmp_path, server_bin=tmp_path)
    assert config.load().server_bin == Path("/environment")


def test_an_empty_dsn_leaves_everything_to_libpq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPS_DSN", "dbname=environment")
    assert config.load(dsn="").dsn == ""
    monkeypatch.delenv("PGPS_DSN")
    assert config.load().dsn == ""


def test_the_home_of_root_is_open_to_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PGPS_HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert config.default_home() == Path("/var/lib/pgps")


def test_everybody_else_has_one_under_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PGPS_HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert config.default_home() == tmp_path / "pgps"


def test_pgps_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGPS_HOME", str(tmp_path))
    assert config.default_home() == tmp_path
    assert config.load().home == tmp_path
