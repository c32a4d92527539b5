"""Clients that come back, or go back, get what they missed or want again."""

from __future__ import annotations

import pytest

from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_clients import Client
from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.sql.clients.gone import hang_up


@pytest.mark.parametrize("back", ["before a worker has looked", "before another worker has begun"])
def test_a_client_that_is_back_soon_gets_what_it_missed(
    own_database: str, connect: Connect, clock: Clock, back: str
) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "tick")
    session = connect(dsn=own_database)
    client = Client(session, "client")
    client.register("tick", "direct")
    publish(admin, "tick", 1)
    rows(admin, "select pgps.dispatch()")
    assert client.pushed(waits=True) == [1]
    since = value(admin, "select pgps.retry_direct(null)")
    hang_up(client, admin)
    publish(admin, "tick", 2)
    rows(admin, "select pgps.dispatch()")
    if back == "before another worker has begun":
        assert value(admin, "select pgps.retry_direct(null)") > since
    again = Client(connect(dsn=own_database), "client", resume=client.session)
    again.listen()
    clock.advance("1 minute")
    rows(admin, "select pgps.retry_direct(%s)", [since])
    assert again.pushed(waits=True) == [2]


def test_seek_gives_a_client_again_what_it_has_completed(own_database: str, connect: Connect) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "tick")
    client = Client(connect(dsn=own_database), "client")
    subscription = client.register("tick")["subscription"]
    for number in (1, 2, 3):
        publish(admin, "tick", number)
        rows(admin, "select pgps.dispatch()")
    assert client.taken() == [[1], [2], [3]]
    client.call("commit_event")
    call(client.connection, "seek", subscription, "earliest")
    assert client.taken() == [[1], [2], [3]]
    second = value(admin, "select event_id from pgps_internal.tick_log where n = 2")
    call(client.connection, "seek", subscription, str(second))
    assert client.taken() == [[2], [3]]
