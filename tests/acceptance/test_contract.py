"""What programs outside are written against: names, arguments, defaults, results, columns, channels and codes.

Arguments and columns may be added at the end, arguments with a default. Whatever else changes here breaks somebody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_broker import call, column, make_type, publish, queue, refused, rows, take, value
from tests.fix_db import Connect, notifications

# Name: arguments with defaults, result.
FUNCTIONS = {
    "create_event_type": (
        (
            "name text, attributes text, visibility text = 'deferred', reliability text = 'guaranteed', "
            "persistent boolean = true, auditable boolean = false, handler text = 'all'"
        ),
        "void",
    ),
    "alter_event_type": ("name text, add_attribute text = NULL, drop_attribute text = NULL", "void"),
    "drop_event_type": ("name text, cascade boolean = false", "void"),
    "alter_queue": (
        "queue text, auditable boolean = NULL, persistent boolean = NULL, retention interval = NULL",
        "void",
    ),
    "retry_exception": ("event_type text, event_id bigint = NULL, subscription text = NULL", "bigint"),
    "discard_exception": ("event_type text, event_id bigint = NULL, subscription text = NULL", "bigint"),
    "advertise": ("event_type text", "void"),
    "unadvertise": ("event_type text", "void"),
    "publish": (
        (
            "event_type text, payload jsonb, visibility text = NULL, reliability text = NULL, handler text = NULL, "
            "producer text = NULL, producer_seq bigint = NULL"
        ),
        "bigint",
    ),
    "create_rule": (
        (
            "name text, table_name regclass, operations text, event_type text, attributes text[], "
            "condition text = NULL, run_as text = 'invoker', moment text = 'end'"
        ),
        "void",
    ),
    "drop_rule": ("name text", "void"),
    "subscribe": (
        (
            "name text, event_type text, filter text = NULL, scope text = 'local', execute text = NULL, "
            "priority integer = 0, start text = 'now', max_attempts integer = 5, handler text = NULL"
        ),
        "void",
    ),
    "unsubscribe": ("name text", "void"),
    "pause": ("name text", "void"),
    "resume": ("name text", "void"),
    "seek": ("name text, start text", "void"),
    "alter_subscription": (
        (
            "name text, filter text = NULL, priority integer = NULL, max_attempts integer = NULL, "
            "dead_after interval = NULL, max_backlog bigint = NULL, on_backlog text = NULL"
        ),
        "void",
    ),
    "receive": (
        "subscription text, max_events integer = 100, consumer text = NULL",
        (
            "TABLE(event_id bigint, event_type text, payload jsonb, published_at timestamp with time zone, "
            "publisher name, xid xid8, origin text, attempt integer)"
        ),
    ),
    "ack": ("subscription text, up_to bigint = NULL, consumer text = NULL", "bigint"),
    "nack": ("subscription text, event_id bigint, error text = NULL, retry_in interval = NULL", "void"),
    "audit": (
        "",
        (
            "TABLE(kind text, neighbour text, origin text, event_type text, filter text, events_there bigint, "
            "events_here bigint, digest_equal boolean, verdict text, hint text)"
        ),
    ),
    "explain": ("subscription text, event_id bigint", "TABLE(step text, outcome text)"),
    "dispatch": ("max_events integer = NULL", "bigint"),
    "run_subscribers": ("", "procedure"),
    "create_link": ("name text, conninfo text, direction text = 'both'", "void"),
    "alter_link": ("name text, conninfo text = NULL, enabled boolean = NULL", "void"),
    "drop_link": ("name text", "void"),
    "create_policy": ("event_type text, name text, role name, using_expression text", "void"),
    "drop_policy": ("event_type text, name text", "void"),
    "create_composite_event": (
        (
            "name text, expression text, context text = 'recent', partition_by text = NULL, within interval = NULL, "
            "filter text = NULL, attributes text = NULL, scope text = 'local', time_basis text = 'arrival', "
            "lateness interval = '00:00:00', start text = 'now', max_open integer = NULL, "
            "reliability text = 'guaranteed', persistent boolean = true, auditable boolean = false, "
            "handler text = 'all'"
        ),
        "void",
    ),
    "alter_composite_event": (
        "name text, enabled boolean = NULL, max_open integer = NULL, lateness interval = NULL, filter text = NULL",
        "void",
    ),
    "reset_composite_event": ("name text, partition_key jsonb = NULL", "bigint"),
    "try_composite_event": (
        (
            "expression text, context text = 'recent', partition_by text = NULL, within interval = NULL, "
            "filter text = NULL, attributes text = NULL, time_basis text = 'arrival', lateness interval = '00:00:00', "
            "max_open integer = NULL, since timestamp with time zone = NULL, until timestamp with time zone = NULL"
        ),
        "SETOF jsonb",
    ),
    "explain_composite_event": ("name text, event_id bigint", "TABLE(step text, outcome text)"),
    "create_source": ("name text, broker text, client text = NULL", "void"),
    "execute": ("statement text", "text"),
}
_SIGNATURES = """
    select array(
            select concat(p.proargnames[n], ' ', format_type(p.proargtypes[n - 1], null),
                ' = ' || regexp_replace(pg_get_function_arg_default(p.oid, n), '::[a-z ]+$', ''))
            from generate_series(1, p.pronargs) n order by n),
        case p.prokind when 'p' then 'procedure' else pg_get_function_result(p.oid) end
    from pg_proc p where p.pronamespace = 'pgps'::regnamespace and p.proname = %s
"""

ATTRIBUTES = {"symbol": "text", "price": "numeric"}
QUEUES = {
    "in": {
        "event_id": "bigint",
        "enqueued_at": "timestamp with time zone",
        "xid": "xid8",
        "publisher": "name",
        "origin": "text",
        "state": "text",
    },
    "out": {
        "event_id": "bigint",
        "subscription": "text",
        "matched_at": "timestamp with time zone",
        "attempts": "integer",
        "state": "text",
    },
    "exception": {
        "event_id": "bigint",
        "subscription": "text",
        "failed_at": "timestamp with time zone",
        "attempts": "integer",
        "sqlstate": "text",
        "error": "text",
        "state": "text",
    },
}
_COLUMNS = """
    select attname::text, format_type(atttypid, null) from pg_attribute
    where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum
"""

# Of each view what an administrator's programs read.
VIEWS = {
    "event_types": "name owner attributes visibility reliability persistent auditable handler subscriptions published",
    "queues": "queue event_type kind persistent auditable retention depth oldest",
    "advertisements": "event_type role advertised_at origin via",
    "subscriptions": (
        "subscription_id name owner event_type filter scope kind execute priority handler state channel max_attempts "
        "depth oldest lag_events lag_seconds rate delivered attempts retrying failed last_error created_at "
        "dead_after max_backlog on_backlog is_dead"
    ),
    "rules": "name table_name operations event_type attributes condition run_as owner",
    "links": "name direction state lag_events last_error",
    "exceptions": "event_type event_id subscription failed_at attempts sqlstate error state payload",
    "audit_findings": "kind what neighbour origin event_type after_batch upto_batch events_there events_here found_at",
    "workers": "pid worker service role started_at state leader",
    "composite_events": (
        "name expression context partition_by within filter scope owner state lag open keys detected late given_up "
        "last_error"
    ),
    "open_occurrences": "name partition_key node role event_type event_id since expires_at",
    "activity": "event_type published matched repeats batches waiting oldest_waiting rate",
}


@pytest.fixture
def quote(admin: psycopg.Connection, name: Callable[..., str]) -> str:
    """An event type that everybody may use."""
    made = name("quote")
    make_type(admin, made, "symbol text not null, price numeric check (price > 0)")
    return made


@pytest.fixture
def named(admin: psycopg.Connection, name: Callable[..., str]) -> Iterator[str]:
    """A name for a subscription, which ends with the test."""
    made = name("sub")
    yield made
    rows(admin, "select pgps.unsubscribe(name) from pgps.subscriptions where name = %s", [made])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_has_its_arguments_and_result(admin: psycopg.Connection, function: str) -> None:
    arguments, result = FUNCTIONS[function]
    found = rows(admin, _SIGNATURES, [function])
    assert len(found) == 1, "an overload makes calls ambiguous"
    given, returned = found[0]
    assert returned == result
    expected = arguments.split(", ") if arguments else []
    assert given[: len(expected)] == expected
    assert all(" = " in added for added in given[len(expected) :]), "what is added has a default"
    acl = "has_function_privilege('public', p.oid, 'execute')"
    of_workers = {"dispatch", "run_subscribers"}
    public = column(
        admin, f"select {acl} from pg_proc p where pronamespace = 'pgps'::regnamespace and proname = %s", [function]
    )
    assert public == [function not in of_workers]


def test_schemas_are_what_they_are_for(admin: psycopg.Connection, quote: str) -> None:
    usage: dict[str, bool] = dict(
        rows(
            admin,
            "select nspname::text, has_schema_privilege('public', oid, 'usage') from pg_namespace",
        )
    )
    assert all(usage[schema] for schema in ("pgps", "pgps_event", "pgps_queue"))
    kinds = column(
        admin,
        "select distinct relkind::text from pg_class where relnamespace = 'pgps'::regnamespace and relkind <> 'c'",
    )
    assert kinds == ["v"], "functions and catalogue views, nothing else"
    assert not usage["pgps_internal"], "nobody's but the owner's"
    assert value(admin, "select to_regtype(%s) is not null", [f"pgps_event.{quote}"]), (
        "its row type is the event's type"
    )
    assert rows(admin, _COLUMNS, [f"pgps_event.{quote}"])[-2:] == [("_producer", "text"), ("_producer_seq", "bigint")]


@pytest.mark.parametrize("kind", QUEUES)
def test_a_queue_shows_attributes_then_its_own_columns(
    admin: psycopg.Connection, quote: str, kind: str, connect: Connect, role: Callable[..., str]
) -> None:
    view = queue(quote, kind)
    expected = [*ATTRIBUTES.items(), *QUEUES[kind].items()]
    assert rows(admin, _COLUMNS, [view])[: len(expected)] == expected
    for statement in (
        f"insert into {view} (event_id) values (1)",
        f"update {view} set state = ''",
        f"delete from {view}",
        f"truncate {view}",
    ):
        with pytest.raises(psycopg.Error):
            rows(admin, statement)
    rows(admin, f"revoke select on pgps_event.{quote} from public")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        rows(connect(role("stranger")), f"select * from {view}")


@pytest.mark.parametrize("view", VIEWS)
def test_a_catalogue_view_has_its_columns(admin: psycopg.Connection, view: str) -> None:
    found = [row[0] for row in rows(admin, _COLUMNS, [f"pgps.{view}"])]
    assert set(VIEWS[view].split()) <= set(found), sorted(set(VIEWS[view].split()) - set(found))
    assert value(admin, "select has_table_privilege('public', %s, 'select')", [f"pgps.{view}"])


def test_the_statement_language(own_database: str, connect: Connect, role: Callable[..., str]) -> None:
    admin, reader = connect(dsn=own_database), role("reader")
    rows(admin, "create table public.trade (symbol text, price numeric)")
    rows(admin, "create table public.seen (price numeric, symbol text)")
    rows(
        admin,
        "create function public.note(numeric, text) returns void language sql as "
        "'insert into public.seen values ($1, $2)'",
    )
    said = [
        call(admin, "execute", statement)
        for statement in (
            "CREATE EVENT TYPE quote AS (symbol text, price numeric)",
            "ADVERTISE quote",
            "CREATE RULE r AS ON INSERT TO public.trade WHERE new.price > 1 PUBLISH quote (new.symbol, new.price)",
            "CREATE LOCAL SUBSCRIPTION cheap ON quote WHERE price < 50",
            "CREATE GLOBAL SUBSCRIPTION everywhere ON quote",
            "CREATE SUBSCRIPTION noted ON quote WHERE symbol = 'IBM' EXECUTE public.note(price, symbol) WITH 7",
            "PUBLISH quote ('IBM', 40)",
            "PUBLISH IMMEDIATE NON-GUARANTEED quote ('SUN', 60)",
            "PUBLISH DEFERRED GUARANTEED quote ('SUN', 61)",
            "ALTER QUEUE quote_in SET AUDITABLE",
            "ALTER QUEUE quote_in SET NON-AUDITABLE",
            f"GRANT PUBLISH ON EVENT TYPE quote TO {reader}",
            f"GRANT SUBSCRIBE ON EVENT TYPE quote TO {reader}",
            f"REVOKE PUBLISH ON EVENT TYPE quote FROM {reader}",
            "CREATE LINK far TO localhost 5433 USING somebody secret",
            "UNADVERTISE quote",
        )
    ]
    assert all(said)
    call(admin, "execute", "ADVERTISE quote")
    rows(admin, "insert into public.trade values ('OLD', 1), ('NEW', 2)")
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")
    assert rows(admin, "select symbol, price from public.seen") == [("IBM", 40)]
    prices = "select (payload ->> 'price')::int from pgps.receive('{}')"
    assert sorted(column(admin, prices.format("cheap"))) == [2, 40]
    assert sorted(column(admin, prices.format("everywhere"))) == [2, 40, 60, 61]
    assert rows(admin, "select name, scope, priority from pgps.subscriptions order by name") == [
        ("cheap", "local", 0),
        ("everywhere", "global", 0),
        ("noted", "local", 7),
    ]
    (link,) = value(admin, "select pgps.serve_links()")
    assert conninfo_to_dict(link["conninfo"]) == {
        "host": "localhost",
        "port": "5433",
        "dbname": admin.info.dbname,
        "user": "somebody",
        "password": "secret",
    }
    right = "select has_table_privilege(%s, 'pgps_event.quote', %s)"
    assert [value(admin, right, [reader, each]) for each in ("select", "insert")] == [True, False]
    assert column(admin, "select name from pgps.links") == ["far"]
    with refused("2BP01"):
        call(admin, "execute", "DROP EVENT TYPE quote")
    call(admin, "execute", "DROP EVENT TYPE quote CASCADE")
    assert rows(admin, "select name from pgps.event_types where name = 'quote'") == []


def test_who_waits_listens_on_the_channel_of_its_subscription(own_database: str, connect: Connect) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "tick")
    call(admin, "subscribe", "s", "tick")
    number, channel = rows(admin, "select subscription_id, channel from pgps.subscriptions")[0]
    assert channel == f"pgps_{number}"
    rows(admin, f"listen {channel}")
    publish(admin, "tick", 1)
    rows(admin, "select pgps.dispatch()")
    assert [(note.channel, note.payload) for note in notifications(admin)] == [(channel, "")]
    assert take(admin, "s") == [1]


def test_errors_have_their_codes_and_say_what_to_do(
    admin: psycopg.Connection, quote: str, named: str, connect: Connect, role: Callable[..., str]
) -> None:
    stranger = connect(role("stranger"))
    with refused("42704", "nothing_like_it"):
        call(admin, "advertise", "nothing_like_it")
    with refused("42710", quote):
        call(admin, "create_event_type", quote, "n integer")
    with refused("42501"):
        call(stranger, "create_event_type", "stranger_event", "n integer")
    with refused("55000", quote):
        call(stranger, "publish", quote, '{"symbol": "IBM", "price": 1}')
    with refused("22023", "sometimes"):
        call(admin, "create_event_type", "sometimes_event", "n integer", visibility="sometimes")
    for code, event in (("23514", '{"symbol": "IBM", "price": -1}'), ("23502", '{"price": 1}')):
        with pytest.raises(psycopg.errors.IntegrityError) as caught:
            call(admin, "publish", quote, event)
        assert caught.value.sqlstate == code
    with refused("42703"):
        call(admin, "subscribe", named, quote, "colour = 'red'")
    with refused("54000"):
        call(admin, "subscribe", named, quote, "(" * 200 + "price > 1" + ")" * 200)


def test_named_notation_works_for_every_argument(
    admin: psycopg.Connection, quote: str, named: str, name: Callable[..., str]
) -> None:
    """A few that others build on, called as programs do."""
    other = name("other")
    kind = {"visibility": "deferred", "reliability": "guaranteed", "handler": "all"}
    call(admin, "create_event_type", name=other, attributes="n integer", persistent=True, auditable=False, **kind)
    call(admin, "alter_queue", queue=f"{other}_in", auditable=True, persistent=None, retention="1 day")
    call(admin, "alter_event_type", name=other, add_attribute="m text", drop_attribute=None)
    call(admin, "advertise", event_type=other)
    wanted = {"filter": "n > 1", "scope": "local", "execute": None, "priority": 1, "start": "now"}
    call(admin, "subscribe", name=named, event_type=other, max_attempts=2, handler="all", **wanted)
    first, again = (
        call(admin, "publish", event_type=other, payload='{"n": 2}', producer="p", producer_seq=1, **kind) for _ in "12"
    )
    assert first == again, "a repeat"
    call(admin, "dispatch", max_events=None)
    received = rows(admin, "select event_id, attempt from pgps.receive(subscription => %s, max_events => 5)", [named])
    assert received == [(first, 1)]
    assert rows(admin, "select step from pgps.explain(subscription => %s, event_id => %s)", [named, first])[0] == (
        "published",
    )
    call(admin, "nack", subscription=named, event_id=first, error="no", retry_in="0")
    rows(admin, "select 1 from pgps.receive(%s)", [named])
    assert call(admin, "ack", subscription=named, up_to=first) == 1
    assert call(admin, "retry_exception", event_type=other, event_id=first, subscription=named) == 0
    assert call(admin, "discard_exception", event_type=other, event_id=first, subscription=named) == 0
    call(admin, "seek", name=named, start="now")
    call(admin, "pause", name=named)
    call(admin, "resume", name=named)
    changed = {"filter": "", "priority": 0, "max_attempts": 1}
    call(admin, "alter_subscription", name=named, dead_after="1 hour", max_backlog=9, on_backlog="suspend", **changed)
    call(admin, "unsubscribe", name=named)
    call(admin, "unadvertise", event_type=other)
    call(admin, "drop_event_type", name=other, cascade=True)
