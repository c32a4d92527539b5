# Made by tools/unasync_client.py from tests/client/asynchronous/test_occurrences.py: change that, then `make generate`.
"""Occurrences and their tuples: what is walked is all of it, and nothing but it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from pgps.client import Client
from tests.client.synchronous.rig import dispatch
from tests.fix_broker import call, endpoint, make_type, rows

pytestmark = pytest.mark.anyio
Name = Callable[..., str]


def test_what_a_later_policy_leaves_of_an_occurrence_is_walked_to_its_end(
    dsn: str, admin: psycopg.Connection, name: Name, role: Callable[..., str]
) -> None:
    kind, alice, who = name(), role("alice"), name("c")
    make_type(admin, kind)
    client = Client(dsn, user=alice, password="test")
    with client, client.identify(who) as me:
        me.register(kind)
        rows(admin, f"insert into {endpoint(kind)} (n) select generate_series(1, 2500)")
        dispatch(admin)
        call(admin, "create_policy", kind, "even", alice, "n % 2 = 0")
        event = me.get_event(timeout=60.0)
        assert event is not None
        assert event.count == 1250
        assert [payload["n"] for payload in event] == list(range(2, 2501, 2))
    call(admin, "drop_client", who)


@pytest.mark.parametrize("mode", ["queued", "direct"])
def test_a_tuple_that_cannot_become_json_has_no_attributes(
    dsn: str, admin: psycopg.Connection, name: Name, mode: str
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind, "n integer, body json")
    with Client(dsn) as client, client.identify(who) as me:
        me.register(kind, mode=mode)
        me.start()
        rows(admin, f"insert into {endpoint(kind)} values (1, '{{}}'), (2, '\"\\u0000\"'), (3, '[]')")
        dispatch(admin)
        event = me.get_event(timeout=60.0)
        assert event is not None
        assert [payload.get("n") for payload in event] == [1, None, 3]
    call(admin, "drop_client", who)
