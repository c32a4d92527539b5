"""Advertisements, and whom they wait for."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.fix_broker import call, make_type, numbers, publish, refused, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect, wait_until


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


def test_who_advertises_waits_for_nobody_who_registers_for_direct_events(
    connect: Connect, admin: psycopg.Connection, name: Callable[..., str], role: Callable[..., str]
) -> None:
    tick = name()
    make_type(admin, tick)
    call(admin, "subscribe", tick, tick)
    publisher = role()
    rows(admin, f"grant insert on pgps_event.{tick} to {publisher}")
    session = connect(publisher)
    rows(session, "set lock_timeout = '5s'")
    sitting = connect(autocommit=False)
    client = Client(sitting, name("client"))
    sitting.commit()
    client.register(tick, "direct")  # and stays in its transaction
    try:
        call(session, "advertise", tick)
    except psycopg.Error:
        sitting.rollback()
        raise
    publish(session, tick, 1)
    call(session, "advertise", tick)
    publish(session, tick, 2)
    rows(admin, "select pgps.dispatch()")
    assert numbers(admin, tick) == [1, 2]
    # What makes publications quick comes with the next reclaim that finds nobody there.
    granted = "select has_table_privilege(%s, %s::regclass, 'references')"
    params = [publisher, f"pgps_internal.{tick}_log"]
    rows(admin, "select pgps.reclaim()")
    assert not value(admin, granted, params)
    sitting.commit()

    def is_granted() -> bool:
        rows(admin, "select pgps.reclaim()")
        return bool(value(admin, granted, params))

    wait_until(is_granted)
    publish(session, tick, 3)
    call(session, "unadvertise", tick)
    assert not value(admin, granted, params)
    with refused("55000", "has not advertised"):
        publish(session, tick, 4)
    rows(admin, "select pgps.reclaim()")
    assert not value(admin, granted, params)
    sitting.autocommit = True
    client.call("drop_client")


def test_what_was_advertised_while_somebody_registered_can_be_taken_back_at_once(
    connect: Connect, admin: psycopg.Connection, name: Callable[..., str], role: Callable[..., str]
) -> None:
    tick = name()
    make_type(admin, tick)
    publisher = role()
    rows(admin, f"grant insert on pgps_event.{tick} to {publisher}")
    session = connect(publisher)
    sitting = connect(autocommit=False)
    rows(sitting, "select from pgps_internal.event_type where name = %s for no key update", [tick])
    call(session, "advertise", tick)
    sitting.commit()
    call(session, "unadvertise", tick)
    with refused("55000", "has not advertised"):
        publish(session, tick, 1)
