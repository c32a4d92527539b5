-- What an event type may consist of: no reserved names, plain tables, types and expressions that can do no harm. Locks: none.

create or replace function pgps_internal.check_attribute_names(definition regclass, name text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_reserved text := (select a.name from pgps_internal.attributes_of(check_attribute_names.definition) a
        where a.name ~ '^pgps_' or a.name in ('event_id', 'xid') limit 1);
begin
    if v_reserved is not null then
        raise exception 'event type "%" has an attribute of the reserved name "%"', check_attribute_names.name, v_reserved
        using errcode = '42939', hint = 'Every event has an event_id and an xid already, and names that begin with pgps_ belong to pgps: choose another.';
    end if;
end
$$;
comment on function pgps_internal.check_attribute_names(regclass, text) is 'Raises 42939 when an attribute has a name that belongs to pgps';

create or replace function pgps_internal.require_plain(caller name, relation regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Whoever calls the second half directly may have made of the table what they like, and it is about to be ours: a rewrite
    -- rule on it would run with our rights. Locked first, so that it stays what it is found to be.
    if require_plain.relation is not null then
        execute format('lock table only %s in access exclusive mode', require_plain.relation);
    end if;
    if not exists (
        select from pg_class c
        where c.oid = require_plain.relation and c.relkind = 'r' and c.relpersistence = 'p' and c.reloftype = 0
            and c.relowner = quote_ident(require_plain.caller)::regrole and not c.relrowsecurity
            and not exists (select from pg_inherits i where c.oid in (i.inhrelid, i.inhparent))
            and not exists (select from pg_rewrite w where w.ev_class = c.oid)
            and not exists (select from pg_policy p where p.polrelid = c.oid)
            and not exists (select from pg_trigger g where g.tgrelid = c.oid and not g.tgisinternal)
            and not exists (select from pgps_internal.event_type t where t.endpoint = c.oid)
    ) then
        raise exception 'relation "%" is not a new plain table of role "%"', require_plain.relation, require_plain.caller
        using errcode = '55000', hint = 'Use pgps.create_event_type and pgps.alter_event_type.';
    end if;
    perform pgps_internal.require_trusted_types(require_plain.relation);
    if not (select r.rolsuper from pg_roles r where r.rolname = require_plain.caller) then
        perform pgps_internal.require_harmless_expressions(require_plain.relation);
    end if;
end
$$;
comment on function pgps_internal.require_plain(name, regclass) is
'Raises 55000 or 42501 unless the relation is a plain new table of caller whose types and expressions the owner of pgps may meet';

create or replace function pgps_internal.drop_set_constraints(endpoint regclass, name text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_dropped text;
    v_constraint text;
begin
    -- They would hold in the endpoint, which is always empty, and keep a table that is referenced from being truncated.
    for v_constraint in select c.conname from pg_constraint c
        where c.conrelid = drop_set_constraints.endpoint and c.contype in ('p', 'u', 'x', 'f') order by c.conname loop
        execute format('alter table %s drop constraint %I', drop_set_constraints.endpoint, v_constraint);
        v_dropped := concat_ws(', ', v_dropped, quote_ident(v_constraint));
    end loop;
    if v_dropped is not null then
        raise warning 'event type "%" does not keep the constraints %: they are about more than one event', drop_set_constraints.name, v_dropped
        using hint = 'NOT NULL and CHECK hold for events. To have repeats dropped, number them: columns _producer and _producer_seq.';
    end if;
end
$$;
comment on function pgps_internal.drop_set_constraints(regclass, text) is
'Drops what a queue of events does not check, keys and exclusions, and warns of it; a column of a primary key stays NOT NULL';

create or replace function pgps_internal.require_trusted_types(relation regclass) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type record;
begin
    -- Whoever owns a type can give it a CHECK or a cast to JSON, and dispatch and delivery run those with the rights of pgps.
    with recursive used (type_id) as (
        select a.atttypid from pg_attribute a
        where a.attrelid = require_trusted_types.relation and a.attnum > 0 and not a.attisdropped
        union
        select n.type_id
        from used u
        join pg_type t on t.oid = u.type_id
        cross join lateral (
            select t.typelem union all select t.typbasetype
            union all select a.atttypid from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
            union all select r.rngsubtype from pg_range r where t.oid in (r.rngtypid, r.rngmultitypid)
            union all select r.rngtypid from pg_range r where t.oid = r.rngmultitypid
        ) n(type_id)
        where n.type_id <> 0
    )
    select t.oid::regtype as name, r.rolname as owner into v_type
    from used u join pg_type t on t.oid = u.type_id join pg_roles r on r.oid = t.typowner
    where not r.rolsuper and t.typrelid <> require_trusted_types.relation limit 1;
    if found then
        raise exception 'data type % belongs to role "%", who is not a superuser', v_type.name, v_type.owner
        using errcode = '42501', hint = format('As a superuser: alter type %s owner to %I', v_type.name, current_user);
    end if;
end
$$;
comment on function pgps_internal.require_trusted_types(regclass) is
'Raises 42501 when a column''s data type, or one it is made of, belongs to somebody who is not a superuser';

create or replace function pgps_internal.require_harmless_expressions(relation regclass) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_function record;
begin
    -- Immediate events, added attributes and replays evaluate defaults and checks with the rights of pgps.
    select p.oid::regprocedure as name into v_function
    from (
        select d.adbin::text from pg_attrdef d where d.adrelid = require_harmless_expressions.relation
        union all
        select c.conbin::text from pg_constraint c where c.conrelid = require_harmless_expressions.relation and c.conbin is not null
    ) e(tree)
    cross join lateral (
        select m[1]::oid from regexp_matches(e.tree, ':(?:funcid|opfuncid) (\d+)', 'g') m
        union
        select o.oprcode::oid from regexp_matches(e.tree, ':opno (\d+)', 'g') m join pg_operator o on o.oid = m[1]::oid
    ) f(function_id)
    join pg_proc p on p.oid = f.function_id
    join pg_roles r on r.oid = p.proowner
    where not r.rolsuper or p.provolatile <> 'i' and p.oid not in (
        'now()'::regprocedure, 'transaction_timestamp()'::regprocedure, 'statement_timestamp()'::regprocedure,
        'clock_timestamp()'::regprocedure, 'timeofday()'::regprocedure, 'nextval(regclass)'::regprocedure,
        'gen_random_uuid()'::regprocedure, 'random()'::regprocedure)
        and not (p.provolatile = 's' and p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f'
            and p.proname ~ '^(date|time|timetz|timestamp|timestamptz|interval|to_char|to_date|to_timestamp|timezone|date_trunc|date_part|extract|textin|concat|format)');
    if found then
        raise exception 'a default or check calls function %, which only a superuser may put there', v_function.name
        using errcode = '42501', hint = 'Use immutable functions that belong to a superuser, now(), clock_timestamp(), random() or '
            'gen_random_uuid(), or let a superuser create the event type.';
    end if;
end
$$;
comment on function pgps_internal.require_harmless_expressions(regclass) is
'Raises 42501 when a default or check calls a function that could do more with the rights of pgps than compute a value';

revoke all on all functions in schema pgps_internal from public;
