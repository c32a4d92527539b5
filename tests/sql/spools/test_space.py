"""Space: what is discarded gives it back although others stay, without dead rows; numbers outlive their segments."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgps.embedded import EmbeddedCluster
from tests.fix_broker import call, column, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect, wait_until
from tests.fix_spools import Member, Spool

_SIZE = """
    select sum(pg_total_relation_size(format('pgps_internal.%s_%s', t, n)))
    from unnest('{spool_message,spool_key,spool_gone}'::text[]) t, generate_series(%s::integer, %s::integer) n
"""
_DEAD = """
    select coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0) from pg_class c
    where c.relname ~ '^spool_(message|key|gone|state|mark)_\\d+$'
"""


@pytest.fixture
def own(own_database: str, connect: Connect) -> psycopg.Connection:
    return connect(dsn=own_database)


def made(connection: psycopg.Connection, name: str = "big", **options: object) -> Spool:
    call(connection, "create_spool", name, **options)
    return Spool(connection, name)


def fill(spool: Spool, messages: int) -> None:
    rows(
        spool.connection,
        """
        select pgps.spool_many(%s, jsonb_agg(jsonb_build_object('entry', 1, 'message', repeat(n || ' ', 20),
            'keys', jsonb_build_object('N', n)))) from generate_series(1, %s) n
        """,
        [spool.name, messages],
    )
    spool.dispatch()


def size(spool: Spool, first: int = 0, last: int = 7) -> int:
    return int(rows(spool.connection, _SIZE.replace("%s_%s", "%%s_%%s", 1), [first, last])[0][0])


def give_back(spool: Spool, below: int, first: int = 0, last: int = 7) -> None:
    """Reclaim until spools have less than so many bytes: what autovacuum has at a moment is left for the next time."""

    def is_back() -> bool:
        return value(spool.connection, "select pgps.reclaim()") >= 1 and size(spool, first, last) < below

    wait_until(is_back, what="the space is given back")


@pytest.mark.parametrize(("persistent", "slots"), [(True, (0, 7)), (False, (8, 11))])
def test_discarding_all_but_one_gives_the_space_back(
    own: psycopg.Connection, persistent: bool, slots: tuple[int, int], connect: Connect, own_database: str
) -> None:
    spool = made(own, persistent=persistent)
    empty = size(spool, *slots)
    fill(spool, 10_000)
    full = size(spool, *slots)
    assert full - empty > 2_000_000
    others = (8, 11) if persistent else (0, 7)
    assert size(spool, *others) <= 30 * 8192 * 3
    spool.pointer(10_000)
    # An old snapshot that never looked at the spool does not matter.
    old = connect(dsn=own_database)
    old.execute("begin isolation level repeatable read")
    old.execute("select 1")
    assert spool.discard(keys=Jsonb({"N": [2, None]})) == 9_999
    give_back(spool, empty + 100_000, *slots)
    assert list(spool.contents()) == [1]
    assert spool.replay() == 1
    assert spool.discard(keys=Jsonb({"N": [1, 1]})) == 1
    old.execute("rollback")
    fill(spool, 3)
    assert list(spool.contents()) == [10_001, 10_002, 10_003]
    assert value(own, _DEAD) == 0


def test_a_member_goes_on_where_it_was_when_slots_are_copied(
    own: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    spool = made(own)
    member = Member(connect(dsn=own_database), spool, "m")
    fill(spool, 1_000)
    assert len(member.received(10)) == 10
    spool.pointer(1_000)
    spool.discard(seqn="[1,5]")
    spool.discard(seqn="[8,996]")
    give_back(spool, size(spool))
    assert [seqn for seqn, *_ in member.received()] == [6, 7, 997, 998, 999, 1_000]
    # The last that was handed out is gone, and can be acknowledged all the same.
    assert member.ack() == 6
    assert member.take() == []


def test_a_delivery_whose_space_was_given_back_is_acknowledged_with_nothing(
    own: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    spool = made(own)
    member = Member(connect(dsn=own_database), spool, "m")
    fill(spool, 1_000)
    received = member.ids()
    assert len(received) == 100
    spool.pointer(1_000)
    spool.discard(seqn="[1,5]")
    spool.discard(seqn="[101,1000]")
    give_back(spool, size(spool))
    # One by one, as a client goes through what it has received; the last answers for those that are gone, too.
    assert [member.ack(delivery) for delivery in received] == [0] * 5 + [1] * 94 + [6]
    assert member.received() == []
    # What waits for dispatch, and what was never given, was not received.
    waiting = call(own, "spool", "big", 1, "1")
    for unknown in (waiting, waiting + 1_000_000):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=str(unknown)):
            member.ack(unknown)


@pytest.mark.parametrize("replay", [False, True])
def test_who_acknowledges_what_was_discarded_since_has_acknowledged_all_before_it(
    own: psycopg.Connection, connect: Connect, own_database: str, replay: bool
) -> None:
    spool = made(own)
    member = Member(connect(dsn=own_database), spool, "m", join=False)
    if not replay:
        member.join()
    fill(spool, 1_000)
    spool.pointer(1_000)
    if replay:
        member.join(replay=True)
    received = member.ids()
    spool.discard(seqn="[5,7]")
    spool.discard(seqn="[401,1000]")
    give_back(spool, size(spool))
    # Also when it lies in the slot that is copied next.
    spool.discard(seqn="[101,400]")
    give_back(spool, size(spool))
    assert member.ack(received[5]) == 4
    assert member.ack(received[3]) == 0
    assert [seqn for seqn, *_ in member.received(3)] == [8, 9, 10]
    assert member.ack(received[99]) == 93
    # Nobody asks for them any more.
    spool.discard(seqn="[8,100]")
    give_back(spool, size(spool))
    assert column(own, "select seqn from pgps_internal.spool_message order by 1") == [1, 2, 3, 4]


def test_a_slot_that_is_in_use_is_left_for_the_next_time(
    own: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    spool = made(own)
    fill(spool, 100)
    spool.pointer(100)
    reader = connect(dsn=own_database, autocommit=False)
    assert value(reader, "select count(*) from pgps.spooled_messages") == 100
    spool.discard()
    before = size(spool)
    value(own, "select pgps.reclaim()")
    assert size(spool) == before
    reader.rollback()
    give_back(spool, before)


def test_a_dropped_spool_gives_its_space_back(own: psycopg.Connection) -> None:
    spool, other = made(own), made(own, "other")
    empty = size(spool)
    fill(spool, 5_000)
    fill(other, 1)
    call(own, "drop_spool", spool.name)
    give_back(other, empty + 100_000)
    assert list(other.contents()) == [1]
    again = made(own)
    fill(again, 2)
    assert list(again.contents()) == [1, 2]


def test_standings_and_members_outlive_their_segments(
    own: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    spool = made(own)
    member = Member(connect(dsn=own_database), spool, "m")
    fill(spool, 5)
    spool.pointer(3)
    spool.checkpoint_at(2)
    assert len(member.take(4)) == 4
    # As many batches, and marks, as make the first segments old.
    rows(
        own,
        """
        insert into pgps_internal.batch
        select b.batch_id + 4096 * 2, previous, snapshot, upto, base_hi, max_hi, incarnation, started_at, created_at
        from pgps_internal.batch b order by b.batch_id desc limit 1
        """,
    )
    rows(own, "select setval('pgps_internal.spool_mark_id_seq', 16384 * 2)")
    value(own, "select pgps.reclaim(100)")
    count = "select count(*) from pgps_internal.spool_state_0 union all select count(*) from pgps_internal.spool_mark_0"
    assert rows(own, count) == [(0,), (0,)]
    fill(spool, 1)
    columns = ("last_seqn", "replay_pointer", "checkpoint_pointer", "replayable")
    assert spool.standing(*columns) == (6, 3, 2, 2)
    assert len(member.take()) == 2


def test_a_member_is_found_whichever_segment_has_where_it_is(
    own: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    spool = made(own)
    member = Member(connect(dsn=own_database), spool, "m")
    fill(spool, 5)
    assert [seqn for seqn, *_ in member.received(2)] == [1, 2]
    assert member.ack() == 2
    # The newest segment has nothing of it; then that segment is the same table again, with what was before.
    for ahead in (16384, 4 * 16384):
        rows(own, "select setval('pgps_internal.spool_mark_id_seq', %s)", [ahead])
        assert [seqn for seqn, *_ in member.received(1)] == [3]
    assert member.ack() == 1
    assert [seqn for seqn, *_ in member.received()] == [4, 5]


def test_a_spool_that_is_not_persistent_forgets_its_messages_in_a_crash_and_goes_on(
    own_cluster: EmbeddedCluster,
) -> None:
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:
        lost, kept = made(connection, "lost", persistent=False), made(connection, "kept")
        fill(lost, 3)
        fill(kept, 3)
        connection.execute("checkpoint")
    own_cluster.kill9()
    own_cluster.start()
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:
        lost, kept = Spool(connection, "lost"), Spool(connection, "kept")
        assert (list(lost.contents()), list(kept.contents())) == ([], [1, 2, 3])
        fill(lost, 1)
        fill(kept, 1)
        assert (list(lost.contents()), list(kept.contents())) == ([4], [1, 2, 3, 4])


def test_what_a_crash_has_lost_counts_for_no_limit(own_cluster: EmbeddedCluster) -> None:
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:
        ring = made(connection, "ring", persistent=False, max_messages=3, on_limit="drop_oldest")
        full = made(connection, "full", persistent=False, max_messages=3)
        for spool in (ring, full):
            fill(spool, 3)
            assert spool.standing("bytes") > 0
        connection.execute("checkpoint")
    own_cluster.kill9()
    own_cluster.start()
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:
        for name in ("ring", "full"):
            spool = Spool(connection, name)
            assert spool.standing("bytes") == 0
            for number in (4, 5, 6):
                spool.spool(number)
            assert spool.contents() == {4: 4, 5: 5, 6: 6}
        assert Spool(connection, "ring").spool(7)
        assert Spool(connection, "ring").contents() == {5: 5, 6: 6, 7: 7}
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="3 messages of 3"):
            call(connection, "spool", "full", 1, "7")


def test_the_clock_is_the_brokers(own: psycopg.Connection, clock: Clock) -> None:
    clock.set("2026-03-01 12:00+00")
    spool = made(own)
    fill(spool, 1)
    query = "select spooled_at = '2026-03-01 12:00+00' from pgps.spooled_messages"
    assert value(own, query) is True


def test_gaps_are_put_together_and_tell_the_same(own: psycopg.Connection, connect: Connect, own_database: str) -> None:
    spool = made(own, max_messages=2, on_limit="drop_oldest")
    away, busy = (Member(connect(dsn=own_database), spool, name) for name in ("away", "busy"))
    for number in range(1, 101):
        spool.spool(number)
    assert busy.take() == ["|", 99, 100]
    for number in range(101, 121):
        spool.spool(number)
    received = rows(busy.connection, "select seqn, id from pgps.receive_spooled('big', 'busy', 1)")
    query = "select first_seqn, last_seqn, messages from pgps.spool_gaps where spool = 'big' order by 1"
    assert len(rows(own, query)) == 118
    rows(own, "select pgps.reclaim()")
    # What busy has received and not acknowledged stays by itself: it acknowledges it by its id.
    gaps = rows(own, query)
    assert gaps == [(1, 50, 50), *((n, n, 1) for n in range(51, 119))]
    assert busy.ack(received[0][1]) == 1
    for number in range(121, 163):
        spool.spool(number)
    assert len(rows(own, query)) > 100
    rows(own, "select pgps.reclaim()")
    gaps = rows(own, query)
    assert len(gaps) == 51
    assert gaps[0] == (1, 110, 110)
    assert sum(messages for *_, messages in gaps) == 160
    assert away.received() == [(160, {"gap": [1, 160]}, False), (161, 161, False), (162, 162, False)]
    assert busy.received(1) == [(160, {"gap": [119, 160]}, False)]
    # A replay ends within what was put together, and tells its part of it; what is new tells the rest.
    spool.pointer(60)
    away.join(replay=True)
    parts = rows(away.connection, "select seqn, message, in_replay, id from pgps.receive_spooled('big', 'away', 3)")
    assert [(seqn, message, again) for seqn, message, again, _ in parts] == [
        (60, {"gap": [1, 60]}, True), (0, {"replay": "ended"}, False), (160, {"gap": [61, 160]}, False),
    ]  # fmt: skip
    assert [away.ack(parts[0][3]), away.ack(parts[1][3]), away.ack(parts[2][3])] == [1, 1, 1]
    assert away.take() == [161, 162]
