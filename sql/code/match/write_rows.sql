-- Generated: pgps_internal.rows_<type>, events as rows of their type. Called by match.sql for filters that are given
-- the events.
-- Writes: nothing.

create or replace function pgps_internal.write_rows(names jsonb) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.write_function('pgps_internal.rows_{type_id}',
        $head$(pgps_ids int8multirange, out event_ids bigint[], out events pgps_event.{name}[]) returns record
        language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan$head$,
            $body$
        begin
            select array_agg(l.event_id order by l.event_id),
                array_agg(row({l_columns})::pgps_event.{name} order by l.event_id) into event_ids, events
            from {log} l where l.event_id between lower(pgps_ids) and upper(pgps_ids) - 1 and l.event_id <@ pgps_ids;
        end$body$, write_rows.names);
end
$write$;
comment on function pgps_internal.write_rows(jsonb) is
'Writes pgps_internal.rows_<type>: events of the log as rows of their type, in order';
