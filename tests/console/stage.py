"""A broker on which every page of the console has something to show."""

from __future__ import annotations

import psycopg

from tests.fix_broker import call, endpoint, make_type, rows
from tests.fix_units import Party, make_service

ORIGIN = "emergency <script>alert(1)</script>"


def furnish(admin: psycopg.Connection) -> None:
    """Make event types, subscriptions in each state, exceptions, a composite event, a service, a spool, and a link."""
    make_type(admin, "reading", "patient text, glucose integer, note jsonb")
    make_type(admin, "insulin", "patient text, units integer")
    rows(
        admin,
        "create function public.refuse(event pgps_event.reading) returns void language plpgsql as "
        "$$ begin raise exception 'no bed for %', ($1).patient using errcode = 'P4711'; end $$",
    )
    call(admin, "subscribe", "ward", "reading", "glucose > 180")
    call(admin, "subscribe", "night_shift", "reading")
    call(admin, "subscribe", "beds", "reading", "glucose > 300", execute="public.refuse", max_attempts=1)
    call(admin, "subscribe", "pharmacy", "insulin")
    call(admin, "pause", "night_shift")
    call(
        admin,
        "create_composite_event",
        "untreated",
        "not(insulin)[reading (glucose > 180) r, + '30 min']",
        partition_by="patient",
        attributes="patient text = r.patient, glucose integer = r.glucose",
    )
    rows(
        admin,
        f"insert into {endpoint('reading')} (patient, glucose, note) values ('Ann', 120, null), "
        f"('Bob', 190, '{{\"by\": \"<b>nurse</b>\"}}'), ('{ORIGIN}', 320, null), ('Dan', 410, null)",
    )
    rows(admin, f"insert into {endpoint('insulin')} (patient, units) values ('Bob', 4)")
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_lanes()")
    rows(admin, "call pgps.run_subscribers()")
    rows(admin, "select pgps.dispatch()")
    make_service(admin, "care/ward/beds", deferred=True)
    party = Party(admin)
    party.request("care/ward/beds", "a bed, please")
    call(admin, "create_spool", "handover")
    call(admin, "grant_spool", "handover", "replay", "pgps_admin")
    call(admin, "spool", "handover", 1, '"all is well"')
    rows(admin, "select pgps.dispatch()")
    call(admin, "create_network", "sweden", ["host=127.0.0.1 port=1 dbname=sweden"])
    call(admin, "create_link", "pharmacy", "host=127.0.0.1 port=1 dbname=pharmacy user=peer")
