"""An answer has 128 MB of messages, or one: the server and whoever receives have all of it in memory at once."""

from __future__ import annotations

import itertools

import pytest

from tests.fix_broker import call, rows
from tests.fix_db import Connect
from tests.fix_spools import Member, Spool

_LARGE = 50_000_000


@pytest.fixture
def spool(connect: Connect, own_database: str) -> Spool:
    session = connect(dsn=own_database)
    call(session, "create_spool", "group")
    return Spool(session, "group")


def spool_sizes(spool: Spool, *sizes: int, text: str = "x") -> None:
    """Spool messages of so many bytes, each with the key K."""
    query = "select pgps.spool(%s, 1, to_jsonb(repeat(%s, %s)), '{\"K\": 1}')"
    for size in sizes:
        rows(spool.connection, query, [spool.name, text, size // len(text)])
    spool.dispatch()


def received(member: Member, max_messages: int) -> list[int]:
    query = "select seqn from pgps.receive_spooled(%s, %s, %s)"
    return [n for (n,) in rows(member.connection, query, [member.spool.name, member.name, max_messages])]


def drained(member: Member, max_messages: int = 100) -> list[list[int]]:
    """Receive and acknowledge until nothing comes: the numbers that each call gave, 0 for the end of a replay."""
    found: list[list[int]] = []
    while numbers := received(member, max_messages):
        assert received(member, max_messages) == numbers, "as long as it is not acknowledged it comes again"
        found.append(numbers)
        assert member.ack() == len(numbers)
    return found


@pytest.mark.parametrize("compression", ["pglz", "none"])
def test_large_messages_come_one_after_the_other(spool: Spool, connect: Connect, *, compression: str) -> None:
    if compression == "none":
        for slot in range(8):
            statement = f"alter table pgps_internal.spool_message_{slot} alter column message set storage external"
            spool.connection.execute(statement.encode())
        spool.connection.execute("alter table pgps_internal.pgps_spool_log alter column message set storage external")
    member = Member(connect(dsn=spool.connection.info.dsn), spool, "m")
    sizes = [10, 10, _LARGE, _LARGE, _LARGE, 10, 150_000_000, 10, 10]
    spool_sizes(spool, *sizes)
    assert drained(member) == [[1, 2, 3, 4], [5, 6], [7], [8, 9]]
    spool.pointer(8)
    for pattern in ({}, {"keys": '{"K": [1, 1]}'}, {"keys": '{"K": [0, 2]}', "seqn": "[3,8]"}):
        count = spool.replay(**pattern)
        found = drained(member)
        assert [*itertools.chain(*found)] == [*range(9 - count, 9), 0]
        assert max(sum(sizes[n - 1] for n in numbers if n) for numbers in found if len(numbers) > 1) <= 2**27
    # A new member's replay, the mark of its end, and what is new, in one answer where it is little.
    other = Member(connect(dsn=spool.connection.info.dsn), spool, "n", replay=True)
    found = drained(other)
    assert [*itertools.chain(*found)] == [1, 2, 3, 4, 5, 6, 7, 8, 0, 9]
    assert found[-1] == [8, 0, 9]


def test_a_large_message_beside_a_gap_of_a_full_spool(spool: Spool, connect: Connect) -> None:
    call(spool.connection, "spool_advise", spool.name, max_messages=5, on_limit="drop_oldest")
    member = Member(connect(dsn=spool.connection.info.dsn), spool, "m")
    spool_sizes(spool, *[_LARGE] * 7)
    # The row that tells of messages 1 and 2 has the number of the last of them.
    assert drained(member) == [[2, 3, 4], [5, 6], [7]]
