"""An old snapshot held, and a writing transaction open.

Before it begins one session in each database takes a REPEATABLE READ snapshot and another writes to a table of its own;
both stay open to the end, ten minutes later (--long: an hour). Meanwhile one consumer of each system is fed as fast as
it goes, 20 producers, round after round, the systems in turns. pgps takes part once more on a server of its own beside
it where nothing is held: what it loses there, too, is the machine's doing. What counts is events received a second in
each round; the first and the last fifth of the rounds are compared, and beside them stand the dead rows of the worst
table and the size of the database at the end. What a broker keeps outside PostgreSQL is not in the size. A quick run
takes seconds.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import TYPE_CHECKING, Any

from bench.field.field import Cell
from bench.field.plan import Plan
from bench.field.rounds import Contender, Standing, calibrate, noting
from bench.figures import Figure, Target
from bench.house import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.field.field import Field, Result

TITLE = "Under an old snapshot and an open writer"
NEEDS = ("pgps", "pgq", "rabbitmq", "pgqueuer", "procrastinate", "pgboss")
PLOT = "lines"
MINUTES = 12.0
_CONTROL = "pgps, nothing held"
_TABLE = "events a second, by minutes since the snapshot was taken"
_STATE = """
select pg_database_size(current_database()) / 1048576.0,
    (select coalesce(max(n_dead_tup), 0) from pg_stat_user_tables),
    (select relname from pg_stat_user_tables order by n_dead_tup desc limit 1)
"""


def steps(field: Field) -> int:
    """Return of how many systems there is a result in the end."""
    return len(field.these(*NEEDS)) + len(field.these("pgps"))


def run(field: Field, result: Result) -> None:
    """Measure it."""
    seconds = 20.0 if field.house.quick else 3600.0 if field.long else 600.0
    contenders = {Contender(system.title, system, Plan()): Standing() for system in field.these(*NEEDS)}
    controls = {Contender(_CONTROL, system, Plan()): Standing() for system in field.these("pgps")}
    everybody = contenders | controls
    with contextlib.ExitStack() as stack:
        sizes: dict[str, int] = {}
        beside = stack.enter_context(field.house.another()) if controls else field.house
        for contender, standing in everybody.items():
            stack.callback(contender.close)
            with noting(field.house, contender, standing):
                contender.open(beside if contender in controls else field.house)
                sizes[contender.label] = calibrate(field.house, contender, field.seconds(2.5))
                if contender in contenders:
                    stack.enter_context(_pinned(contender.session.dsn))
        rounds = _rounds(field, everybody, sizes, seconds)
        kept: dict[str, float] = {}
        for contender, standing in everybody.items():
            if standing.error is None:
                with noting(field.house, contender, standing):
                    state = _state(contender.session.dsn)
                    kept[contender.label] = _compare(result, contender.label, rounds[contender.label], state)
            if standing.error is not None:
                result.cells.append(Cell(_TABLE, contender.label, "0", standing))
            for _ in field.house.pairs(1):
                pass
    if "pgps" in kept and _CONTROL in kept:
        what = "pgps: last fifth to first, against the same without a snapshot"
        goal = Target("at least", 0.95)
        mine, control = kept["pgps"], kept[_CONTROL]
        result.figures.append(Figure(what, [mine / control], goal, [mine], [control], ""))


def _rounds(
    field: Field, contenders: dict[Contender, Standing], sizes: dict[str, int], seconds: float
) -> dict[str, list[tuple[float, Standing]]]:
    """Run rounds, the systems in turns, until the time is up; return each with the minute in which it ended."""
    began = time.monotonic()
    done: dict[str, list[tuple[float, Standing]]] = {contender.label: [] for contender in contenders}
    while time.monotonic() - began < seconds:
        for contender, standing in contenders.items():
            if standing.error is None:
                with noting(field.house, contender, standing):
                    outcome = contender.round(sizes[contender.label])
                    minutes = (time.monotonic() - began) / 60
                    done[contender.label].append((minutes, Standing([outcome])))
                    field.house.say(f"{contender.label}: minute {minutes:.1f}, {outcome.rate:,.0f}/s")
    return done


def _compare(result: Result, title: str, rounds: list[tuple[float, Standing]], state: dict[str, Any]) -> float:
    """Add the rounds of one contender; return what the last of them kept of the first."""
    result.cells += [Cell(_TABLE, title, f"{minutes:.2f}", standing) for minutes, standing in rounds]
    rates = [standing.outcomes[0].rate for _, standing in rounds]
    part = max(1, len(rates) // 5)
    first, last = statistics.median(rates[:part]), statistics.median(rates[-part:])
    note = f"{state['dead']:,} dead rows in {state['table']}; the database has {state['megabytes']:.0f} MB"
    what = f"{title}: last fifth to first{'' if title == _CONTROL else ', snapshot held'}"
    result.figures.append(Figure(what, [last / first], None, [last], [first], "/s", note))
    result.notes.append(f"{title}: {note} at the end.")
    result.raw[title] = state
    return last / first


def _state(dsn: str) -> dict[str, Any]:
    with opened(dsn) as connection:
        row = connection.execute(_STATE).fetchall()[0]
    return {"megabytes": float(row[0]), "dead": row[1], "table": row[2]}


@contextlib.contextmanager
def _pinned(dsn: str) -> Iterator[None]:
    with opened(dsn, autocommit=False) as reader, opened(dsn, autocommit=False) as writer:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from pg_class")
        writer.execute("create table unrelated (n integer)")
        writer.commit()
        writer.execute("insert into unrelated values (1)")
        yield
