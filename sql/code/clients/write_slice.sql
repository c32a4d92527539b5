-- Generated: pgps_internal.slice_<type>, the next events between two ids. Called by occurrences.sql and direct.sql.
-- Writes: nothing.

create or replace function pgps_internal.write_slice(names jsonb) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.write_function('pgps_internal.slice_{type_id}',
        $head$(pgps_xid xid8, pgps_after bigint, pgps_upto bigint, pgps_ids int8multirange, pgps_max integer)
        returns pgps_internal.received[]
        language plpgsql set search_path = pg_catalog,
            pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off$head$, $body$
        begin
            return array(
                select (null, l.event_id, {type_id}, 1)::pgps_internal.received from {log} l
                where l.event_id > pgps_after and l.event_id <= pgps_upto and (pgps_xid is null or l.xid = pgps_xid)
                    and (pgps_ids is null or l.event_id <@ pgps_ids)
                order by l.event_id limit pgps_max);
        end$body$, write_slice.names);
end
$write$;
comment on function pgps_internal.write_slice(jsonb) is
'Writes pgps_internal.slice_<type>: the next events between two ids, of one transaction or of all';
