-- Loads: several sessions bring events in, one publishes them all in one statement. What a program with many tasks needs, whose tasks are
-- repeated or run twice: each try brings its rows in under a name of its own, and only the tries that count are published.
-- Locks: advisory (1885826167, hash of the name) while a load is begun, published or given up; its table.

create or replace function pgps_internal.do_begin_load(caller name, args jsonb) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'event_type');
    v_name text := args ->> 'load';
    v_load pgps_internal.load;
begin
    if not has_table_privilege(caller, v_type.endpoint, 'insert') then
        raise exception 'role "%" may not publish event type "%"', caller, v_type.name
        using errcode = '42501', hint = format('Ask for: grant insert on %s to %I', v_type.endpoint, caller);
    elsif coalesce(v_name, '') = '' or octet_length(v_name) > 200 then
        raise exception 'invalid name of a load "%"', v_name using errcode = '22023', hint = 'Give 1 to 200 bytes, for example a random UUID.';
    end if;
    if not exists (select from pgps_internal.advertisement a where a.type_id = v_type.type_id and pg_has_role(caller, a.role::oid, 'usage')) then
        perform pgps_internal.require_advertised(v_type.type_id, quote_ident(caller)::regrole::oid);
    end if;
    perform pg_advisory_xact_lock(1885826167, hashtext(v_name));
    select l.* into v_load from pgps_internal.load l where l.name = v_name;
    if not found then
        v_load.relation := format('pgps_load.%I', 'load_' || nextval('pgps_internal.load_seq'));
        -- Checked here, before anything is published. Without autovacuum, so that the rows of a try stay in their order.
        execute format('create unlogged table %s (like %s including defaults including constraints including storage,
            pgps_part text not null) with (autovacuum_enabled = false)', v_load.relation, v_type.endpoint);
        execute format('grant insert, select on %s to %I', v_load.relation, caller);
        insert into pgps_internal.load (name, type_id, owner, relation) values (v_name, v_type.type_id, quote_ident(caller)::regrole, v_load.relation);
        return v_load.relation;
    elsif v_load.owner <> quote_ident(caller)::regrole or v_load.type_id <> v_type.type_id then
        raise exception 'load "%" is not yours, or of another event type', v_name using errcode = '42501', hint = 'Choose another name.';
    end if;
    return v_load.relation;
end
$$;
comment on function pgps_internal.do_begin_load(name, jsonb) is 'See pgps.begin_load';

create or replace function pgps.begin_load(event_type text, load text) returns text
language sql
begin atomic
    select pgps._call('begin_load', jsonb_build_object('event_type', begin_load.event_type, 'load', begin_load.load)) #>> '{}';
end;
comment on function pgps.begin_load(text, text) is
'Gives the table into which the events of a load are copied, made at the first call; it has the columns of the publish endpoint, its
constraints, and pgps_part text: which try of which task the row is from. load: a name for all sessions that take part.
Needs INSERT on the event type and an advertisement. Errors: 42704, 22023, 42501 another role''s load, 55000 not advertised.';

create or replace function pgps_internal.do_end_load(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_load pgps_internal.load;
begin
    perform pg_advisory_xact_lock(1885826167, hashtext(args ->> 'load'));
    delete from pgps_internal.load l where l.name = args ->> 'load' and pg_has_role(caller, l.owner::oid, 'usage') returning * into v_load;
    if not found then
        return to_jsonb(false);
    end if;
    execute format('drop table %s', v_load.relation);
    return to_jsonb(true);
end
$$;
comment on function pgps_internal.do_end_load(name, jsonb) is 'See pgps.discard_load';

create or replace function pgps.discard_load(load text) returns boolean
language sql
begin atomic
    select (pgps._call('end_load', jsonb_build_object('load', discard_load.load)) #>> '{}')::boolean;
end;
comment on function pgps.discard_load(text) is
'Drops a load with what was brought in; false when there is none of that name, or it is another role''s. Waits for sessions that still copy into it.';

create or replace function pgps_internal.do_claim(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if args ->> 'producer' is null or args ->> 'producer_seq' is null then
        raise exception 'producer or producer_seq is null' using errcode = '22023', hint = 'Give both: the name of a job and the number of its batch.';
    end if;
    return to_jsonb(not (pgps_internal.do_publication(caller, args) ->> 'taken')::boolean);
end
$$;
comment on function pgps_internal.do_claim(name, jsonb) is 'See pgps.claim';

create or replace function pgps.claim(event_type text, producer text, producer_seq bigint) returns boolean
language sql
begin atomic
    select (pgps._call('claim', jsonb_build_object('event_type', claim.event_type, 'producer', claim.producer,
        'producer_seq', claim.producer_seq)) #>> '{}')::boolean;
end;
comment on function pgps.claim(text, text, bigint) is
'Takes a producer''s number for what this transaction publishes: true the first time, false when it was taken, as pgps.publish does for one
event. A concurrent claim waits until this transaction ends; a rollback gives the number back. Needs INSERT on the event type.
Errors: 42704, 22023, 42501.';

create or replace function pgps.publish_load(
    event_type text, load text, parts text[], attributes text[], producer text = null, producer_seq bigint = null,
    events bigint = null
) returns bigint
language plpgsql
as $$
declare
    v_columns text := (select pg_catalog.string_agg(pg_catalog.quote_ident(a), ', ' order by n)
        from pg_catalog.unnest(publish_load.attributes) with ordinality u(a, n));
    v_events bigint := 0;
begin
    if publish_load.producer is not null and not pgps.claim(publish_load.event_type, publish_load.producer, publish_load.producer_seq) then
        perform pgps.discard_load(publish_load.load);
        return null;
    end if;
    if pg_catalog.cardinality(publish_load.parts) > 0 then
        execute pg_catalog.format('insert into pgps_event.%I (%s) select %s from %s l where l.pgps_part = any ($1)
            order by pg_catalog.array_position($1, l.pgps_part), l.ctid',
            pgps._call('type_name', pg_catalog.jsonb_build_object('name', publish_load.event_type)) #>> '{}', v_columns, v_columns,
            pgps.begin_load(publish_load.event_type, publish_load.load))
        using publish_load.parts;
        get diagnostics v_events = row_count;
    end if;
    if v_events <> publish_load.events then
        raise exception 'load "%" has % events where % were brought in', publish_load.load, v_events, publish_load.events
        using errcode = '55000', hint = 'A load does not survive a crash of the server: bring the events in again.';
    end if;
    perform pgps.discard_load(publish_load.load);
    return v_events;
end
$$;
comment on function pgps.publish_load(text, text, text[], text[], text, bigint, bigint) is
'Publishes the parts of a load in one statement, in the order named, and drops the load; returns how many events. parts: the tries that
count; what else was brought in is not published. attributes: which columns were filled; the others take their defaults.
producer, producer_seq: claimed first (pgps.claim); null is returned, and nothing is published, when the number was taken.
events: how many there must be; null = do not look. A load is lost when the server crashes, and then it is found out here.
Needs INSERT on the event type and an advertisement. Errors: 42704, 42501, 42703, 23xxx, 55000.';

create or replace function pgps_internal.reclaim_loads() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_load pgps_internal.load;
    v_left regclass;
begin
    for v_load in select l.* from pgps_internal.load l
        where l.created_at < clock_timestamp() - pgps_internal.setting('load_retention')::interval loop
        continue when not pgps_internal.try_lock(v_load.relation);
        execute format('drop table %s', v_load.relation);
        delete from pgps_internal.load l where l.name = v_load.name;
    end loop;
    -- Of event types that were dropped meanwhile.
    for v_left in select c.oid from pg_class c where c.relnamespace = 'pgps_load'::regnamespace and c.relkind = 'r'
        and not exists (select from pgps_internal.load l where l.relation = c.oid::regclass::text) loop
        if pgps_internal.try_lock(v_left) then
            execute format('drop table %s', v_left);
        end if;
    end loop;
end
$$;
comment on function pgps_internal.reclaim_loads() is 'Drops loads that were begun long ago and never published: their program was killed';

insert into pgps_internal.setting (name, value, kind, description) values
    ('load_retention', '1 day', 'interval', 'A load that was begun this long ago and not published is dropped')
on conflict (name) do nothing;

revoke all on all functions in schema pgps_internal from public;
grant execute on function pgps.begin_load(text, text), pgps.discard_load(text), pgps.claim(text, text, bigint),
    pgps.publish_load(text, text, text[], text[], text, bigint, bigint) to public;
