"""Who takes part, and what they keep in their tables; the SQL is in the directory scene."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import TypeAlias

import psycopg

__all__ = ["ACCOUNTS", "ADMISSIONS", "HOMES", "MENDED", "PORTFOLIOS", "THRESHOLDS", "WARD", "build"]

HOMES = tuple(f"home_{month}" for month in range(3, 11))
EXCHANGES = ("nasdaq", "nyse")

Dsn: TypeAlias = Callable[[str | None], str]
"""How to connect, as a role, or as the superuser when None."""

WARD = "B"
ADMISSIONS = {3: "A", 4: "B", 5: "A", 6: "B", 7: "A", 8: "B", 9: "A", 10: "B"}
THRESHOLDS = {
    3: (60, 220),
    4: (65, 200),
    5: (70, 210),
    6: (60, 180),
    7: (65, 190),
    8: (70, 220),
    9: (60, 200),
    10: (65, 180),
}
PORTFOLIOS = {1: ("IBM",), 2: ("AAPL", "MSFT"), 3: ("FB", "GOOG"), 4: ("AAPL", "GOOG", "IBM")}
# Settling FB and GOOG fails, because they have no account. FB gets one later; the events of GOOG are discarded.
ACCOUNTS = ("AAPL", "IBM", "MSFT")
MENDED = "FB"


def build(dsn: Dsn) -> None:
    """Create roles, tables, event types, advertisements and subscriptions, each as the role it belongs to."""
    _run(dsn, None, "1_roles")
    for role in ("hospital", "ward", "trader"):
        _run(dsn, role, f"2_{role}")
    _fill(dsn)
    _run(dsn, "broker_admin", "3_broker_admin")
    for publisher in HOMES + EXCHANGES:
        event_type = "glucose_reading" if publisher in HOMES else "stock_quote"
        with psycopg.connect(dsn(publisher)) as connection:
            connection.execute("select pgps.advertise(%s)", [event_type])
    for role in ("hospital", "ward", "trader"):
        _run(dsn, role, f"4_{role}")


def _run(dsn: Dsn, role: str | None, name: str) -> None:
    script = resources.files("pgps_demo") / "scene" / f"{name}.sql"
    with psycopg.connect(dsn(role)) as connection:
        connection.execute(script.read_bytes())


def _fill(dsn: Dsn) -> None:
    with psycopg.connect(dsn("hospital")) as connection, connection.cursor() as cursor:
        thresholds = [(patient, low, high) for patient, (low, high) in THRESHOLDS.items()]
        cursor.executemany("insert into hospital.threshold values (%s, %s, %s)", thresholds)
        cursor.executemany("insert into hospital.admission values (%s, %s)", ADMISSIONS.items())
    with psycopg.connect(dsn("trader")) as connection, connection.cursor() as cursor:
        held = [(number, symbol) for number, symbols in PORTFOLIOS.items() for symbol in symbols]
        cursor.executemany("insert into trading.portfolio values (%s, %s)", held)
        cursor.executemany("insert into trading.account values (%s)", [(symbol,) for symbol in ACCOUNTS])
