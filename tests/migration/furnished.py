"""A broker in use: something of everything for which a release generates code, and what was generated."""

from __future__ import annotations

import re

import psycopg
from psycopg import sql

# `{owner}` may create event types, `{reader}` only reads; the same text runs under every release since 0.1.0.
_MADE = """
    grant pgps_admin to {owner};
    grant create on schema public to {owner};
    create table public.watched (symbol text primary key);
    insert into public.watched values ('abc'), ('xyz');
    create table public.seen (who text, n bigint);
    create type public.mood as enum ('calm', 'nervous');
    grant all on public.watched, public.seen to {owner}, {reader};
    set role {owner};
    create table public.orders (id bigint primary key, symbol text, amount numeric);
    select pgps.create_event_type('quote', 'symbol text not null, price numeric default 1, at timestamptz');
    select pgps.create_event_type('"Odd $body$ {{log}} %s"',
        '"a b" integer, "%s {{log}} $body$" text, state text, moods mood[]');
    select pgps.create_event_type('alarm', 'n bigint, "text" text', visibility => 'immediate');
    select pgps.create_event_type('shed', 'n bigint', reliability => 'non-guaranteed');
    select pgps.create_event_type('trade.eu', 'id bigint, symbol text, amount numeric');
    select pgps.create_event_type('bare', 'lone integer');
    select pgps.create_event_type('settled', 'original bigint, committed boolean');
    select pgps.alter_event_type('quote', add_attribute => 'venue text default ''here''');
    select pgps.alter_event_type('bare', add_attribute => 'more text', drop_attribute => 'lone');
    select pgps.advertise(t) from unnest(array['quote', 'alarm', 'shed', 'trade.eu', 'bare', 'settled']) t;
    select pgps.advertise('"Odd $body$ {{log}} %s"');
    grant select, insert on pgps_event.quote, pgps_event.alarm, pgps_event."trade.eu" to {reader};
    select pgps.alter_queue('quote_out', auditable => true);
    create function public.note(e pgps_event.quote) returns void language sql
        as $$ insert into public.seen select 'note', (e.price)::bigint $$;
    create function public.note_batch(e pgps_event."trade.eu"[]) returns void language sql
        as $$ insert into public.seen select 'batch', (x).id from unnest(e) x $$;
    create function public.note_alarm(e pgps_event.alarm) returns void language sql
        as $$ insert into public.seen select 'alarm', e.n $$;
    select pgps.subscribe('all quotes', 'quote');
    select pgps.subscribe('cheap', 'quote', 'price < 10 and symbol = ''abc''');
    select pgps.subscribe('cheaper', 'quote', 'price < 5 and symbol = ''abc''');
    select pgps.subscribe('watched', 'quote', 'symbol in (select w.symbol from public.watched w) and price > 2');
    select pgps.subscribe('noted', 'quote', 'price >= 1', execute => 'public.note');
    select pgps.subscribe('batched', 'trade.eu', execute => 'public.note_batch');
    select pgps.subscribe('alarmed', 'alarm', execute => 'public.note_alarm');
    select pgps.subscribe('trades', 'trade.*');
    select pgps.subscribe('shared', 'trade.eu', handler => 'any');
    select pgps.subscribe('odd', '"Odd $body$ {{log}} %s"', '"a b" > 3 and "%s {{log}} $body$" <> ''{{log}}''');
    select pgps.subscribe('shed', 'shed', 'n % 2 = 0');
    select pgps.subscribe('bare', 'bare', 'more is not null');
    select pgps.create_policy('quote', 'cheap_only', {reader_name}, 'price < 100');
    select pgps.create_rule('ordered', 'public.orders', 'INSERT', 'trade.eu',
        array['new.id', 'new.symbol', 'new.amount'], 'new.amount > 0');
    select pgps.link_confirm_event('settled', 'trade.eu');
    reset role;
    set role {reader};
    select pgps.advertise('quote');
    select pgps.subscribe('seen by the reader', 'quote', 'price > 0');
    reset role;
    set role {owner};
    select session from pgps.connect_client('desk');
    select pgps.register_for_event('desk', 'trade.eu');
    select pgps.register_for_event('desk', 'alarm', mode => 'direct');
    select pgps.send_request('desk', 'select 1 as one', id => 1,
        session => (select session from pgps.clients where name = 'desk'));
    reset role;
"""

_GENERATED = r"""
    with f as (
        select p.oid::regprocedure::text as name, p.* from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = 'pgps_internal' and p.proname ~ '^[a-z_]+_\d+(_\w+)?$' or n.nspname = 'pgps_queue'
    ),
    r as (
        select c.oid::regclass::text as name, c.* from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname in ('pgps_queue', 'pgps_link', 'pgps_event', 'pgps_stage')
            or n.nspname ~ '^pgps_log_\d$' or n.nspname = 'pgps_entry' and c.relname ~ '^log_\d+$'
            or n.nspname = 'pgps_internal' and c.relname ~ '^wire_\d+$'
            or n.nspname = 'pgps_internal' and c.relname ~ '_(entry|log|kept|audit)$'
                and exists (select from pgps_internal.event_type t where starts_with(c.relname, t.name))
    )
    select f.name, pg_get_functiondef(f.oid) from f
    union all
    select f.name || ' owner, rights, comment',
        concat_ws(' ', f.proowner::regrole, f.proacl, obj_description(f.oid, 'pg_proc')) from f
    union all
    select r.name || ' kind, owner, rights, options',
        concat_ws(' ', r.relkind, r.relowner::regrole, r.relacl, r.reloptions) from r
    union all
    select r.name || ' columns', (
        select string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attacl,
            pg_get_expr(d.adbin, d.adrelid)), ', ' order by a.attnum)
        from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped)
    from r where r.relkind in ('v', 'c', 'r', 'p')
    union all
    select r.name || ' view', pg_get_viewdef(r.oid) from r where r.relkind = 'v'
    union all
    select r.name || ' rule ' || w.rulename, w.ev_enabled::text || pg_get_ruledef(w.oid)
    from r join pg_rewrite w on w.ev_class = r.oid where w.rulename <> '_RETURN'
    union all
    select r.name || ' trigger ' || t.tgname, t.tgenabled::text || pg_get_triggerdef(t.oid)
    from r join pg_trigger t on t.tgrelid = r.oid where not t.tgisinternal
"""


def furnish(connection: psycopg.Connection, owner: str, reader: str) -> None:
    """Make event types, subscriptions, clients and the rest, as the superuser, for two roles."""
    for statement in re.split(r";\n(?!\s+as \$\$)", _MADE):
        if statement.strip():
            connection.execute(
                sql.SQL(statement).format(
                    owner=sql.Identifier(owner), reader=sql.Identifier(reader), reader_name=sql.Literal(reader)
                )
            )


_NUMBERED = r"""
    select p.proname, regexp_replace(p.proname, '\d+$', p.proowner::regrole::text) from pg_proc p
    where p.pronamespace = 'pgps_internal'::regnamespace and p.proname ~ '^(request_as|visible_\d+)_\d+$'
"""


def generated(connection: psycopg.Connection) -> dict[str, str]:
    """Return what was generated in a database, spaces and line breaks as one space each.

    Functions that a role has for itself get any number; here they have the name of the role in its place.
    """
    roles: dict[str, str] = dict(connection.execute(_NUMBERED.encode()).fetchall())

    def written(text: str | None) -> str:
        named = re.sub(r"\b(?:request_as|visible_\d+)_\d+\b", lambda m: roles.get(m[0], m[0]), text or "")
        return " ".join(named.split())

    found = connection.execute(_GENERATED.encode()).fetchall()
    return {written(name): written(text) for name, text in found}
