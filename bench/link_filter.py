"""Bytes on the wire of one link, with a filter that wants 1 %.

The link passes through a proxy on 127.0.0.1 that counts the bytes of both directions, from when the
link is up, paused while 200,000 events were published, until the other broker has what it wants.
First all events are wanted, then a hundredth, on brokers of their own: the second count is compared
with a hundredth of the first. Everything counts: statements, answers, confirmations, heartbeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench.chain import chained
from bench.figures import Figure, Target, compare
from bench.proxy import Proxy

if TYPE_CHECKING:
    from bench.house import House

TITLE = "bytes over a link when a hundredth is wanted, to a hundredth of the bytes when all is"


def run(house: House) -> list[Figure]:
    """Measure it."""
    events = house.scale(200_000, 50_000)
    share = [_bytes(house, events, None) / 100 for _ in house.pairs(1)]
    house.say("a hundredth")
    filtered = _bytes(house, events, "volume % 100 = 0")
    return [compare(TITLE, [filtered / 1024], [share[0] / 1024], unit="kB", target=Target("at most", 1.2))]


def _bytes(house: House, events: int, wanted: str | None) -> float:
    """Return how many bytes the link needs for these events."""
    with Proxy() as proxy:

        def via(dsn: str) -> str:
            tcp = house.cluster.dsn(str(conninfo_to_dict(dsn)["dbname"]), tcp=True)
            proxy.lead_to(str(conninfo_to_dict(tcp)["host"]), int(str(conninfo_to_dict(tcp)["port"])))
            return make_conninfo(tcp, host="127.0.0.1", port=proxy.port)

        with chained(house, 2, via=via) as chain:
            chain.subscribe("wanted", 1, wanted)
            chain.pause()
            chain.publish(events, 20)
            before_any = chain.arrived()
            chain.resume()
            begin = proxy.carried
            chain.wait_for(before_any + (events // 100 if wanted else events))
            return float(proxy.carried - begin)


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return 1 if house.runs else 0
