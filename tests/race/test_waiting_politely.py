"""Who alters an event type waits for an open transaction, and nobody who publishes waits with him."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import Connect, wait_until

OPEN = {
    "link": "select pgps.create_link('peer', 'host=/nowhere')",
    "unsubscribe": "select pgps.unsubscribe('x')",
    "seek": "select pgps.seek('x', 'now')",
    "unregister": "select pgps.drop_client('client')",
    "advertise": "select pgps.advertise('pb')",
    "unadvertise": "select pgps.unadvertise('pb')",
}


@pytest.mark.parametrize("opened", OPEN.values(), ids=OPEN)
def test_who_alters_a_type_waits_for_an_open_transaction_and_no_publisher_waits_with_him(
    own_database: str, connect: Connect, role: Callable[..., str], opened: str
) -> None:
    admin, other = connect(dsn=own_database), connect(dsn=own_database)
    make_type(admin, "pa")
    make_type(admin, "pb")
    reader = role("reader", *(["pgps_admin"] if "link" in opened else []))
    rows(admin, "revoke all on pgps_event.pb from public")
    rows(admin, f"grant insert on pgps_event.pb to {reader}")
    session = connect(reader, dsn=own_database)
    if "unadvertise" in opened:
        call(session, "advertise", "pb")
    call(session, "subscribe", "x", "p*", "n > 0")
    rows(session, "select pgps.connect_client('client'), pgps.register_for_event('client', 'p*', 'direct')")
    call(admin, "dispatch")
    rows(admin, "call pgps.run_lanes()")
    session.autocommit = False
    rows(session, opened)
    ended = threading.Event()

    def alter() -> None:
        call(other, "alter_event_type", "pb", add_attribute="more integer")
        ended.set()

    thread = threading.Thread(target=alter)
    thread.start()
    try:
        wait_until(
            lambda: (
                ended.is_set()
                or value(
                    admin,
                    "select wait_event is not null and clock_timestamp() - query_start > interval '1 second'"
                    " from pg_stat_activity where pid = %s",
                    [other.info.backend_pid],
                )
            )
        )
        rows(admin, "set lock_timeout = '2s'")
        for n in range(5):
            publish(admin, "pb", n)
    finally:
        session.rollback()
        thread.join()
    assert ended.is_set()
