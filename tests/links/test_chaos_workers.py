"""Links served by workers, as people run them, while workers and servers are killed at random."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fix_broker import call, make_type, rows, value
from tests.fix_db import wait_until
from tests.fix_worker import WorkerProcess, Workers, workers
from tests.links.fleet import Fleet, Member, make_fleet
from tests.links.rig import received

__all__ = ["workers"]

SEED = int(os.environ.get("PGPS_LINK_SEED", "1"))


@pytest.fixture
def fleet(embedded_home: Path) -> Iterator[Fleet]:
    made = make_fleet(embedded_home, f"killed-{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}", 2)
    yield made
    for member in made.made:
        member.admin.close()
    made.close()


def has(member: Member, count: int) -> bool:
    return bool(value(member.admin, "select depth from pgps.subscriptions where name = 'all'") >= count)


@pytest.mark.timeout(300)
def test_a_ring_of_workers_loses_nothing_while_they_and_their_servers_are_killed(
    fleet: Fleet, workers: Workers
) -> None:
    chance = random.Random(SEED)
    print(f"PGPS_LINK_SEED={SEED}")
    ring = [fleet.broker(name, site=fleet.sites[place]) for name, place in (("a", 0), ("b", 1), ("c", 1))]
    a, b, c = ring
    make_type(a.admin, "tick")
    for one, other in ((a, b), (b, c), (a, c)):
        call(one.admin, "create_link", f"to_{other.name}", other.dsn)
    running: dict[str, WorkerProcess] = {member.name: workers(member.dsn) for member in ring}
    wait_until(lambda: value(c.admin, "select count(*) from pgps.advertisements") > 0, timeout=60)
    call(c.admin, "subscribe", "all", "tick", scope="global")
    active = "select count(*) from pgps_internal.activation where is_confirmed"
    wait_until(lambda: value(c.admin, active) > 0, timeout=60)
    for step in range(40):
        numbers = list(range(step * 10, step * 10 + 10))
        rows(a.admin, "insert into pgps_event.tick (n) select unnest(%s::integer[])", [numbers])
        if step % 10 == 5:
            victim = chance.choice(ring)
            running[victim.name].kill9()
            running[victim.name] = workers(victim.dsn, ready=False)
        if step == 20:
            # The workers of its brokers find their server gone, and wait for it.
            port = b.site.cluster.status().port
            for member in (b, c):
                member.admin.close()
            b.site.crash()
            assert b.site.cluster.status().port == port
            for member in (b, c):
                member.reopen()
    wait_until(lambda: has(c, 400), timeout=200, what="400 events")
    assert [n for _, n in received(c, "all")] == list(range(400))
    assert fleet.differences() == []
