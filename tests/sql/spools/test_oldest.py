"""Which messages of a spool are the oldest, when one lies at the front that is not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.fix_spools import Member, Spool

Made = Callable[..., Spool]


@pytest.fixture
def made(own_database: str, connect: Connect) -> Made:
    """Make spools of a broker of one's own."""
    connection = connect(dsn=own_database)

    def make(name: str = "s", **limits: object) -> Spool:
        call(connection, "create_spool", name, **limits)
        return Spool(connection, name)

    return make


def front(spool: Spool, message: str) -> None:
    """Put a checkpoint at the front that discards nothing."""
    spool.checkpoint(f'"{message}"', prepend=True, discard=Jsonb({"sender": "nobody"}))


def give_back(spool: Spool) -> None:
    """Let the retention be applied."""
    value(spool.connection, "select pgps.reclaim(1000000)")
    spool.dispatch()


def gaps(spool: Spool) -> list[tuple[int, ...]]:
    query = "select first_seqn, last_seqn, messages from pgps.spool_gaps where spool = %s order by noted_at"
    return rows(spool.connection, query, [spool.name])


@pytest.mark.parametrize("limit", [{"max_messages": 4}, {"max_bytes": 6}])
def test_a_checkpoint_at_the_front_is_the_newest(
    made: Made, own_database: str, connect: Connect, limit: dict[str, int]
) -> None:
    spool = made(on_limit="drop_oldest", **limit)
    member = Member(connect(dsn=own_database), spool, "m", replay=True)
    spool.spool(1, 2, 3)
    spool.pointer(1)
    front(spool, "a")
    assert spool.contents()[-1] == "a"
    spool.spool(4)
    assert (spool.contents()[-1], max(spool.contents())) == ("a", 4)
    assert spool.standing("checkpoint_pointer", "first_seqn") == (-1, -1)
    member.join(replay=True)
    told = member.received()
    assert told[0] == (-1, "a", True)
    assert next(message for _, message, _ in told if isinstance(message, dict)) == {"gap": [1, 1]}


def test_of_several_checkpoints_at_the_front_the_first_goes_first(made: Made) -> None:
    spool = made(on_limit="drop_oldest", max_messages=3)
    spool.spool(1)
    front(spool, "a")
    front(spool, "b")
    spool.spool(2)
    assert spool.contents() == {-2: "b", -1: "a", 2: 2}
    spool.spool(3)
    assert spool.contents() == {-2: "b", 2: 2, 3: 3}
    spool.spool(4, 5, 6)
    assert spool.contents() == {4: 4, 5: 5, 6: 6}
    assert sum(messages for *_, messages in gaps(spool)) == 5


def test_the_retention_passes_over_a_young_checkpoint_at_the_front(made: Made, clock: Clock) -> None:
    spool = made(retention="1 hour")
    clock.set("2026-03-01 12:00+00")
    spool.spool(1, 2)
    spool.pointer(2)
    clock.advance("30 minutes")
    front(spool, "a")
    spool.spool(3)
    clock.advance("45 minutes")
    front(spool, "b")
    spool.spool(4)
    give_back(spool)
    assert spool.contents() == {-2: "b", -1: "a", 3: 3, 4: 4}
    clock.advance("30 minutes")
    give_back(spool)
    assert spool.contents() == {-2: "b", 4: 4}
    assert gaps(spool) == [(1, 2, 2), (-1, 3, 2)]
    clock.advance("2 hours")
    give_back(spool)
    assert spool.contents() == {}


@pytest.fixture
def tomorrow(made: Made, clock: Clock) -> Spool:
    """A spool with a message from a broker whose clock is a day ahead."""
    clock.set("2026-03-01 12:00+00")
    spool = made(retention="1 hour")
    message = {"spool": "s", "entry": 1, "message": 0, "sender": "x", "spooler": "x"}
    ahead = {"spooled_at": str(clock.now() + timedelta(days=1))}
    head = {"broker": str(uuid4()), "epoch": 1, "name": "x", "network": "n", "network_id": 1, "after": 0, "upto": 1}
    call(spool.connection, "network_take", Jsonb({**head, "messages": [message | ahead]}))
    spool.dispatch()
    return spool


def test_what_is_of_tomorrow_keeps_the_retention_from_nothing_behind_it(tomorrow: Spool, clock: Clock) -> None:
    give_back(tomorrow)
    tomorrow.spool(1, 2)
    assert tomorrow.contents() == {1: 0, 2: 1, 3: 2}
    clock.advance("30 minutes")
    tomorrow.spool(3)
    clock.advance("45 minutes")
    give_back(tomorrow)
    assert tomorrow.contents() == {4: 3}


def test_what_is_of_tomorrow_is_kept_while_nothing_behind_it_is_old(tomorrow: Spool, clock: Clock) -> None:
    clock.advance("2 hours")
    tomorrow.spool(1)
    give_back(tomorrow)
    assert tomorrow.contents() == {1: 0, 2: 1}
    clock.advance("26 hours")
    give_back(tomorrow)
    assert tomorrow.contents() == {}
