-- What came from a neighbour and lies in staging tables, since some of it may be refused: it goes from there into the
-- log, and what a constraint refuses is recorded.
-- Locks: those of receive.sql.
-- Writes: rejected; by name: the log of a type, the staging table.

create or replace function pgps_internal.publish_stages(
    neighbour pgps_internal.neighbour, batch jsonb, slices jsonb, admitted int8multirange
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_wire jsonb;
    v_type pgps_internal.event_type;
    v_dropped int8multirange;
begin
    for v_wire in select t.value from jsonb_array_elements(publish_stages.batch -> 'types') t loop
        select t.* into v_type from pgps_internal.event_type t where t.name = v_wire ->> 'name';
        -- Checked here, too, because the staging table may be of an earlier batch.
        perform pgps_internal.require_publisher(publish_stages.neighbour, v_type);
        select coalesce(range_agg(r), '{}') - publish_stages.admitted into v_dropped
        from jsonb_array_elements(publish_stages.slices) s, unnest((s.value ->> 'ids')::int8multirange) r
        where (s.value ->> 'type_id')::integer = v_type.type_id;
        perform pgps_internal.publish_stage(publish_stages.neighbour, v_type, v_wire, v_dropped, publish_stages.batch,
            publish_stages.slices);
    end loop;
end
$$;
comment on function pgps_internal.publish_stages(pgps_internal.neighbour, jsonb, jsonb, int8multirange) is
'Puts the staged events of the admitted items into the logs';

create or replace function pgps_internal.reject_staged(
    neighbour pgps_internal.neighbour, event_type pgps_internal.event_type, batch jsonb, slices jsonb, event_id bigint,
    state text, error text
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format($query$
        insert into pgps_internal.rejected (neighbour_id, neighbour, publisher, type_id, origin_id, origin_batch,
            origin_event, payload, published_at, sqlstate, error)
        select ($1).neighbour_id, ($1).name, ($1).role, $2, o.origin_id, (i.value ->> 'upto')::bigint, s.pgps_event,
            to_jsonb(s.*) - '{pgps_id,pgps_item,pgps_event}'::text[],
            pgps_internal.told_time(r.value ->> 'published_at'), $3, $4
        from pg_temp.pgps_stage_%s s, jsonb_array_elements($5 -> 'items') i, jsonb_array_elements($6) r,
            pgps_internal.origin o
        where s.pgps_id = $7 and r.value -> 'lseq' = i.value -> 'lseq' and $7 <@ (r.value ->> 'ids')::int8multirange
            and (r.value ->> 'type_id')::integer = $2 and o.broker_id = (i.value ->> 'broker')::uuid
            and o.epoch = (i.value ->> 'epoch')::integer
        $query$, (reject_staged.event_type).type_id)
    using reject_staged.neighbour, (reject_staged.event_type).type_id, reject_staged.state, reject_staged.error,
        reject_staged.batch, reject_staged.slices, reject_staged.event_id;
    perform pgps_internal.excuse(o.origin_id, (i.value ->> 'upto')::bigint, (reject_staged.event_type).type_id)
    from jsonb_array_elements(reject_staged.slices) r
    join jsonb_array_elements(reject_staged.batch -> 'items') i on i.value -> 'lseq' = r.value -> 'lseq'
    join pgps_internal.origin o on o.broker_id = (i.value ->> 'broker')::uuid
        and o.epoch = (i.value ->> 'epoch')::integer
    where reject_staged.event_id <@ (r.value ->> 'ids')::int8multirange
        and (r.value ->> 'type_id')::integer = (reject_staged.event_type).type_id;
end
$$;
comment on function pgps_internal.reject_staged(pgps_internal.neighbour, pgps_internal.event_type, jsonb, jsonb,
    bigint, text, text) is
'Records a staged event that the constraints of its type refuse here, with SQLSTATE and message, and excuses it in the
audit';

create or replace function pgps_internal.publish_stage(
    neighbour pgps_internal.neighbour, event_type pgps_internal.event_type, wire jsonb, dropped int8multirange,
    batch jsonb, slices jsonb
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_insert text;
    v_id bigint;
    v_state text;
    v_error text;
begin
    select format('insert into %s (event_id, pgps_origin_event%s) select s.pgps_id, s.pgps_event%s from '
        'pg_temp.pgps_stage_%s s',
        (publish_stage.event_type).log, coalesce(string_agg(format(', %I', a.name), '' order by n), ''),
        coalesce(string_agg(format(case when a.as_text then ', s.%1$I::%2$s' else ', s.%1$I' end, a.name, t.type), ''
            order by n), ''),
        (publish_stage.event_type).type_id)
    -- The types are this broker's own: a neighbour's text would be run.
    into v_insert from rows from (jsonb_to_recordset(publish_stage.wire -> 'attributes') as (name text,
        as_text boolean)) with ordinality a(name, as_text, n)
    join pgps_internal.attributes_of((publish_stage.event_type).endpoint) t using (name);
    begin
        if isempty(publish_stage.dropped) then
            execute v_insert;
        else
            execute v_insert || ' where not s.pgps_id <@ $1' using publish_stage.dropped;
        end if;
        return;
    exception when integrity_constraint_violation or data_exception then
        null;
    end;
    -- Again, one by one: what this broker's constraints refuse becomes an exception here, and the rest is published.
    for v_id in execute format('select s.pgps_id from pg_temp.pgps_stage_%s s where not s.pgps_id <@ $1 order by '
        's.pgps_id', (publish_stage.event_type).type_id)
        using publish_stage.dropped
    loop
        begin
            execute v_insert || ' where s.pgps_id = $1' using v_id;
        exception when integrity_constraint_violation or data_exception then
            get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
            perform pgps_internal.reject_staged(publish_stage.neighbour, publish_stage.event_type, publish_stage.batch,
                publish_stage.slices, v_id, v_state, v_error);
        end;
    end loop;
    if v_state is not null then
        perform pgps_internal.check_refused((publish_stage.neighbour).role);
    end if;
end
$$;
comment on function pgps_internal.publish_stage(pgps_internal.neighbour, pgps_internal.event_type, jsonb,
    int8multirange, jsonb, jsonb) is
'Puts staged events of a type into its log; those that its constraints refuse go to pgps.exceptions. Errors:
54000 too many wait there.';
