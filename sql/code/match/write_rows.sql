-- Generated: pgps_internal.rows_<type>, events as rows of their type. Called by match.sql for filters that are given
-- the events.
-- Writes: nothing.

create or replace function pgps_internal.write_rows(names jsonb) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.write_function('pgps_internal.rows_{type_id}',
        $head$(pgps_ids int8multirange, pgps_unread boolean[], out event_ids bigint[], out events pgps_event.{name}[])
        returns record
        language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan$head$,
            $body$
        begin
            if pgps_unread is null then
                select array_agg(l.event_id order by l.event_id),
                    array_agg(row({l_columns})::pgps_event.{name} order by l.event_id) into event_ids, events
                from {log} l
                where l.event_id between lower(pgps_ids) and upper(pgps_ids) - 1 and l.event_id <@ pgps_ids;
                return;
            end if;
            select array_agg(l.event_id order by l.event_id),
                array_agg(row({some_columns})::pgps_event.{name} order by l.event_id) into event_ids, events
            from {log} l where l.event_id between lower(pgps_ids) and upper(pgps_ids) - 1 and l.event_id <@ pgps_ids;
        end$body$, write_rows.names || jsonb_build_object('some_columns', (
            select string_agg(case when t.typlen <> -1 or t.typtype = 'd' then format('l.%I', a.attname)
                else format('case when pgps_unread[%s] then null else l.%I end', a.attnum, a.attname) end, ', '
                order by a.attnum)
            from pg_attribute a join pg_type t on t.oid = a.atttypid
            where a.attrelid = (write_rows.names ->> 'endpoint')::regclass and a.attnum > 0
                and not a.attisdropped)));
end
$write$;
comment on function pgps_internal.write_rows(jsonb) is
'Writes pgps_internal.rows_<type>: events of the log as rows of their type, in order. pgps_unread: by the numbers of
attributes, which of them are null in place of what may be stored out of line; null = all are read';
