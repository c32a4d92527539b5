"""What a consumer of a shared subscription can still do when its lease has ended and others have its events."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.fix_broker import call, column, ids, make_type, refused
from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.sql.deliver.test_deliver import ready

Name = Callable[..., str]


def test_a_lease_that_ran_out_goes_to_another_and_the_first_cannot_settle_it(
    admin: psycopg.Connection, connect: Connect, name: Name, clock: Clock
) -> None:
    made = name()
    make_type(admin, made, handler="any")
    call(admin, "subscribe", made, made)
    clock.set(clock.now())
    ready(admin, made, 1)
    event = ids(admin, made)[0]
    other = connect()
    clock.advance("59 seconds")
    assert ids(other, made) == []
    clock.advance("2 seconds")
    assert column(other, "select attempt from pgps.receive(%s)", [made]) == [2]
    with refused("55000", str(event)):
        call(admin, "ack", made, event)
    with refused("55000", str(event)):
        call(admin, "nack", made, event)
    for _ in ("while the other has it", "when the other is done with it"):
        # Whoever writes and acknowledges in one transaction must not commit what another one has done, too.
        with refused("55000", made, "receive again"):
            call(admin, "ack", made)
        call(other, "ack", made)
    assert ids(admin, made) == []
    assert call(admin, "ack", made) == 0


def test_who_has_lost_some_of_what_he_received_acknowledges_the_rest_or_none_by_its_id(
    admin: psycopg.Connection, connect: Connect, name: Name, clock: Clock
) -> None:
    made = name()
    make_type(admin, made, handler="any")
    call(admin, "subscribe", made, made)
    ready(admin, made, 1, 2, 3)
    *_, last = ids(admin, made)
    other = connect()
    clock.advance("61 seconds")
    (first,) = column(other, "select event_id from pgps.receive(%s, 1)", [made])
    with refused("55000", "1 of the events", made):
        call(admin, "ack", made, last)
    assert call(admin, "ack", made) == 2
    assert call(other, "ack", made, first) == 1
