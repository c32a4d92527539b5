"""A filter's way over three brokers: the figures that turn the messages of the model into bytes and time.

The last of three brokers in a row, each with a worker, subscribes with so many filters at once, `symbol = 'S<n>'`. Each
is told to two brokers, and each of those answers for each origin behind it that it is in force: three answers for two
tellings. Counted is the time from the subscriptions' commit until all are in force, by message, and the messages'
texts. `python -m bench.overlay` has the model for 10 to 10,000 brokers, which `docs/scale.md` is about.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.chain import chained, eventually, value
from bench.figures import Figure

if TYPE_CHECKING:
    from bench.house import House

TITLE = "a filter told over a link"
_IN_FORCE = (
    "select count(*) from pgps_internal.activation a where a.is_confirmed and exists"
    " (select from pgps_internal.pushed p where p.key = a.key)"
)
_SENT = "select count(*) from pgps_internal.shipment where kind in ('sub', 'active')"
_BYTES = "select coalesce(sum(octet_length(body::text)), 0)::bigint from pgps_internal.shipment"
_BYTES += " where kind in ('sub', 'active')"


def run(house: House) -> list[Figure]:
    """Measure it."""
    count = house.scale(1000, 200)
    each: list[float] = []
    size: list[float] = []
    for _ in house.pairs():
        with chained(house, 3) as chain:
            for session in chain.sessions[1:]:
                session.execute("select pgps.advertise('quote')")
            origins = "select count(*) from pgps_internal.offer where cardinality(types) > 0"
            eventually(lambda chain=chain, origins=origins: value(chain.last, origins) == 2)  # type: ignore[misc]
            before = [sum(value(session, query) for session in chain.sessions) for query in (_SENT, _BYTES)]
            began = time.monotonic()
            chain.last.execute(
                "select pgps.subscribe('s' || n, 'quote', filter => format('symbol = %%L', 'S' || n),"
                " scope => 'global') from generate_series(1, %s::integer) n",
                [count],
            )
            eventually(lambda chain=chain: value(chain.last, _IN_FORCE) == 2 * count, within=600)  # type: ignore[misc]
            took = time.monotonic() - began
            sent, carried = (
                sum(value(session, query) for session in chain.sessions) - earlier
                for query, earlier in zip((_SENT, _BYTES), before, strict=True)
            )
            each.append(took / sent * 1000)
            size.append(carried / sent)
    return [
        Figure(f"{TITLE}, time a message", each, None, each, unit="ms", note=f"{count:,} filters over two links"),
        Figure(f"{TITLE}, its text", size, None, size, unit="bytes"),
    ]


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return house.runs
