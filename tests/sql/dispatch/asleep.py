"""A leader that sleeps for as long as a test takes."""

from __future__ import annotations

import psycopg

from tests.fix_broker import value

_LONGER = """
    select setval('pgps_internal.wake_seq', w.last_value + 600) from pgps_internal.wake_seq w where w.last_value > 0
"""


def sleep_on(connection: psycopg.Connection) -> None:
    """Have publishers believe for ten minutes, not for five seconds, that the leader, which has just said so, sleeps.

    A leader says it again every second; nobody does in a test, any step of which may take longer than that.
    """
    assert value(connection, _LONGER)
