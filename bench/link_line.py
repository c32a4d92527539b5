"""A line of six brokers.

pgbench publishes single events at the first broker, at a steady rate (exponential gaps, 4
connections); a subscription at the last wants all. First 1,000 a second for a minute: every event
must arrive, and the last broker must have dispatched all within two seconds of the end. Then the
highest rate at which that holds is searched for, in runs of 15 seconds: doubled until it does not
hold, then the middle is tried, four times. A rate that pgbench itself does not reach does not hold.
The six brokers are in servers of their own; servers, workers and pgbench share the machine.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.chain import Chain, chained
from bench.figures import Figure, Target
from bench.pgbench import rate, start
from bench.subjects import COLUMNS, publisher

if TYPE_CHECKING:
    from bench.house import House

TITLE = "a line of six brokers"
LENGTH = 6
_ASKED = 1000
_SCRIPT = f"insert into pgps_event.quote ({COLUMNS}) values ('S', 1, 1, now());\n"
_WITHIN = 2.0


@dataclass(frozen=True, slots=True)
class _Offered:
    """The result of a run: how many events were asked for, sent and lost, and when the last broker had all."""

    asked: int
    sent: int
    lost: int
    late: float

    @property
    def is_kept(self) -> bool:
        return self.lost == 0 and self.late <= _WITHIN and self.sent >= 0.95 * self.asked


def run(house: House) -> list[Figure]:
    """Measure it."""
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(house.another()) for _ in range(LENGTH - 1)]
        chain = stack.enter_context(chained(house, LENGTH, others=others))
        chain.subscribe("all", LENGTH - 1)
        seconds = house.scale(60, 10)
        house.say(f"{_ASKED:,} events/s for {seconds} s")
        offered = _offer(chain, _ASKED, seconds)
        best = _highest(house, chain, _ASKED if offered.is_kept else 0)
    for _ in house.pairs(1):
        pass
    lost, late, highest = float(offered.lost), offered.late, float(best)
    note = f"{offered.sent:,} events in {seconds} s"
    return [
        Figure(f"{TITLE}, 1,000/s: lost", [lost], Target("at most", 0, "events"), [lost], unit="events", note=note),
        Figure(f"{TITLE}, 1,000/s: the last has all", [late], Target("at most", _WITHIN, "s"), [late], unit="s"),
        Figure(f"{TITLE}: highest rate kept up with", [highest], None, [highest], unit="/s", note="searched for"),
    ]


def _highest(house: House, chain: Chain, kept: int) -> int:
    """Return the highest rate that the line keeps up with, given one that it does; 0 when there is none."""
    seconds = house.scale(15, 5)

    def holds(per_second: int) -> bool:
        house.say(f"{per_second:,} events/s for {seconds} s")
        return _offer(chain, per_second, seconds).is_kept

    high = 2 * kept or 500
    while holds(high):
        kept, high = high, 2 * high
    for _ in range(house.scale(4, 2)):
        middle = (kept + high) // 2
        if holds(middle):
            kept = middle
        else:
            high = middle
    return kept


def _offer(chain: Chain, per_second: int, seconds: int) -> _Offered:
    """Publish at a rate, and wait until the last broker has all."""
    before = chain.dispatched()
    process = start(publisher(chain.dsns[0]), _SCRIPT, ["--rate", str(per_second)], seconds=seconds, clients=4)
    output, _ = process.communicate()
    began = time.monotonic()
    rate(output)
    found = re.search(r"actually processed: (\d+)", output)
    assert found is not None
    sent = int(found[1])
    try:
        chain.wait_for_dispatch(before + sent, within=60 + 2 * seconds)
    except RuntimeError:
        return _Offered(per_second * seconds, sent, sent - (chain.dispatched() - before), float("inf"))
    return _Offered(per_second * seconds, sent, 0, time.monotonic() - began)


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return 1 if house.runs else 0
