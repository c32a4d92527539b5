"""Locks that a stranger takes: a role with LOGIN alone holds whatever it can name, and nobody waits for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pgps import install
from tests.fix_broker import call, column, make_type, numbers, publish, rows, value
from tests.fix_db import Connect

_ROOT = Path(__file__).resolve().parents[2]
_MODES = (
    "access exclusive", "exclusive", "share row exclusive", "share", "share update exclusive", "row exclusive",
    "row share", "access share",
)  # fmt: skip
# What the broker's sessions may wait for: longer than any step takes, shorter than a test.
_PATIENCE = "set lock_timeout = '60s'; set statement_timeout = '100s'"


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    """A broker of its own, since reclaim, routes and dispatch are the whole broker's."""
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    call(connection, "subscribe", "all", "tick")
    rows(connection, _PATIENCE)
    return connection


@pytest.fixture
def stranger(own_database: str, connect: Connect, role: Callable[..., str]) -> psycopg.Connection:
    """A role with LOGIN alone, in a transaction that it does not end."""
    return connect(role("stranger"), dsn=own_database, autocommit=False)


def take_advisory_locks(stranger: psycopg.Connection) -> None:
    """Take all that pg_locks shows, and the numbers that were ever in use here, exclusively and for the session."""
    rows(
        stranger,
        "select pg_try_advisory_lock(n, i) from generate_series(1885826163, 1885826172) n, generate_series(0, 60) i",
    )
    rows(stranger, "select pg_try_advisory_lock(1885826166, r.oid::integer) from pg_roles r")
    rows(stranger, "select pg_try_advisory_lock(n) from generate_series(0, 60) n")
    rows(stranger, "select pg_try_advisory_lock(1885826163::bigint << 32 | n) from generate_series(0, 60) n")
    rows(stranger, "select pg_try_advisory_lock(1885696627)")
    rows(
        stranger,
        """
        select case l.objsubid when 2 then pg_try_advisory_lock(l.classid::bigint::integer, l.objid::bigint::integer)
            else pg_try_advisory_lock(l.classid::bigint << 32 | l.objid::bigint) end
        from pg_locks l where l.locktype = 'advisory' and l.pid <> pg_backend_pid()
            -- Those of other databases are other locks, whose numbers tests beside this one choose as they like.
            and l.database = (select d.oid from pg_database d where d.datname = current_database())
        """,
    )


def take_table_locks(stranger: psycopg.Connection) -> int:
    """Lock every relation of the broker that it can name, in every mode it may; return how many locks it got."""
    taken = 0
    relations = column(
        stranger,
        """
        select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname ~ '^pgps' and c.relkind in ('r', 'v', 'p') order by 1
        """,
    )
    attempts = [
        *(f"lock table {relation} in {mode} mode" for relation in relations for mode in _MODES),
        # A statement takes its locks when it is parsed and planned; rights are asked when it is executed.
        *(f"prepare p{i}a as select * from {relation} for update" for i, relation in enumerate(relations)),
        *(f"prepare p{i}b as delete from {relation}" for i, relation in enumerate(relations)),
        *(f"prepare p{i}c as insert into {relation} default values" for i, relation in enumerate(relations)),
    ]
    for attempt in attempts:
        try:
            with stranger.transaction():
                rows(stranger, "set local lock_timeout = '200ms'")
                rows(stranger, attempt)
            taken += 1
        except psycopg.Error:
            continue
    return taken


def work(broker: psycopg.Connection, number: int) -> None:
    """Do one of everything that takes turns."""
    subscription, load = f"s{number}", f"load{number}"
    call(broker, "subscribe", subscription, "tick", "n >= 0", scope="global")
    call(broker, "subscribe", f"{subscription}_calls", "tick", execute="public.drop_it")
    publish(broker, "tick", number)
    call(broker, "publish", "tick", f'{{"n": {number}}}', producer="p", producer_seq=number)
    assert value(broker, "select pgps.dispatch()") == 2
    assert numbers(broker, subscription) == [number, number]
    assert call(broker, "ack", subscription) == 2
    rows(broker, "call pgps.run_subscribers()")
    assert value(broker, "select count(*) from pgps_queue.tick_receive(array['all'])") > 0
    assert value(broker, "select acked from pgps.ack_each(array['all'])") > 0
    call(broker, "pause", subscription)
    call(broker, "resume", subscription)
    call(broker, "seek", subscription, "earliest")
    rows(broker, "select pgps.begin_load('tick', %s)", [load])
    rows(broker, "select pgps.begin_load_part('tick', %s, 'part')", [load])
    rows(broker, "select pgps.discard_load(%s)", [load])
    rows(broker, "select * from pgps.connect_client('c', take_over => true)")
    assert call(broker, "send_request", "c", "select 1") > 0
    call(broker, "create_link", f"l{number}", "host=127.0.0.1 port=1")
    rows(broker, "select pgps.drop_link(%s, cascade => true)", [f"l{number}"])
    call(broker, "unsubscribe", subscription)
    call(broker, "unsubscribe", f"{subscription}_calls")
    rows(broker, "select pgps.reclaim()")
    assert value(broker, "select pgps.try_lead()")
    assert value(broker, "select pgps.stay_awake()")
    rows(broker, "select pgps.fall_asleep()")


@pytest.fixture
def callback(broker: psycopg.Connection) -> None:
    rows(broker, "create function public.drop_it(e pgps_event.tick) returns void language sql as ''")


def test_nobody_waits_for_the_advisory_locks_of_a_stranger(
    broker: psycopg.Connection, stranger: psycopg.Connection, callback: None
) -> None:
    work(broker, 1)
    take_advisory_locks(stranger)
    work(broker, 2)
    publish(broker, "tick", 3)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "begin")
    assert numbers(broker, "all") == [3]
    take_advisory_locks(stranger)
    assert call(broker, "ack", "all") > 0
    rows(broker, "commit")
    work(broker, 4)


def test_nobody_waits_for_the_tables_and_views_that_a_stranger_locks(
    broker: psycopg.Connection, stranger: psycopg.Connection, callback: None
) -> None:
    work(broker, 1)
    assert take_table_locks(stranger) > 10
    work(broker, 2)
    work(broker, 3)


@pytest.mark.parametrize(
    "attempt",
    [
        "create rule r as on insert to {} where {} do also nothing",
        "create trigger t before insert on {} when ({}) execute function suppress_redundant_updates_trigger()",
    ],
)
@pytest.mark.parametrize(
    "relation", ["pgps_event.tick", "pgps_queue.tick_in", "pgps_entry.calls", "pgps_entry.receive_calls"]
)
def test_nobody_waits_for_a_rule_or_a_trigger_that_a_stranger_may_not_make(
    broker: psycopg.Connection, stranger: psycopg.Connection, attempt: str, relation: str
) -> None:
    """The relation would be locked while the check of a domain sleeps, and before rights are asked."""
    rows(stranger, "create temporary table own (n integer)")
    rows(
        stranger,
        "create function pg_temp.slow(n integer) returns boolean language plpgsql as "
        "$$ begin perform pg_sleep(600); return true; end $$",
    )
    rows(stranger, "create domain pg_temp.slowly as integer check (pg_temp.slow(value))")
    stranger.commit()
    rows(stranger, "set statement_timeout = '60s'")
    for where in (relation, "pg_temp.own"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="has no table or view for which to create"):
            rows(stranger, attempt.format(where, "('{1}'::pg_temp.slowly[])[1] = 1"))
        stranger.rollback()
    rows(broker, f"create table public.has (); alter table public.has owner to {stranger.info.user}")
    rows(stranger, "create rule r as on insert to public.has do instead nothing")


MADE = (
    "create view pg_temp.v{n} as select * from {of}",
    "create function pg_temp.f{n}() returns bigint begin atomic select count(*) from {of}; end",
    "create function pg_temp.g{n}(e {of}) returns integer language sql as 'select 1'",
    "create table pg_temp.t{n} (e {of}, f {of}[])",
    "create domain pg_temp.d{n} as {of} check (value is not null)",
)


def test_what_a_stranger_makes_of_a_type_keeps_nobody_from_changing_it(
    broker: psycopg.Connection,
    stranger: psycopg.Connection,
    own_database: str,
    connect: Connect,
    role: Callable[..., str],
) -> None:
    reader = connect(role("reader"), dsn=own_database)
    rows(broker, "revoke select, insert on pgps_event.tick from public")
    rows(broker, f"grant select on pgps_event.tick to {reader.info.user}")

    def make_all() -> None:
        for n, of in enumerate(("pgps_event.tick", "pgps_queue.tick_in", "pgps_queue.tick_exception")):
            for statement in MADE:
                rows(stranger, statement.format(n=n, of=of))
        stranger.commit()

    make_all()
    call(broker, "alter_event_type", "tick", add_attribute="other integer")
    make_all()
    call(broker, "alter_event_type", "tick", drop_attribute="other")
    make_all()
    # Whoever may read it has something that works, and is told of.
    rows(reader, "create view pg_temp.seen as select * from pgps_queue.tick_in")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="tick_in") as refused:
        call(broker, "alter_event_type", "tick", add_attribute="other integer")
    assert "seen" in str(refused.value.diag.message_detail)
    rows(reader, "drop view pg_temp.seen")
    call(broker, "unsubscribe", "all")
    call(broker, "drop_event_type", "tick")


def test_a_stranger_does_not_get_at_what_takes_turns(stranger: psycopg.Connection, broker: psycopg.Connection) -> None:
    take_table_locks(stranger)
    held = column(
        broker,
        """
        select l.relation::regclass::text from pg_locks l
        where l.pid = %s and l.locktype = 'relation' and l.relation::regclass::text
            ~ '^pgps_internal\\.(turn|subscription_turn|leader|wake_seq|ring_seq|installation|turn_of_.*)$'
            -- A view reads the row of the leader: that holds up nobody.
            and not (l.relation = 'pgps_internal.leader'::regclass and l.mode = 'AccessShareLock')
        """,
        [stranger.info.backend_pid],
    )
    assert held == []
    weak = ("AccessShareLock", "RowShareLock")
    batch = "select mode from pg_locks where pid = %s and relation = 'pgps_internal.batch'::regclass"
    assert [mode for mode in column(broker, batch, [stranger.info.backend_pid]) if mode not in weak] == []
    for attempt in (
        "select setval('pgps_internal.wake_seq', 0)",
        "select pgps.stay_awake()",
        "select pgps.try_lead()",
        "select pgps.await_ring(0)",
    ):
        stranger.rollback()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(stranger, attempt)
    stranger.rollback()


def test_an_upgrade_does_not_wait_for_the_advisory_locks_of_a_stranger(
    broker: psycopg.Connection, stranger: psycopg.Connection
) -> None:
    take_advisory_locks(stranger)
    rows(broker, "update pgps_internal.installation set value = 'old' where key = 'code_digest'")
    assert not install.status(broker.info.dsn).up_to_date
    assert install.upgrade(broker.info.dsn).up_to_date
    publish(broker, "tick", 1)
    assert value(broker, "select pgps.dispatch()") == 1


def test_an_installation_does_not_wait_for_a_role_that_changes_its_password(
    empty_database: str, stranger: psycopg.Connection
) -> None:
    """It holds the table of roles until it commits."""
    rows(stranger, "alter role current_user password 'other'")
    assert install.install(empty_database).up_to_date


def test_no_code_of_the_broker_takes_an_advisory_lock() -> None:
    sources = [*_ROOT.glob("sql/**/*.sql"), *_ROOT.glob("worker/**/*.py"), *_ROOT.glob("pgps/**/*.py")]
    assert len(sources) > 100
    uses = [
        f"{source.relative_to(_ROOT)}: {line.strip()}"
        for source in sources
        for line in source.read_text().splitlines()
        if re.search(r"pg_(try_)?advisory_(xact_)?lock(_shared)?\((?!1, 2\))", line)
    ]
    # Who matches a filter says so with a shared lock that it never waits for, and that nobody else reads.
    assert [use for use in uses if "1885826164" not in use] == []
