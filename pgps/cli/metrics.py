"""`pgps metrics`: figures of the broker for Prometheus."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from typing import Annotated

import typer

from pgps import _catalogue
from pgps._lags import Lag, Lags
from pgps._metrics import Figure, exposition
from pgps.cli import doctor as _doctor
from pgps.cli._command import Session, command

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "metrics")(metrics)


def metrics(
    session: Session,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two looks.")] = 15.0,
    once: Annotated[bool, typer.Option("--once", help="One look, then leave.")] = False,
    doctor: Annotated[bool, typer.Option("--doctor", help="Count what pgps doctor finds, too.")] = False,
) -> None:
    """Write the broker's figures as Prometheus reads them; with --json an array for each look.

    A worker serves them, and its own, at /metrics. With --doctor they tell
    of all that `pgps doctor` finds, which takes longer: look every few
    minutes. Needs pgps_worker or pgps_admin.
    """
    lags = Lags()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            found = (
                _look(session) + _lag_figures(session, lags, all_of_them=once) + (_findings(session) if doctor else [])
            )
            if session.out.json:
                rows = [{"metric": f.metric, "kind": f.kind, "labels": f.labels, "value": f.value} for f in found]
                session.out.line(json.dumps(rows))
            else:
                session.out.line(exposition(found).rstrip("\n"))
            session.out.flush()
            if once:
                return
            time.sleep(interval)


def _look(session: Session) -> list[Figure]:
    found = [
        Figure(row["metric"], row["kind"], json.loads(row["labels"]), row["value"])
        for row in session.rows(_catalogue.METRICS)
    ]
    # The same names as at a worker's /metrics.
    for row in session.rows(_catalogue.TROUBLE_COUNTS):
        labels = {"subscription": row["subscription"]}
        for name, value in (
            ("suspended", row["state"] == "suspended"),
            ("dead", row["state"] == "dead"),
            ("failed_events", row["failed"]),
            ("retrying_events", row["retrying"]),
            ("passed_over_events", row["passed_over"]),
        ):
            found.append(Figure(f"pgps_subscription_{name}", "gauge", labels, float(value)))
    return found


def _lag_figures(session: Session, lags: Lags, *, all_of_them: bool) -> list[Figure]:
    """Ask the next subscriptions, or all, how far they are behind."""
    while not lags.see(Lag(**row) for row in session.rows(_catalogue.LAG_COUNTS, lags.question)) and all_of_them:
        pass
    return lags.figures


def _findings(session: Session) -> list[Figure]:
    """Count the findings of `pgps doctor` by check and level; each check that found all well says so with a 0."""
    found = Counter((one.check, one.level.value) for one in _doctor.examine(session))
    bad = {(check, level): number for (check, level), number in found.items() if level != "ok"}
    well = {(check, "warning"): 0 for check, _ in found if not any(check == other for other, _ in bad)}
    return [
        Figure("pgps_findings", "gauge", {"check": check, "level": level}, float(number))
        for (check, level), number in sorted((bad | well).items())
    ]
