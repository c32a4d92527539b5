"""Several classes of one subscription that have to catch up do so together, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import WAYS, call, dispatch, make_type, publish, rows, take
from tests.fix_db import Connect

CHANGES: dict[str, Callable[[psycopg.Connection], object]] = {
    "sought": lambda session: call(session, "seek", "s", "earliest"),
    "altered": lambda session: call(session, "alter_subscription", "s", filter=""),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("way", WAYS)
def test_an_event_type_that_somebody_holds_does_not_fall_behind_the_others(
    connect: Connect, own_database: str, change: str, end: str, way: str
) -> None:
    admin = connect(dsn=own_database)
    for name in ("pa", "pb", "other"):
        make_type(admin, name)
    call(admin, "subscribe", "s", "p*")
    call(admin, "subscribe", "all_of_pa", "pa")
    moving = connect(dsn=own_database, autocommit=False)
    CHANGES[change](moving)
    publish(admin, "pb", 1)
    dispatch(admin, way)
    publish(admin, "pa", 2)
    dispatch(admin, way)
    moving.commit()
    holding = connect(dsn=own_database, autocommit=False)
    call(holding, "alter_event_type", "pb", add_attribute="m integer")
    rows(admin, "set lock_timeout = '5s'")
    publish(admin, "other", 3)
    found = take(admin, "s", way=way)
    # Nobody else waits.
    assert take(admin, "all_of_pa", way=way) == [2]
    (holding.commit if end == "commit" else holding.rollback)()
    publish(admin, "pb", 4)
    assert found + take(admin, "s", way=way) + take(admin, "s", way=way) == [1, 2, 4]
