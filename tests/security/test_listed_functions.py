"""Which functions of PostgreSQL may stand in an administrator's expression: those that only compute."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, endpoint, quoted, refused, rows, value
from tests.fix_db import Connect
from tests.security.conftest import Mallory, may_fail

# Each makes a value of a type that is named by a text or a number.
MAKERS = [
    "record_in('(1)'::cstring, {pair}, -1) is not null",
    "domain_in('1'::cstring, {dom}, -1) is null",
    "array_in('{{1}}'::cstring, {dom}, -1) is null",
    "pg_input_is_valid(word, '{s}.dom')",
    "pg_input_is_valid(word, '{s}.dom[]')",
    "(pg_input_error_info(word, '{s}.pair')).message is null",
]
# Taken from PostgreSQL 15 to 18; that none of them is allowed by a name that it shares is what is tested.
REFUSED = """
    pg_get_viewdef pg_get_functiondef pg_get_expr pg_stat_get_activity pg_stat_get_backend_activity
    pg_stat_get_backend_client_addr pg_stat_get_tuples_inserted pg_stat_get_wal_senders current_setting
    pg_show_all_settings pg_settings_get_flags table_to_xml schema_to_xml database_to_xml query_to_xml cursor_to_xml
    to_regclass to_regtype regclass pg_relation_filepath pg_tablespace_location pg_sequence_parameters
    pg_prepared_statement pg_cursor pg_config pg_listening_channels obj_description pg_describe_object
    row_security_active json_populate_record jsonb_populate_record pg_input_is_valid pg_input_error_info record_in
    domain_in array_in range_in multirange_in enum_in anyenum_in record_recv satisfies_hash_partition
    postgresql_fdw_validator pg_partition_root ts_parse set_config pg_read_file pg_ls_dir lo_get nextval currval
    pg_sleep pg_terminate_backend pg_advisory_lock txid_current pg_current_xact_id pg_export_snapshot ts_stat
""".split()
NEWER = {"date_add": 160000, "date_subtract": 160000, "system_user": 160000}


@pytest.fixture
def eve(mallory: Mallory) -> Mallory:
    """An administrator of pgps with data types whose checks note as whom they run."""
    rows(mallory.admin, f"grant pgps_admin to {quoted(mallory.role)}")
    s = mallory.schema
    rows(
        mallory.connection,
        f"create table {s}.calls (who name); grant insert, select on {s}.calls to public",
    )
    mallory.define("noted(integer)", "boolean", "true", before=f"insert into {s}.calls values (current_user);")
    rows(
        mallory.connection,
        f"create domain {s}.dom as integer check ({s}.noted(value)); create type {s}.pair as (a {s}.dom)",
    )
    return mallory


@pytest.mark.parametrize("text", MAKERS)
def test_no_type_is_named_by_a_value(
    eve: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str], text: str
) -> None:
    if "pg_input" in text and eve.admin.info.server_version < 160000:
        pytest.skip("this server has no pg_input_is_valid")
    alice, found = role("alice"), name("s")
    number_of = f"select '{eve.schema}.%s'::regtype::oid::integer"
    numbers = {kind: value(eve.admin, number_of % kind) for kind in ("dom", "pair")}
    reader = connect(alice)
    try:
        with pytest.raises(psycopg.Error) as caught:
            call(
                eve.connection, "create_policy", quoted(eve.event_type), "p", alice,
                text.format(s=eve.schema.replace('"', ""), **numbers),
            )  # fmt: skip
        assert caught.value.sqlstate in ("42501", "42804", "42883", "42725")
    finally:
        with may_fail("42"):
            call(reader, "subscribe", found, quoted(eve.event_type))
        rows(eve.admin, f"insert into {endpoint(eve.event_type)} values (1, '1')")
        rows(eve.admin, "select pgps.dispatch()")
        rows(reader, f"select from pgps_queue.{quoted(eve.event_type + '_in')}")
        assert set(column(eve.admin, f"select who from {eve.schema}.calls")) <= {eve.role}


def test_an_error_of_a_policy_does_not_tell_what_only_its_receiver_may_know(
    eve: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    alice, found = role("alice", "pg_monitor"), name("s")
    reader = connect(alice)
    secret = connect()
    number = secret.info.backend_pid
    rows(secret, "select 'a secret of the superuser'")
    text = (
        f"(select max(pg_stat_get_backend_activity(i)) from (select unnest(array[1, 2, 3, 4, 5, 6, 7, 8, 9]) as i) x"
        f" where pg_stat_get_backend_pid(i) = {number})::integer > n"
    )
    try:
        with refused("42501", "pg_stat_get"):
            call(eve.connection, "create_policy", quoted(eve.event_type), "p", alice, text)
    finally:
        call(reader, "subscribe", found, quoted(eve.event_type))
        rows(eve.admin, f"insert into {endpoint(eve.event_type)} values (1, '1')")
        rows(eve.admin, "select pgps.dispatch()")
        told = column(eve.connection, "select last_error from pgps.subscriptions where name = %s", [found])
        assert "secret" not in str(told)


def test_functions_that_are_allowed_take_values_alone(admin: psycopg.Connection) -> None:
    allowed = rows(
        admin,
        "select p.oid::regprocedure::text, p.proname, p.provolatile, array(select t::regtype::text "
        "from unnest(p.proargtypes) t) from pg_proc p "
        "where pgps_internal.is_listed(p.oid) and p.pronamespace = 'pg_catalog'::regnamespace",
    )
    assert value(admin, "select count(*) from pg_proc p where pgps_internal.is_listed(p.oid) is null") == 0
    names = {proname for _, proname, _, _ in allowed}
    assert {"int4eq", "lower", "now", "to_char", "jsonb_path_exists", "unnest", "sum", "bool_and"} <= names
    assert {*REFUSED} & names == set()
    naming = {"internal", "cstring", "oid", "regclass", "regtype", "regproc", "regprocedure", "regnamespace"}
    taking = {signature for signature, _, _, types in allowed if naming & {*types}}
    # Comparisons, and what writes a number as bytes.
    assert {one for one in taking if not re.match(r"oid|int8\(|reg\w+send\(|pg_has_role\(", one)} == set()
    assert {volatile for _, _, volatile, _ in allowed} == {"i", "s"}
    listed = set(value(admin, "select pgps_internal.listed_names()"))
    version = admin.info.server_version
    assert listed - {proname for _, proname, volatile, _ in allowed if volatile == "s"} == {
        proname for proname, since in NEWER.items() if version < since
    }


@pytest.mark.parametrize(
    "text",
    [
        "pg_has_role(current_user, 'pgps_link', 'member') or word like 'x%'",
        "to_char(now(), 'YYYY') > '2020' and n in (select unnest(array[1, n]))",
        "to_tsvector('english', word) @@ to_tsquery('english', 'x') and extract(year from now()) > 2000",
        "jsonb_build_object('a', n) @> '{\"a\": 1}' or now() at time zone 'UTC' < '3000-01-01'",
        "exists (select from pg_class c where c.oid = n::oid) or inet_client_addr() <<= '10.0.0.0/8'",
    ],
)
def test_a_policy_computes(eve: Mallory, role: Callable[..., str], text: str) -> None:
    call(eve.connection, "create_policy", quoted(eve.event_type), "p", role("alice"), text)


@pytest.mark.parametrize(
    "text",
    [
        "pg_read_file('PG_VERSION') = word",
        "nextval('public.nowhere') > n",
        "n > (select max(pg_backend_pid()) from pg_class c)",
        "word::regclass = n::regclass",
        "current_setting('data_directory') = word",
        "query_to_xml('select', true, true, '') is null",
    ],
)
def test_a_policy_does_nothing_else(eve: Mallory, role: Callable[..., str], text: str) -> None:
    rows(eve.admin, "create sequence if not exists public.nowhere")
    with refused("42501", "calls function"):
        call(eve.connection, "create_policy", quoted(eve.event_type), "p", role("alice"), text)
    rows(eve.admin, "drop sequence public.nowhere")
