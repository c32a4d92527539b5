"""An event type that somebody changes in an open transaction: what is detected from it waits, and nothing else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fix_broker import call, column, make_type, meanwhile, publish, rows, value
from tests.fix_db import wait_until

if TYPE_CHECKING:
    import psycopg

    from tests.fix_clock import Clock
    from tests.fix_db import Connect


@pytest.mark.parametrize("shared", [True, False])
def test_what_is_detected_from_other_types_goes_on(connect: Connect, own_database: str, *, shared: bool) -> None:
    admin, detector = connect(dsn=own_database), connect(dsn=own_database)
    # Who leads dispatches, and detects nothing.
    assert value(admin, "select pgps.try_lead()")
    for event_type in ("held", "free"):
        make_type(admin, event_type, "n integer not null")
        call(
            admin, "create_composite_event", f"from_{event_type}", event_type, attributes=f"n integer = {event_type}.n"
        )

    def found(session: psycopg.Connection, event_type: str) -> list[int]:
        rows(session, f"select pgps.detect(shared => {shared})")
        return column(admin, f"select n from pgps_internal.from_{event_type}_log order by event_id")

    publish(admin, "held", 1)
    publish(admin, "free", 2)
    rows(admin, "select pgps.dispatch()")
    rows(detector, "set lock_timeout = '200ms'")
    with connect(dsn=own_database, autocommit=False) as session:
        rows(session, "select pgps.alter_event_type('held', add_attribute => 'm integer')")
        wait_until(lambda: found(detector, "free") == [2])
        publish(admin, "free", 3)
        rows(admin, "select pgps.dispatch()")
        wait_until(lambda: found(detector, "free") == [2, 3])
        # It is known, so that nobody waits again, for the lock or for a timer.
        rows(detector, "set lock_timeout = '2min'; set statement_timeout = '1min'")
        assert value(detector, f"select pgps.detect(shared => {shared})") == 0
        assert value(admin, "select last_error from pgps.composite_events where name = 'from_held'").startswith(
            "it waits"
        )
        session.commit()
    wait_until(lambda: found(detector, "held") == [1])
    assert rows(admin, "select distinct state, last_error from pgps.composite_events") == [("active", None)]


def test_a_timer_of_what_waits_keeps_nobody_busy(connect: Connect, own_database: str, clock: Clock) -> None:
    admin, detector = connect(dsn=own_database), connect(dsn=own_database)
    assert value(admin, "select pgps.try_lead()")
    make_type(admin, "held", "n integer not null")
    call(admin, "create_composite_event", "silence", "not(held)[held r, + '1 minute']")
    # The minute passes when it is to.
    clock.set(clock.now())
    publish(admin, "held", 1)
    rows(admin, "select pgps.dispatch()")
    rows(detector, "select pgps.detect(); set lock_timeout = '200ms'")
    assert value(detector, "select pgps.next_timer()") > 0
    with connect(dsn=own_database, autocommit=False) as session:
        rows(session, "select pgps.alter_event_type('held', add_attribute => 'm integer')")
        clock.advance("2 minutes")
        wait_until(lambda: value(detector, "select pgps.detect()") == 0)
        assert value(detector, "select pgps.next_timer()") is None
    wait_until(lambda: value(detector, "select pgps.detect()") == 0)
    assert value(admin, "select count(*) from pgps_internal.silence_log") == 1


@pytest.mark.parametrize("change", [{"drop_attribute": "spare"}, {"add_attribute": "more integer default 3"}])
def test_what_waits_for_an_attribute_that_it_does_not_use_is_detected(
    connect: Connect, own_database: str, change: dict[str, str]
) -> None:
    admin, detector = connect(dsn=own_database), connect(dsn=own_database)
    assert value(admin, "select pgps.try_lead()")
    make_type(admin, "held", "n integer not null, spare integer")
    call(admin, "create_composite_event", "from_held", "held", attributes="n integer = held.n")
    publish(admin, "held", 1)
    rows(admin, "select pgps.dispatch()")
    rows(detector, "select pgps.detect()")
    publish(admin, "held", 2)
    rows(admin, "select pgps.dispatch()")
    with connect(dsn=own_database, autocommit=False) as session:
        call(session, "alter_event_type", "held", **change)
        with meanwhile(admin, detector, lambda: rows(detector, "select pgps.detect()")):
            session.commit()
    assert rows(admin, "select state, last_error from pgps.composite_events") == [("active", None)]
    assert column(admin, "select n from pgps_internal.from_held_log order by event_id") == [1, 2]
