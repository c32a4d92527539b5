"""Sessions that are in the way of an upgrade, again and again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from pgps import install
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
