"""Every public function with each argument made nasty in turn: what may come of a call, and what must not."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from tests.fix_broker import rows, value

# What a call may end with: bad values, unknown or taken names, no right, a wrong state, a limit, no session.
_ALLOWED = re.compile(
    "22...|23...|42501|42704|42710|42602|42622|42939|42703|42701|42804|42809|42883|42P13|55000|55006|54000|25001|2BP01"
    "|0A000|08001|08003"
)
# PostgreSQL's own words about what the user wrote as SQL: an expression, a list of columns, a statement.
_SQL_ARGUMENTS = frozenset(
    "filter attributes add_attribute using_expression condition execute callback statement request table_name"
    " expression partition_by".split()
)
_SYNTAX = re.compile("42601|42P01|42P10|42P02|42P16|42P18|42P20|42P22|42702|42725|42803|42846|3F000|42000")
# Nobody has given these names, so nobody should have to read them.
_INTERNAL = re.compile(
    r"pgps_internal|pgps_link\.|pgps_load\.|pgps_log_|pgps_stage|pgps_entry|_log_[0-3]\b|\bdo_[a-z_]+\(|pgps_policy_that|%[sIL]\b|\bv_[a-z]+\b"
    r"|plpy|Traceback|unrecognized|cache lookup"
)
SECONDS = 5.0
_CANCELLED = "SQLSTATE: 57014"  # by statement_timeout

_TEXTS: list[Any] = [
    "",
    " ",
    "no_such_thing",
    '"',
    '"x',
    'a"b',
    "x'",
    "é" * 20 + "x",
    "x" * 41,
    "größe 🐘",
    "a*",
    "*",
    "a\nb",
    "a.b.c",
    "%s %I $1",
    "\\",
    "select",
    "pgps_internal",
    "{}",
    "[1]",
    "'; drop schema pgps; --",
    "0",
    "-1",
    "now",
    "x" * 70000,
]
_NUMBERS: list[Any] = [0, 1, -1, 2**31 - 1, -(2**31)]
_BIG_NUMBERS: list[Any] = [*_NUMBERS, 2**31, 2**63 - 1, -(2**63)]
_JSON: list[Any] = [
    "null",
    "1",
    '"x"',
    "[]",
    "{}",
    "[[]]",
    "[null]",
    "[1, {}]",
    '{"n": "x"}',
    '{"n": {"a": 1}}',
    '{"nothing": 1}',
    '{"": 1}',
    '{"n": 1e400}',
    '{"n": 1, "_producer": "x"}',
    '{"kind": "types", "type": null}',
    '{"events": 7, "batch": [], "xid": "x"}',
]
_VALUES: dict[str, list[Any]] = {
    "text": _TEXTS,
    "name": [t for t in _TEXTS if len(t) < 64],
    "jsonb": _JSON,
    "integer": _NUMBERS,
    "bigint": _BIG_NUMBERS,
    "boolean": [True, False],
    "interval": ["0", "-1 day", "1 microsecond", "178000000 years", "1 mon"],
    "timestamp with time zone": ["-infinity", "infinity", "4713-01-01 BC", "294276-12-31"],
    "bytea": ["", "\\x00", "\\xff" * 10],
    "text[]": ["{}", "{NULL}", '{""}', '{"\\""}', "{no_such_thing}", "{{a,b},{c,d}}", "[5:6]={a,b}", "{n,n}"],
    "bigint[]": ["{}", "{NULL}", "{0}", "{-1,-1}", "{{1,2},{3,4}}", "{9223372036854775807}"],
    "interval[]": ["{}", "{NULL,NULL}", "{1 hour}", "{1 hour,2 hours,3 hours}", "{-1 hour,1 hour}"],
    "int8range": ["empty", "(,)", "[-5,5]", "[9223372036854775806,9223372036854775807)"],
    "tstzrange": ["empty", "(,)", "[-infinity,infinity]"],
    "regclass": ["pg_class", "pgps_event.tick", "pgps.event_types", "pgps_queue.tick_in", "public.fuzz_table"],
    "pg_snapshot": ["1:1:", "1:9223372036854775807:", "9223372036854775806:9223372036854775807:"],
}
# Names of everything that is there, mine and others', and of what is the broker's own.
_NAMES = [
    *(
        "tick other mine theirs tick_in my_rule their_rule a_link my_client their_client my_load loopback "
        "lease pgps_admin max_batch_events pgps_link pgps_internal.event_type my_policy my_spool their_spool "
        "a_network my_composite their_composite their/desk/mail"
    ).split(),
    "TICK",
    '"tick"',
    '"TICK"',
]


@dataclass(frozen=True)
class Function:
    """A function of schema pgps as the catalogue has it."""

    oid: int
    name: str
    arguments: list[tuple[str, str]]

    def query(self) -> str:
        """Return a call with every argument named, and a place for each."""
        places = ", ".join(f"{sql.Identifier(name).as_string(None)} => %s::{kind}" for name, kind in self.arguments)
        return f"select pgps.{sql.Identifier(self.name).as_string(None)}({places})"


def functions(connection: psycopg.Connection) -> list[Function]:
    """Return all functions of schema pgps; procedures commit, and have no arguments."""
    return [
        Function(oid, name, [(a, k) for a, k in zip(names or [], kinds, strict=False)])
        for oid, name, names, kinds in rows(
            connection,
            """
            select p.oid, p.proname::text, p.proargnames,
                array(select t::regtype::text from unnest(p.proargtypes::oid[]) with ordinality u(t, n) order by n)
            from pg_proc p where p.pronamespace = 'pgps'::regnamespace and p.prokind = 'f' and p.proname !~ '^_'
                and (p.prorettype <> 'record'::regtype or p.proargmodes is not null) order by p.proname
            """,
        )
    ]


# By name of the argument, and for a few functions by theirs, what a good call would give.
_GOOD: dict[str, Any] = {
    "event_type": "tick",
    "subscription": "mine",
    "name": "mine",
    "client": "my_client",
    "filter": "n = 1",
    "attributes": "{n}",
    "type_name": "tick",
    "payload": '{"n": 1}',
    "load": "my_load",
    "max_events": 10,
    "start": "now",
    "event_name": "tick",
    "confirming": "tick",
    "original": "other",
    "visibility": "deferred",
    "reliability": "guaranteed",
    "handler": "all",
    "scope": "local",
    "queue": "tick_in",
    "table_name": "public.fuzz_table",
    "operations": "insert",
    "run_as": "invoker",
    "request": "select 1",
    "statement": "advertise tick",
    "using_expression": "n = 1",
    "conninfo": "host=nowhere",
    "direction": "both",
    "event_id": 1,
    "event_ids": "{1}",
    "subscriptions": "{mine}",
    "max_attempts": 5,
    "mode": "queued",
    "style": "handler",
    "reader": "pgps_admin",
    "verb": "type_name",
    "args": '{"name": "tick"}',
    "max_tuples": 10,
    "max_rows": 10,
    "after": 0,
    "batch": 0,
    "event": 0,
    "upto_batch": 10,
    "upto_event": 10,
    "retried": "{}",
    "part": "fresh",
    "parts": "{}",
    "producer": "p",
    "producer_seq": 1,
    "ordered": True,
    "upto": 10,
    "sqlstate": "22000",
    "error": "x",
    "hurry": True,
    "id": 1,
    "request_no": 1,
    "request_id": 1,
    "hint": "x",
    "state": "up",
    "duty": "send",
    "origin": "x",
    "since": None,
    "peer": '{"name": "x"}',
    "parsed": "{}",
    "as": "clone",
    "execute": None,
    "condition": None,
    "search_path": "public",
    "notes": "{}",
    "condition_": None,
    "role": None,
    "priority": 0,
    "target": None,
    "max_segments": 1,
    "session": None,
    "type_id": 1,
    "member": "my_client",
    "class": "my",
    "server": "desk",
    "service": "mail",
    "entry": 1,
    "message": '"m"',
    "contacts": "{host=nowhere}",
    "option": "query",
    "conversation": "any",
    "privilege": "spool",
    "seqn": None,
    "play": True,
}
_NAME_OF = {
    "my_spool": "spool spool_many spool_and_discard prepend_and_discard spool_advise spool_discard spool_replay "
    "spool_play_through spool_set_checkpoint_pointer spool_set_replay_pointer drop_spool grant_spool revoke_spool "
    "receive_spooled ack_spooled join_group leave_group group_ready",
    "my_composite": "alter_composite_event explain_composite_event plan_composite_event reset_composite_event",
    "a_network": "alter_network drop_network",
    "fresh": "create_spool create_network",
}
_GOOD_OF: dict[tuple[str, str], Any] = {
    **{(function, "name"): name for name, those in _NAME_OF.items() for function in those.split()},
    ("create_event_type", "name"): "fresh",
    ("create_service", "service"): "fresh",
    ("grant_service", "privilege"): "send",
    ("revoke_service", "privilege"): "send",
    ("grant_service", "role"): "pgps_worker",
    ("revoke_service", "role"): "pgps_worker",
    ("grant_spool", "role"): "pgps_worker",
    ("revoke_spool", "role"): "pgps_worker",
    ("send_message", "message"): "m",
    ("send_message", "conversation"): "new",
    ("send_message", "to_service"): "my/desk/mail",
    ("send_message", "option"): "sync",
    ("send_message", "store"): "off",
    ("receive_message", "option"): "any",
    ("syncpoint", "conversation"): None,
    ("spool", "sender"): None,
    ("spool", "ordering"): "cbcast",
    ("spool_many", "messages"): '[{"entry": 1, "message": 1}]',
    ("spool_set_checkpoint_pointer", "seqn"): 1,
    ("spool_set_replay_pointer", "seqn"): 1,
    ("create_spool", "on_limit"): "refuse",
    ("spool_advise", "on_limit"): "refuse",
    ("explain_composite_event", "event_id"): 1,
    ("network_take", "batch"): "{}",
    ("network_reached", "batch"): "{}",
    ("create_event_type", "attributes"): "n integer",
    ("create_rule", "name"): "fresh",
    ("create_rule", "attributes"): "{new.n}",
    ("subscribe", "name"): "fresh",
    ("create_link", "name"): "fresh",
    ("alter_link", "name"): "a_link",
    ("drop_link", "name"): "a_link",
    ("resync_link", "name"): "a_link",
    ("note_link", "name"): "a_link",
    ("drop_rule", "name"): "my_rule",
    ("drop_policy", "name"): "my_policy",
    ("create_policy", "name"): "fresh",
    ("create_policy", "role"): "pgps_worker",
    ("configure", "name"): "lease",
    ("configure", "value"): "60 seconds",
    ("alter_event_type", "name"): "tick",
    ("drop_event_type", "name"): "other",
    ("link_begin", "batch"): "{}",
    ("link_apply", "batch"): "{}",
    ("link_take", "batch"): "{}",
    ("nack_events", "error"): "x",
    ("all_ended", "since"): "1:1:",
    ("receive_event", "event"): "tick",
    ("_publisher", "role"): "pgps_admin",
    ("publish_load", "events"): None,
    ("publish", "producer"): None,
    ("publish", "producer_seq"): None,
    ("_insert_events", "payload"): '[{"n": 1}]',
    ("link_next", "after"): 0,
    ("alter_event_type", "add_attribute"): None,
    ("alter_event_type", "drop_attribute"): None,
    ("alter_event_type", "dedupe_retention"): "1 day",
    ("parse_attributes", "attributes"): "n integer",
    ("create_composite_event", "name"): "fresh",
    ("create_composite_event", "expression"): "tick",
    ("create_composite_event", "context"): "recent",
    ("create_composite_event", "filter"): None,
    ("create_composite_event", "attributes"): None,
    ("create_composite_event", "time_basis"): "arrival",
    ("create_composite_event", "lateness"): "0",
    ("try_composite_event", "expression"): "tick",
    ("try_composite_event", "context"): "recent",
    ("try_composite_event", "filter"): None,
    ("try_composite_event", "attributes"): None,
    ("try_composite_event", "time_basis"): "arrival",
    ("try_composite_event", "lateness"): "0",
    ("describe_composite", "given"): '{"expression": "tick"}',
    ("parse_statement", "statement"): "advertise tick",
    ("check_callback", "execute"): "public.fuzz_callback",
    ("check_call", "parsed"): '{"function": "abs", "arguments": "n"}',
    ("parse_callback", "callback"): "f(n)",
    ("link_confirm_event", "confirming"): "other",
    ("link_confirm_event", "original"): "tick",
}


def good(function: Function) -> list[Any]:
    """Return arguments of a call that is all right, as far as their names tell."""
    return [_GOOD_OF.get((function.name, name), _GOOD.get(name)) for name, _ in function.arguments]


def calls(function: Function) -> Iterator[tuple[str | None, list[Any]]]:
    """Tell which calls to try: a good one, then each argument in turn with each nasty value, with its name."""
    base = good(function)
    yield None, base
    for at, (name, kind) in enumerate(function.arguments):
        nasty = [None, *_VALUES.get(kind, [])]
        if kind in ("text", "name"):
            nasty += _NAMES
        for item in nasty:
            if item != base[at]:
                yield name, [*base[:at], item, *base[at + 1 :]]


def fault(connection: psycopg.Connection, function: Function, argument: str | None, args: list[Any]) -> str | None:
    """Call, roll back, and return what is wrong with the outcome; None when nothing is.

    What has taken long, or too long, is called again: when the machine was busy with something else it is quick then.
    """
    for _ in range(3):
        started = time.monotonic()
        found = outcome(connection, function, argument, args)
        seconds = time.monotonic() - started
        if seconds <= SECONDS or (found is not None and _CANCELLED not in found):
            return found
    return found or f"took {seconds:.1f} seconds"


def outcome(connection: psycopg.Connection, function: Function, argument: str | None, args: list[Any]) -> str | None:
    """Call, roll back, and return what is wrong with what came of it, whenever that was."""
    try:
        connection.execute(function.query().encode(), args)
    except psycopg.Error as error:
        if connection.broken or connection.closed:
            return "the connection is lost"
        return wrong_error(error, argument, args)
    finally:
        if not connection.closed:
            connection.rollback()
    return None


def wrong_error(error: psycopg.Error, argument: str | None, args: list[Any]) -> str | None:
    """Return what an error lacks that an error of pgps should have."""
    diag, state = error.diag, error.sqlstate or ""
    said = " ".join(filter(None, [diag.message_primary, diag.message_detail, diag.message_hint]))
    # PostgreSQL could not even read the argument, or reads SQL that the user wrote.
    context = diag.context or ""
    own_words = not context or context.startswith("unnamed portal parameter") or argument in _SQL_ARGUMENTS
    typed = " ".join(str(arg) for arg in args)
    if any(found.group() not in typed for found in _INTERNAL.finditer(said)):
        return f"internal name: {state} {said}"
    if not (_ALLOWED.fullmatch(state) or (argument in _SQL_ARGUMENTS and _SYNTAX.fullmatch(state))):
        return f"SQLSTATE: {state} {said}"
    if not diag.message_hint and not own_words and not (argument == "payload" and state[:2] == "22"):
        return f"no hint: {state} {said}"
    return None


def left_behind(connection: psycopg.Connection) -> dict[str, Any]:
    """Return what of a session outlives a transaction: locks, prepared statements, settings, channels and so on."""
    return {
        "locks": rows(
            connection,
            "select classid, objid, mode from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'",
        ),
        "prepared": rows(connection, "select name from pg_prepared_statements where from_sql"),
        "settings": rows(connection, "select name, setting from pg_settings where source = 'session' order by 1"),
        "channels": rows(connection, "select pg_listening_channels()"),
        "cursors": rows(connection, "select name from pg_cursors where is_holdable"),
        "temporary": value(connection, "select count(*) from pg_class where relnamespace = pg_my_temp_schema()"),
        "user": rows(connection, "select current_user, session_user"),
    }
