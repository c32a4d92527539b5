"""Bytes on the wire of one link when a hundredth of the events takes part in what is detected.

The other broker defines `a ; b`, keyed, over 20,000 events of the first, of which one in a hundred finds its partner.
The link passes through a proxy on 127.0.0.1 that counts the bytes of both directions, from when the link is up, paused
while they were published and detected, until the other broker has what it wants. Compared is what the neighbour
detects for it with the same composite event defined there and subscribed to, and with a subscription to just those
events. Everything counts: statements, answers, confirmations, heartbeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench.chain import Chain, chained, eventually, value
from bench.figures import Figure, Target, compare
from bench.proxy import Proxy

if TYPE_CHECKING:
    from bench.house import House

EXPRESSION = "quote (price = 1) a ; quote (price = 2) b"
DEFINE = (
    "select pgps.create_composite_event('pair', %s, context => 'chronicle', partition_by => 'symbol',"
    " max_open => 10, scope => %s)"
)
# One pair in a hundred has a symbol in common.
ROWS = (
    "case when (n + 1) / 2 %% 100 = 0 then 'P' || (n + 1) / 2 else 'S' || n end as symbol,"
    " 2 - n %% 2 as price, n as volume, clock_timestamp() as at"
)
IN_FORCE = (
    "select bool_and(a.is_confirmed) from pgps_internal.activation a join pgps_internal.link_filter f using (key)"
    " join pgps_internal.event_type t using (type_id) where t.name = any (%s)"
)


def run(house: House) -> list[Figure]:
    """Measure it."""
    events = 20_000
    parts = _bytes(house, events, "parts") / 1024
    house.say("parts")
    detections = _bytes(house, events, "detections") / 1024
    house.say("detections")
    leaves = _bytes(house, events, "leaves") / 1024
    house.say("leaves")
    said = "bytes over a link with 1 % of the leaves taking part, to those of"
    return [
        compare(f"{said} the same detections", [parts], [detections], unit="kB", target=Target("at most", 1.2)),
        compare(f"{said} these leaves alone", [parts], [leaves], unit="kB"),
    ]


def _define(chain: Chain, what: str) -> None:
    """Define what is wanted, and wait until it is in force at the first broker."""
    there, here = chain.first, chain.last
    if what == "parts":
        here.execute(DEFINE.encode(), [EXPRESSION, "global"])
        eventually(lambda: value(here, "select bool_and(answered) from pgps_internal.composite_part"))
        types = [value(here, "select name from pgps_internal.composite_part")]
    elif what == "detections":
        there.execute(DEFINE.encode(), [EXPRESSION, "local"])
        known = "select count(*) from pgps_internal.offer where 'pair' = any (types)"
        eventually(lambda: value(here, known))
        here.execute("select pgps.subscribe('wanted', 'pair', scope => 'global')")
        types = ["pair"]
    else:
        here.execute("select pgps.subscribe('wanted', 'quote', filter => 'symbol like ''P%''', scope => 'global')")
        types = ["quote"]
    eventually(lambda: value(here, IN_FORCE, types))


def _bytes(house: House, events: int, what: str) -> float:
    """Return how many bytes the link needs."""
    with Proxy() as proxy:

        def via(dsn: str) -> str:
            tcp = house.cluster.dsn(str(conninfo_to_dict(dsn)["dbname"]), tcp=True)
            proxy.lead_to(str(conninfo_to_dict(tcp)["host"]), int(str(conninfo_to_dict(tcp)["port"])))
            return make_conninfo(tcp, host="127.0.0.1", port=proxy.port)

        with chained(house, 2, via=via) as chain:
            _define(chain, what)
            chain.pause()
            for low in range(0, events, 1000):
                chain.first.execute(
                    f"insert into pgps_event.quote (symbol, price, volume, at) select {ROWS}"
                    " from generate_series(%s::integer, %s::integer) n".encode(),
                    [low + 1, low + 1000],
                )
            pairs = events // 200
            detected = "select coalesce(sum(detected), 0) from pgps.composite_events"
            eventually(lambda: what == "leaves" or value(chain.first, detected) == pairs, within=120)
            before = chain.arrived()
            chain.resume()
            begin = proxy.carried
            chain.wait_for(before + (2 * pairs if what == "leaves" else pairs))
            return float(proxy.carried - begin)


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return 3 if house.runs else 0
