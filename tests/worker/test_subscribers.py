from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgps.embedded import EmbeddedCluster
from tests.fix_db import Connect, lock_waiters, wait_until
from tests.fix_worker import RoleFactory, Ticks, Workers

# As short as a machine under load can bear, on which callbacks that do nothing must not take longer.
QUICK = ("--callback-timeout", "5")


def test_each_subscription_gets_each_event_once_in_order(own_database: str, ticks: Ticks, workers: Workers) -> None:
    for name in ("a", "b", "c"):
        ticks.subscribe(name)
    workers(own_database)
    for start in range(0, 50, 10):
        ticks.publish(*range(start, start + 10))
    for name in ("a", "b", "c"):
        ticks.wait_for(name, 49)
        assert ticks.seen(name) == list(range(50))


def test_higher_priority_runs_first(own_database: str, ticks: Ticks, workers: Workers) -> None:
    ticks.subscribe("low", more=", priority => -1")
    ticks.subscribe("high", more=", priority => 7")
    ticks.subscribe("middle", more=", priority => 3")
    ticks.publish(1)
    workers(own_database, "--concurrency", "1")
    wait_until(lambda: ticks.seen("low") == [1])
    rows = ticks.connection.execute("select who from public.seen order by place").fetchall()
    assert [who for (who,) in rows] == ["high", "middle", "low"]


def test_callbacks_of_one_role_that_take_long_hold_up_those_of_no_other(
    own_database: str, ticks: Ticks, connect: Connect, workers: Workers, role: RoleFactory
) -> None:
    alice = role("alice")
    for name in ("one", "two"):
        ticks.subscribe(name, "perform pg_advisory_xact_lock_shared(7)")
    ticks.connection.execute("create function public.hers(n integer) returns void as 'insert into seen (who, n)"
        " values (''alice'', n)' language sql security definer")  # fmt: skip
    ticks.connection.execute(f"grant select on pgps_event.tick to {alice}".encode())
    connect(alice, dsn=own_database).execute("select pgps.subscribe('hers', 'tick', execute => 'public.hers(n)')")
    ticks.connection.execute("select pg_advisory_lock(7)")
    workers(own_database, "--concurrency", "2", "--callback-timeout", "600")
    for number in (1, 2):
        ticks.publish(number)
        ticks.wait_for("alice", number)
    assert ticks.seen("one") == [] == ticks.seen("two")
    ticks.connection.execute("select pg_advisory_unlock(7)")
    for name in ("one", "two"):
        ticks.wait_for(name, 2)


def test_callbacks_of_many_roles_that_take_long_hold_up_those_of_no_other(
    own_database: str, ticks: Ticks, connect: Connect, workers: Workers, role: RoleFactory
) -> None:
    """One callback of each role, and it catches cancellations: those without a slot are rolled back and come again."""
    ticks.connection.execute(
        """create function public.noted(who text, n integer) returns void language plpgsql security definer as $$
        begin
            insert into seen (who, n) values (who, n);
            loop
                begin
                    if who <> 'alice' then perform pg_advisory_xact_lock_shared(7); end if;
                    return;
                exception when query_canceled then null;
                end;
            end loop;
        end $$"""
    )
    hogs = [f"hog{number}" for number in range(5)]
    for name in (*hogs, "alice"):
        owner = role(name)
        ticks.connection.execute(f"grant select on pgps_event.tick to {owner}".encode())
        execute = f"public.noted(''{name}'', n)"
        connect(owner, dsn=own_database).execute(
            f"select pgps.subscribe('{name}', 'tick', execute => '{execute}')".encode()
        )
    ticks.connection.execute("select pg_advisory_lock(7)")
    workers(own_database, "--concurrency", "2", "--callback-timeout", "600", "--time-slice", "0.1")
    for number in (1, 2, 3):
        ticks.publish(number)
        ticks.wait_for("alice", number)
    ticks.connection.execute("select pg_advisory_unlock(7)")
    for hog in hogs:
        ticks.wait_for(hog, 3)
        assert ticks.seen(hog) == [1, 2, 3]
    assert ticks.connection.execute("select * from pgps.exceptions").fetchall() == []


def test_one_that_is_unsubscribed_while_its_callback_hangs_is_not_tried_again(
    own_database: str, ticks: Ticks, connect: Connect, workers: Workers
) -> None:
    ticks.subscribe("hangs", "perform pg_advisory_xact_lock(7)")
    ticks.subscribe("all")
    connect(dsn=own_database).execute("select pg_advisory_lock(7)")
    worker = workers(own_database, *QUICK)
    ticks.publish(1)
    wait_until(lambda: lock_waiters(ticks.connection, 7))
    ticks.connection.execute("select pgps.unsubscribe('hangs')")
    wait_until(lambda: "canceling statement" in worker.messages)
    for number in range(2, 12):
        ticks.publish(number)
        ticks.wait_for("all", number)
    assert [line["message"] for line in worker.log if "does not exist" in line["message"]] == []


def test_a_callback_that_raises_fails_for_its_event_only(own_database: str, ticks: Ticks, workers: Workers) -> None:
    ticks.subscribe("picky", "if e.n = 2 then raise exception 'no twos' using errcode = 'P0002'; end if")
    ticks.subscribe("all")
    workers(own_database)
    ticks.publish(1, 2, 3)
    wait_until(lambda: ticks.seen("picky") == [1, 3])
    wait_until(lambda: ticks.seen("all") == [1, 2, 3])
    assert ticks.failed("picky") == [(2, "P0002")]


def test_a_callback_that_loops_holds_up_nobody(own_database: str, ticks: Ticks, workers: Workers) -> None:
    ticks.connection.execute("create table public.told ()")
    loop = "while e.n = 2 and not exists (select from public.told) loop perform pg_sleep(0.01); end loop"
    ticks.subscribe("loops", loop, more=", priority => 9")
    ticks.subscribe("all")
    workers(own_database, "--callback-timeout", "600")
    ticks.publish(1, 2, 3)
    wait_until(lambda: ticks.seen("all") == [1, 2, 3], what="the others' events, while it loops")
    ticks.connection.execute("insert into public.told default values")
    wait_until(lambda: ticks.seen("loops") == [1, 2, 3])


def test_no_callback_is_blamed_for_who_changes_its_event_type(
    own_database: str, ticks: Ticks, workers: Workers, connect: Connect
) -> None:
    ticks.subscribe("waits")
    ticks.publish(1, 2)
    ticks.connection.execute("select pgps.dispatch()")
    with connect(dsn=own_database, autocommit=False) as session:
        session.execute("select pgps.alter_event_type('tick', add_attribute => 'm integer')")
        worker = workers(own_database, *QUICK)
        # It hangs, once; the event that is handed out alone is not filed for that.
        wait_until(lambda: "is being changed or dropped in a transaction that is open" in worker.messages)
        session.rollback()
    wait_until(lambda: ticks.seen("waits") == [1, 2])
    assert ticks.failed("waits") == []


def test_a_callback_that_loops_is_ended_and_filed(own_database: str, ticks: Ticks, workers: Workers) -> None:
    ticks.subscribe("loops", "while e.n = 2 loop perform 1; end loop", more=", priority => 9")
    workers(own_database, *QUICK)
    ticks.publish(1, 2, 3)
    wait_until(lambda: ticks.seen("loops") == [1, 3])
    assert ticks.failed("loops") == [(2, "57014")]


def test_callbacks_that_all_loop_leave_a_slot_for_the_others(own_database: str, ticks: Ticks, workers: Workers) -> None:
    def ended() -> int:
        return sum("statement timeout" in line["message"] for line in worker.log)

    for name in ("loops1", "loops2", "loops3"):
        ticks.subscribe(name, "loop perform pg_sleep(0.01); end loop", more=", priority => 9")
    ticks.subscribe("all")
    worker = workers(own_database, *QUICK)
    ticks.publish(*range(10))
    # Once each has hung, they are known.
    wait_until(lambda: ended() >= 3)
    waited = []
    for number in range(100, 110):
        before = ended()
        ticks.publish(number)
        ticks.wait_for("all", number)
        waited.append(ended() > before)
    assert not all(waited), "each time one of those that loop had to be ended first"


def test_a_callback_that_catches_its_cancellation_is_ended_all_the_same(
    own_database: str, ticks: Ticks, workers: Workers
) -> None:
    body = """
        while e.n = 2 loop
            begin
                perform pg_sleep(1000);
            exception when query_canceled then
                null;
            end;
        end loop
    """
    ticks.subscribe("stubborn", body)
    ticks.subscribe("all")
    workers(own_database, *QUICK)
    ticks.publish(1, 2, 3)
    wait_until(lambda: ticks.seen("all") == [1, 2, 3])
    wait_until(lambda: ticks.seen("stubborn") == [1, 3])
    assert ticks.failed("stubborn") == [(2, "57014")]


def test_a_callback_that_ends_its_session_is_filed_and_harms_nobody(
    own_database: str, ticks: Ticks, workers: Workers
) -> None:
    ticks.subscribe("kills", "if e.n = 2 then perform pg_terminate_backend(pg_backend_pid(), 5000); end if")
    ticks.subscribe("all")
    workers(own_database)
    ticks.publish(1, 2, 3)
    wait_until(lambda: ticks.seen("all") == [1, 2, 3])
    wait_until(lambda: ticks.seen("kills") == [1, 3])
    assert ticks.failed("kills") == [(2, "57P01")]


@pytest.mark.timeout(300)
def test_a_callback_that_crashes_the_server_is_filed(own_cluster: EmbeddedCluster, workers: Workers) -> None:
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:
        ticks = Ticks(connection)
        connection.execute(
            """
            create function public.crash() returns void language plpython3u as
            'import os, signal; os.kill(os.getpid(), signal.SIGKILL)'
            """
        )
        ticks.subscribe("crashes", "if e.n = 2 then perform public.crash(); end if")
        ticks.subscribe("all")
        # The server crashes as soon as there is a worker.
        ticks.publish(1, 2, 3)
    workers(own_cluster.dsn(), ready=False)

    def state() -> tuple[list[int], list[int], list[tuple[int, str]]] | None:
        try:
            with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:
                ticks.connection = connection
                return ticks.seen("all"), ticks.seen("crashes"), ticks.failed("crashes")
        except psycopg.OperationalError:
            return None

    # The server recovers from three crashes, and the worker connects again after each.
    wait_until(lambda: state() == ([1, 2, 3], [1, 3], [(2, "08006")]), timeout=240)


LEAVINGS = {
    "a setting": ("set_config('search_path', 'nowhere', false)", "current_setting('search_path') <> 'nowhere'"),
    "a time limit": (
        "set_config('statement_timeout', '1', false)",
        "current_setting('statement_timeout') <> '1ms'",
    ),
    "a session lock": (
        "pg_advisory_lock(424242)",
        """
        not exists (select from pg_locks where locktype = 'advisory' and objid = 424242
            and database = (select oid from pg_database where datname = current_database()))
        """,
    ),
}


@pytest.mark.parametrize("what", LEAVINGS)
def test_a_session_is_clean_for_the_next_callback(own_database: str, ticks: Ticks, workers: Workers, what: str) -> None:
    leave, check = LEAVINGS[what]
    ticks.subscribe("untidy", f"perform {leave}", more=", priority => 9")
    ticks.subscribe("next", f"if not ({check}) then raise exception 'found what another left'; end if")
    workers(own_database, "--concurrency", "1")
    for number in range(3):
        ticks.publish(number)
        ticks.wait_for("next", number)
    assert ticks.seen("next") == [0, 1, 2]


def test_temporary_tables_and_prepared_statements_of_a_callback_are_gone(
    own_database: str, ticks: Ticks, workers: Workers
) -> None:
    body = """
        execute 'create temporary table leftover (a integer)';
        execute 'prepare leftover as select 1';
        execute 'listen leftover'
    """
    # Each of these fails when the name is taken.
    ticks.subscribe("untidy", body, more=", priority => 9")
    ticks.subscribe("next", body)
    workers(own_database, "--concurrency", "1")
    ticks.publish(1)
    wait_until(lambda: ticks.seen("untidy") == [1] == ticks.seen("next"))
    ticks.publish(2)
    wait_until(lambda: ticks.seen("untidy") == [1, 2] == ticks.seen("next"))


def test_a_callback_cannot_put_its_own_statement_in_place_of_the_workers(
    own_database: str, ticks: Ticks, connect: Connect, workers: Workers
) -> None:
    """psycopg would prepare by name what it runs often, and a name can be taken over."""
    ticks.subscribe("all")
    worker = workers(own_database, "--concurrency", "1")
    for number in range(20):
        ticks.publish(number)
        ticks.wait_for("all", number)
    ticks.subscribe(
        "spy",
        "select count(*) into v_prepared from pg_prepared_statements;"
        " if v_prepared > 0 then raise exception 'prepared'; end if",
        declare="declare v_prepared integer;",
    )
    ticks.publish(100)
    wait_until(lambda: ticks.seen("spy") == [100], what=worker.messages)


def test_events_that_callbacks_publish_are_delivered(own_database: str, ticks: Ticks, workers: Workers) -> None:
    ticks.subscribe("doubles", "if e.n < 100 then insert into pgps_event.tick (n) values (e.n * 2); end if")
    workers(own_database)
    ticks.publish(3)
    wait_until(lambda: ticks.seen("doubles") == [3, 6, 12, 24, 48, 96, 192])


def test_a_failed_event_is_tried_again_when_its_time_has_come(
    own_database: str, ticks: Ticks, workers: Workers
) -> None:
    ticks.connection.execute("create sequence public.tries")
    ticks.connection.execute(
        """
        create function public.second_time(e pgps_event.tick) returns void language plpgsql as $$
        begin
            if nextval('public.tries') = 1 then
                raise exception 'not yet';
            end if;
            insert into public.seen (who, n) values ('again', e.n);
        end
        $$
        """
    )
    ticks.connection.execute(
        "select pgps.subscribe('again', 'tick', execute => 'public.second_time', max_attempts => 3)"
    )
    workers(own_database)
    ticks.publish(1)
    wait_until(lambda: ticks.seen("again") == [1])


def test_a_worker_that_may_only_work_does_all_of_it(
    own_database: str, ticks: Ticks, workers: Workers, role: RoleFactory
) -> None:
    login = role("worker", "pgps_worker")
    ticks.subscribe("loops", "while e.n = 2 loop perform 1; end loop")
    dsn = make_conninfo(own_database, user=login, password="test")
    assert conninfo_to_dict(dsn)["user"] == login
    worker = workers(dsn, *QUICK)
    ticks.publish(1, 2, 3)
    wait_until(lambda: ticks.seen("loops") == [1, 3], what=worker.messages)
    assert ticks.failed("loops") == [(2, "57014")]
    assert "superuser" not in worker.messages


def test_a_worker_of_a_superuser_says_so_and_what_to_do(own_database: str, ticks: Ticks, workers: Workers) -> None:
    worker = workers(own_database, *QUICK, superuser=True)
    warned = [line["message"] for line in worker.log if line["level"] == "warning" and "superuser" in line["message"]]
    assert len(warned) == 1
    assert "create role broker_worker login in role pgps_worker" in warned[0]
