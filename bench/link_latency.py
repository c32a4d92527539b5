"""The latency from a commit at one broker to the callback of a waiting client at another.

pgbench publishes 100 single events a second (exponential gaps, 4 connections) at the first of two
brokers in a row, of three, and at a broker that has no links, in turn; a client in a process of its
own waits on a subscription's channel at the last one, receives, calls back, acknowledges. A latency
is the moment of the callback less the commit timestamp that the first server kept for the publishing
transaction, all by the same machine's clock. The brokers of a row are in servers of their own, as
those of two organisations are. Servers and workers share the machine, and those that are not
measured are idle.
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
        house.another() as second,
        house.another() as third,
        chained(house, 1) as alone,
        chained(house, 2, others=[second]) as two,
        chained(house, 3, others=[second, third]) as three,
        _client(alone) as local,
        _client(two) as near,
        _client(three) as far,
    ):
        turns = [("local", alone, local), ("one hop", two, near), ("two hops", three, far)]
        for _, chain, _ in turns:
            chain.first.execute("create sequence numbers")
            chain.first.execute("grant usage on sequence numbers to bench_publisher")
        for number in house.pairs():
            for name, chain, client in turns if number % 2 == 0 else turns[::-1]:
                house.say(f"latency: {name}")
                medians[name].append(statistics.median(_measure(chain, client, seconds)))
    further = [two - one for one, two in zip(medians["one hop"], medians["two hops"], strict=True)]
    first = [one - local for one, local in zip(medians["one hop"], medians["local"], strict=True)]
    return [
        compare(
            f"{TITLE}: over one link", medians["one hop"], medians["local"], unit="ms",
            target=Target("at most", 2.5), note="against the same at one broker; medians",
        ),
        compare(
            f"{TITLE}: what a further link adds", further, medians["one hop"], unit="ms",
            target=Target("at most", 1.5), note="against all of the way over one link; medians",
        ),
        compare(
            f"{TITLE}: what a further link adds", further, first, unit="ms",
            note="against what the first adds; medians; reported",
        ),
    ]  # fmt: skip


@contextlib.contextmanager
def _client(chain: Chain) -> Iterator[Waiting]:
    """Subscribe the last broker of the row to what the first publishes, and run a client there."""
    place = len(chain.sessions) - 1
    chain.subscribe("waiting", place)
    channel = str(value(chain.sessions[place], "select channel from pgps.subscriptions where name = 'waiting'"))
    with running(numbered_subscriber, chain.dsns[place], channel=channel, subscription="waiting") as waiting:
        yield waiting


def _measure(chain: Chain, client: Waiting, seconds: int) -> list[float]:
    """Return latencies in milliseconds."""
    client.result()
    process = start(publisher(chain.dsns[0]), _SCRIPT, ["--rate", str(PER_SECOND)], seconds=seconds, clients=4)
    output, _ = process.communicate()
    rate(output)
    time.sleep(1.0)  # what was published last is on its way
    committed: dict[int, float] = dict(
        chain.first.execute(
            "select l.volume::bigint, extract(epoch from pg_xact_commit_timestamp(l.xid::xid))::float8"
            " from pgps_internal.quote_log l"
        ).fetchall()
    )
    seen = client.result()
    if len(seen) < 0.5 * PER_SECOND * seconds:
        raise RuntimeError(f"only {len(seen)} events were seen")
    return [(at - committed[number]) * 1000 for number, at in seen.items()]


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return house.runs
