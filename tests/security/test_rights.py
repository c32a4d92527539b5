"""Who may do what: a plain role, a publisher, a subscriber, a worker, an administrator; what is closed to all."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, endpoint, publish, queue, quoted, refused, rows, value
from tests.fix_db import Connect

KINDS = ("plain", "publisher", "subscriber", "worker", "admin")
# What each may do; {t} is the event type, {s} a subscription of the superuser, {new} a new name.
MATRIX = {
    "select pgps.create_event_type('{new}', 'n integer')": {"admin"},
    "select pgps.alter_event_type('{t}', add_attribute => 'm integer')": {"admin"},
    "select pgps.drop_event_type('{t}', true)": {"admin"},
    "select pgps.alter_queue('{t}_in', auditable => true)": {"admin"},
    "select pgps.create_policy('{t}', 'p', 'pgps_worker', 'true')": {"admin"},
    "select pgps.drop_policy('{t}', 'own')": {"admin"},
    "select pgps.configure('lease', '60 seconds')": {"admin"},
    "select pgps.suspects()": {"admin"},
    "select pgps.create_link('{new}', 'host=x')": {"admin"},
    "select pgps.advertise('{t}')": {"publisher", "admin"},
    "insert into pgps_event.{t} values (1)": {"publisher"},
    "select pgps.publish('{t}', '{{\"n\": 1}}')": {"publisher"},
    "select pgps.subscribe('{new}', '{t}')": {"subscriber", "admin"},
    "select pgps.dispatch()": {"worker", "admin"},
    "call pgps.run_subscribers()": {"worker", "admin"},
    "select pgps.run_subscriber('{i}')": {"worker", "admin"},
    "select * from pgps.pending_subscribers()": {"worker", "admin"},
    "select pgps.fail_delivery('{i}', '00000', 'x')": {"worker", "admin"},
    "select pgps.next_delivery('{i}')": {"worker", "admin"},
    "select pgps.reclaim()": {"worker", "admin"},
    "select pgps.blame()": {"worker", "admin"},
    "select pgps.cut_filter()": {"worker", "admin"},
    "select pgps.unsubscribe('{s}')": {"admin"},
    "select pgps.pause('{s}')": {"admin"},
    "select pgps.resume('{s}')": {"admin"},
    "select pgps.seek('{s}', 'now')": set(),
    "select * from pgps.receive('{s}')": set(),
    "select * from pgps.take('{s}')": set(),
    "select pgps.ack('{s}')": set(),
    "select pgps.nack('{s}', 1)": set(),
    "select pgps.nack_events('{s}', array[1])": set(),
    "select pgps.retry_exception('{t}')": {"admin"},
    "select pgps.discard_exception('{t}')": {"admin"},
    "select * from pgps.explain('{s}', 1)": {"admin"},
    "select * from pgps_event.{t}": {"subscriber", "admin"},
    "update pgps_event.{t} set n = 2": set(),
    "delete from pgps_event.{t}": set(),
    "truncate pgps_event.{t}": set(),
    "drop table pgps_event.{t}": set(),
    "alter table pgps_event.{t} add m integer": set(),
    "select * from pgps_internal.link": set(),
    "update pgps_internal.setting set value = ''": set(),
    "delete from pgps_queue.{t}_in": set(),
    "insert into pgps_queue.{t}_in (n) values (1)": set(),
    "update pgps_queue.{t}_out set n = 1": set(),
    "create function pgps.f() returns void language sql as 'select'": set(),
    "create table pgps_queue.x ()": set(),
    "create table pgps_internal.x ()": set(),
}


@pytest.fixture
def people(
    connect: Connect, role: Callable[..., str], name: Callable[..., str], admin: psycopg.Connection
) -> dict[str, str]:
    """Names for the statements of the matrix, and a role of each kind."""
    made, found, inner = name(), name("s"), name("i")
    kinds = {kind: role(kind, *({"worker": ["pgps_worker"], "admin": ["pgps_admin"]}.get(kind, []))) for kind in KINDS}
    call(admin, "create_event_type", made, "n integer")
    call(admin, "advertise", made)
    call(admin, "subscribe", found, made)
    rows(admin, f"create function public.{inner}({endpoint(made)}) returns void language sql as 'select'")
    call(admin, "subscribe", inner, made, execute=f"public.{inner}")
    call(admin, "create_policy", made, "own", kinds["subscriber"], "true")
    rows(admin, f"grant insert on {endpoint(made)} to {kinds['publisher']}")
    rows(admin, f"grant select on {endpoint(made)} to {kinds['subscriber']}")
    call(connect(kinds["publisher"]), "advertise", made)
    return kinds | {"t": made, "s": found, "i": inner, "new": name("new")}


@pytest.mark.parametrize("kind", KINDS)
def test_everybody_may_do_what_the_matrix_says_and_no_more(people: dict[str, str], connect: Connect, kind: str) -> None:
    connection, wrong = connect(people[kind], autocommit=False), []
    for statement, allowed in MATRIX.items():
        procedure = statement.startswith("call")
        connection.rollback()
        connection.autocommit = procedure
        try:
            rows(connection, statement.format(**people))
            if kind not in allowed:
                wrong.append(f"{statement} is allowed")
        except psycopg.Error as error:
            if kind in allowed:
                wrong.append(f"{statement}: {error}")
            elif error.sqlstate not in ("42501", "55000", "0A000", "42809"):
                wrong.append(f"{statement}: {error.sqlstate} {error}")
        connection.rollback()
        connection.autocommit = False
    assert wrong == []


def test_no_internal_function_is_open_to_the_public(admin: psycopg.Connection, people: dict[str, str]) -> None:
    rows(admin, f"select pgps.subscribe('{people['new']}', '{people['t']}', 'n > 1 and exists (select)')")
    open_ones = column(
        admin,
        """
        select p.oid::regprocedure::text from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = 'pgps_internal'::regnamespace and a.grantee = 0
            and not exists (select from pg_depend d
                where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
        """,
    )
    assert open_ones == []
    for schema in ("pgps", "pgps_event", "pgps_queue", "pgps_internal"):
        assert not value(admin, "select has_schema_privilege(%s, %s, 'create')", [people["plain"], schema])
    assert not value(admin, "select has_schema_privilege(%s, 'pgps_internal', 'usage')", [people["admin"]])


def test_functions_that_run_as_the_owner_of_pgps_have_a_search_path(admin: psycopg.Connection) -> None:
    loose = column(
        admin,
        """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace in ('pgps'::regnamespace, 'pgps_internal'::regnamespace)
            and p.prosecdef and p.prosqlbody is null and p.probin is null
            and not coalesce(p.proconfig::text ~ 'search_path=[^}]*pg_temp', false)
            and p.prorettype <> 'trigger'::regtype
        """,
    )
    assert loose == []


def test_nothing_but_the_doors_can_be_written(admin: psycopg.Connection, people: dict[str, str]) -> None:
    writable = column(
        admin,
        """
        select distinct c.oid::regclass::text from pg_class c
        cross join unnest(%s::text[]) r
        where c.relnamespace::regnamespace::text in ('pgps', 'pgps_entry', 'pgps_internal', 'pgps_queue')
            and c.relkind in ('r', 'p', 'v', 'm', 'f') and has_any_column_privilege(r, c.oid, 'insert, update')
        """,
        [[people[kind] for kind in KINDS]],
    )
    assert sorted(writable) == [
        "pgps_entry.calls",
        "pgps_entry.client_calls",
        "pgps_entry.plain_spooled",
        "pgps_entry.receive_calls",
        "pgps_entry.receive_rows_calls",
        "pgps_entry.spool_calls",
        "pgps_entry.unit_calls",
    ]


def test_a_role_that_inherits_from_the_owner_has_the_owners_subscription(
    connect: Connect, people: dict[str, str], role: Callable[..., str], admin: psycopg.Connection
) -> None:
    deputy = role("deputy", people["subscriber"])
    call(connect(people["subscriber"]), "subscribe", people["new"], people["t"])
    publish(admin, people["t"], 1)
    rows(admin, "select pgps.dispatch()")
    assert len(rows(connect(deputy), "select * from pgps.receive(%s)", [people["new"]])) == 1
    with refused("42501", people["new"]):
        rows(connect(people["plain"]), "select * from pgps.receive(%s)", [people["new"]])


def test_a_queue_is_refused_to_who_may_not_subscribe(
    connect: Connect, people: dict[str, str], admin: psycopg.Connection
) -> None:
    publish(admin, people["t"], 1)
    rows(admin, "select pgps.dispatch()")
    for kind in ("plain", "publisher", "worker"):
        connection = connect(people[kind])
        for one in ("in", "out", "exception"):
            with refused("42501", people["t"]):
                rows(connection, f"select * from {queue(people['t'], one)}")
        if kind != "publisher":
            names = "select name from pgps.event_types union all select event_type from pgps.queues"
            assert people["t"] not in column(connection, names)
            assert people["t"] not in column(connection, "select event_type from pgps.advertisements")
            assert people["t"] not in column(connection, "select event_type from pgps.activity")
        assert people["s"] not in column(connection, "select name from pgps.subscriptions")
    assert quoted(people["t"])


@pytest.mark.parametrize("verb", ["retry_exception", "discard_exception"])
def test_rights_on_exceptions_are_checked_whatever_plan_is_chosen(
    people: dict[str, str], connect: Connect, verb: str
) -> None:
    connection = connect(people["publisher"])
    for joins in ("enable_hashjoin", "enable_mergejoin", "enable_nestloop", "enable_bitmapscan", "enable_seqscan"):
        # One after the other goes, so that each has its turn on a table without a row.
        rows(connection, f"set {joins} = off")
        with refused("42501", people["t"]):
            call(connection, verb, people["t"])
