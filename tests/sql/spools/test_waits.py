"""Who waits for whom: an open transaction stops nobody but those who change the same thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.fix_broker import call, rows, value
from tests.fix_db import Connect
from tests.fix_spools import Member, Spool

Name = Callable[..., str]


@pytest.fixture
def other(admin: psycopg.Connection, name: Name) -> Iterator[Spool]:
    """Another spool."""
    made = name("other")
    call(admin, "create_spool", made)
    # Who makes the first network or link of a broker gives it its identity, for which others wait that once.
    rows(admin, "select pgps_internal.me()")
    yield Spool(admin, made)
    admin.execute("delete from pgps_internal.spool where name = %s", [made])


OPEN = {
    "spool": "select pgps.spool('{spool}', 1, '1')",
    "spool_many": """select pgps.spool_many('{spool}', '[{{"entry": 1, "message": 1}}]')""",
    "spool for a network": "select pgps.spool('{spool}', 1, '1', network => 'local')",
    "spool_and_discard": "select pgps.spool_and_discard('{spool}', 1, '1')",
    "prepend_and_discard": "select pgps.prepend_and_discard('{spool}', 1, '1')",
    "spool_set_replay_pointer": "select pgps.spool_set_replay_pointer('{spool}', 1)",
    "spool_set_checkpoint_pointer": "select pgps.spool_set_checkpoint_pointer('{spool}', 1)",
    "spool_discard": "select pgps.spool_discard('{spool}')",
    "spool_replay": "select pgps.spool_replay('{spool}')",
    "spool_play_through": "select pgps.spool_play_through('{spool}', false)",
    "spool_advise": "select pgps.spool_advise('{spool}', max_messages => 3, on_limit => 'drop_oldest')",
    "grant_spool": "select pgps.grant_spool('{spool}', 'spool', 'pgps_worker')",
    "spool_cancel": "select pgps.spool_cancel({request})",
    "spool_inquire": "select pgps.spool_inquire({request})",
    "join_group": "select pgps.join_group('{spool}', '{member}', replay => true)",
    "leave_group": "select pgps.leave_group('{spool}', '{member}')",
    "receive_spooled": "select * from pgps.receive_spooled('{spool}', '{member}')",
    "ack_spooled": """
        select pgps.receive_spooled('{spool}', '{member}');
        select pgps.ack_spooled('{spool}', '{member}', null)""",
    "create_spool": "select pgps.create_spool('{made}')",
    "create_network": "select pgps.create_network('{made}', '{{host=127.0.0.1 port=1 dbname=none}}')",
    "drop_spool": "select pgps.drop_spool('{spool}')",
}
"""What one session has done and not committed: to a spool, or as its member."""

ELSEWHERE = """
    select pgps.create_spool('{fresh}');
    select pgps.spool('{other}', 1, '1');
    select pgps.dispatch();
    select pgps.spool_replay('{other}');
    select pgps.receive_spooled('{other}', '{elsewhere}');
    select pgps.ack_spooled('{other}', '{elsewhere}', null);
    select pgps.spool_advise('{other}', max_messages => 1000);
    select pgps.spool_play_through('{other}', false), pgps.spool_play_through('{other}', true);
    select pgps.grant_spool('{other}', 'replay', 'pgps_worker');
    select pgps.create_network('{fresh}', '{{host=127.0.0.1 port=1 dbname=none}}');
    select pgps.drop_network('{fresh}');
    select pgps.spool_set_replay_pointer('{other}', 1);
    select pgps.spool_discard('{other}');
    select pgps.dispatch();
    select pgps.reclaim();
    select count(*) from pgps.spools, pgps.group_members, pgps.networks;
    select pgps.drop_spool('{fresh}');
"""
"""What nobody who has something else open keeps others from."""

HERE = """
    select pgps.spool('{spool}', 1, '1');
    select pgps.spool_many('{spool}', '[{{"entry": 1, "message": 1}}]');
    select pgps.spool_and_discard('{spool}', 1, '1');
    select pgps.spool_set_replay_pointer('{spool}', 2);
    select pgps.spool_discard('{spool}');
    select pgps.dispatch();
    select pgps.receive_spooled('{spool}', '{beside}');
    select pgps.ack_spooled('{spool}', '{beside}', null);
    select pgps.join_group('{spool}', '{beside}', replay => true);
    select pgps.spool_inquire({request});
    select count(*) from pgps.spooled_messages where spool = '{spool}';
"""
"""What whoever has a spool open keeps nobody from at the same spool, but while it is dropped or a message cancelled."""


@pytest.mark.parametrize("what", OPEN)
def test_an_open_transaction_keeps_nobody_from_anything_else(
    spool: Spool, other: Spool, connect: Connect, name: Name, what: str
) -> None:
    made, fresh = name("made"), name("fresh")
    request, _ = spool.spool(1, 2)
    other.spool(1, 2)
    opener, busy = connect(), connect()
    member = Member(opener, spool, name("member"))
    elsewhere, beside = Member(busy, other, name("elsewhere"), replay=True), Member(connect(), spool, name("beside"))
    names = {
        "spool": spool.name,
        "other": other.name,
        "request": request,
        "member": member.name,
        "made": made,
        "fresh": fresh,
        "elsewhere": elsewhere.name,
        "beside": beside.name,
    }
    dropping = what == "drop_spool"
    with opener.transaction(force_rollback=True):
        for statement in OPEN[what].split(";"):
            rows(opener, statement.format(**names))
        for connection in (busy, beside.connection):
            rows(connection, "set lock_timeout = '30s'")
        if what not in ("drop_spool", "spool_cancel"):
            run(beside.connection, HERE, names)
        run(busy, ELSEWHERE, names, without="drop_" if dropping else None)
    if dropping:
        rows(busy, f"select pgps.drop_network('{fresh}'), pgps.drop_spool('{fresh}')")
    rows(busy, "delete from pgps_internal.client where name = any(%s)", [[member.name, elsewhere.name, beside.name]])


def run(connection: psycopg.Connection, statements: str, names: dict[str, object], without: str | None = None) -> None:
    for statement in statements.split(";"):
        if statement.strip() and (without is None or without not in statement):
            rows(connection, statement.format(**names))


def test_reclaim_does_not_wait_for_whoever_drops_a_spool(own_database: str, connect: Connect) -> None:
    opener, busy = connect(dsn=own_database), connect(dsn=own_database)
    call(busy, "create_spool", "dropped")
    call(busy, "create_spool", "kept")
    kept = Spool(busy, "kept")
    kept.spool(*range(20))
    kept.pointer(19)
    kept.discard()
    rows(busy, "set lock_timeout = '30s'")
    full = "select count(*) from pgps_internal.spool_message"
    with opener.transaction(force_rollback=True):
        call(opener, "drop_spool", "dropped")
        # There is something to copy, and whoever copies it has locked what everybody reads.
        call(busy, "reclaim")
        assert value(busy, full) == 20
    call(busy, "reclaim")
    assert value(busy, full) == 1


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_spool_that_is_being_dropped_holds_up_no_dispatch(own_database: str, connect: Connect, is_kept: bool) -> None:
    """Though there is a limit to apply, a message to take back, and a replay that waits."""
    admin, dropping = connect(dsn=own_database), connect(dsn=own_database, autocommit=False)
    for made in ("full", "other"):
        call(admin, "create_spool", made)
    full, other = Spool(admin, "full"), Spool(admin, "other")
    first, *_ = full.spool(1, 2, 3)
    member = Member(connect(dsn=own_database), full, "m")
    call(admin, "spool_advise", "full", max_messages=1, on_limit="drop_oldest")
    call(admin, "spool_cancel", first)
    call(admin, "spool_set_replay_pointer", "full", 2)
    assert full.replay() >= 0
    call(dropping, "drop_spool", "full")
    rows(admin, "set lock_timeout = '3s'")
    other.spool(1)
    assert other.contents() == {1: 1}
    assert rows(admin, "select * from pgps_internal.broken_type") == []
    if is_kept:
        dropping.rollback()
        assert full.contents() == {3: 3}
        assert "|" in member.take()
    else:
        dropping.commit()
        rows(admin, "select pgps.reclaim()")
    left = "select count(*) from pgps_internal.{} c where c.spool_id not in (select spool_id from pgps_internal.spool)"
    for table in ("spool_gap", "spool_cancelled", "spool_replay"):
        assert value(admin, left.format(table)) == 0
    dropping.rollback()
