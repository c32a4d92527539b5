"""Which messages of a spool are the oldest, when one lies at the front that is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, rows
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
