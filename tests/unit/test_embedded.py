"""Embedded clusters: made, found again, stopped, killed and removed without touching any other."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pgps.embedded import EmbeddedCluster, find_binaries, list_clusters, process
from pgps.embedded.__main__ import main
from pgps.errors import BinariesMissing, EmbeddedError, StartFailed
from tests.fix_db import wait_until


@pytest.fixture
def cluster(embedded_home: Path) -> Iterator[EmbeddedCluster]:
    one = EmbeddedCluster(f"unit-{os.getpid()}", fast=True)
    yield one
    one.destroy()


def ask(dsn: str, query: str) -> str:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return str(row[0])


def test_it_answers_over_the_socket_and_over_tcp(cluster: EmbeddedCluster) -> None:
    cluster.start()
    assert ask(cluster.dsn(), "select inet_server_addr() is null and current_user = 'postgres'") == "True"
    assert ask(cluster.dsn(tcp=True), "select host(inet_server_addr())") == "127.0.0.1"
    assert ask(cluster.dsn(tcp=True) + f" password={cluster.password}", "select 1") == "1"


def test_tcp_wants_the_password(cluster: EmbeddedCluster) -> None:
    cluster.start()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(cluster.dsn(tcp=True), passfile="/dev/null")


def test_the_server_never_runs_as_root(cluster: EmbeddedCluster) -> None:
    cluster.start()
    owner = Path(f"/proc/{cluster.pid}").stat().st_uid
    assert owner != 0
    assert pwd.getpwuid(owner).pw_name == process.server_user().name


def test_what_is_secret_is_closed_to_others(cluster: EmbeddedCluster) -> None:
    cluster.start()
    closed = [cluster.directory / name for name in ("data", "socket", "passfile", "server.log")]
    assert [path.stat().st_mode & 0o077 for path in closed] == [0, 0, 0, 0]


def test_another_object_finds_it_running(cluster: EmbeddedCluster) -> None:
    cluster.start()
    again = EmbeddedCluster(cluster.name)
    assert again.status() == cluster.status()
    assert again.status().state == "running"
    assert cluster.name in [status.name for status in list_clusters()]
    assert again.start().pid == cluster.pid


def test_two_starts_at_once_start_one_server(cluster: EmbeddedCluster) -> None:
    threads = [threading.Thread(target=EmbeddedCluster(cluster.name, fast=True).start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ask(cluster.dsn(), "select 1") == "1"
    assert cluster.log.read_text().count("database system is ready") == 1


def test_a_stopped_one_keeps_its_data_and_its_address(cluster: EmbeddedCluster) -> None:
    dsn = cluster.start().dsn()
    with psycopg.connect(dsn) as connection:
        connection.execute("create table kept as select 1 as a")
    cluster.stop()
    assert cluster.status().state == "stopped"
    cluster.stop()
    assert ask(cluster.start().dsn(), "select a from kept") == "1"
    assert cluster.dsn() == dsn


def test_after_kill_nine_no_process_is_left_and_it_starts_again(cluster: EmbeddedCluster) -> None:
    dsn = cluster.start().dsn()
    with psycopg.connect(dsn) as connection:
        connection.execute("create table kept as select 1 as a")
    assert cluster.pid is not None
    family = [cluster.pid, *process.children_of(cluster.pid)]
    assert len(family) > 3
    cluster.kill9()
    assert process.wait_gone(family, timeout=0)
    assert cluster.status().state == "stopped"
    assert ask(cluster.start().dsn(), "select a from kept") == "1"


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_cluster_that_is_destroyed_leaves_no_shared_memory(cluster: EmbeddedCluster, *, is_killed: bool) -> None:
    cluster.start()
    data = cluster.directory / "data"
    key, number = (data / "postmaster.pid").read_text().splitlines()[6].split()

    def held() -> list[str]:
        segments = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
        return [one for one, other, *_ in segments if (int(one) % 2**32, other) == (int(key) % 2**32, number)]

    assert len(held()) == 1
    # What else there is goes with the directory.
    assert any((data / "pg_dynshmem").iterdir())
    if is_killed:
        cluster.kill9()
        assert len(held()) == 1
    cluster.destroy()
    assert held() == []


def test_a_pidfile_that_names_a_stranger_is_not_believed(cluster: EmbeddedCluster) -> None:
    cluster.start()
    pidfile = cluster.directory / "data" / "postmaster.pid"
    text = pidfile.read_text()
    cluster.kill9()
    pidfile.write_text(text.replace(text.splitlines()[0], str(os.getpid()), 1))
    assert cluster.pid is None
    cluster.stop()
    cluster.kill9()
    assert ask(cluster.start().dsn(), "select 1") == "1"


def test_a_create_that_was_interrupted_is_begun_again(cluster: EmbeddedCluster) -> None:
    cluster.create()
    (cluster.directory / "cluster.json").unlink()
    (cluster.directory / "data" / "PG_VERSION").unlink()
    assert cluster.status().state == "absent"
    assert ask(cluster.start().dsn(), "select 1") == "1"


def test_a_port_that_was_taken_meanwhile_is_replaced(
    cluster: EmbeddedCluster, embedded_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedCluster(f"other-{os.getpid()}", fast=True, keep=False) as other:
        taken = other.status().port
        ports = iter([taken])
        real: Callable[[int], int] = __import__("pgps.embedded.layout").embedded.layout.free_port
        monkeypatch.setattr("pgps.embedded.layout.free_port", lambda preferred: next(ports, None) or real(preferred))
        assert cluster.start().status().port != taken


def test_settings_hold_from_the_next_start(cluster: EmbeddedCluster) -> None:
    cluster.start()
    assert ask(cluster.dsn(), "select current_setting('max_connections') || current_setting('fsync')") == "200off"
    cluster.stop()
    changed = EmbeddedCluster(cluster.name, fast=False, settings={"application_name": "it's"})
    query = "select current_setting('application_name') || ' ' || current_setting('fsync')"
    with changed:
        assert ask(changed.dsn() + " application_name=''", query) == "it's on"


def test_a_server_that_cannot_start_says_what_its_log_says(cluster: EmbeddedCluster) -> None:
    broken = EmbeddedCluster(cluster.name, fast=True, settings={"no_such_setting": "1"})
    with pytest.raises(StartFailed, match="no_such_setting") as raised:
        broken.start()
    assert str(broken.log) in str(raised.value.hint)


def test_destroy_leaves_nothing_and_may_be_repeated(cluster: EmbeddedCluster) -> None:
    pid = cluster.start().pid
    cluster.destroy()
    assert pid is not None
    assert process.wait_gone([pid], timeout=0)
    assert not cluster.directory.exists()
    cluster.destroy()


def test_the_environment_of_the_caller_does_not_lead_the_server_astray(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDATA", "/nonexistent")
    monkeypatch.setenv("PGPORT", "1")
    assert ask(cluster.start().dsn(), "select 1") == "1"


def test_a_long_home_gets_a_short_socket_directory(embedded_home: Path) -> None:
    home = embedded_home / ("long" * 20)
    with EmbeddedCluster("c", fast=True, home=home, keep=False) as cluster:
        assert ask(cluster.dsn(), "select 1") == "1"


def test_a_home_the_server_cannot_reach_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts the server as somebody else")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedError, match="cannot reach") as raised:
        EmbeddedCluster("c", home=closed).create()
    assert "PGPS_HOME" in str(raised.value.hint)
    assert list_clusters(home=closed) == []


def test_one_that_is_damaged_hides_no_other(embedded_home: Path) -> None:
    home = embedded_home / "damaged"
    for name in ("broken", "whole"):
        EmbeddedCluster(name, fast=True, home=home).create()
    broken = EmbeddedCluster("broken", home=home)
    (broken.directory / "cluster.json").write_text("{")
    assert [(status.name, status.state) for status in list_clusters(home=home)] == [
        ("broken", "unreadable"),
        ("whole", "stopped"),
    ]
    with pytest.raises(EmbeddedError, match="is damaged"):
        broken.status()


def test_dsn_of_one_never_started_says_how_to_start_it() -> None:
    with pytest.raises(EmbeddedError, match='"absent"') as raised:
        EmbeddedCluster("absent").dsn()
    assert "start absent" in str(raised.value.hint)


@pytest.mark.parametrize("bad", ["", "../up", "a b", "-x", "x" * 41])
def test_a_name_that_is_no_plain_file_name_is_refused(bad: str) -> None:
    with pytest.raises(EmbeddedError, match="not allowed"):
        EmbeddedCluster(bad)


def test_missing_binaries_name_the_package(tmp_path: Path) -> None:
    with pytest.raises(BinariesMissing) as raised:
        find_binaries(server_bin=tmp_path)
    assert str(tmp_path) in raised.value.message
    with pytest.raises(BinariesMissing, match="99") as raised:
        find_binaries(major=99)
    assert "postgresql-plpython3-99" in str(raised.value.hint)


def test_the_command_starts_lists_and_destroys(capsys: pytest.CaptureFixture[str]) -> None:
    name = f"command-{os.getpid()}"
    assert main(["start", name, "--fast"]) == 0
    assert main(["dsn", name]) == 0
    dsn = capsys.readouterr().out.splitlines()[-1]
    assert ask(dsn, "select 1") == "1"
    assert main(["ls"]) == 0
    assert f"{name}\trunning" in capsys.readouterr().out
    assert main(["stop", name]) == 0
    assert main(["destroy", name]) == 0
    assert main(["dsn", name]) == 1
    assert "has not been started" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["stop", "kill9", "destroy"])
def test_the_command_says_so_when_there_is_no_such_cluster(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "nosuch"]) == 1
    said = capsys.readouterr().err
    assert 'there is no embedded cluster "nosuch"' in said
    assert "HINT:  There" in said


def test_signals_to_a_process_that_is_gone_are_harmless() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    process.kill(child, signal.SIGTERM)
    assert process.wait_gone([child], timeout=0)


def test_a_child_that_a_process_makes_while_it_is_killed_does_not_survive() -> None:
    # It makes a child every other millisecond, so that some are born in every look at the processes of the machine; and
    # does not end by itself, however late it is looked at.
    script = (
        "import os, time\nfor n in range(400):\n    os.fork() or (time.sleep(60), os._exit(0))\n    time.sleep(0.002)\n"
        "time.sleep(60)\n"
    )
    mark = f"family-{os.getpid()}-{time.monotonic_ns()}"
    for _ in range(3):
        parent = subprocess.Popen([sys.executable, "-c", script, mark])
        try:
            wait_until(functools.partial(_has_children, parent.pid), what="it makes children")
            assert process.kill_family(parent.pid, timeout=30) == []
            assert [pid for pid in _marked(mark) if pid != parent.pid] == []
        finally:
            parent.kill()
            for pid in _marked(mark):
                process.kill(pid, signal.SIGKILL)
            parent.wait()


def _has_children(pid: int) -> bool:
    return len(process.children_of(pid)) > 3


def _marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found
