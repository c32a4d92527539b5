"""The first batch in a database that was restored or cloned: all that waits, once, whoever publishes meanwhile."""

from __future__ import annotations

from tests.fix_broker import call, make_type, meanwhile, numbers, publish, rows, value
from tests.fix_db import Connect


def test_what_is_committed_while_an_epoch_begins_is_dispatched_once(own_database: str, connect: Connect) -> None:
    broker, dispatcher = connect(dsn=own_database), connect(dsn=own_database)
    publisher = connect(dsn=own_database, autocommit=False)
    make_type(broker, "tick")
    call(broker, "subscribe", "all", "tick")
    publish(broker, "tick", 1)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "update pgps_internal.batch set incarnation = 'of another life', started_at = '-infinity'")
    # It commits when the dispatcher has looked who is running, and before it reads what waits.
    publisher.execute("lock table pgps_internal.control in access exclusive mode")
    publish(publisher, "tick", 2)
    value(broker, "select pg_current_xact_id()")
    with meanwhile(broker, dispatcher, lambda: rows(dispatcher, "select pgps.dispatch()")):
        publisher.commit()
    publish(broker, "tick", 3)
    rows(broker, "select pgps.dispatch()")
    assert numbers(broker, "all") == [1, 2, 3]


def test_numbers_of_the_former_life_may_be_in_progress_in_this_one(own_database: str, connect: Connect) -> None:
    broker, other = connect(dsn=own_database), connect(dsn=own_database, autocommit=False)
    make_type(broker, "tick")
    call(broker, "subscribe", "all", "tick")
    publish(broker, "tick", 1)
    rows(broker, "select pgps.dispatch()")
    # What was dispatched there had the number that a transaction has here.
    number = int(value(other, "select pg_current_xact_id()::text"))
    for table in ("pgps_internal.control", "pgps_log_0.tick"):
        rows(broker, f"update {table} set xid = '{number}'")
    seen = f"'{number + 1}:{number + 1}:'"
    rows(
        broker,
        f"update pgps_internal.batch set previous = {seen}, snapshot = {seen}, incarnation = 'of another life', "
        "started_at = '-infinity'",
    )
    publish(broker, "tick", 2)
    rows(broker, "select pgps.dispatch()")
    other.commit()
    publish(broker, "tick", 3)
    rows(broker, "select pgps.dispatch()")
    assert numbers(broker, "all") == [1, 2, 3]
