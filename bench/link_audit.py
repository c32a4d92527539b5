"""What the audit costs: processor time of one link with it and without.

Events are published one in a transaction, one after the other, at the first of two brokers, until the
second has dispatched them all; in turn with the setting `audit` on and off at both. Counted is the
processor time of the server's processes and of both workers, because the machine may have other work. The
counting of each item cannot be turned off; it is measured separately, in calls.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench.chain import Chain, chained, value
from bench.figures import Figure, Target, compare
from bench.house import alternate
from bench.subjects import COLUMNS

if TYPE_CHECKING:
    from bench.house import House

TITLE = "processor of a hop, one event in a batch, with the audit"
_TALLY = """
    select pgps_internal.tally_item(n, 1, '{"lseq": 1, "events": 1, "previous": 1, "upto": 2}',
        '[{"lseq": 1, "type_id": 1, "ids": "{[1,2)}"}]', 1, 1 + 0 * i)
    from (select * from pgps_internal.neighbour limit 1) n, generate_series(1, 10000) i
"""


def run(house: House) -> list[Figure]:
    """Measure it."""
    events = house.scale(3000, 600)
    with chained(house, 2) as chain:
        chain.subscribe("all", 1)
        _carry(chain, events // 4, "on")
        audited, plain = [], []
        for number in house.pairs():
            house.say("audit")
            mine, theirs = alternate(
                number, lambda: _carry(chain, events, "on"), lambda: _carry(chain, events, "off")
            )  # fmt: skip
            audited.append(mine)
            plain.append(theirs)
        before = _processor(chain)
        chain.last.execute(_TALLY.encode())
        tally = (_processor(chain) - before) / 10_000 * 1000
    return [
        compare(TITLE, audited, plain, unit="ms", target=Target("at most", 1.03), note="against the setting audit off"),
        Figure("counting an item when it is taken", [tally], unit="ms"),
    ]


def _carry(chain: Chain, events: int, audit: str) -> float:
    """Return milliseconds of processor an event."""
    for session in chain.sessions:
        session.execute("select pgps.configure('audit', %s)", [audit])
    goal, began = chain.dispatched() + events, _processor(chain)
    for n in range(events):
        chain.first.execute(f"insert into pgps_event.quote ({COLUMNS}) values ('S', 1, %s, now())".encode(), [n])
    chain.wait_for_dispatch(goal)
    return (_processor(chain) - began) / events * 1000


def _processor(chain: Chain) -> float:
    """Return the seconds of processor that the server and the workers have used."""
    server = _parent(int(value(chain.first, "select pg_backend_pid()")))
    found = sum(_used(pid) for pid in chain.workers) + _used(server, ended=True)
    return found + sum(_used(pid) for pid in _children(server))


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _children(pid: int) -> list[int]:
    found = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [each for each in found if _stat(each)[1:2] == [str(pid)]]


def _used(pid: int, *, ended: bool = False) -> float:
    fields = _stat(pid)
    return sum(int(tick) for tick in fields[11 : 15 if ended else 13]) / os.sysconf("SC_CLK_TCK")


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return house.runs
