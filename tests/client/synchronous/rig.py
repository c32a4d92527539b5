# Made by tools/unasync_client.py from tests/client/asynchronous/rig.py: change that, then `make generate`.
"""What tests of the client say often."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from pgps.client import Subscription
from pgps.client._sync import runtime
from tests.fix_broker import rows, value


def until(condition: Callable[[], object], *, timeout: float = 60.0, what: str = "") -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout:g} seconds: {what or condition}")
        runtime.sleep(0.005)


def until_away(admin: psycopg.Connection, who: str) -> None:
    """Wait until the broker takes a client for gone, whose server process ends a moment after its program."""
    connected = "select count(*) from pgps.clients where name = %s and connected"
    until(lambda: value(admin, connected, [who]) == 0, what=f"{who} is away")


def dispatch(admin: psycopg.Connection) -> None:
    """Match what has been committed."""
    rows(admin, "select pgps.dispatch()")


def numbers(subscription: Subscription[dict[str, int]], timeout: float = 0.0) -> list[int]:
    """Receive, and return attribute n."""
    return [event.payload["n"] for event in subscription.receive(timeout=timeout)]
