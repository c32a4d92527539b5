-- Generated: what lets links' sessions COPY into the segments of a log, see copy.sql.
-- Writes: nothing.

create or replace function pgps_internal.write_segment(event_type pgps_internal.event_type, slot integer)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
declare
    v_name text := pgps_internal.segment_name((write_segment.event_type).name, write_segment.slot);
begin
    -- The grant leaves out ids and transaction ids, which links must not set.
    return row('relation', v_name,
        format('create or replace trigger pgps_received before insert on %1$s for each statement
            execute function pgps_internal.only_received(%2$s);
        grant insert (pgps_origin_event%3$s) on %1$s to pgps_link, pgps_worker, pgps_admin', v_name,
            (write_segment.event_type).type_id, (
            select string_agg(format(', %I', c.value ->> 'name'), '' order by c.n)
            from jsonb_array_elements(pgps_internal.wire_columns((write_segment.event_type).endpoint))
                with ordinality c(value, n))),
        null, null)::pgps_internal.piece;
end
$write$;
comment on function pgps_internal.write_segment(pgps_internal.event_type, integer) is
'Writes the trigger and the privilege with which links put events straight into a segment of the log';
