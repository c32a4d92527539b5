"""The throughput of one link, against COPY.

200,000 events of four attributes are published at one broker in 20 transactions, and dispatched,
while the link is paused; then it is resumed. Measured is the time from when it is up until the
other broker has committed all of them, with workers at their defaults on both sides: the link's own
work, and the dispatch of what arrives that goes on meanwhile. In turn, as many rows of the same
four columns go from a table of the one database into a table of the other by COPY … TO STDOUT into
COPY … FROM STDIN through one psycopg process, in text and in binary; the faster of the two counts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.chain import ROWS, Chain, chained
from bench.figures import Figure, Target, compare
from bench.house import alternate, timed
from bench.subjects import ATTRIBUTES, COLUMNS

if TYPE_CHECKING:
    from bench.house import House

TITLE = "one link, four attributes, all wanted"


def run(house: House) -> list[Figure]:
    """Measure it."""
    events = house.scale(200_000, 50_000)
    with chained(house, 2) as chain:
        _make_tables(chain, events)
        chain.subscribe("all", 1)
        linked, copied = [], []
        for number in house.pairs():
            house.say("link")
            mine, theirs = alternate(
                number, lambda: _carry(house, chain, events), lambda: _copy_faster(house, chain, events)
            )
            linked.append(mine)
            copied.append(theirs)
    return [
        compare(
            f"{TITLE}: {events:,} events", linked, copied, unit="/s", target=Target("at least", 0.7),
            note="against COPY from database to database",
        )
    ]  # fmt: skip


def _make_tables(chain: Chain, rows: int) -> None:
    for session, name in ((chain.first, "source"), (chain.last, "target")):
        session.execute(f"create table {name} ({ATTRIBUTES})".encode())
    chain.first.execute(
        f"insert into source ({COLUMNS}) select {ROWS} from generate_series(1, %s::integer) n".encode(), [rows]
    )
    chain.first.execute("vacuum analyze source")


def _carry(house: House, chain: Chain, events: int) -> float:
    """Return events a second over the link."""
    chain.pause()
    before = chain.arrived()
    chain.publish(events, 20)
    house.checkpoint()
    chain.resume()
    began = time.perf_counter()
    chain.wait_for(before + events)
    return events / (time.perf_counter() - began)


def _copy_faster(house: House, chain: Chain, rows: int) -> float:
    """Return rows a second by COPY in the faster of its formats."""
    rates = []
    for form in ("text", "binary"):
        chain.last.execute("truncate target")
        house.checkpoint()
        rates.append(rows / timed(lambda form=form: _copy(chain, form)))  # type: ignore[misc]
    return max(rates)


def _copy(chain: Chain, form: str) -> None:
    with (
        chain.first.cursor().copy(f"copy source to stdout (format {form})".encode()) as reader,
        chain.last.cursor().copy(f"copy target from stdin (format {form})".encode()) as writer,
    ):
        for row in reader:
            writer.write(row)
