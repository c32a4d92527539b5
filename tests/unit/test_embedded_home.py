"""Where an embedded cluster is, by whatever name it is reached, who may reach its socket, and who waits for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgps.embedded import EmbeddedCluster, layout, process
from pgps.errors import EmbeddedError, StartFailed
from tests.fix_broker import value
from tests.fix_db import wait_until

_HOLD = "import sys, time, filelock\nwith filelock.FileLock(sys.argv[1]):\n    print(flush=True)\n    time.sleep(60)\n"


@pytest.fixture
def cluster(embedded_home: Path) -> Iterator[EmbeddedCluster]:
    one = EmbeddedCluster(f"home-{os.getpid()}", fast=True)
    yield one
    one.destroy()


def ask(dsn: str, query: str) -> str:
    with psycopg.connect(dsn) as connection:
        return str(value(connection, query))


@pytest.fixture
def far(embedded_home: Path) -> Iterator[EmbeddedCluster]:
    """A cluster whose socket lies where everybody can make directories."""
    one = EmbeddedCluster("far", fast=True, home=embedded_home / f"{os.getpid()}-{'far' * 30}")
    assert not Path(socket_of(one)).is_relative_to(one.directory)
    yield one
    shutil.rmtree(socket_of(one), ignore_errors=True)
    one.destroy()


def socket_of(cluster: EmbeddedCluster) -> str:
    return str(layout.Places.of(cluster.directory.parent.parent, cluster.name).socket)


def test_a_socket_directory_that_was_swept_away_is_made_again(far: EmbeddedCluster) -> None:
    far.start().stop()
    shutil.rmtree(socket_of(far))
    assert ask(far.start().dsn(), "select 1") == "1"
    assert Path(socket_of(far)).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kind", ["open", "link"])
def test_a_socket_directory_of_somebody_else_is_not_taken(far: EmbeddedCluster, kind: str, tmp_path: Path) -> None:
    far.start().stop()
    place = Path(socket_of(far))
    shutil.rmtree(place)
    if kind == "open":
        place.mkdir()
        place.chmod(0o777)
    else:
        (tmp_path / "theirs").mkdir()
        place.symlink_to(tmp_path / "theirs")
    with pytest.raises(StartFailed, match="not for the server alone") as raised:
        far.start()
    assert str(place) in str(raised.value.hint)
    assert far.pid is None
    far.destroy()
    assert place.exists(), "it is not ours to remove"
    place.unlink() if kind == "link" else place.rmdir()


def test_a_socket_is_found_where_the_last_start_has_put_it(
    far: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = far.start().dsn()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    again = EmbeddedCluster(far.name, home=far.directory.parent.parent)
    assert again.dsn() == dsn
    again.stop()
    assert ask(again.start().dsn(), "select 1") == "1"


def test_a_home_that_is_reached_by_two_names_is_one(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    home = cluster.directory.parent.parent
    other = tmp_path / "other"
    other.symlink_to(home)
    pid = cluster.start().pid
    again = EmbeddedCluster(cluster.name, home=other)
    assert (again.pid, again.status().state, again.start().pid) == (pid, "running", pid)
    again.destroy()
    assert pid is not None
    assert process.wait_gone([pid], timeout=0)


def test_a_postmaster_is_known_by_its_directory_whatever_that_is_called(tmp_path: Path) -> None:
    directory, other = tmp_path / "one", tmp_path / "other"
    directory.mkdir()
    other.symlink_to(directory)
    script = "import time; print(flush=True); time.sleep(60)"
    with subprocess.Popen(
        ["postgres", "-c", script, "-D", str(other)], executable=sys.executable, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            assert process.is_postmaster(child.pid, directory)
            assert not process.is_postmaster(child.pid, tmp_path)
        finally:
            child.kill()


def test_a_server_that_recovers_for_long_is_left_to_it(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start().stop()
    # It recovers for as long as this file is there.
    held = cluster.directory / "data" / "held"
    command = f"while test -e {held}; do sleep 0.1; done; false"
    slow = EmbeddedCluster(cluster.name, settings={"restore_command": command, "archive_mode": "off"})
    for path in (cluster.directory / "data" / "recovery.signal", held):
        path.touch()
        process.server_user().own(path)
    run_as = process.run_as

    def begins(*arguments: Any, **named: Any) -> subprocess.CompletedProcess[str]:
        """On a busy machine the server may not even have begun when pg_ctl gives up."""
        done = run_as(*arguments, **named)
        wait_until(lambda: slow.pid is not None, what="the server begins")
        return done

    with monkeypatch.context() as patched:
        patched.setattr(process, "run_as", begins)
        with pytest.raises(StartFailed, match="goes on starting") as raised:
            slow.start(timeout=1.0)
    assert "--timeout" in str(raised.value.hint)
    pid = slow.pid
    assert pid is not None
    with pytest.raises(StartFailed, match="goes on starting"):
        slow.start(timeout=0.01)
    end = threading.Timer(0.2, held.unlink)
    end.start()
    assert slow.start().pid == pid
    end.join()
    assert ask(slow.dsn(), "select 1") == "1"


def test_a_cluster_that_somebody_holds_for_long_says_so(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    monkeypatch.setattr("pgps.embedded.cluster._LOCK_TIMEOUT", 0.05)
    held = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(layout.Places.of(cluster.directory.parent.parent, cluster.name).lock)],
        stdout=subprocess.PIPE,
    )
    try:
        assert held.stdout is not None
        held.stdout.readline()
        with pytest.raises(EmbeddedError, match="started or stopped elsewhere"):
            cluster.stop()
    finally:
        held.kill()
        held.communicate()
