"""Where the time goes: a profile of each of pgps' own paths, and how far the machine's limits are.

First what this machine gives without a queue: pages forced to the disk, bare INSERT, INSERT … SELECT, COPY, reading
rows as jsonb, NOTIFY. Then, for each path, a round as in the other experiments, while statements (pg_stat_statements)
and functions (track_functions) are counted, all backends are looked at every 10 ms, and the processor time of each is
taken. Counting slows things down; the rates in these tables are with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.conninfo import make_conninfo

from bench.field import floor, sampling
from bench.field.field import Sheet, short
from bench.field.plan import Plan
from bench.field.rounds import Contender, calibrate
from bench.field.sampling import profiled
from bench.field.systems.base import APP
from bench.field.systems.pgps import Pgps
from pgps.embedded.cluster import SUPERUSER

if TYPE_CHECKING:
    from bench.field.field import Field, Result
    from bench.field.rounds import Outcome
    from bench.field.sampling import Profile

TITLE = "Where the time goes"
NEEDS = ("pgps",)
PLOT = "none"
MINUTES = 3.5
_PATHS = {
    "publish, one a transaction": Plan(produce=True),
    "publish, 100 a transaction": Plan(produce=True, together=100),
    "to 1 consumer": Plan(subscribers=1),
    "to 10 consumers": Plan(subscribers=10),
    "to 100 consumers, content filter": Plan(subscribers=100, filters="symbol"),
    "to 100 consumers, stored portfolios": Plan(subscribers=100, filters="portfolio", symbols=100),
    "10 stored functions, batches": Plan(subscribers=10, consume="callback"),
    "10 clients, transactions": Plan(subscribers=10, consume="transaction"),
}


def steps(field: Field) -> int:
    """Return how many paths there are."""
    return len(_paths(field))


def _paths(field: Field) -> dict[str, Plan]:
    return dict(list(_PATHS.items())[:3]) if field.house.quick else _PATHS


def run(field: Field, result: Result) -> None:
    """Measure it."""
    limits = floor.measure(field.house)
    result.sheets.append(
        Sheet("The machine", ["", "a second"], [[what, short(value)] for what, value in limits.items()])
    )
    result.raw = {"floor": limits, "paths": {}}
    reached: dict[str, float] = {}
    for path, plan in _paths(field).items():
        try:
            outcome, profile = _profile(field, path, plan)
        except Exception as error:
            result.notes.append(f"{path}: failed: {type(error).__name__}: {error}")
            continue
        reached[path] = outcome.produced if plan.produce else outcome.rate
        result.raw["paths"][path] = _record(outcome, profile)
        result.sheets.append(_sheet(path, outcome, profile, plan))
        for _ in field.house.pairs(1):
            pass
    result.sheets.append(_distances(limits, reached))


def _profile(field: Field, path: str, plan: Plan) -> tuple[Outcome, Profile]:
    contender = Contender(path, Profiled(), plan)
    try:
        contender.open(field.house)
        size = calibrate(field.house, contender, field.seconds(2.5))
        admin = make_conninfo(contender.session.dsn, user=SUPERUSER)
        with profiled(admin, APP, {"worker's process": contender.session.pids[0], **contender.crew.pids()}) as profile:
            outcome = contender.round(size)
    finally:
        contender.close()
    return outcome, profile


class Profiled(Pgps):
    """pgps in a database that counts statements and functions."""

    def made(self, admin: str) -> None:
        """Turn the counting on before anybody connects."""
        sampling.prepare(admin)


def _record(outcome: Outcome, profile: Profile) -> dict[str, Any]:
    waits = {f"{who}: {what}": count for (who, what), count in profile.waits.items()}
    return {
        "outcome": outcome.record(),
        "seconds": profile.seconds,
        "samples": profile.samples,
        "statements": profile.statements,
        "functions": profile.functions,
        "waits": waits,
        "processors": dict(profile.processors),
    }


def _sheet(path: str, outcome: Outcome, profile: Profile, plan: Plan) -> Sheet:
    """Return one table: processors, waits, statements, functions."""
    rate = outcome.produced if plan.produce else outcome.rate
    rows = []
    for who, used in profile.processors.most_common(6):
        rows.append(["processor", who, f"{100 * used / profile.seconds:.0f} %"])
    for (who, what), count in profile.waits.most_common(6):
        rows.append(["active", f"{who}: {what}", f"{count / max(1, profile.samples):.2f} at a time"])
    for calls, spent, _, text in profile.statements:
        rows.append(["statement", f"`{text.strip()}`".replace("|", "¦"), f"{spent:,.0f} ms, {calls:,} calls"])
    for calls, spent, name in profile.functions:
        rows.append(["function, itself", name, f"{spent:,.0f} ms, {calls:,} calls"])
    return Sheet(f"{path}: {short(rate)} a second, {outcome.events:,} events", ["", "", ""], rows)


def _distances(limits: dict[str, float], reached: dict[str, float]) -> Sheet:
    """Return which share of the machine's limits pgps reaches."""
    pairs = (
        ("publish, one a transaction", "bare INSERT, one a transaction, 20 clients"),
        ("publish, 100 a transaction", "bare INSERT … SELECT, 200,000 rows"),
        ("to 1 consumer", "bare INSERT, one a transaction, 20 clients"),
        ("to 10 consumers", "SELECT of 100 rows as jsonb, rows a second, one client"),
    )
    rows = [
        [path, limit, short(reached[path]), short(limits[limit]), f"{100 * reached[path] / limits[limit]:.0f} %"]
        for path, limit in pairs
        if path in reached
    ]
    return Sheet("Distance from the limit", ["path", "limit", "reached", "limit a second", "of it"], rows)
