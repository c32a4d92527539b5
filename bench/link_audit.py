"""What the audit costs: processor time of one link with it and without.

Events are published one in a transaction, one after the other, at the first of two brokers, until the second has
dispatched them all: twenty in a turn, with the setting `audit` on or off at both, on the same link. Turns alternate,
and each is a fraction of a second on an idle machine, so that what else the machine does weighs on both alike; the
median of hundreds of pairs counts. Counted is the processor time, to the nanosecond, of both workers and of their
sessions, which are the same all the time; of what waits for the end of a turn, and of the server's own processes, such
as those that vacuum, nothing.

In each turn with the audit its totals are due once, for the events of this turn and of the one without before it. In
use they are due every five seconds: what one statement of them costs is shared by all events of that time. The counting
of each item cannot be turned off; it is measured separately, in calls.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from bench.chain import Chain, chained, value
from bench.figures import Figure, Target, compare
from bench.house import alternate
from bench.subjects import COLUMNS

if TYPE_CHECKING:
    from bench.house import House

TITLE = "processor of a hop, one event in a batch, with the audit"
_EVENTS = 20
_BETWEEN = 500
"""Events between two statements of totals in use: a hundred a second."""
_TURNS = 60
"""Turns of each kind in a run."""
_TALLY = """
    select pgps_internal.tally_item(n, 1, '{"lseq": 1, "events": 1, "previous": 1, "upto": 2}',
        '[{"lseq": 1, "type_id": 1, "ids": "{[1,2)}"}]', 1, 1 + 0 * i)
    from (select * from pgps_internal.neighbour limit 1) n, generate_series(1, 10000) i
"""
_DUE = (
    "update pgps_internal.audited set audited_at = audited_at - interval '1 hour'",
    "update pgps_internal.audit_told set told_at = told_at - interval '1 hour'",
)


def run(house: House) -> list[Figure]:
    """Measure it."""
    with chained(house, 2) as chain:
        chain.subscribe("all", 1)
        for audit in ("on", "off"):
            _carry(chain, audit)
        audited, plain = [], []
        for _ in house.pairs():
            house.say("audit")
            for number in range(_TURNS if not house.quick else _TURNS // 4):
                mine, theirs = alternate(number, lambda: _carry(chain, "on"), lambda: _carry(chain, "off"))
                audited.append(mine)
                plain.append(theirs)
        if not value(chain.last, "select count(*) from pgps_internal.audit_point"):
            raise RuntimeError("no total was heard")
        tally = _counting(chain)
    often = compare(f"{TITLE}, due every {_EVENTS} events", audited, plain, unit="ms", note="against audit off")
    # What is more than without it is once for all events of the turn.
    share = 1 + (often.reached - 1) * _EVENTS / _BETWEEN
    return [
        Figure(f"{TITLE}, at 100 a second", [share], Target("at most", 1.03), note="against audit off"),
        often,
        Figure(
            "stating totals once, with all that follows", [(often.reached - 1) * median(plain) * _EVENTS], unit="ms"
        ),
        Figure("counting an item when it is taken", [tally], unit="ms"),
    ]


def _carry(chain: Chain, audit: str) -> float:
    """Return milliseconds of processor an event; a turn in which sessions came or went is made again."""
    while True:
        for session in chain.sessions:
            session.execute("select pgps.configure('audit', %s)", [audit])
            for statement in _DUE:
                session.execute(statement.encode())
        processes = _processes(chain)
        goal, began = chain.dispatched() + _EVENTS, _processor(processes)
        for n in range(_EVENTS):
            chain.first.execute(f"insert into pgps_event.quote ({COLUMNS}) values ('S', 1, %s, now())".encode(), [n])
        chain.wait_for_dispatch(goal)
        used = _processor(processes) - began
        if processes == _processes(chain):
            return used / _EVENTS * 1000


def _counting(chain: Chain) -> float:
    """Return milliseconds of processor that counting an item takes."""
    chain.last.execute(_TALLY.encode())
    own = [int(value(chain.last, "select pg_backend_pid()"))]
    began = _processor(own)
    chain.last.execute(_TALLY.encode())
    return (_processor(own) - began) / 10_000 * 1000


def _processes(chain: Chain) -> list[int]:
    """Return the workers and their sessions in both databases."""
    query = (
        "select pid from pg_stat_activity where datname = current_database() and application_name like 'pgps-worker/%'"
    )
    return sorted({*chain.workers, *(row[0] for session in chain.sessions for row in session.execute(query.encode()))})


def _processor(processes: list[int]) -> float:
    """Return the seconds of processor that processes have used, in all their threads, from their clocks."""
    # What clock_getcpuclockid(3) makes of a process id.
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in processes)


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return house.runs
