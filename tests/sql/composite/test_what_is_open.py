"""What is open, and what came too late, is shown to those who may have all that comes of it."""

from __future__ import annotations

from collections.abc import Callable

from tests.fix_broker import call, make_type, quoted, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect

DAY = "2026-03-01 "
OPEN = "select partition_key ->> 0 from pgps.open_occurrences"
LATE = "select count(*) from pgps.late_events"


def test_a_policy_on_a_composite_event_hides_what_is_open_of_it(
    connect: Connect, own_database: str, role: Callable[..., str], clock: Clock
) -> None:
    broker = connect(dsn=own_database)
    clock.set(DAY + "12:00+00")
    make_type(broker, "own", "patient text, at timestamptz")
    call(broker, "alter_event_type", "own", time_attribute="at")
    ann, bob, carol, boss = role("ann"), role("bob"), role("carol"), role("boss", "pgps_admin")
    for who in (ann, bob, carol):
        rows(broker, f"grant select on pgps_event.own to {quoted(who)}; grant create on schema public to {quoted(who)}")
    mine = connect(ann, dsn=own_database)
    call(
        mine, "create_composite_event", "jump", "own a ; own b", partition_by="patient", time_basis="event",
        attributes="patient text = a.patient",
    )  # fmt: skip
    rows(mine, f"grant select on pgps_event.jump to {quoted(bob)}, {quoted(carol)}")
    for who in (ann, bob):
        call(broker, "create_policy", "jump", f"own_{who}", who, "patient = 'Bob'")
    for at in ("11:00", "11:30", "10:00"):
        rows(broker, "insert into pgps_event.own values ('Ann', %s)", [f"{DAY}{at}+00"])
        clock.advance("1 minute")
        rows(broker, "select pgps.dispatch()")
    seen = {
        who: (rows(connect(who, dsn=own_database), OPEN) != [], value(connect(who, dsn=own_database), LATE))
        for who in (ann, bob, carol, boss)
    }
    shown = (True, value(broker, LATE))
    assert shown[1] > 0
    assert seen == {ann: shown, bob: (False, 0), carol: shown, boss: shown}
