"""Ten minutes at 1,000 events/s, with an old snapshot and an open writing transaction.

Before it begins, one session takes a REPEATABLE READ snapshot and another writes to a table of its
own; both stay open to the end. A worker dispatches, reclaims and runs an internal subscription; an
external consumer waits, receives, acknowledges. Every 5 seconds: events acknowledged, the size of
everything of pgps, the dead rows of each of its relations. The first and the last whole minute are
compared, by events acknowledged by the external consumer. A quick run takes one minute.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.figures import Figure, Target
from bench.house import opened, worker
from bench.pgbench import rate, start
from bench.subjects import COLUMNS, create_event_type, publisher
from bench.waiting import running, subscriber

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    import psycopg

    from bench.house import House

TITLE = "10 minutes at 1,000 events/s, old snapshot held, writing transaction open"
_EVERY = 5.0
_SCRIPT = f"insert into pgps_event.quote ({COLUMNS}) values ('S', 1, 1, now());\n"
_SIZE = """
select sum(pg_total_relation_size(c.oid)) / 1048576.0
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname in ('pgps_internal', 'pgps_event', 'pgps') and c.relkind in ('r', 'm')
"""
_DEAD = """
select relname, n_dead_tup from pg_stat_user_tables
where schemaname in ('pgps_internal', 'pgps_event', 'pgps') order by n_dead_tup desc limit 1
"""
_ACKED = "select acked_total from pgps_internal.position where subscription_id = %s order by position_id desc limit 1"


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    published: int
    external: int
    internal: int
    megabytes: float
    dead: int
    dead_in: str


def run(house: House) -> list[Figure]:
    """Measure it."""
    seconds = house.scale(600, 60)
    with house.database() as dsn, opened(dsn) as connection:
        ids = _set_up(connection)
        channel = f"pgps_{ids[0]}"
        with (
            _pinned(dsn),
            worker(dsn),
            running(subscriber, dsn, channel=channel, subscription="external"),
        ):
            process = start(publisher(dsn), _SCRIPT, ["--rate", "1000"], seconds=seconds, clients=4)
            samples = _watch(house, connection, process, ids, seconds)
            output, _ = process.communicate()
            rate(output)
    for _ in house.pairs(1):
        pass
    return _figures(samples, 60.0 if seconds >= 120 else seconds / 3)


def _figures(samples: list[_Sample], span: float) -> list[Figure]:
    # The first sample is taken when the consumers have reached a steady rate.
    first = _rates(samples, samples[0].at, samples[0].at + span)
    last = _rates(samples, samples[-1].at - span, samples[-1].at)
    half = samples[len(samples) // 2 :]
    sizes, dead = [one.megabytes for one in samples], [float(one.dead) for one in samples]
    worst = max(samples, key=lambda one: one.dead)
    growth = max(one.megabytes for one in half) / max(one.megabytes for one in samples[: len(samples) // 2])
    minutes = f"{round(samples[-1].at / 60, 1):g} min"
    kept = Target("at least", 0.9)
    # All four segments of a log are in use after 260 s at 1,000 events/s.
    bound = Target("at most", 1.5 if samples[-1].at > 500 else 10.0)
    note = f"{minutes}; events acknowledged by the external consumer"
    return [
        Figure(f"{TITLE}: last minute to first", [last[0] / first[0]], kept, [last[0]], [first[0]], "/s", note),
        Figure("the same: internal subscription", [last[1] / first[1]], kept, [last[1]], [first[1]], "/s"),
        Figure(
            "the same: published", [last[2] / first[2]], None, [last[2]], [first[2]], "/s", "1,000/s were asked for"
        ),
        Figure(
            "the same: largest size, second half to first",
            [growth],
            bound,
            sizes,
            unit="MB",
            note="bounded: about 1",
        ),
        Figure(
            "the same: dead rows, most of any relation",
            [max(dead)],
            Target("at most", 1000, "rows"),
            dead,
            unit="rows",
            note=f"most in {worst.dead_in}",
        ),
    ]


def _rates(samples: list[_Sample], begin: float, end: float) -> tuple[float, float, float]:
    """Return events a second: acknowledged by the external, by the internal subscription, published."""
    within = [one for one in samples if begin <= one.at <= end]
    low, high = within[0], within[-1]
    span = high.at - low.at
    return (
        (high.external - low.external) / span,
        (high.internal - low.internal) / span,
        (high.published - low.published) / span,
    )


def _watch(
    house: House, connection: psycopg.Connection, process: subprocess.Popen[str], ids: tuple[int, int], seconds: int
) -> list[_Sample]:
    began = time.monotonic()
    samples: list[_Sample] = []
    time.sleep(_EVERY)
    while process.poll() is None and time.monotonic() - began < seconds - 1:
        at = time.monotonic() - began
        samples.append(_sample(connection, at, ids))
        house.say(f"steady: {at:.0f} of {seconds} s, {samples[-1].megabytes:.0f} MB, {samples[-1].dead} dead rows")
        time.sleep(max(0.0, began + _EVERY * (len(samples) + 1) - time.monotonic()))
    return samples


def _sample(connection: psycopg.Connection, at: float, ids: tuple[int, int]) -> _Sample:
    acked = [(connection.execute(_ACKED, [one]).fetchone() or (0,))[0] for one in ids]
    size = connection.execute(_SIZE).fetchone()
    dead = connection.execute(_DEAD).fetchone()
    assert size is not None
    assert dead is not None
    published = connection.execute("select last_value from pgps_internal.event_id_seq").fetchone()
    assert published is not None
    return _Sample(at, published[0], acked[0], acked[1], float(size[0]), dead[1], dead[0])


def _set_up(connection: psycopg.Connection) -> tuple[int, int]:
    """Create the subscriptions; return the ids of the external and of the internal one."""
    create_event_type(connection)
    connection.execute(
        "create function handle(events pgps_event.quote[]) returns void language plpgsql as $$ begin end $$"
    )
    connection.execute("select pgps.subscribe('external', 'quote')")
    connection.execute("select pgps.subscribe('internal', 'quote', execute => 'handle')")
    rows = connection.execute("select subscription_id from pgps_internal.subscription order by name").fetchall()
    return rows[0][0], rows[1][0]


@contextlib.contextmanager
def _pinned(dsn: str) -> Iterator[None]:
    """Hold an old snapshot, and a transaction that has written, as long as the block runs."""
    with opened(dsn, autocommit=False) as reader, opened(dsn, autocommit=False) as writer:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from pg_class")
        writer.execute("create table unrelated (n integer)")
        writer.commit()
        writer.execute("insert into unrelated values (1)")
        yield


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return 1 if house.runs else 0
