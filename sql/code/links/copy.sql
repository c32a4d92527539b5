-- COPY in links: out of a view of what a session has to send, and into a segment of the log or, when that cannot be,
-- into a staging table (decision 14).
-- Locks: row exclusive on the segment.
-- Writes: by name: the log of a type (COPY).

create or replace function pgps._sender() returns integer
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$ begin return (pgps_internal.require_sender()).neighbour_id; end $$;
comment on function pgps._sender() is
'The neighbour this session sends to; see the views in schema pgps_link. Errors: 55000.';

create or replace function pgps_internal.only_received() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_neighbour pgps_internal.neighbour := pgps_internal.linked('receive');
    v_type pgps_internal.event_type;
begin
    -- Runs once for each COPY that names the segment. Publishers insert into the log as a whole, which does not fire
    -- this trigger.
    select t.* into v_type from pgps_internal.event_type t where t.type_id = tg_argv[0]::integer;
    if coalesce(current_setting('pgps.link_base', true), '') = '' then
        raise exception 'no batch has begun that would go straight into event type "%"', v_type.name
        using errcode = '55000', hint = 'First: select pgps.link_begin(batch)';
    end if;
    perform pgps_internal.require_publisher(v_neighbour, v_type);
    return null;
end
$$;
comment on function pgps_internal.only_received() is
'Trigger on a segment of a log: raises unless the session receives from a neighbour who may publish the type';

create or replace function pgps_internal.received_type(neighbour pgps_internal.neighbour, wire jsonb)
returns pgps_internal.event_type
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_difference text;
begin
    select t.* into v_type from pgps_internal.event_type t where t.name = received_type.wire ->> 'name';
    -- Common case: the attributes are equal, and comparing these texts is faster.
    v_difference := case when v_type.type_id is null then 'there is none here'
        when pgps_internal.wire_columns(v_type.endpoint) = received_type.wire -> 'attributes' then null
        else pgps_internal.difference(v_type, received_type.wire, (received_type.neighbour).name) end;
    if v_difference is not null then
        raise exception 'event type "%" is another one at broker "%": %', received_type.wire ->> 'name',
            (received_type.neighbour).name, v_difference
        using errcode = '55000',
            hint = 'Make it the same with pgps.alter_event_type, on one of the two; its events wait until then.';
    end if;
    perform pgps_internal.require_publisher(received_type.neighbour, v_type);
    return v_type;
end
$$;
comment on function pgps_internal.received_type(pgps_internal.neighbour, jsonb) is
'The event type here that a neighbour describes; 55000 when the two differ, 42501 when the neighbour''s role may not
publish it';

create or replace function pgps_internal.is_plain(neighbour pgps_internal.neighbour, batch jsonb) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- One event type, all in binary, and no item that admit_item could refuse. The locks of the origins are held, so
    -- the answer stays true.
    if jsonb_array_length(is_plain.batch -> 'types') <> 1
        or is_plain.batch @? '$.types[0].attributes[*] ? (@.as_text == true)'
            or pgps_internal.count_runs(is_plain.batch #> '{types,0,runs}') > 40000 then
        return false;
    end if;
    return pgps_internal.is_flowing(is_plain.neighbour, is_plain.batch -> 'items');
end
$$;
comment on function pgps_internal.is_plain(pgps_internal.neighbour, jsonb) is
'True when all events of a batch will be taken as they come, so that they can go straight into the log';

create or replace function pgps_internal.open_segment(neighbour pgps_internal.neighbour, wire jsonb) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.received_type(open_segment.neighbour, open_segment.wire);
    v_events bigint := pgps_internal.count_runs(open_segment.wire -> 'runs');
    v_last bigint := coalesce(pg_sequence_last_value('pgps_internal.event_id_seq'), 0);
    v_left bigint := pgps_internal.log_segment_start(v_last + 1) + pgps_internal.segment_size('control') - v_last - 1;
begin
    -- All events go into one segment, with room for the ids that others draw meanwhile. If they draw more, the segment
    -- refuses the events, and the batch is received again by way of the staging table. Ids are skipped by drawing them:
    -- nothing else is safe beside concurrent publishers.
    if v_left < v_events + v_events / 8 + 64 then
        perform count(nextval('pgps_internal.event_id_seq')) from generate_series(1, v_left);
        v_last := pg_sequence_last_value('pgps_internal.event_id_seq');
    end if;
    perform set_config('pgps.link_base', v_last::text, true);
    return format('copy %s (pgps_origin_event%s) from stdin (format binary)',
        pgps_internal.segment_name(v_type.name, pgps_internal.log_segment(v_last + 1)::integer),
        (select coalesce(string_agg(format(', %I', a.value ->> 'name'), '' order by a.n), '')
            from jsonb_array_elements(open_segment.wire -> 'attributes') with ordinality a(value, n)));
end
$$;
comment on function pgps_internal.open_segment(pgps_internal.neighbour, jsonb) is
'The COPY statement that puts events of a type straight into the log, where they get their ids in order. Errors: 55000
another schema, 42501.';

create or replace function pgps_internal.copied(event_type pgps_internal.event_type, base bigint) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case when copied.base is null then format('pg_temp.pgps_stage_%s', (copied.event_type).type_id)
        else format('(select l.event_id as pgps_id from %s l where l.event_id > %s and l.event_id <= %s and '
            'l.xid = (select pg_current_xact_id()))',
            pgps_internal.segment_name((copied.event_type).name, pgps_internal.log_segment(copied.base + 1)::integer),
            copied.base, coalesce(pg_sequence_last_value('pgps_internal.event_id_seq'), 0)) end
$$;
comment on function pgps_internal.copied(pgps_internal.event_type, bigint) is
'The relation that has the ids of the events that came by COPY in this transaction: the staging table, or, with base,
the log behind that id';

create or replace function pgps.link_rows(event_type text, after bigint, upto bigint, ordered boolean)
returns setof record
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set max_parallel_workers_per_gather = 0
as $$
begin
    -- Events of one batch that came at different times are put back into the order of their origin.
    return query execute format('select %s l.pgps_event%s from pgps_link.%I l where l.pgps_item > $1 and l.pgps_item '
        '<= $2 order by l.pgps_item, l.pgps_event',
        case when link_rows.ordered then 'l.pgps_item,' else '' end,
        (select coalesce(string_agg(format(', l.%I', c.value ->> 'name'), '' order by c.n), '')
            from pgps_internal.event_type t,
                jsonb_array_elements(pgps_internal.wire_columns(t.endpoint)) with ordinality c(value, n)
            where t.name = link_rows.event_type), link_rows.event_type || '_sent')
    using link_rows.after, link_rows.upto;
end
$$;
comment on function pgps.link_rows(text, bigint, bigint, boolean) is
'The events of one type in the items behind after up to upto, for COPY (…) TO STDOUT (FORMAT BINARY): number of the item
(only if ordered), event id at the origin, attributes as pgps.link_next lists them. They come in the order of their
origin, also where they arrived here in another. What was not rewound is in that order in the view in schema pgps_link
already, and is read from there without being collected first. Needs pgps.link_open. Errors: 55000.';

revoke all on function pgps._sender(), pgps.link_rows(text, bigint, bigint, boolean) from public;
grant execute on function pgps._sender(), pgps.link_rows(text, bigint, bigint, boolean) to pgps_link, pgps_worker,
    pgps_admin;
