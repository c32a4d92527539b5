"""Generated code: written the same each time, noted with its digest, built again where it differs and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import column, refused, rows, value
from tests.fix_db import Connect
from tests.migration.furnished import furnish, generated

REBUILD = "select pgps_internal.rebuild()"
# Which row of the catalogue it is, and which version of that row.
VERSIONS = """
    select g.name, coalesce(p.xmin, c.xmin)::text from pgps_internal.generated g
    left join pg_proc p on p.oid = to_regproc(g.name) left join pg_class c on c.oid = to_regclass(g.name)
"""


@pytest.fixture
def broker(own_database: str, connect: Connect, role: Callable[..., str]) -> psycopg.Connection:
    """A broker in use, as its superuser."""
    connection = connect(dsn=own_database)
    furnish(connection, role("owner"), role("reader"))
    # What the first release did not have.
    connection.execute("create function public.note_values(symbol text, n bigint) returns void language sql as ''")
    connection.execute("create function public.note_any(e record) returns void language plpgsql as 'begin null; end'")
    connection.execute("select pgps.subscribe('any', 'alarm', execute => 'public.note_any')")
    connection.execute("select pgps.subscribe('valued', 'trade.eu', execute => 'public.note_values(symbol, id)')")
    return connection


def versions(connection: psycopg.Connection) -> dict[str, str]:
    return dict(rows(connection, VERSIONS))


def otherwise(connection: psycopg.Connection, function: str, old: str, new: str) -> None:
    """Let another release's generator write something else."""
    text: str = value(connection, "select pg_get_functiondef(%s::regproc)", [f"pgps_internal.{function}"])
    assert old in text
    connection.execute(text.replace(old, new).encode())


def test_what_is_written_again_is_what_was_built(broker: psycopg.Connection) -> None:
    differing = "select (a.piece).name from pgps_internal.all_pieces() a where not pgps_internal.is_built(a.piece)"
    assert column(broker, differing) == []
    before = versions(broker)
    assert value(broker, REBUILD) == 0
    assert versions(broker) == before


def test_all_that_is_generated_is_noted(broker: psycopg.Connection) -> None:
    unknown = r"""
        select p.proname from pg_proc p
        where p.pronamespace = 'pgps_internal'::regnamespace and p.proname ~ '_\d+(_[a-z]+)?$'
            -- Those of rules are made on every upgrade.
            and p.proname !~ '^rule_'
            and not exists (select from pgps_internal.generated g where to_regproc(g.name) = p.oid)
        union all
        select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'pgps_queue'
            and not exists (select from pgps_internal.generated g where to_regclass(g.name) = c.oid)
        union all
        select p.proname from pg_proc p where p.pronamespace = 'pgps_queue'::regnamespace
            and not exists (select from pgps_internal.generated g where to_regproc(g.name) = p.oid)
    """
    assert column(broker, unknown) == []
    written = set(column(broker, "select (a.piece).name from pgps_internal.all_pieces() a"))
    assert set(column(broker, "select name from pgps_internal.generated")) == written


def test_only_what_a_generator_writes_otherwise_is_built_again(broker: psycopg.Connection) -> None:
    before = versions(broker)
    otherwise(broker, "write_slice", "order by l.event_id limit", "order by l.event_id -- as ever\n limit")
    types = value(broker, "select count(*) from pgps_internal.event_type")
    assert value(broker, REBUILD) == types
    after = versions(broker)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == set(column(broker, "select 'pgps_internal.slice_' || type_id from pgps_internal.event_type"))
    assert value(broker, "select prosrc like '%%as ever%%' from pg_proc where proname = 'slice_1'")
    assert value(broker, REBUILD) == 0


def test_a_function_with_other_arguments_and_a_view_with_other_columns_take_the_place_of_the_old_ones(
    broker: psycopg.Connection,
) -> None:
    otherwise(broker, "write_slice", "pgps_max integer)", "pgps_max integer, pgps_more integer = 0)")
    otherwise(broker, "write_statement", "returns pgps_internal.control", "returns setof pgps_internal.control")
    otherwise(broker, "write_statement", "return v_statement;", "return next v_statement;")
    otherwise(broker, "write_queue_out", "o.subscription, o.matched_at", "o.matched_at, o.subscription")
    types = value(broker, "select count(*) from pgps_internal.event_type")
    assert value(broker, REBUILD) == 3 * types
    assert value(broker, "select count(*) from pg_proc where proname = 'slice_1'") == 1
    assert value(broker, "select proretset from pg_proc where proname = 'statement_1'")
    matched = "select attnum from pg_attribute where attrelid = 'pgps_queue.quote_out'::regclass and attname = %s"
    assert value(broker, matched, ["matched_at"]) < value(broker, matched, ["subscription"])


def test_what_is_missing_is_built_and_what_nothing_writes_any_more_is_dropped(broker: psycopg.Connection) -> None:
    before = generated(broker)
    broker.execute("drop function pgps_internal.slice_1")
    broker.execute("drop view pgps_queue.quote_out")
    broker.execute("create function pgps_internal.former_1() returns int language sql as 'select 1'")
    broker.execute("insert into pgps_internal.generated values ('pgps_internal.former_1', 'function', 1, '')")
    assert value(broker, REBUILD) == 2
    assert generated(broker) == before


def test_what_a_user_has_made_of_a_queue_stays_or_is_named(broker: psycopg.Connection) -> None:
    broker.execute("create view public.mine as select subscription, state from pgps_queue.quote_out")
    otherwise(broker, "write_queue_out", "'delivered', 'failed', 'gap'", "'delivered', 'failed', 'gap', 'none'")
    assert value(broker, REBUILD) == value(broker, "select count(*) from pgps_internal.event_type")
    assert rows(broker, "select * from public.mine") == []
    otherwise(broker, "write_queue_out", "o.subscription, o.matched_at", "o.matched_at, o.subscription")
    with refused("2BP01", '"pgps_queue.quote_out" cannot be made again'):
        rows(broker, REBUILD)


def test_nothing_is_noted_of_what_is_dropped(broker: psycopg.Connection) -> None:
    broker.execute("select pgps.drop_rule('ordered'), pgps.drop_confirm_event('settled', 'trade.eu')")
    for name in column(broker, "select name from pgps.subscriptions order by name"):
        broker.execute("select pgps.unsubscribe(quote_ident(%s))", [name])
    for name in column(broker, "select name from pgps_internal.event_type"):
        broker.execute("select pgps.drop_event_type(quote_ident(%s), cascade => true)", [name])
    assert column(broker, "select name from pgps_internal.generated where name !~ 'request_as'") == []


def test_a_template_is_given_all_its_words_and_what_is_put_in_is_left_as_it_is(admin: psycopg.Connection) -> None:
    render = "select pgps_internal.render(%s, %s::jsonb)"
    assert value(admin, render, ["a {b} '{}' {1} {b}{c}", '{"b": "{c}", "c": "$&"}']) == "a {c} '{}' {1} {c}$&"
    with refused("22023", "nothing is given for {c}"):
        rows(admin, render, ["{b} {c}", '{"b": "x"}'])
