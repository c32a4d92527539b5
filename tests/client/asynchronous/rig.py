"""What tests of the client say often."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from pgps.client import AsyncSubscription
from pgps.client._async import runtime
from tests.fix_broker import rows, value


async def until(condition: Callable[[], object], *, timeout: float = 60.0, what: str = "") -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout:g} seconds: {what or condition}")
        await runtime.sleep(0.005)


async def until_away(admin: psycopg.Connection, who: str) -> None:
    """Wait until the broker takes a client for gone, whose server process ends a moment after its program."""
    connected = "select count(*) from pgps.clients where name = %s and connected"
    await until(lambda: value(admin, connected, [who]) == 0, what=f"{who} is away")


def dispatch(admin: psycopg.Connection) -> None:
    """Match what has been committed."""
    rows(admin, "select pgps.dispatch()")


async def numbers(subscription: AsyncSubscription[dict[str, int]], timeout: float = 0.0) -> list[int]:
    """Receive, and return attribute n."""
    return [event.payload["n"] for event in await subscription.receive(timeout=timeout)]
