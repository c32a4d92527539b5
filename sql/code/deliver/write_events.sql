-- Generated: pgps_internal.events_<type>, events by their ids, wherever they are kept. Called by callbacks.sql for
-- callbacks.
-- Writes: nothing.

create or replace function pgps_internal.write_events(names jsonb) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.write_function('pgps_internal.events_{type_id}',
        $head$(pgps_ids bigint[]) returns table (event_id bigint, event pgps_event.{name})
        language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan$head$,
            $body$
        #variable_conflict use_column
        begin
            return query
            select l.event_id, row({l_columns})::pgps_event.{name} from {log} l where l.event_id = any (pgps_ids)
            union all
            select l.event_id, row({l_columns})::pgps_event.{name} from {kept} l
            where l.event_id = any (pgps_ids)
                -- OFFSET 0: so the index is searched for the id, by a plan of any age (write_unfold.sql).
                and not exists (select from {log} x where x.event_id = l.event_id offset 0);
        end$body$, write_events.names);
end
$write$;
comment on function pgps_internal.write_events(jsonb) is
'Writes pgps_internal.events_<type>: events by id, of the log or kept aside';
