-- Sources: logical names of applications, by which the leaves of composite events say where an event comes from. Moving
-- an application to another broker changes its source, and no definition.
-- Locks: the row; who makes a composite event that names it keeps it, for key share.
-- Writes: source.

create or replace function pgps_internal.do_create_source(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.check_name(args ->> 'name', 'source');
begin
    perform pgps_internal.require_admin(caller, 'create sources');
    if coalesce(args ->> 'broker', '') = '' then
        raise exception 'source "%" has no broker', v_name using errcode = '22023',
            hint = 'Give the name of a broker, as in the column origin of pgps.routes.';
    end if;
    insert into pgps_internal.source (name, broker, client, owner, created_at)
    values (v_name, args ->> 'broker', args ->> 'client', quote_ident(caller)::regrole, pgps_internal.clock())
    on conflict do nothing;
    if not found then
        raise exception 'source "%" exists already', v_name using errcode = '42710',
            hint = format('Choose another name, or change it: select pgps.alter_source(%L, broker => …)',
                quote_ident(v_name));
    end if;
end
$$;
comment on function pgps_internal.do_create_source(name, jsonb) is 'See pgps.create_source';

create or replace function pgps_internal.require_source(caller name, name text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.fold(require_source.name);
begin
    perform pgps_internal.require_admin(require_source.caller, 'change sources');
    if not exists (select from pgps_internal.source s where s.name = v_name) then
        raise exception 'source "%" does not exist', v_name using errcode = '42704', hint = 'See pgps.sources.';
    end if;
    return v_name;
end
$$;
comment on function pgps_internal.require_source(name, text) is
'The name of a source that is there, folded. Errors: 42704, 42501.';

create or replace function pgps_internal.do_alter_source(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.require_source(caller, args ->> 'name');
begin
    if args ->> 'broker' is null and args ->> 'client' is null then
        raise exception 'nothing to alter in source "%"', v_name using errcode = '22023',
            hint = 'Give broker or client.';
    elsif args ->> 'broker' = '' then
        raise exception 'source "%" has no broker', v_name using errcode = '22023',
            hint = 'Give the name of a broker, as in the column origin of pgps.routes.';
    end if;
    update pgps_internal.source s set broker = coalesce(args ->> 'broker', s.broker),
        client = nullif(coalesce(args ->> 'client', s.client), '')
    where s.name = v_name;
    perform pgps_internal.take_part_back(p, format('source "%s" is a client now', v_name))
    from pgps_internal.composite_part p
    where exists (select from pgps_internal.composite_leaf l join pgps_internal.source s on s.name = l.source
        where l.composite_id = p.composite_id and l.leaf = any (p.leaves) and s.name = v_name and s.client is not null);
end
$$;
comment on function pgps_internal.do_alter_source(name, jsonb) is 'See pgps.alter_source';

create or replace function pgps_internal.do_drop_source(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.require_source(caller, args ->> 'name');
    v_composite text;
begin
    -- Who is creating a composite event that names it is waited for.
    perform from pgps_internal.source s where s.name = v_name for update;
    select t.name into v_composite from pgps_internal.composite_leaf l
    join pgps_internal.composite c using (composite_id) join pgps_internal.event_type t on t.type_id = c.type_id
    where l.source = v_name and c.sources is null limit 1;
    if found then
        raise exception 'source "%" cannot be dropped: composite event "%" names it', v_name, v_composite
        using errcode = '2BP01', hint = format('First: select pgps.drop_event_type(%L)', quote_ident(v_composite));
    end if;
    delete from pgps_internal.source s where s.name = v_name;
end
$$;
comment on function pgps_internal.do_drop_source(name, jsonb) is 'See pgps.drop_source';

create or replace function pgps_internal.hold_source(composite pgps_internal.composite, source text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Those of a neighbour that asks for a part are its own.
    if hold_source.source is null or (hold_source.composite).sources is not null then
        return;
    end if;
    perform from pgps_internal.source s where s.name = hold_source.source for key share;
    if not found then
        raise exception 'source "%" does not exist any more', hold_source.source using errcode = '42704',
            hint = 'Another session has dropped it meanwhile.';
    end if;
end
$$;
comment on function pgps_internal.hold_source(pgps_internal.composite, text) is
'Has whoever drops a source, which a leaf of a composite event names, wait until the transaction ends; null: none.
Errors: 42704 it was dropped just now';

create or replace function pgps_internal.source_of(source text, sources jsonb)
returns table (name text, broker text, client text)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select source_of.source, source_of.sources ->> source_of.source, null
    where source_of.source <> '' and source_of.sources ? source_of.source
    union all
    select s.name, s.broker, s.client from pgps_internal.source s
    where s.name = source_of.source and source_of.sources is null
$$;
comment on function pgps_internal.source_of(text, jsonb) is
'A source of this broker or, with sources (their brokers by name), of the neighbour that asks for a composite event';

create or replace function pgps_internal.sources_of(composite_id bigint) returns jsonb
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return (select to_jsonb(array_agg(case when s.name is not null
            then jsonb_build_object('broker', s.broker, 'client', s.client) end order by l.leaf))
        from pgps_internal.composite_leaf l join pgps_internal.composite c using (composite_id)
        -- Most leaves have no source, and none is looked for.
        left join lateral (select x.* from pgps_internal.source_of(l.source, c.sources) x where l.source is not null) s
            on true
        where l.composite_id = sources_of.composite_id);
end
$$;
comment on function pgps_internal.sources_of(bigint) is
'Where the events of each leaf of a composite event come from, as an array of objects; null for a leaf without source';

create or replace function pgps.create_source(name text, broker text, client text = null) returns void
language sql
begin atomic
    select pgps._call('create_source', jsonb_build_object('name', create_source.name, 'broker', create_source.broker,
        'client', create_source.client));
end;
comment on function pgps.create_source(text, text, text) is
'Gives an application a logical name, which leaves of composite events may ask for (event_type@name): the events that
come from a broker and, with client, from one client of this broker. Needs pgps_admin. Errors: 42710 exists, 42602,
22023 no broker, 42501.';

create or replace function pgps.alter_source(name text, broker text = null, client text = null) returns void
language sql
begin atomic
    select pgps._call('alter_source', jsonb_build_object('name', alter_source.name, 'broker', alter_source.broker,
        'client', alter_source.client));
end;
comment on function pgps.alter_source(text, text, text) is
'Moves an application: from now on its events are those of another broker or client; null = as before, client '''' =
any. Composite events that name it need no change. Needs pgps_admin. Errors: 42704, 22023 nothing to alter or no broker,
42501.';

create or replace function pgps.drop_source(name text) returns void
language sql
begin atomic
    select pgps._call('drop_source', jsonb_build_object('name', drop_source.name));
end;
comment on function pgps.drop_source(text) is
'Drops the logical name of an application. Refused (2BP01) while a composite event names it. Needs pgps_admin. Errors:
42704, 2BP01, 42501.';

create or replace view pgps.sources with (security_barrier) as
select s.name, s.broker, s.client, pg_get_userbyid(s.owner) as owner, s.created_at from pgps_internal.source s;
comment on view pgps.sources is
'Logical names of applications: the broker, and where given the client, that their events come from';

grant select on pgps.sources to public;
grant execute on function pgps.create_source(text, text, text), pgps.alter_source(text, text, text),
    pgps.drop_source(text) to public;
