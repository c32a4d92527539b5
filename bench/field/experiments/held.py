"""An old snapshot held, and a writing transaction open.

Before it begins one session takes a REPEATABLE READ snapshot and another writes to a table of its own; both stay open
to the end. Then one consumer is fed as fast as it goes, 20 producers, round after round, for a minute or so (--long:
ten) for each system in turn. What counts is events received a second in each round; the first and the last fifth of the
rounds are compared, and beside them stand the dead rows of the worst table and the size of the database at the end.
What a broker keeps outside PostgreSQL is not in the size. A quick run takes seconds.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import TYPE_CHECKING, Any

from bench.field.field import Cell
from bench.field.plan import Plan
from bench.field.rounds import Contender, Standing, calibrate
from bench.figures import Figure, Target
from bench.house import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.field.field import Field, Result

TITLE = "Under an old snapshot and an open writer"
NEEDS = ("pgps", "pgq", "rabbitmq", "pgqueuer", "procrastinate", "pgboss")
PLOT = "lines"
MINUTES = 8.0
_TABLE = "events a second, by minutes since the snapshot was taken"
_STATE = """
select pg_database_size(current_database()) / 1048576.0,
    (select coalesce(max(n_dead_tup), 0) from pg_stat_user_tables),
    (select relname from pg_stat_user_tables order by n_dead_tup desc limit 1)
"""


def steps(field: Field) -> int:
    """Return how many systems take their turn."""
    return len(field.these(*NEEDS))


def run(field: Field, result: Result) -> None:
    """Measure it."""
    systems = field.these(*NEEDS)
    for number, system in enumerate(systems):
        # What is left of the experiment's time is shared; starting and warming up take a part of it.
        share = (field.deadline - time.monotonic()) / (len(systems) - number) - 15
        seconds = 6.0 if field.house.quick else 600.0 if field.long else min(150.0, max(30.0, share))
        contender = Contender(system.title, system, Plan())
        standing = Standing()
        try:
            contender.open(field.house)
            size = calibrate(field.house, contender, field.seconds(2.5))
            with _pinned(contender.session.dsn):
                rounds = _rounds(field, contender, standing, size, seconds)
                state = _state(contender.session.dsn)
            _compare(result, system.title, rounds, state)
        except Exception as error:
            standing.error = f"{type(error).__name__}: {error}"
            result.cells.append(Cell(_TABLE, system.title, "0", standing))
        finally:
            contender.close()
        for _ in field.house.pairs(1):
            pass


def _rounds(
    field: Field, contender: Contender, standing: Standing, size: int, seconds: float
) -> list[tuple[float, Standing]]:
    """Run rounds until the time is up; return each with the minute in which it ended."""
    began = time.monotonic()
    done: list[tuple[float, Standing]] = []
    while time.monotonic() - began < seconds:
        outcome = contender.round(size)
        standing.outcomes.append(outcome)
        minutes = (time.monotonic() - began) / 60
        done.append((minutes, Standing([outcome])))
        field.house.say(f"{contender.label}: minute {minutes:.1f}, {outcome.rate:,.0f}/s")
    return done


def _compare(result: Result, title: str, rounds: list[tuple[float, Standing]], state: dict[str, Any]) -> None:
    result.cells += [Cell(_TABLE, title, f"{minutes:.2f}", standing) for minutes, standing in rounds]
    rates = [standing.outcomes[0].rate for _, standing in rounds]
    part = max(1, len(rates) // 5)
    first, last = statistics.median(rates[:part]), statistics.median(rates[-part:])
    goal = Target("at least", 0.9) if title == "pgps" else None
    note = f"{state['dead']:,} dead rows in {state['table']}; the database has {state['megabytes']:.0f} MB"
    result.figures.append(
        Figure(f"{title}: last fifth to first, snapshot held", [last / first], goal, [last], [first], "/s", note)
    )
    result.notes.append(f"{title}: {note} at the end.")
    result.raw[title] = state


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
