"""Code in composite events and coupled rules has the rights of who wrote it, whoever detects or publishes."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, publish, quoted, refused, rows, value
from tests.security.conftest import Mallory
from tests.security.test_left_behind import TRAPS

Name = Callable[..., str]

PLACES = ("filter", "attributes", "explain")
COUPLINGS = ("immediate", "deferred")


def asked(mallory: Mallory, body: str) -> str:
    """Return a function of an integer that does something and then says true, for conditions and attributes."""
    schema = mallory.schema
    rows(
        mallory.connection,
        f"create function {schema}.asked(n integer) returns boolean language plpgsql as "
        f"$body$ begin {body} return true; end $body$",
    )
    return f"{schema}.asked"


def detect(mallory: Mallory, name: str, place: str, body: str) -> None:
    """Have a superuser detect a composite event of Mallory's that does something where it is asked."""
    function, kind = asked(mallory, body), quoted(mallory.event_type)
    given = {"attributes": f"was boolean = {function}(a.n)"} if place == "attributes" else {
        "filter": f"{function}(a.n) and b.n > a.n"}  # fmt: skip
    call(mallory.connection, "create_composite_event", name, f"{kind} a ; {kind} b", **given)
    publish(mallory.admin, mallory.event_type, 1)
    publish(mallory.admin, mallory.event_type, 2)
    rows(mallory.admin, "select pgps.dispatch()")
    if place == "explain":
        event = value(mallory.admin, f"select min(event_id) from pgps_queue.{mallory.event_type}_in")
        rows(mallory.admin, "select * from pgps.explain_composite_event(%s, %s)", [name, event])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("trap", ["exclusion", "exclusion in a temporary table", "trigger"])
def test_what_a_composite_event_defers_to_the_commit_is_taken_back(mallory: Mallory, place: str, trap: str) -> None:
    detect(mallory, f"{mallory.event_type}_c", place, TRAPS[trap][0](mallory))
    assert not mallory.has_won()


# What the server says of a conflict, of full disks, of a cancellation or a shutdown; user code may say it, too.
SERVERS_WORDS = ("25001", "40001", "40P01", "53200", "57014", "57P01", "58030", "XX000")


@pytest.mark.parametrize("place", ["filter", "attributes"])
@pytest.mark.parametrize("sqlstate", SERVERS_WORDS)
def test_a_composite_event_that_raises_as_the_server_does_stops_nobody(
    mallory: Mallory, place: str, sqlstate: str
) -> None:
    kind, theirs = quoted(mallory.event_type), f"{mallory.event_type}_o"
    call(mallory.admin, "create_composite_event", theirs, f"{kind} a ; {kind} b")
    detect(mallory, f"{mallory.event_type}_c", place, f"raise exception 'like a server' using errcode = '{sqlstate}';")
    assert column(mallory.admin, "select detected from pgps.composite_events where name = %s", [theirs]) == [1]
    if place == "attributes":
        failed = rows(mallory.connection, "select sqlstate, error from pgps.exceptions")
        assert failed == [("P0001", "like a server")]
    publish(mallory.admin, mallory.event_type, 3)
    assert value(mallory.admin, "select pgps.dispatch()") >= 1
    assert column(mallory.admin, "select detected from pgps.composite_events where name = %s", [theirs]) == [2]


# What makes the server itself say that of a transaction or a file, or that it has found something odd.
SERVER_SPEAKS = {
    "25001": "execute 'discard all';",
    "25006": "set transaction_read_only = on; perform nextval('pgps_seldom');",
    "58P01": "load '$libdir/plugins/there_is_none';",
    "XX000": "perform pg_describe_object(1, 1, 0);",
}


@pytest.mark.parametrize("place", ["filter", "attributes"])
@pytest.mark.parametrize("sqlstate", SERVER_SPEAKS)
def test_a_composite_event_for_which_the_server_raises_stops_nobody(
    mallory: Mallory, place: str, sqlstate: str
) -> None:
    kind, theirs = quoted(mallory.event_type), f"{mallory.event_type}_o"
    rows(mallory.connection, f"create sequence {mallory.schema}.pgps_seldom")
    body = SERVER_SPEAKS[sqlstate].replace("pgps_seldom", f"{mallory.schema}.pgps_seldom")
    with refused(sqlstate):
        rows(mallory.connection, f"do $body$ begin {body} end $body$")
    call(mallory.admin, "create_composite_event", theirs, f"{kind} a ; {kind} b")
    detect(mallory, f"{mallory.event_type}_c", place, body)
    publish(mallory.admin, mallory.event_type, 3)
    assert value(mallory.admin, "select pgps.dispatch()") >= 1
    assert column(mallory.admin, "select detected from pgps.composite_events where name = %s", [theirs]) == [2]


@pytest.mark.parametrize("place", PLACES)
def test_a_search_path_that_a_composite_event_sets_leads_nobody(mallory: Mallory, place: str) -> None:
    mallory.shadow()
    found = f"{mallory.event_type}_c"
    path = f"perform set_config('search_path', '{mallory.schema}, pg_catalog', false);"
    detect(mallory, found, place, path)
    assert not mallory.has_won()
    assert value(mallory.admin, "show search_path") == '"$user", public'
    assert column(mallory.connection, "select detected from pgps.composite_events where name = %s", [found]) == [1]


def rule(mallory: Mallory, name: str, coupling: str, body: str) -> str:
    """Make Mallory an administrator with a rule that does something in the transactions of others."""
    rows(mallory.admin, f"grant pgps_admin to {quoted(mallory.role)}")
    return mallory.subscribe(name, execute=mallory.callback("f", body), coupling=coupling)


def publish_in_transaction(mallory: Mallory) -> str:
    """Have a superuser publish and commit; return the SQLSTATE of what refused it."""
    try:
        with mallory.admin.transaction():
            publish(mallory.admin, mallory.event_type, 1)
    except psycopg.Error as error:
        return error.sqlstate or ""
    return ""


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize(
    "trap", ["exclusion", "exclusion in a temporary table", "trigger", "trigger that defers again"]
)
def test_what_a_rule_defers_to_the_commit_of_a_publisher_is_refused(
    mallory: Mallory, name: Name, coupling: str, trap: str
) -> None:
    rule(mallory, name("r"), coupling, TRAPS[trap][0](mallory))
    assert publish_in_transaction(mallory) in ("0A000", "55006")
    assert not mallory.has_won()


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("who", ["publisher", "itself"])
def test_a_search_path_that_a_rule_sets_leads_nobody(mallory: Mallory, name: Name, coupling: str, who: str) -> None:
    mallory.shadow()
    rule(mallory, name("r"), coupling, f"perform set_config('search_path', '{mallory.schema}, pg_catalog', false);")
    mallory.subscribe(name("s"), execute=mallory.callback("g", ""), coupling=coupling)
    session = mallory.admin if who == "publisher" else mallory.connection
    call(session, "advertise", quoted(mallory.event_type))
    with refused("55000", "changed a setting of the session"):
        publish(session, mallory.event_type, 1)
    assert not mallory.has_won()
    assert value(session, "show search_path") == '"$user", public'


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("raised", ["raise exception 'fails';", "set datestyle = german;"])
def test_what_a_rule_prepares_is_gone_when_it_raises(mallory: Mallory, name: Name, coupling: str, raised: str) -> None:
    """The publisher's driver would execute it as its own."""
    rule(mallory, name("r"), coupling, f"execute 'prepare _pg3_99 as select 1'; {raised}")
    assert publish_in_transaction(mallory) in ("P0001", "55000")
    assert column(mallory.admin, "select name from pg_prepared_statements where from_sql") == []


def test_an_administrator_gives_nobody_elses_composite_event_a_filter(mallory: Mallory) -> None:
    """It would run with the owner's rights; what else there is to change is an administrator's."""
    name, kind = f"{mallory.event_type}_c", quoted(mallory.event_type)
    call(mallory.admin, "create_composite_event", name, f"{kind} a ; {kind} b", filter="b.n > a.n")
    rows(mallory.admin, f"grant pgps_admin to {quoted(mallory.role)}")
    function = asked(mallory, "")
    with refused("42501", name):
        call(mallory.connection, "alter_composite_event", name, filter=f"{function}(b.n)")
    with refused("42501", name):
        rows(
            mallory.connection,
            "select pgps._call('alter_composite', jsonb_build_object('name', %s::text, 'filter', %s::text))",
            [name, f"{function}(b.n)"],
        )
    call(mallory.connection, "alter_composite_event", name, max_open=7)
    assert value(mallory.admin, "select filter from pgps.composite_events where name = %s", [name]) == "b.n > a.n"
    call(mallory.connection, "alter_composite_event", name, filter="")
    assert value(mallory.admin, "select filter from pgps.composite_events where name = %s", [name]) is None
