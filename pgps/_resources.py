"""Where the SQL and the migrations are: packaged beside the code, else in the checkout."""

from __future__ import annotations

from pathlib import Path

__all__ = ["migrations_dir", "sql_dir"]

_PACKAGE = Path(__file__).resolve().parent


def sql_dir() -> Path:
    """Return the directory that holds install.sql."""
    return _packaged_or_checkout("_sql", "sql")


def migrations_dir() -> Path:
    """Return the directory that holds alembic's env.py."""
    return _packaged_or_checkout("_migrations", "migrations")


def _packaged_or_checkout(packaged: str, checkout: str) -> Path:
    found = _PACKAGE / packaged
    return found if found.is_dir() else _PACKAGE.parent / checkout
