"""A role is who it is: whatever its name, and with no more than the rights that its memberships give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, column, endpoint, make_type, quoted, refused, rows, value
from tests.fix_db import Connect


@contextmanager
def roles(admin: psycopg.Connection, *names: str) -> Iterator[None]:
    """Make roles of just these names, which are the cluster's, and drop them with all that they own."""
    for name in names:
        rows(admin, f"create role {quoted(name)}")
    try:
        yield
    finally:
        for name in names:
            rows(admin, f"drop owned by {quoted(name)} cascade; drop role {quoted(name)}")


@pytest.mark.parametrize("kind", ["upper case", "number", "quotes"])
def test_a_name_that_needs_quotes_is_not_taken_for_another_role(
    admin: psycopg.Connection, connect: Connect, own_database: str, kind: str
) -> None:
    """`10` is the number of the superuser who made the cluster."""
    broker = connect(dsn=own_database)
    here = broker.info.dbname
    own, other = {
        "upper case": (f"Alice_{here}", f"alice_{here}"),
        "number": ("10", f"eleven_{here}"),
        "quotes": (f'"bob_{here}"', f"bob_{here}"),
    }[kind]
    with roles(broker, own, other):
        make_type(broker, "tick")
        call(broker, "create_policy", "tick", "own", own, "n = 1")
        call(broker, "create_policy", "tick", "other", other, "n = 2")
        reader = connect(own, dsn=own_database)
        call(reader, "subscribe", "s", "tick")
        rows(broker, f"insert into {endpoint('tick')} values (1), (2), (3)")
        rows(broker, "select pgps.dispatch()")
        assert column(reader, "select payload ->> 'n' from pgps.receive('s')") == ["1"]
        first = column(broker, "select event_id from pgps_queue.tick_in where n = 1")
        assert column(reader, "select event_id from pgps.find_queued('tick_in')") == first
        reader.close()


def test_a_composite_event_of_a_role_whose_name_needs_quotes_is_changed_by_it(
    connect: Connect, own_database: str
) -> None:
    broker = connect(dsn=own_database)
    upper, lower = f"Alice_{broker.info.dbname}", f"alice_{broker.info.dbname}"
    with roles(broker, upper, lower):
        make_type(broker, "a")
        make_type(broker, "b")
        rows(broker, f"grant pgps_admin to {quoted(upper)}")
        rows(broker, f"revoke select on {endpoint('a')} from public")
        rows(broker, f"grant select on {endpoint('a')} to {quoted(upper)}")
        own = connect(upper, dsn=own_database)
        call(own, "create_composite_event", "pair", "a x ; b y")
        call(own, "alter_composite_event", "pair", filter="x.n = 1")
        call(own, "alter_composite_event", "pair", filter="x.n = 2")
        assert value(broker, "select filter from pgps_internal.composite") == "x.n = 2"
        own.close()


def test_whose_code_may_run_in_a_statement_goes_by_the_role_not_by_how_it_is_written(
    connect: Connect, own_database: str
) -> None:
    broker = connect(dsn=own_database)
    acts = "select pgps_internal.acts_for(%s, (select oid from pg_roles where rolname = %s)::regrole)"
    upper, lower = f"Alice_{broker.info.dbname}", f"alice_{broker.info.dbname}"
    with roles(broker, upper, quoted(upper), lower):
        rows(broker, f"alter role {quoted(upper)} superuser")
        assert value(broker, acts, [upper, upper])
        assert not value(broker, acts, [quoted(upper), upper])
        assert not value(broker, acts, [lower, upper])
        assert not value(broker, acts, [upper, lower])


@pytest.mark.parametrize(
    ("options", "may"),
    [
        ("inherit false, set false", False),
        ("inherit true, set false", True),
        ("inherit false, set true", True),
        ("inherit false, set false, admin true", False),
    ],
)
def test_a_membership_gives_away_no_rights_that_it_has_not(
    connect: Connect, own_database: str, role: Callable[..., str], options: str, may: bool
) -> None:
    broker = connect(dsn=own_database)
    if broker.info.server_version < 160000:
        pytest.skip("every member of a role has its rights, or can take them")
    alice, bob = role("alice"), role("bob")
    make_type(broker, "tick")
    call(broker, "create_spool", "post")
    call(broker, "grant_spool", "post", "spool", alice)
    rows(broker, f"grant {quoted(bob)} to {quoted(alice)} with {options}")
    own = connect(alice, dsn=own_database)
    call(own, "subscribe", "mine", "tick", filter="n > 1")
    counts = "select pgps._count_waiting('tick', %s) is not null"
    given = {"name": "mine", "owner": bob}
    steps: list[tuple[bool, Callable[[], object]]] = [
        (may, lambda: call(own, "spool", "post", 1, message='{"a": 1}', sender=bob)),
        # Whoever owns it has the rights of the new owner; SET ROLE would leave the subscription out of reach.
        ("inherit true" in options, lambda: rows(own, "select pgps._call('give_subscription', %s)", [Jsonb(given)])),
    ]
    for allowed, step in steps:
        if allowed:
            step()
        else:
            with refused("42501", bob):
                step()
    assert value(own, counts, [bob]) is may
    owner = bob if "inherit true" in options else alice
    assert value(broker, "select owner::text from pgps.subscriptions where name = 'mine'") == owner
