from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgps.embedded import EmbeddedCluster
from tests.fix_db import Connect, lock_waiters, wait_until
from tests.fix_worker import RoleFactory, Ticks, Workers, free_port, metrics, page

# For callbacks that wait until the test lets them go on, however long that takes.
PATIENT = ("--callback-timeout", "600")


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pgps_worker", *options], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_batch_end_and_the_worker_leaves_with_0(
    own_database: str, ticks: Ticks, workers: Workers, number: signal.Signals
) -> None:
    ticks.connection.execute("select pg_advisory_lock(7)")
    ticks.subscribe("waits", "perform pg_advisory_xact_lock(7)")
    worker = workers(own_database, *PATIENT)
    ticks.publish(1)
    wait_until(lambda: lock_waiters(ticks.connection, 7))
    worker.signal(number)
    wait_until(lambda: "finishing the batch" in worker.messages)
    assert worker.is_running()
    ticks.connection.execute("select pg_advisory_unlock(7)")
    assert worker.wait() == 0
    assert ticks.seen("waits") == [1]


def test_a_second_signal_rolls_the_batch_back_and_nothing_is_lost(
    own_database: str, ticks: Ticks, workers: Workers
) -> None:
    ticks.connection.execute("select pg_advisory_lock(7)")
    ticks.subscribe("waits", "perform pg_advisory_xact_lock(7)")
    worker = workers(own_database, *PATIENT)
    ticks.publish(1)
    wait_until(lambda: lock_waiters(ticks.connection, 7))
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "finishing the batch" in worker.messages)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1
    ticks.connection.execute("select pg_advisory_unlock(7)")
    assert ticks.seen("waits") == []
    workers(own_database)
    wait_until(lambda: ticks.seen("waits") == [1])


def test_an_idle_worker_leaves_at_once(own_database: str, workers: Workers) -> None:
    worker = workers(own_database, safety=600)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_once_does_all_there_is_to_do_and_leaves(own_database: str, ticks: Ticks) -> None:
    ticks.subscribe("doubles", "if e.n < 100 then insert into pgps_event.tick (n) values (e.n * 2); end if")
    ticks.subscribe("picky", "if e.n > 50 then raise exception 'too many'; end if")
    ticks.publish(3)
    done = run("--dsn", own_database, "--once")
    assert done.returncode == 0, done.stderr
    assert ticks.seen("doubles") == [3, 6, 12, 24, 48, 96, 192]
    assert ticks.seen("picky") == [3, 6, 12, 24, 48]
    assert [n for n, _ in ticks.failed("picky")] == [96, 192]
    assert run("--dsn", own_database, "--once").returncode == 0


def test_once_files_what_loops(own_database: str, ticks: Ticks) -> None:
    ticks.subscribe("loops", "while e.n = 2 loop perform 1; end loop")
    ticks.publish(1, 2, 3)
    done = run("--dsn", own_database, "--once", "--callback-timeout", "5")
    assert done.returncode == 0, done.stderr
    assert ticks.seen("loops") == [1, 3]
    assert ticks.failed("loops") == [(2, "57014")]


def test_once_beside_a_running_worker_leaves_what_that_has_in_hand(
    own_database: str, ticks: Ticks, workers: Workers
) -> None:
    ticks.connection.execute("select pg_advisory_lock(7)")
    ticks.subscribe("waits", "perform pg_advisory_xact_lock(7)")
    workers(own_database, *PATIENT)
    ticks.publish(1)
    wait_until(lambda: lock_waiters(ticks.connection, 7))
    assert run("--dsn", own_database, "--once").returncode == 0
    ticks.connection.execute("select pg_advisory_unlock(7)")
    wait_until(lambda: ticks.seen("waits") == [1])


def test_once_says_why_it_cannot_and_what_to_type(
    empty_database: str, own_database: str, connect: Connect, role: RoleFactory
) -> None:
    done = run("--dsn", empty_database, "--once")
    assert done.returncode == 1
    assert "pgps is not installed in database" in done.stderr
    assert "pgps install DSN" in done.stderr
    assert "Traceback" not in done.stderr
    done = run("--dsn", "host=127.0.0.1 port=1 dbname=nowhere", "--once")
    assert done.returncode == 1
    assert "pgps doctor --dsn DSN" in done.stderr
    assert "Traceback" not in done.stderr
    with connect(role("plain"), dsn=own_database) as plain:
        login = make_conninfo(plain.info.dsn, password=plain.info.password)
        said = f'grant pgps_worker to "{plain.info.user}"'
    done = run("--dsn", login, "--once")
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--dsn", "nothing"),
        ("--name", "a/b"),
        ("--concurrency", "0"),
        ("--callback-timeout", "0"),
        ("--log-level", "loud"),
        ("--nonsense",),
    ],
)
def test_wrong_usage_leaves_with_2_and_names_the_value(options: tuple[str, ...]) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert options[-1] in done.stderr or options[0].strip("-").replace("-", " ") in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_waits_for_pgps_to_be_installed(empty_database: str, workers: Workers) -> None:
    worker = workers(empty_database, ready=False)
    wait_until(lambda: "pgps install" in worker.messages)
    assert worker.stop() == 0


def test_a_worker_reconnects_when_the_server_is_restarted(own_cluster: EmbeddedCluster, workers: Workers) -> None:
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:
        Ticks(connection).subscribe("all")
    worker = workers(own_cluster.dsn())
    own_cluster.stop()
    wait_until(lambda: worker.messages.count("again in") >= 4)
    own_cluster.start()
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:
        again = Ticks.__new__(Ticks)
        again.connection = connection
        again.publish(1)
        wait_until(lambda: again.seen("all") == [1], what=worker.messages)
    assert worker.stop() == 0


def test_health_and_metrics_are_served(own_database: str, ticks: Ticks, workers: Workers) -> None:
    ticks.subscribe("all")
    port = free_port()
    workers(own_database, "--health-port", str(port))
    ticks.publish(1, 2)
    wait_until(lambda: ticks.seen("all") == [1, 2])
    wait_until(lambda: page(port, "/healthz")[0] == 200, what="all services are up")
    report = json.loads(page(port, "/healthz")[1])
    assert report["leading"] is True
    assert set(report["services"].values()) == {"up"}
    for done in ("dispatched", "handled"):
        # Counted a moment after the commit that this test has seen.
        wait_until(lambda d=done: f"\npgps_worker_events_{d}_total 2\n" in metrics(port), what=done)  # type: ignore[misc]
    for figure in (
        'pgps_published_events_total{event_type="tick"} 2',
        'pgps_waiting_events{event_type="tick"} 0',
        'pgps_subscriptions{state="active"} 1',
        "# TYPE pgps_oldest_transaction_seconds gauge",
    ):
        wait_until(lambda f=figure: f"\n{f}\n" in metrics(port), what=figure)  # type: ignore[misc]
    assert page(port, "/other")[0] == 404


def test_what_fails_is_in_the_log_and_in_the_metrics_by_its_event_id(
    own_database: str, ticks: Ticks, workers: Workers
) -> None:
    admin = ticks.connection
    admin.execute("select pgps.create_event_type('note', 'n integer, secret text')")
    admin.execute("select pgps.advertise('note')")
    admin.execute("create table public.unlucky as select 13 as n")
    admin.execute(
        "create function public.on_note(e pgps_event.note) returns void language plpgsql as $$ begin"
        " if e.n = 13 then raise exception 'no thirteen'; end if; end $$"
    )
    admin.execute("select pgps.subscribe('calls', 'note', execute => 'public.on_note', max_attempts => 1)")
    admin.execute("select pgps.subscribe('filters', 'note', 'n in (select u.n from public.unlucky u)')")
    port = free_port()
    worker = workers(own_database, "--health-port", str(port))
    admin.execute("drop table public.unlucky")
    admin.execute("insert into pgps_event.note (n, secret) values (12, 'hush-12'), (13, 'hush-13')")
    wait_until(lambda: "no thirteen" in worker.messages, what=worker.messages)
    wait_until(lambda: "subscription filters is suspended" in worker.messages, what=worker.messages)
    row = admin.execute("select event_id from pgps_queue.note_exception where subscription = 'calls'").fetchone()
    assert row is not None
    event = row[0]
    assert f"event {event} of type note failed for subscription calls" in worker.messages
    assert f"select pgps.retry_exception('note', event_id => {event}, subscription => 'calls')" in worker.messages
    assert "select pgps.alter_subscription('filters', filter =>" in worker.messages
    # For machines, what a line is about stands in it by name.
    (failed,) = (line for line in worker.log if f"event {event} of type note failed" in line["message"])
    assert failed["event_id"] == event
    assert (failed["subscription"], failed["event_type"], failed["error"]) == ("calls", "note", "no thirteen")
    assert failed["hint"] in failed["message"]
    assert failed["sqlstate"] == "P0001"
    (suspended,) = (line for line in worker.log if "subscription filters is suspended" in line["message"])
    assert suspended["subscription"] == "filters"
    assert "unlucky" in suspended["error"]
    wait_until(lambda: f'_last_failed_event_id{{subscription="calls"}} {event}\n' in metrics(port))
    wait_until(lambda: 'pgps_subscription_failed_events{subscription="calls"} 1\n' in metrics(port))
    wait_until(lambda: 'pgps_subscription_suspended{subscription="filters"} 1\n' in metrics(port))
    assert "hush" not in worker.messages + metrics(port), "nothing of what is in an event"
    assert sum("no thirteen" in line["message"] for line in worker.log) == 1, "told once"


def test_who_is_passed_over_or_dead_is_in_the_log_and_in_the_metrics(
    own_database: str, ticks: Ticks, workers: Workers
) -> None:
    admin = ticks.connection
    admin.execute("select pgps.subscribe('slow', 'tick'), pgps.subscribe('gone', 'tick')")
    admin.execute("select pgps.alter_subscription('slow', max_backlog => 1, on_backlog => 'drop')")
    admin.execute("select pgps.alter_subscription('gone', dead_after => '1 second')")
    port = free_port()
    worker = workers(own_database, "--health-port", str(port))
    ticks.publish(1, 2, 3)
    told = "events of type tick were passed over for subscription slow, from event"
    wait_until(lambda: told in worker.messages, what=worker.messages)
    told = "nobody takes the 3 events of subscription gone (start its consumer"
    wait_until(lambda: told in worker.messages, what=worker.messages)
    wait_until(lambda: 'pgps_subscription_passed_over_events{subscription="slow"} 2\n' in metrics(port))
    wait_until(lambda: 'pgps_subscription_dead{subscription="gone"} 1\n' in metrics(port))


def test_health_says_so_when_nothing_is_dispatched(own_database: str, ticks: Ticks, workers: Workers) -> None:
    ticks.subscribe("all")
    port = free_port()
    workers(own_database, "--health-port", str(port), "--dispatch-timeout", "0.3")
    wait_until(lambda: page(port, "/healthz")[0] == 200)
    with psycopg.connect(own_database) as other:
        other.execute("lock table pgps_internal.batch in share mode")
        ticks.publish(1)

        def says_so() -> bool:
            status, text = page(port, "/healthz")
            return status == 503 and '"dispatcher": "got nothing done for' in text

        wait_until(says_so)
        other.rollback()
    wait_until(lambda: page(port, "/healthz")[0] == 200)
    wait_until(lambda: ticks.seen("all") == [1])


def test_health_says_so_when_a_service_is_down(empty_database: str, workers: Workers) -> None:
    port = free_port()
    worker = workers(empty_database, "--health-port", str(port), ready=False)
    wait_until(lambda: "again in" in worker.messages)

    def says_so() -> bool:
        status, text = page(port, "/healthz")
        return status == 503 and "down" in text

    # Each try to connect, of any service, changes what the next answer says.
    wait_until(says_so)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as rude:
        rude.sendall(b"\x00" * 100_000)
    assert worker.is_running()


def test_the_log_is_json_on_request(own_database: str, workers: Workers) -> None:
    worker = workers(own_database)
    worker.stop()
    assert worker.log[0]["message"] == "worker w1 starts"
    assert {line["level"] for line in worker.log} <= {"info", "warning"}
    assert "Traceback" not in worker.messages
