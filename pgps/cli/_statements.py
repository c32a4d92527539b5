"""What the command line does: calls of public functions, and statements of its sessions. Reads are in `_catalogue`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, LiteralString

from psycopg.sql import SQL, Composed, Identifier, Literal

from pgps._catalogue import folded

__all__: list[str] = []

SESSION = "set jit = off; set datestyle = iso; set default_transaction_isolation = 'read committed'"
"""What a session begins with."""
PROBE = "select pgps.parse_statement('ADVERTISE probe')"
# Where the client parses, the parsers of the server look results up, so that they are not immutable.
CLIENT_PARSES = """
    select p.oid from pg_proc p where p.oid = to_regprocedure('pgps.parse_statement(text)') and p.provolatile = 's'
"""


def call(function: str, /, **arguments: Any) -> Composed:
    """Return `select pgps.function(name => value, …)`; an argument that is None is left out."""
    named = [
        SQL("{} => {}").format(SQL(name), Literal(value))  # names are this program's own
        for name, value in arguments.items()
        if value is not None
    ]
    return SQL("select pgps.{}({})").format(SQL(function), SQL(", ").join(named))


_PATTERN: dict[str, LiteralString] = {
    "keys": "{} => {}::jsonb",
    "seqn": "{} => {}::int8range",
    "spooled_at": "{} => {}::tstzrange",
    "spooled_ago": "{} => {}::interval[]",
    "keywords": "{} => {}::text[]",
}


def of_pattern(
    function: str, spool: str, keys: dict[str, list[float | None]] | None, **given: str | Sequence[str | None] | None
) -> Composed:
    """Return the call of pgps.spool_replay or pgps.spool_discard; what is None is not asked for."""
    arguments = {"keys": None if keys is None else json.dumps(keys), **given}
    named = [
        SQL(_PATTERN.get(name, "{} => {}")).format(SQL(name), Literal(value))
        for name, value in arguments.items()
        if value is not None
    ]
    return SQL("select pgps.{}({})").format(SQL(function), SQL(", ").join([Literal(spool), *named]))


def of_service(function: str, service: str, **arguments: Any) -> Composed:
    """Return a call about a service, class/server/service; an argument that is None is left out."""
    parts = [*service.split("/", 2), "", ""][:3]
    return call(function, **dict(zip(("class", "server", "service"), parts, strict=True)), **arguments)


def acknowledge_gaps(subscription: str | None) -> Composed:
    """Return the call that discards the gaps in what came over links, or over one (`link <neighbour>`)."""
    return SQL("select pgps.discard_exception(null, subscription => {})").format(Literal(subscription))


def grant(verb: str, privileges: list[str], event_type: str, role: str) -> Composed:
    """Return a plain GRANT or REVOKE on the publish endpoint; the role PUBLIC is everybody."""
    kinds = {"publish": SQL("insert"), "subscribe": SQL("select")}
    return SQL("{} {} on pgps_event.{} {} {}").format(
        SQL("grant") if verb == "grant" else SQL("revoke"),
        SQL(", ").join(kinds[name] for name in privileges),
        Identifier(folded(event_type)),
        SQL("to") if verb == "grant" else SQL("from"),
        SQL("public") if role.lower() == "public" else Identifier(folded(role)),
    )


# ---------------------------------------------------------------------------
# Publishing and receiving
# ---------------------------------------------------------------------------

PUBLISH = """
    select pgps.publish(%(event_type)s, %(payload)s::jsonb, visibility => %(visibility)s,
                        reliability => %(reliability)s, producer => %(producer)s,
                        producer_seq => %(producer_seq)s)"""

RECEIVE = """
    select event_id, event_type, payload, published_at, publisher, xid::text as xid, origin, attempt
    from pgps.receive(%(subscription)s, %(max_events)s)"""

ACK = "select pgps.ack(%(subscription)s)"


def listen(channel: str) -> Composed:
    """Return the statement that waits on a subscription's channel."""
    return SQL("listen {}").format(Identifier(channel))


# ---------------------------------------------------------------------------
# The shell
# ---------------------------------------------------------------------------

EXECUTE = "select pgps.execute(%s)"
PARSE = "select pgps.parse_statement(%s) ->> 'verb' as verb"

WORDS = """
    select 'event type' as kind, name::text as word from pgps.event_types
    union all select 'queue', queue::text from pgps.queues
    union all select 'subscription', name::text from pgps.subscriptions
    union all select 'rule', name::text from pgps.rules
    union all
    select distinct 'attribute', a ->> 'name' from pgps.event_types, jsonb_array_elements(attributes) a
    union all
    select distinct 'function', 'pgps.' || quote_ident(p.proname) from pg_catalog.pg_proc p
    where p.pronamespace = 'pgps'::regnamespace
    union all
    select 'view', 'pgps.' || quote_ident(c.relname) from pg_catalog.pg_class c
    where c.relnamespace = 'pgps'::regnamespace and c.relkind = 'v'
    union all
    select 'table', quote_ident(c.relname) from pg_catalog.pg_class c
    where c.relkind in ('r', 'v', 'm', 'f', 'p') and pg_catalog.pg_table_is_visible(c.oid)
      and c.relnamespace <> 'pg_catalog'::regnamespace
    union all
    select 'role', quote_ident(rolname) from pg_catalog.pg_roles where rolname !~ '^pg_'
"""
