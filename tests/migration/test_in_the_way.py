"""Sessions that are in the way of an upgrade, again and again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from pgps import _install_locks, install
from tests.fix_broker import call, make_type, meanwhile
from tests.fix_db import Connect

# The code is applied several times.
pytestmark = pytest.mark.timeout(600)


def test_code_is_applied_beside_sessions_that_read_against_its_order_all_the_time(
    own_database: str, connect: Connect
) -> None:
    admin = connect(dsn=own_database)
    admin.execute("update pgps_internal.installation set value = 'older' where key = 'code_digest'")
    done = threading.Event()

    def look() -> None:
        """Read what the installer replaces late, then what it replaces early; again and again."""
        with psycopg.connect(own_database, autocommit=True) as reader:
            while not done.is_set():
                reader.execute("select pg_sleep(0.1)")
                with reader.transaction():
                    reader.execute("select from pgps.workers limit 0")
                    reader.execute("select pg_sleep(0.1)")
                    reader.execute("select from pgps_internal.standing limit 0")

    with ThreadPoolExecutor() as pool:
        looking = pool.submit(look)
        try:
            assert install.upgrade(own_database).up_to_date
        finally:
            done.set()
        looking.result()


def test_what_is_dropped_while_it_is_waited_for_is_not_in_the_way(own_database: str, connect: Connect) -> None:
    admin, watcher, installer = (connect(dsn=own_database) for _ in range(3))
    for number in range(3):
        make_type(admin, f"t{number}")
    admin.execute("begin")
    for number in range(3):
        call(admin, "drop_event_type", f"t{number}", True)
    with meanwhile(watcher, installer, lambda: _install_locks.stop_others(installer, 30.0)):
        admin.execute("commit")
