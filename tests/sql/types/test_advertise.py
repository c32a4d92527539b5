"""Advertisements, and whom they wait for."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.fix_broker import call, make_type, rows
from tests.fix_db import Connect


def test_who_has_advertised_already_waits_for_nobody_and_holds_up_nobody(
    connect: Connect, admin: psycopg.Connection, name: Callable[..., str], role: Callable[..., str]
) -> None:
    tick = name()
    make_type(admin, tick)
    roles = [role() for _ in range(3)]
    rows(admin, f"grant insert on pgps_event.{tick} to {', '.join(roles)}")
    again, new, third = (connect(each, autocommit=False) for each in roles)
    for session in (again, new, third):
        rows(session, "set lock_timeout = '5s'")
    call(again, "advertise", tick)
    again.commit()
    call(again, "advertise", tick)  # and stays in its transaction
    call(new, "advertise", tick)
    new.commit()
    call(third, "advertise", tick)  # holds the event type's row
    call(new, "advertise", tick)
    again.commit()
    call(again, "advertise", tick)
    for session in (again, new, third):
        session.commit()
