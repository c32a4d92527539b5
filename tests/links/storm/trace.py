"""Record every change of the links' tables at each broker, so that reading it tells which broker lost an event.

Triggers on the tables of links keep each change in storm.trace, in the transaction that makes it. The trace of a
broker is put beside the report of a story that was not clean: one line a change, oldest first, with names for numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from tests.fix_broker import rows

_TABLES = {
    "neighbour": "name, is_draining, is_dropped_here, has_sent_all, epoch, refusal, is_blocked",
    "link_session": "duty",
    "offer": "path, types, is_draining",
    "origin": "parent, attachment, answered, is_settled, rewind_start, rewind_from, rewind_keep",
    "attached": "attachment, horizon, keep, missing, is_live",
    "activation": "key, since, is_confirmed",
    "wanted": "key, known_as, told, gone_batch",
    "told": "kind, key, value",
    "gap": "after_batch, upto",
    "arrival": "lseq, attachment, upto, horizon, events, ids, tallies",
    "shipment": "lseq, kind, attachment, previous, upto, batch_id, events, body",
    "audit_recount": "type_id, attachment, filters, upto, packed",
    "audit_finding": "kind, what, neighbour, type_id, after_batch, upto, there, here",
}  # fmt: skip
"""Tables, and the columns of each that tell something beside the neighbour and the origin that a row is of."""
_NEITHER = {"told": ("low",), "shipment": ("low", "audit")}
"""Kinds of rows that come all the time and change no route; but what the audit counts under filters is told."""

_SCHEMA = """
create table storm.trace (
    place bigint generated always as identity primary key, at timestamptz not null default clock_timestamp(),
    xid xid8 not null default pg_current_xact_id(), subject text not null, what text not null, was jsonb, became jsonb
);
create function storm.note() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    insert into storm.trace (subject, what, was, became)
    values (tg_argv[0], tg_op, case when tg_op <> 'INSERT' then to_jsonb(old) end,
        case when tg_op <> 'DELETE' then to_jsonb(new) end);
    return null;
end
$$;
"""


def lay(connection: psycopg.Connection) -> None:
    """Begin to trace a broker; copies of its database are traced, too."""
    connection.execute(_SCHEMA.encode())
    for table in _TABLES:
        connection.execute(
            f"create trigger storm_note after insert or update or delete on pgps_internal.{table}"
            f" for each row execute function storm.note('{table}')".encode()
        )


def read(connection: psycopg.Connection) -> list[str]:
    """Return the trace of a broker, one line for each change."""
    origins = {row[0]: f"{row[1]}/{row[2]}" for row in
               rows(connection, "select origin_id, name, epoch % 10000 from pgps_internal.origin")}  # fmt: skip
    keys = {row[0]: f"<{row[1]} {row[2]}>" for row in rows(
        connection,
        "select f.key, t.name, coalesce(f.filter, 'all') from pgps_internal.link_filter f"
        " join pgps_internal.event_type t using (type_id)",
    )}  # fmt: skip
    names: dict[int, str] = {}
    found = rows(
        connection,
        "select to_char(at, 'HH24:MI:SS.MS'), xid::text, subject, what, was, became from storm.trace order by place",
    )
    told = []
    for at, xid, subject, what, was, became in found:
        row = became or was
        if subject == "neighbour":
            names[row["neighbour_id"]] = f"{row['name']}#{row['neighbour_id']}"
        if row.get("kind") in _NEITHER.get(subject, ()) and "recounts" not in (row.get("body") or {}):
            continue
        of = [names.get(row.get("neighbour_id"), "")]
        if row.get("origin_id") is not None:
            of.append("of " + origins.get(row["origin_id"], str(row["origin_id"])))
        said = ", ".join(_said(subject, was, became, names))
        if said:
            line = f"{at} {xid:>6} {what.lower():6} {subject} {' '.join(filter(None, of))}: {said}"
            for key, text in keys.items():
                line = line.replace(key, text)
            told.append(line)
    return told


def _said(
    subject: str, was: dict[str, Any] | None, became: dict[str, Any] | None, names: dict[int, str]
) -> Iterator[str]:
    """Return the columns of a row, or those that have changed, as text."""

    def one(column: str, value: Any) -> Any:
        return names.get(value, value) if column == "parent" else value

    row = became or was or {}
    for column in map(str.strip, _TABLES[subject].split(",")):
        value = one(column, row.get(column))
        if was is not None and became is not None:
            before = one(column, was.get(column))
            if before != value:
                yield f"{column} {before} -> {value}"
            elif column in {"key", "kind", "attachment", "type_id"}:
                yield f"{column} {value}"
        elif value not in (None, [], False):
            yield f"{column} {value}"
