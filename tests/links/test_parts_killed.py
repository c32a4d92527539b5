"""Parts that a neighbour detects, with real links and workers, while servers, workers and connections are killed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_db import wait_until
from tests.fix_worker import Workers, workers
from tests.links.fleet import Fleet, Staffed, make_fleet
from tests.links.rig import Broker
from tests.links.test_parts import PARTS, crossed, found

__all__ = ["workers"]

SEED = int(os.environ.get("PGPS_LINK_SEED", "1"))
DEFINITIONS = {
    "chronicle": "(a ; b) and c",
    "unrestricted": "not(a ; b)[c, d]",
    "continuous": "A*(a, b, n)",
    "recent": "(a or b) ; d",
}
WAIT = 120


@pytest.fixture
def fleet(embedded_home: Path) -> Iterator[Fleet]:
    made = make_fleet(embedded_home, f"parts-{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}", 2)
    yield made
    for member in made.made:
        member.admin.close()
    made.close()


class Stage(Staffed):
    """A home broker and a ward's on servers of their own, and one where all happens at one place."""

    def __init__(self, fleet: Fleet, workers: Workers, alone: Broker) -> None:
        self.home = fleet.broker("home", site=fleet.sites[0])
        self.ward = fleet.broker("ward", site=fleet.sites[1])
        super().__init__(workers)
        self.alone = alone
        self.published = dict.fromkeys("abcdn", 0)
        for broker, names in ((self.home, "cd"), (self.ward, "abn"), (alone, "abcdn")):
            for name in names:
                make_type(broker.admin, name, "n integer, k integer")
        call(self.home.admin, "create_link", "to_ward", self.ward.dsn)
        self.run(self.home, self.ward)
        routed = (
            "select count(*) from pgps_internal.carried join pgps_internal.event_type using (type_id) where name = 'n'"
        )
        wait_until(lambda: value(self.home.admin, routed) > 0, timeout=WAIT, what="the ward's types are known")
        parents = "select count(*) from pgps_internal.origin where parent is not null"
        wait_until(lambda: value(self.home.admin, parents) > 0, timeout=WAIT, what="the path to the ward")
        for broker in (self.home, alone):
            for context, expression in DEFINITIONS.items():
                call(
                    broker.admin, "create_composite_event", context, expression, context=context, scope="global",
                    partition_by="k", max_open=1000, auditable=True,
                )  # fmt: skip
        answered = "select count(*) from pgps_internal.composite_part where answered"
        wait_until(
            lambda: value(self.home.admin, answered) == len(DEFINITIONS), timeout=WAIT, what="the ward's answers"
        )
        self.parts = column(self.home.admin, PARTS)
        # From here on what is detected at the ward comes.
        active = (
            "select count(*) from pgps_internal.activation a join pgps_internal.link_filter f using (key)"
            " join pgps_internal.event_type t using (type_id) where t.name = any (%s) and a.is_confirmed"
        )
        wait_until(
            lambda: value(self.home.admin, active, [self.parts]) >= len(self.parts),
            timeout=WAIT,
            what="filters in force",
        )

    def publish(self, kind: str, number: int, k: int) -> None:
        for broker in (self.home if kind in "cd" else self.ward, self.alone):
            rows(broker.admin, f"insert into pgps_event.{kind} (n, k) values (%s, %s)", [number, k])
        self.published[kind] += 1

    def is_still(self) -> bool:
        """Tell whether all that was published has been detected, and what the ward has detected has been taken."""
        for member, names in ((self.ward, "abn"), (self.home, "cd")):
            if any(crossed(member, name) != self.published[name] for name in names) or lag(member):
                return False
        detected: dict[str, int] = dict(rows(self.ward.admin, "select name, detected from pgps.composite_events"))
        return all(
            detected[part] == crossed(self.ward, part) == crossed(self.home, part) for part in self.parts
        ) and not lag(self.home)

    def wait(self) -> None:
        wait_until(self.is_still, timeout=WAIT, what="all is taken")
        call(self.alone.admin, "dispatch")


def lag(broker: Broker) -> int:
    return int(value(broker.admin, "select coalesce(sum(lag), 0) from pgps.composite_events"))


@pytest.mark.timeout(600)
def test_the_same_is_found_as_at_one_place_while_everything_is_killed(
    fleet: Fleet, workers: Workers, brokers: Callable[[int], list[Broker]]
) -> None:
    print(f"PGPS_LINK_SEED={SEED}")
    chance = random.Random(SEED)
    stage = Stage(fleet, workers, *brokers(1))
    blows = [(blow, member) for blow in (stage.kill_worker, stage.crash, stage.cut_connections)
             for member in (stage.home, stage.ward)]  # fmt: skip
    chance.shuffle(blows)
    number = 0
    for blow, member in blows:
        for kinds in ("ab", "cd", "abn"):
            for _ in range(4):
                number += 1
                stage.publish(chance.choice(kinds), number, chance.randint(1, 2))
            # In the middle of dispatching, detecting, sending or receiving, whatever it is at.
            if kinds == "ab":
                blow(member)
            stage.wait()
    call(stage.alone.admin, "dispatch")
    wanted = {name: found(stage.alone, name) for name in DEFINITIONS}
    assert all(wanted.values())
    for name, expected in wanted.items():
        wait_until(lambda: len(found(stage.home, name)) >= len(expected), what=f"occurrences of {name}")  # noqa: B023
        assert found(stage.home, name) == expected
    assert [crossed(stage.home, name) for name in "abn"] == [0, 0, 0]
    assert fleet.differences() == []
