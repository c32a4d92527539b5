"""From commit at one broker to a waiting client's callback at another.

pgbench publishes 100 single events a second (exponential gaps, 4 connections) at the first of three
brokers in a row; clients in processes of their own wait on a subscription's channel at the second
and the third, receive, call back, acknowledge. In turn the same is done at a broker that has no
links, for a client there. A latency is the moment of the callback less the commit timestamp that
the first server kept for the publishing transaction, all by the same machine's clock. Three
brokers and their workers share the machine with the broker alone, which then has nothing to do.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import TYPE_CHECKING

from bench.chain import Chain, chained, value
from bench.figures import Figure, Target, compare
from bench.pgbench import rate, start
from bench.subjects import COLUMNS, publisher
from bench.waiting import numbered_subscriber, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.house import House
    from bench.waiting import Waiting

TITLE = "commit to callback, 100/s"
PER_SECOND = 100
_SCRIPT = f"insert into pgps_event.quote ({COLUMNS}) values ('S', 1, nextval('numbers')::integer, now());\n"


def run(house: House) -> list[Figure]:
    """Measure it."""
    seconds = house.scale(10, 4)
    medians: dict[str, list[float]] = {"local": [], "one hop": [], "two hops": []}
    with (
        chained(house, 1) as alone,
        chained(house, 3) as chain,
        _client(alone, 0) as local,
        _client(chain, 1) as near,
        _client(chain, 2) as far,
    ):
        for chained_brokers in (alone, chain):
            chained_brokers.first.execute("create sequence numbers")
            chained_brokers.first.execute("grant usage on sequence numbers to bench_publisher")
        for number in house.pairs():
            turns = [(alone, {"local": local}), (chain, {"one hop": near, "two hops": far})]
            for brokers, clients in turns if number % 2 == 0 else turns[::-1]:
                house.say(f"latency: {', '.join(clients)}")
                for name, latencies in _measure(brokers, clients, seconds).items():
                    medians[name].append(statistics.median(latencies))
    further = [two - one for one, two in zip(medians["one hop"], medians["two hops"], strict=True)]
    target = Target("at most", 3.0)
    note = "against the same at one broker; medians"
    return [
        compare(f"{TITLE}: over one link", medians["one hop"], medians["local"], unit="ms", target=target, note=note),
        compare(f"{TITLE}: what a further link adds", further, medians["local"], unit="ms", target=target, note=note),
    ]


@contextlib.contextmanager
def _client(chain: Chain, place: int) -> Iterator[Waiting]:
    """Subscribe a broker of the row to what the first publishes, and run a client there."""
    chain.subscribe("waiting", place)
    channel = str(value(chain.sessions[place], "select channel from pgps.subscriptions where name = 'waiting'"))
    with running(numbered_subscriber, chain.dsns[place], channel=channel, subscription="waiting") as waiting:
        yield waiting


def _measure(chain: Chain, clients: dict[str, Waiting], seconds: int) -> dict[str, list[float]]:
    """Return latencies in milliseconds, by client."""
    for client in clients.values():
        client.result()
    process = start(publisher(chain.dsns[0]), _SCRIPT, ["--rate", str(PER_SECOND)], seconds=seconds, clients=4)
    output, _ = process.communicate()
    rate(output)
    time.sleep(1.0)
    committed: dict[int, float] = dict(
        chain.first.execute(
            "select l.volume::bigint, extract(epoch from pg_xact_commit_timestamp(l.xid::xid))::float8"
            " from pgps_internal.quote_log l"
        ).fetchall()
    )
    found = {}
    for name, client in clients.items():
        seen = client.result()
        if len(seen) < 0.5 * PER_SECOND * seconds:
            raise RuntimeError(f"{name}: only {len(seen)} events were seen")
        found[name] = [(at - committed[number]) * 1000 for number, at in seen.items()]
    return found


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return house.runs
