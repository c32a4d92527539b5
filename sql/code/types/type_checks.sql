-- What an event type may consist of: a plain table without reserved names, of harmless types and expressions.
-- Locks: the table that is to become part of an event type, access exclusive.
-- Writes: nothing.

create or replace function pgps_internal.check_attribute_names(definition regclass, name text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_reserved text := (select a.name from pgps_internal.attributes_of(check_attribute_names.definition) a
        where a.name ~ '^(pgps_|\$[0-9]+$)' or a.name in ('event_id', 'xid') limit 1);
begin
    if v_reserved is not null then
        raise exception 'event type "%" has an attribute of the reserved name "%"', check_attribute_names.name,
            v_reserved
        using errcode = '42939',
            hint = 'Every event has an event_id and an xid already, names that begin with pgps_ belong to pgps, and '
            '$ with a number is a parameter: choose another.';
    end if;
end
$$;
comment on function pgps_internal.check_attribute_names(regclass, text) is
'Raises 42939 when an attribute has a name that belongs to pgps';

create or replace function pgps_internal.require_new_attributes(
    definition regclass, event_type pgps_internal.event_type
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_there text := (select a.name from pgps_internal.attributes_of(require_new_attributes.definition) a
        join pgps_internal.attributes_of((require_new_attributes.event_type).endpoint) t using (name) limit 1);
begin
    if v_there is not null then
        raise exception 'event type "%" has an attribute "%" already', (require_new_attributes.event_type).name, v_there
        using errcode = '42701', hint = 'Choose another name; there are: '
            || pgps._attribute_names((require_new_attributes.event_type).endpoint);
    end if;
end
$$;
comment on function pgps_internal.require_new_attributes(regclass, pgps_internal.event_type) is
'Raises 42701 when an event type has an attribute of one of these names';

create or replace function pgps_internal.require_plain(caller name, relation regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The second half may be called directly, with a table that the caller has changed in any way, and pgps is about to
    -- own it: a rewrite rule on it would run with the rights of pgps. Locked first, so that it cannot change after it
    -- was checked.
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
            -- Planning a statement on the table evaluates the constant parts of index and statistics expressions.
            and not exists (select from pg_index i where i.indrelid = c.oid
                and not exists (select from pg_constraint k where k.conindid = i.indexrelid))
            and not exists (select from pg_statistic_ext s where s.stxrelid = c.oid)
            and not exists (select from pgps_internal.event_type t where t.endpoint = c.oid)
    ) then
        raise exception 'relation "%" is not a new plain table of role "%"', require_plain.relation,
            require_plain.caller
        using errcode = '55000', hint = 'Use pgps.create_event_type and pgps.alter_event_type.';
    end if;
    perform pgps_internal.require_trusted_types(require_plain.caller, require_plain.relation);
    if not (select r.rolsuper from pg_roles r where r.rolname = require_plain.caller) then
        perform pgps_internal.require_harmless_expressions(require_plain.caller, require_plain.relation);
    end if;
end
$$;
comment on function pgps_internal.require_plain(name, regclass) is
'Raises 55000 or 42501 unless the relation is a plain new table of caller with types and expressions that are safe for
the owner of pgps';

create or replace function pgps_internal.require_columns(relation regclass, attributes jsonb, is_endpoint boolean)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_own text[] := case when require_columns.is_endpoint then '{_producer,_producer_seq}' else '{}' end;
    v_names text[];
    v_types regtype[];
    v_plain boolean;
begin
    select array_agg(a.attname::text order by a.attnum), array_agg(a.atttypid::regtype order by a.attnum),
        bool_and(a.attgenerated = '' and a.attidentity = ''
            and (a.attname::text <> all (v_own) or not (a.attnotnull or a.atthasdef)))
    into v_names, v_types, v_plain
    from pg_attribute a where a.attrelid = require_columns.relation and a.attnum > 0 and not a.attisdropped;
    -- The second half of a definition may be called directly, with any table of the caller and any list.
    if v_plain and (require_columns.attributes is null or v_names = array(
            select x from jsonb_array_elements_text(require_columns.attributes) x) || v_own)
        and not v_names[:cardinality(v_names) - cardinality(v_own)] && '{_producer,_producer_seq}'
        and v_names[cardinality(v_names) - cardinality(v_own) + 1:] = v_own
        and (not require_columns.is_endpoint or v_types[cardinality(v_types) - 1:] = '{text,bigint}') then
        return;
    end if;
    raise exception 'relation "%" does not have the columns of its definition', require_columns.relation
    using errcode = '55000', detail = format('It has the columns %s.', array_to_string(v_names, ', ')),
        hint = 'Use pgps.create_event_type and pgps.alter_event_type, with a list of plain columns.';
end
$$;
comment on function pgps_internal.require_columns(regclass, jsonb, boolean) is
'Raises 55000 unless a table has exactly the attributes of a definition (a list of names, null = any), in order and
none of them generated, and as an endpoint the two columns of producers behind them';

create or replace function pgps_internal.drop_set_constraints(endpoint regclass, name text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_dropped text;
    v_constraint text;
begin
    -- They would be checked in the endpoint, which is always empty, and a foreign key would keep the table it
    -- references from being truncated.
    for v_constraint in select c.conname from pg_constraint c
        where c.conrelid = drop_set_constraints.endpoint and c.contype in ('p', 'u', 'x', 'f') order by c.conname loop
        execute format('alter table %s drop constraint %I', drop_set_constraints.endpoint, v_constraint);
        v_dropped := concat_ws(', ', v_dropped, quote_ident(v_constraint));
    end loop;
    if v_dropped is not null then
        raise warning 'event type "%" does not keep the constraints %: they are about more than one event',
            drop_set_constraints.name, v_dropped
        using hint = 'NOT NULL and CHECK hold for events. To have repeats dropped, number them: columns _producer and '
            '_producer_seq.';
    end if;
end
$$;
comment on function pgps_internal.drop_set_constraints(regclass, text) is
'Drops the constraints that a queue of events does not check, keys and exclusions, and warns of it; a column of a
primary key stays NOT NULL';

drop function if exists pgps_internal.require_trusted_types(regclass);
drop function if exists pgps_internal.require_harmless_expressions(regclass);

create or replace function pgps_internal.require_trusted_types(caller name, relation regclass) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type record;
    v_super boolean := (select r.rolsuper from pg_roles r where r.rolname = require_trusted_types.caller);
begin
    -- The owner of a type can give it a CHECK or a cast to JSON, and dispatch and delivery run those with the rights of
    -- pgps.
    select t.oid::regtype as name, r.rolname as owner, r.rolsuper, t.typnamespace::regnamespace as schema,
        pgps_internal.type_callee(t.oid) as callee into v_type
    from pgps_internal.types_within(array(select a.atttypid from pg_attribute a
        where a.attrelid = require_trusted_types.relation and a.attnum > 0 and not a.attisdropped)) u(type_id)
    join pg_type t on t.oid = u.type_id join pg_roles r on r.oid = t.typowner
    where (not r.rolsuper or not v_super and not pgps_internal.is_firm(t.typnamespace)
            or pgps_internal.type_callee(t.oid) is not null)
        and t.typrelid <> require_trusted_types.relation limit 1;
    if not found then
        return;
    elsif v_type.rolsuper and v_type.callee is not null then
        raise exception 'data type % calls %, who is not a superuser', v_type.name, v_type.callee
        using errcode = '42501',
            hint = 'Whoever owns it could put anything there, which pgps would run with the rights of its owner: let a '
                'superuser own it.';
    elsif v_type.rolsuper then
        raise exception 'data type % is in schema %, whose owner is not a superuser', v_type.name, v_type.schema
        using errcode = '42501',
            hint = format('As a superuser: alter type %s set schema public, or create the event type.', v_type.name);
    end if;
    raise exception 'data type % belongs to role "%", who is not a superuser', v_type.name, v_type.owner
    using errcode = '42501', hint = format('As a superuser: alter type %s owner to %I', v_type.name, current_user);
end
$$;
comment on function pgps_internal.require_trusted_types(name, regclass) is
'Raises 42501 when a column''s data type, or one that it consists of, belongs to a role that is not a superuser, or
calls something of such a role; unless caller is a superuser, also when it is in a schema of such a role';
