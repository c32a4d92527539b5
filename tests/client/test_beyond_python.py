"""Values that Python has no objects for: they come as the text that they are, and keep no consumer from going on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import psycopg
import pytest

from pgps.client import Client
from tests.fix_broker import make_type, rows

VALUES = {
    "day date": ("infinity", "4714-11-24 BC", dt.date(2026, 1, 2)),
    "at timestamp": ("-infinity", "294276-12-31 23:59:59", dt.datetime(2026, 1, 2)),  # noqa: DTZ001
    "at_tz timestamptz": ("infinity", "10000-01-01 00:00:00+00", dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
    "ats timestamptz[]": ("{infinity,NULL}", "{-infinity}", [dt.datetime(2026, 1, 2, tzinfo=dt.UTC)]),
    "span interval": ("3000000 years", "-3000000 years", dt.timedelta(days=1)),
    "noon time": ("24:00:00", "24:00:00", dt.time(12)),
}
NAMES = [name.split()[0] for name in VALUES]


@pytest.mark.parametrize("how", ["rows", "pattern", "transaction", "pattern in a transaction"])
def test_what_python_has_no_object_for_comes_as_text_and_poisons_nobody(
    dsn: str, admin: psycopg.Connection, name: Callable[..., str], how: str
) -> None:
    kind = name()
    make_type(admin, kind, ", ".join(VALUES))
    with Client(dsn) as client, psycopg.connect(dsn, autocommit=True) as own:
        own.execute("set timezone = 'UTC'")
        pattern = f"{kind}*" if "pattern" in how else kind
        with client.subscribe(name("s"), pattern, temporary=True) as subscription:
            for n in range(3):
                client.publish(kind, {key: of[n] for key, of in zip(NAMES, VALUES.values(), strict=True)})
            rows(admin, "select pgps.dispatch()")
            if "transaction" in how:
                with own.transaction():
                    got = subscription.receive(connection=own)
                    subscription.ack(connection=own)
            else:
                got = subscription.receive()
                subscription.ack()
            assert [len(got), subscription.receive()] == [3, []]
    for n, event in enumerate(got[:2]):
        assert all(isinstance(value, str | list) for value in event.payload.values())
        assert event.payload["day"] == VALUES["day date"][n]
    assert list(got[2].payload.values()) == [of[2] for of in VALUES.values()]


def test_a_message_that_never_expires_is_read_and_so_is_one_from_before_our_era(
    dsn: str, admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    spool = name()
    with Client(dsn) as client:
        rows(admin, "select pgps.create_spool(%s)", [spool])
        try:
            client.execute("select pgps.spool(%s, 1, '1', expires => 'infinity')", [spool])
            rows(admin, "select pgps.dispatch()")
            rows(admin, "update pgps_internal.spool_message set spooled_at = '-infinity'")
            with client.group(spool, name("member"), replay=True) as group:
                assert [message.message for message in group.receive() if message.entry is not None] == [1]
        finally:
            rows(admin, "select pgps.drop_spool(%s)", [spool])
