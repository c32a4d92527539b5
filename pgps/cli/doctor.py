"""`pgps doctor`: what is wrong, and what to type."""

from __future__ import annotations

import json
from dataclasses import replace

import psycopg
import typer

from pgps import _catalogue, _diagnosis, _timeouts
from pgps.cli import _statements
from pgps.cli._checks import CHECKS
from pgps.cli._command import Session, command
from pgps.cli._facts import Facts, Finding, Level
from pgps.cli._output import Column
from pgps.cli._session import Row
from pgps.cli.install import installed_here

__all__ = ["Finding", "examine", "register"]

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor")(doctor)


def doctor(session: Session) -> None:
    """Examine the database and the broker; say what is wrong and what to type.

    Exit status 1 when there is a problem; a warning is none. A role that is
    not an administrator is told less.
    """
    found = examine(session)
    rows = [{"level": f.level.value, "check": f.check, "message": f.message, "fix": f.fix} for f in found]
    columns = [
        Column("level", style=_STYLES.__getitem__),
        Column("check"),
        Column("message", "finding"),
        Column("fix", "type this"),
    ]
    session.out.rows(columns, rows, nothing="nothing was examined")
    if any(finding.level is Level.PROBLEM for finding in found):
        raise typer.Exit(1)


def examine(session: Session, *, statement_timeout: float = 0.0) -> list[Finding]:
    """Return what is found, with remedies that can be typed as they stand; a statement may take so many seconds.

    0: as long as it needs.
    """
    # A short timeout of this role or database is among what is to be found.
    _timeouts.limit(session.connection, statement_timeout)
    facts = _facts(session)
    found = [finding for check in CHECKS for finding in check(facts)]
    return [replace(finding, fix=session.typed(finding.fix)) for finding in found]


def _facts(session: Session) -> Facts:
    """Gather what the checks look at; what pgps alone knows only when it is installed."""
    server = session.one(_diagnosis.SERVER)
    transactions, timeouts = session.rows(_diagnosis.TRANSACTIONS), session.rows(_diagnosis.TIMEOUTS)
    if not server["installed"]:
        return Facts(server=server, transactions=transactions, timeouts=timeouts)
    client_parses = bool(session.rows(_statements.CLIENT_PARSES))
    links = _links(session)
    subscriptions = session.rows(_diagnosis.SUBSCRIPTIONS)
    return Facts(
        server=server,
        installation=installed_here(session),
        activity=session.rows(_catalogue.activity(has_clock=session.has_clock)),
        event_types=session.rows(_catalogue.event_types()),
        queues=session.rows(_diagnosis.QUEUES),
        stopped=[row for row in subscriptions if row["is_stopped"]],
        workers=session.rows(_catalogue.workers()),
        transactions=transactions,
        timeouts=timeouts,
        waiting=[row for row in subscriptions if not row["is_stopped"]],
        health=_health(session),
        plpython_error="" if client_parses else _plpython_error(session),
        client_parses=client_parses,
        without_temp=session.rows(_diagnosis.TEMP_PRIVILEGE),
        links=links,
        broker=session.one(_diagnosis.IDENTITY) if links else None,
        gaps=session.rows(_diagnosis.GAPS),
        differences=session.rows(_diagnosis.FINDINGS) if session.one(_diagnosis.HAS_AUDIT)["has_audit"] else [],
        slow_lanes=session.rows(_diagnosis.SLOW_LANES) if session.one(_diagnosis.HAS_LANES)["has_lanes"] else [],
        slow_detection=session.rows(_diagnosis.SLOW_DETECTION)
        if session.one(_diagnosis.HAS_SLOW_DETECTION)["has_slow_detection"]
        else [],
        set_aside=session.rows(_diagnosis.SET_ASIDE)
        if session.one(_diagnosis.HAS_BROKEN_TYPES)["has_broken_types"]
        else [],
        composites=session.rows(_diagnosis.SUSPENDED_COMPOSITES)
        if session.one(_diagnosis.HAS_COMPOSITES)["has_composites"]
        else [],
        suspects=_suspects(session) if server["is_admin"] else [],
    )


def _suspects(session: Session) -> list[Row]:
    """Return expressions that call what is not a superuser's; nothing before `pgps upgrade`."""
    if not session.one(_diagnosis.HAS_SUSPECTS)["has_suspects"]:
        return []
    try:
        found: list[Row] = json.loads(session.one(_diagnosis.SUSPECTS)["suspects"])
    except psycopg.Error:
        # A member of pgps_admin without its rights.
        return []
    return found


def _health(session: Session) -> dict[str, list[Row]]:
    """Return what the server is asked on behalf of administrators; nothing for others, and before `pgps upgrade`."""
    if not session.one(_diagnosis.HAS_HEALTH)["has_health"]:
        return {}
    try:
        found: dict[str, list[Row]] = json.loads(session.one(_diagnosis.HEALTH)["health"])
    except psycopg.Error:
        # Not permitted; or PL/Python is lost, which is told by itself.
        return {}
    return found


def _plpython_error(session: Session) -> str:
    """Return why PL/Python cannot be run; "" when it can."""
    try:
        session.rows(_statements.PROBE)
    except psycopg.Error as error:
        return "" if error.sqlstate in (None, "42883", "42501") else str(error)
    return ""


def _links(session: Session) -> list[Row]:
    """Return the links with their details; none for who may not see them, or before `pgps upgrade` has made them."""
    if not session.one(_catalogue.HAS_LINKS)["has_links"]:
        return []
    # In one snapshot: a neighbour may be met, or dropped, between two.
    with session.connection.transaction():
        session.connection.execute(_catalogue.ONE_SNAPSHOT)
        details = {(row["name"], row["neighbour"]): row for row in session.rows(_catalogue.link_details())}
        return [{**row, **details[row["name"], row["neighbour"]]} for row in session.rows(_catalogue.links())]
