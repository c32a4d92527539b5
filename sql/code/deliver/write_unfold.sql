-- Generated: pgps_internal.unfold_<type>, received events with payload and publication. Called by unfold.sql and
-- direct.sql.
-- Writes: nothing.

create or replace function pgps_internal.unfold_names(names jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_columns text := 'c.published_at, c.publisher, c.origin_id, c.handler, c.client_id, c.lo, c.hi, c.raiser';
    v_type_id text := unfold_names.names ->> 'type_id';
begin
    return jsonb_build_object(
        'message', pgps_internal.render($message$(r.place, l.event_id, pgps_type,
                (select {to_json} from (select {attributes}) pgps_row), c.published_at,
                pg_get_userbyid(c.publisher), coalesce(nullif(c.raiser, '0'), l.xid), case when c.origin_id is null
                    then pgps_broker
                    else (select o.name from pgps_internal.origin o where o.origin_id = c.origin_id) end, r.attempt,
                c.handler, c.client_id, c.lo, c.hi)::pgps_internal.message$message$, unfold_names.names),
        'statement', pgps_internal.statement_of(v_columns, v_type_id),
        'statement_in_segments', pgps_internal.statement_of(v_columns, v_type_id,
            also => ' and (pgps_internal.log_segment(c.hi) = v_first or pgps_internal.log_segment(c.hi) = v_last)'));
end
$$;
comment on function pgps_internal.unfold_names(jsonb) is
'Names for the template of unfold_<type>: an event as a message, and the two look-ups of its statement';

create or replace function pgps_internal.write_unfold(names jsonb) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- Static, so that its plan is kept. The join names the segment, so that one is searched for each event, not four.
    return pgps_internal.write_function('pgps_internal.unfold_{type_id}',
        $head$(pgps_taken pgps_internal.received[], pgps_ids bigint[], pgps_type text, pgps_broker text)
        returns pgps_internal.message[]
        language plpgsql set plan_cache_mode = force_generic_plan set enable_bitmapscan = off$head$, $body$
        declare
            v_messages pgps_internal.message[];
            v_first bigint := pgps_internal.log_segment(pgps_taken[1].event_id);
            v_last bigint := pgps_internal.log_segment(pgps_taken[cardinality(pgps_taken)].event_id);
        begin
            -- pgps_ids: null = all, else of what was taken the others have no type (only_these).
            -- Common case: all events are in the segments of the first and the last one, and their statements in the
            -- same segments of the control queue. Setting up the scans of the others took longer than finding the
            -- events. Two comparisons, since a list behind IN would be built anew for each event.
            select array_agg({message}) into v_messages
            from unnest(pgps_taken) with ordinality r(batch_id, event_id, type_id, attempt, place)
            -- OFFSET 0: so the index is searched for the id, by a plan of any age. Of a plain join PostgreSQL reads the
            -- whole index of a segment that was empty when the plan was made (decision 87).
            cross join lateral (select * from {log} x where x.event_id = r.event_id
                and (pgps_internal.log_segment(x.event_id) = v_first
                    or pgps_internal.log_segment(x.event_id) = v_last) offset 0) l
            cross join lateral ({statement_in_segments}) c
            where r.type_id = {type_id};
            if cardinality(v_messages) = coalesce(cardinality(pgps_ids), cardinality(pgps_taken)) then
                return v_messages;
            end if;
            select array_agg({message}) into v_messages
            from unnest(pgps_taken) with ordinality r(batch_id, event_id, type_id, attempt, place)
            cross join lateral (select * from {log} x where x.event_id = r.event_id
                and pgps_internal.log_segment(x.event_id) = pgps_internal.log_segment(r.event_id) offset 0) l
            left join lateral ({statement}) c on true
            where r.type_id = {type_id};
            if coalesce(cardinality(v_messages), 0) < coalesce(cardinality(pgps_ids), cardinality(pgps_taken)) then
                v_messages := coalesce(v_messages, '{}') || (
                    select array_agg((r.place, l.event_id, pgps_type,
                        (select {to_json} from (select {attributes}) pgps_row), l.pgps_published_at,
                        pg_get_userbyid(l.pgps_publisher), l.xid, coalesce(l.pgps_origin, pgps_broker), r.attempt, null,
                        null, null, null)::pgps_internal.message)
                    from unnest(pgps_taken) with ordinality r(batch_id, event_id, type_id, attempt, place)
                    cross join lateral (select * from {kept} x where x.event_id = r.event_id offset 0) l
                    where r.type_id = {type_id}
                        and r.event_id not in (select (m).event_id from unnest(v_messages) m));
            end if;
            return v_messages;
        end$body$, write_unfold.names || pgps_internal.unfold_names(write_unfold.names));
end
$write$;
comment on function pgps_internal.write_unfold(jsonb) is
'Writes pgps_internal.unfold_<type>: received events as messages, with payload, publisher and origin';
