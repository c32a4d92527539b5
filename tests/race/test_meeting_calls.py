"""Two calls that meet: whoever comes second finds what is there then, and no error of the internals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from tests.fix_broker import call, column, dispatch, make_type, meanwhile, publish, refused, rows, take, value
from tests.fix_db import Connect

_FIRST = {
    "drops a type": "select pgps.drop_event_type('K_b', cascade => true)",
    "drops the type of one": "select pgps.drop_event_type('K_a', cascade => true)",
    "makes a type anew": "select pgps.drop_event_type('K_b', cascade => true), "
    "pgps.create_event_type('K_b', 'n integer'), pgps.advertise('K_b')",
    "unsubscribes": "select pgps.unsubscribe('K_pattern'), pgps.unsubscribe('K_one')",
    "makes it anew": "select pgps.unsubscribe('K_pattern'), pgps.unsubscribe('K_one'), "
    "pgps.subscribe('K_one', 'K_a'), pgps.subscribe('K_pattern', 'K_*', filter => 'n > 0')",
    "alters": "select pgps.alter_subscription('K_pattern', filter => 'n > 5'), "
    "pgps.alter_subscription('K_one', filter => 'n > 5')",
    "gives": "select pgps.alter_subscription('K_pattern', owner => 'pgps_admin'), "
    "pgps.alter_subscription('K_one', owner => 'pgps_admin')",
    "takes": "select (select count(*) from pgps.take('K_pattern')), (select count(*) from pgps.take('K_one'))",
}
_SECOND = {
    "unsubscribe": "select pgps.unsubscribe('NAME')",
    "alter": "select pgps.alter_subscription('NAME', filter => 'n > 1')",
    "priority": "select pgps.alter_subscription('NAME', priority => 3)",
    "give": "select pgps.alter_subscription('NAME', owner => 'pgps_admin')",
    "seek now": "select pgps.seek('NAME', 'now')",
    "seek earliest": "select pgps.seek('NAME', 'earliest')",
    "pause": "select pgps.pause('NAME')",
    "pause and resume": "select pgps.pause('NAME'), pgps.resume('NAME')",
    "receive": "select count(*) from pgps.receive('NAME')",
    "take": "select count(*) from pgps.take('NAME')",
    "ack": "select pgps.ack('NAME')",
    "nack": "select pgps.nack('NAME', event_id) from pgps.receive('NAME', 1)",
    "explain": "select count(*) from pgps.explain('NAME', 1)",
    "subscribe": "select pgps.subscribe('K_other', 'K_*', filter => 'n > 0')",
    "subscribe earliest": "select pgps.subscribe('K_other', 'K_*', filter => 'n > 0', start => 'earliest')",
    "subscribe to one": "select pgps.subscribe('K_other', 'K_a', filter => 'n > 0')",
    "subscribe to one earliest": "select pgps.subscribe('K_other', 'K_a', filter => 'n > 0', start => 'earliest')",
    "alter the type": "select pgps.alter_event_type('K_b', add_attribute => 'm integer')",
    "drop the type": "select pgps.drop_event_type('K_b', cascade => true)",
    "advertise": "select pgps.advertise('K_b')",
}


_CLEAN = {"", "42704", "55P03"}
"""Nothing, or that what was named is gone, or is used by somebody."""


_OFTEN = {"drops a type", "gives"}
"""What is tried each time; the others take long and are slow."""


@pytest.mark.parametrize(
    "first", [pytest.param(one, marks=[] if one in _OFTEN else pytest.mark.slow) for one in _FIRST]
)
def test_no_error_is_of_the_internals(connect: Connect, own_database: str, first: str) -> None:
    """Whoever comes second is told in the words of the contract, and what is left goes on."""
    admin, other = connect(dsn=own_database), connect(dsn=own_database)
    opened = connect(autocommit=False, dsn=own_database)
    wrong = []
    for place, (name, query) in enumerate(_SECOND.items()):
        for kind in ("pattern", "one") if "NAME" in query else ("",):
            key = f"p{place}{kind[:1]}"
            _set_up(admin, key)
            rows(opened, _FIRST[first].replace("K_", f"{key}_"))
            said = _meet(admin, opened, other, query.replace("NAME", f"{key}_{kind}").replace("K_", f"{key}_"))
            if said.partition(" ")[0] not in _CLEAN or "pgps_" in said:
                wrong.append((name, kind, said))
            wrong += [(name, kind, f"{one} has got {got}") for one, got in _lacking(admin, key)]
    assert not wrong, "\n".join(map(str, wrong))


def _set_up(admin: psycopg.Connection, key: str) -> None:
    """Two types, a subscription to one and one to both, with an event that is delivered and one that is not."""
    make_type(admin, f"{key}_a")
    make_type(admin, f"{key}_b")
    call(admin, "subscribe", f"{key}_one", f"{key}_a")
    call(admin, "subscribe", f"{key}_pattern", f"{key}_*", filter="n > 0")
    publish(admin, f"{key}_a", 1, 2)
    publish(admin, f"{key}_b", 3)
    dispatch(admin)
    publish(admin, f"{key}_a", 4)


def _meet(admin: psycopg.Connection, opened: psycopg.Connection, other: psycopg.Connection, query: str) -> str:
    """Return what the second call says when the first one commits while it waits."""
    try:
        with meanwhile(admin, other, lambda: rows(other, query)):
            opened.commit()
    except psycopg.Error as error:
        return f"{error.sqlstate} {error.diag.message_primary}"
    return ""


def _lacking(admin: psycopg.Connection, key: str) -> list[tuple[str, list[int]]]:
    """Return the subscriptions that are left, active, and have not got what is published now."""
    types = column(admin, "select name from pgps.event_types where name like %s", [f"{key}\\_%"])
    for kind in types:
        publish(admin, kind, 9)
    query = "select name, event_type from pgps.subscriptions where name like %s and state = 'active'"
    left = rows(admin, query, [f"{key}\\_%"])
    found = [
        (name, take(admin, name), types if event_type.endswith("*") else [event_type]) for name, event_type in left
    ]
    return [(name, got) for name, got, wanted in found if got.count(9) != len(wanted)]


def test_who_alters_a_subscription_that_is_being_given_away_has_its_new_owners_rights_or_none(
    connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    """Else the filter of the old owner would run with the rights of the new one."""
    admin, old, new = connect(dsn=own_database), role("old"), role("new")
    make_type(admin, "tick")
    rows(admin, f"grant select on pgps_event.tick to {old}, {new}")
    mine = connect(old, dsn=own_database)
    for verb, step in {
        "alter": lambda: call(mine, "alter_subscription", "alter", filter="n > 5"),
        "seek": lambda: call(mine, "seek", "seek", "now"),
        "unsubscribe": lambda: call(mine, "unsubscribe", "unsubscribe"),
        "pause": lambda: call(mine, "pause", "pause"),
        "priority": lambda: call(mine, "alter_subscription", "priority", priority=9),
        "take": lambda: rows(mine, "select * from pgps.take('take')"),
    }.items():
        call(mine, "subscribe", verb, "tick", filter="n > 0")
        publish(admin, "tick", 1)
        dispatch(admin)
        opened = connect(dsn=own_database, autocommit=False)
        call(opened, "alter_subscription", verb, owner=new)
        with refused("42501"), meanwhile(admin, mine, step):
            opened.commit()
        query = "select owner::text, filter, state, priority from pgps_internal.subscription where name = %s"
        assert rows(admin, query, [verb]) == [(new, "n > 0", "active", 0)]
        assert take(admin, verb) == [1]


def test_a_subscription_that_met_a_deadlock_is_not_left_without_an_event_type(
    connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    admin, heir = connect(dsn=own_database), role("heir")
    giver, opened = connect(dsn=own_database), connect(dsn=own_database, autocommit=False)
    make_type(admin, "pa")
    call(admin, "subscribe", "pattern", "p*", filter="n > 5")
    make_type(admin, "pr")
    rows(admin, f"grant select on pgps_event.pa, pgps_event.pr to {heir}")
    call(opened, "alter_event_type", "pr", add_attribute="z integer")
    with meanwhile(admin, giver, lambda: call(giver, "alter_subscription", "pattern", owner=heir)):
        with suppress(psycopg.errors.DeadlockDetected):
            rows(opened, "select pgps.drop_event_type('pr', true)")
        opened.rollback()
    publish(admin, "pa", 6)
    publish(admin, "pr", 7)
    assert take(admin, "pattern") == [6, 7]
    assert value(admin, "select last_error from pgps.subscriptions") is None
