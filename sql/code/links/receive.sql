-- Receiving from a neighbour: each batch is one transaction, and the position is part of it.
-- Locks: the turns of the origins, by origin, until the transaction ends. They are taken before the transaction has an
-- id, so that transactions with events of one origin get their ids in order.
-- Writes: pg_temp.pgps_stage; by name: the log of a type, the staging table.

create or replace function pgps_internal.do_link_begin(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_neighbour pgps_internal.neighbour := pgps_internal.linked('receive');
    v_last bigint := pgps_internal.lock_batch(v_neighbour, args);
    v_type jsonb;
    v_copies jsonb := '[]';
begin
    if (args ->> 'after')::bigint < v_last then
        return jsonb_build_object('last', v_last);
    elsif (args ->> 'after')::bigint > v_last then
        raise exception 'a batch behind % came from broker "%", and the last received is %', args ->> 'after',
            v_neighbour.name, v_last
        using errcode = '55000', hint = 'The link is opened again and goes on from there.';
    end if;
    -- Kept, so that the batch need not be sent again with link_apply.
    perform set_config('pgps.link_base', '', true), set_config('pgps.link_batch', args::text, true);
    if not coalesce((args ->> 'staged')::boolean, false) and pgps_internal.is_plain(v_neighbour, args) then
        return jsonb_build_object('last', v_last, 'straight', true, 'copies',
            jsonb_build_array(pgps_internal.open_segment(v_neighbour, args #> '{types,0}')));
    end if;
    for v_type in select t.value from jsonb_array_elements(args -> 'types') t loop
        v_copies := v_copies || jsonb_build_array(pgps_internal.stage(v_neighbour, v_type, caller));
    end loop;
    return jsonb_build_object('last', v_last, 'copies', v_copies);
end
$$;
comment on function pgps_internal.do_link_begin(name, jsonb) is 'See pgps.link_begin';

create or replace function pgps_internal.lock_batch(neighbour pgps_internal.neighbour, batch jsonb) returns bigint
language plpgsql
as $$
begin
    perform pgps_internal.require_read_committed();
    -- Those of all epochs of a broker: the same batch may come in two of them, from two neighbours, and who comes
    -- second has to see what the first one took (pgps_internal.skip_known).
    perform pgps_internal.hold_origins(array(select o.origin_id from pgps_internal.origin o
        where exists (select from jsonb_array_elements(lock_batch.batch -> 'items') i
                cross join lateral (select case when i.value ->> 'kind' = 'audit' then i.value -> 'body'
                    else i.value end) x(said)
            where (x.said ->> 'broker')::uuid = o.broker_id)));
    return pgps_internal.last_received((lock_batch.neighbour).neighbour_id);
end
$$;
comment on function pgps_internal.lock_batch(pgps_internal.neighbour, jsonb) is
'Takes the turns of a batch''s origins, in all epochs of their brokers, and returns the highest number received from its
neighbour';

create or replace function pgps_internal.last_received(neighbour_id integer) returns bigint
language plpgsql volatile
as $$
begin
    return coalesce((select i.lseq from pgps_internal.arrival i where i.neighbour_id = last_received.neighbour_id
        order by i.lseq desc limit 1), 0);
end
$$;
comment on function pgps_internal.last_received(integer) is 'The highest number received from a neighbour';

create or replace function pgps_internal.require_publisher(
    neighbour pgps_internal.neighbour, event_type pgps_internal.event_type
) returns void
language plpgsql stable
as $$
begin
    if not has_table_privilege((require_publisher.neighbour).role::oid, (require_publisher.event_type).endpoint,
        'insert') then
        raise exception 'role "%" may not publish event type "%"', (require_publisher.neighbour).role,
            (require_publisher.event_type).name
        using errcode = '42501',
            hint = format('grant insert on %s to %s', (require_publisher.event_type).endpoint,
            (require_publisher.neighbour).role);
    end if;
end
$$;
comment on function pgps_internal.require_publisher(pgps_internal.neighbour, pgps_internal.event_type) is
'Raises 42501 unless the role of a neighbour may publish a type here';

create or replace function pgps_internal.stage(neighbour pgps_internal.neighbour, wire jsonb, caller name) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.received_type(stage.neighbour, stage.wire);
    v_stage text;
    v_found regclass;
    v_columns text := (select coalesce(string_agg(format(', %I', a.name), '' order by n), '')
        from rows from (jsonb_to_recordset(stage.wire -> 'attributes') as (name text)) with ordinality a(name, n));
    -- Types are those of this broker's own event type, which is the same, lengths included: "character" without one has
    -- length 1.
    v_definition text := (
        select coalesce(string_agg(format(', %I %s', a.name, case when a.as_text then 'text' else t.type end), ''
            order by a.n), '')
        from rows from (jsonb_to_recordset(stage.wire -> 'attributes') as (name text,
            as_text boolean)) with ordinality a(name, as_text, n)
        join pgps_internal.attributes_of(v_type.endpoint) t using (name));
begin
    v_stage := format('pg_temp.pgps_stage_%s', v_type.type_id);
    v_found := pgps_internal.temporary(format('pgps_stage_%s', v_type.type_id));
    if v_found is not null and obj_description(v_found, 'pg_class') is distinct from v_definition then
        execute format('drop table %s', v_stage);
        v_found := null;
    end if;
    if v_found is null then
        execute format('create temp table pgps_stage_%s (pgps_id bigint default '
            'nextval(''pgps_internal.event_id_seq''::regclass), pgps_item bigint,
            pgps_event bigint%s) on commit delete rows', v_type.type_id, v_definition);
        execute format('comment on table %s is %L', v_stage, v_definition);
        execute format('grant insert on %s to %I', v_stage, stage.caller);
    end if;
    return format('copy %s (%s pgps_event%s) from stdin (format binary)', v_stage,
        case when (stage.wire ->> 'ordered')::boolean then 'pgps_item,' else '' end, v_columns);
end
$$;
comment on function pgps_internal.stage(pgps_internal.neighbour, jsonb, name) is
'The COPY statement that puts events of a type into this session''s staging table, made if needed, where they get their
ids in order. Errors: 55000 another schema, 42501.';

create or replace function pgps.link_begin(batch jsonb, staged boolean = false) returns jsonb
language sql
begin atomic
    select pgps._call('link_begin', case when link_begin.staged then link_begin.batch || '{"staged": true}'
        else link_begin.batch end);
end;
comment on function pgps.link_begin(jsonb, boolean) is
'First statement of the transaction that receives a batch, as pgps.link_next gave it. Returns last, the last number
received, and if the batch begins there, copies: a COPY statement for each of its types, straight into the log when
straight is true. If such a batch is refused because of its data (class 22 or 23) or a concurrent change (40001), it is
to be received once more with staged, which sorts out what cannot be taken. When last is higher, the batch was received
before. Needs pgps.link_open. Errors: 55000 a batch is missing, another schema, not open; 42501 the role may not publish
a type.';

create or replace function pgps_internal.do_link_apply(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_neighbour pgps_internal.neighbour := pgps_internal.linked('receive');
    v_base bigint := nullif(current_setting('pgps.link_base', true), '')::bigint;
begin
    perform pgps_internal.require_next(v_neighbour, args, pgps_internal.last_received(v_neighbour.neighbour_id));
    -- Whoever opens a link may call this without what goes before it, and say something else.
    perform pgps_internal.received_type(v_neighbour, t.value) from jsonb_array_elements(args -> 'types') t;
    if v_base is null then
        perform pgps_internal.require_staged(args -> 'types');
    end if;
    perform pgps_internal.put_in_order(args -> 'types');
    return pgps_internal.admit_batch(v_neighbour, args, pgps_internal.slices(args -> 'types', v_base), v_base is null);
end
$$;
comment on function pgps_internal.do_link_apply(name, jsonb) is 'See pgps.link_apply';

create or replace function pgps_internal.require_staged(types jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_missing text;
begin
    select t.name into v_missing
    from jsonb_array_elements(require_staged.types) w join pgps_internal.event_type t on t.name = w.value ->> 'name'
    where pgps_internal.temporary(format('pgps_stage_%s', t.type_id)) is null limit 1;
    if found then
        raise exception 'no events of type "%" were begun to be received', v_missing using errcode = '55000',
            hint = 'First: select pgps.link_begin(batch), and the COPY statements that it returns.';
    end if;
end
$$;
comment on function pgps_internal.require_staged(jsonb) is
'Raises 55000 unless all types of a batch have a staging table, and 42501 when it is not one of pgps''';

create or replace function pgps_internal.put_in_order(types jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rows text;
    v_type_id integer;
    v_ids bigint[];
begin
    -- The ids of several types were drawn one type after the other, but have to be in the order of publication over all
    -- of them.
    if jsonb_array_length(put_in_order.types) < 2 then
        return;
    end if;
    select string_agg(format('select %1$s as type_id, s.pgps_id, s.pgps_item, s.pgps_event from '
        'pg_temp.pgps_stage_%1$s s', t.type_id), ' union all ')
    into v_rows
    from jsonb_array_elements(put_in_order.types) w join pgps_internal.event_type t on t.name = w.value ->> 'name';
    execute format('select array_agg(s.pgps_id order by s.pgps_id) from (%s) s', v_rows) into v_ids;
    for v_type_id in select t.type_id from jsonb_array_elements(put_in_order.types) w
        join pgps_internal.event_type t on t.name = w.value ->> 'name' loop
        execute format('update pg_temp.pgps_stage_%1$s u set pgps_id = n.pgps_id
            from (select s.*, row_number() over (order by s.pgps_item, s.pgps_event) as place from (%2$s) s) p
            join unnest($1) with ordinality n(pgps_id, place) using (place)
            where p.type_id = %1$s and u.pgps_event = p.pgps_event and u.pgps_item = p.pgps_item', v_type_id, v_rows)
                using v_ids;
    end loop;
end
$$;
comment on function pgps_internal.put_in_order(jsonb) is
'Gives the staged events of several types ids in the order in which they were published';

create or replace function pgps_internal.slices(types jsonb, base bigint) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slices jsonb := '[]';
    v_wire jsonb;
    v_type pgps_internal.event_type;
    v_ids bigint[];
    v_lo bigint;
    v_hi bigint;
    v_count bigint;
begin
    for v_wire in select t.value from jsonb_array_elements(slices.types) t loop
        select t.* into v_type from pgps_internal.event_type t where t.name = v_wire ->> 'name';
        execute format('select min(s.pgps_id), max(s.pgps_id), count(*) from %s s',
            pgps_internal.copied(v_type, slices.base)) into v_lo, v_hi, v_count;
        if v_count <> pgps_internal.count_runs(v_wire -> 'runs') then
            raise exception '% events of type "%" came, and not as many as were said', v_count, v_wire ->> 'name'
            using errcode = '55000', hint = 'The link is opened again and sends them anew.';
        end if;
        -- Ids are listed only when they have gaps, because others drew some meanwhile.
        if v_hi - v_lo + 1 > v_count then
            execute format('select array_agg(s.pgps_id order by s.pgps_id) from %s s',
                pgps_internal.copied(v_type, slices.base)) into v_ids;
        end if;
        v_slices := v_slices || pgps_internal.runs_with_ids(v_wire -> 'runs', v_type.type_id, v_lo, v_ids);
        v_ids := null;
    end loop;
    return v_slices;
end
$$;
comment on function pgps_internal.slices(jsonb, bigint) is
'The runs of a batch with the ids that their events have here. base: see pgps_internal.copied';

create or replace function pgps_internal.note_slices(
    neighbour pgps_internal.neighbour, batch jsonb, slices jsonb, admitted int8multirange, are_news boolean
) returns void
language plpgsql
as $$
declare
    v_types integer[];
    v_los bigint[];
    v_his bigint[];
    v_volatile boolean[];
    v_published_at timestamptz[];
    v_origins integer[];
    v_is_heard boolean;
begin
    -- Without set clauses, because it runs under those of what receives a batch.
    select array_agg((s.run ->> 'type_id')::integer), array_agg((s.run ->> 'lo')::bigint),
        array_agg((s.run ->> 'hi')::bigint),
        array_agg((s.run ->> 'volatile')::boolean),
        array_agg(pgps_internal.told_time(s.run ->> 'published_at')), array_agg(o.origin_id),
        bool_or(t.handler <> 'any' and has_table_privilege('pgps_worker'::name, t.log, 'trigger'))
    into v_types, v_los, v_his, v_volatile, v_published_at, v_origins, v_is_heard
    from (select s.value as run from jsonb_array_elements(note_slices.slices) s
        where note_slices.admitted is null or (s.value ->> 'ids')::int8multirange && note_slices.admitted) s
    join jsonb_array_elements(note_slices.batch -> 'items') i on i.value -> 'lseq' = s.run -> 'lseq'
    join pgps_internal.origin o on o.broker_id = (i.value ->> 'broker')::uuid
        and o.epoch = (i.value ->> 'epoch')::integer
    join pgps_internal.event_type t on t.type_id = (s.run ->> 'type_id')::integer;
    perform pgps_internal.record(v_types, v_los, v_his, (note_slices.neighbour).role, v_volatile, v_published_at,
        v_origins,
        v_is_heard and note_slices.are_news);
end
$$;
comment on function pgps_internal.note_slices(pgps_internal.neighbour, jsonb, jsonb, int8multirange, boolean) is
'Publishes the admitted items'' events (null: those of all), with a row in the control queue for each statement at the
origin. are_news: false for events fetched again for children. Called where a batch is admitted alone';

create or replace function pgps.link_apply(batch jsonb = null) returns jsonb
language sql
begin atomic
    select pgps._call('link_apply',
        coalesce(link_apply.batch, nullif(current_setting('pgps.link_batch', true), '')::jsonb, '{}'));
end;
comment on function pgps.link_apply(jsonb) is
'Last statement of the transaction that receives a batch (null = the one with which it began): acts on its messages and
publishes its events here, in order, and notes how far; COMMIT follows. Returns last, and how many events were taken
(the others had been received from elsewhere). Needs pgps.link_begin. Errors: 55000 a batch or an event is missing,
54000 more than 1000 items.';

revoke all on function pgps.link_begin(jsonb, boolean), pgps.link_apply(jsonb) from public;
grant execute on function pgps.link_begin(jsonb, boolean), pgps.link_apply(jsonb) to pgps_link, pgps_worker,
    pgps_admin;
