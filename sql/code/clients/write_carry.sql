-- Generated: pgps_internal.carry_<type>, the JSON of a statement that travels in a notification. Called by carried.sql.
-- Writes: nothing.

create or replace function pgps_internal.write_carry(names jsonb) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- The settings make intervals and money readable for psycopg, whatever the publisher's session has set.
    return pgps_internal.write_function('pgps_internal.carry_{type_id}', $head$(pgps_statement pgps_internal.control)
        returns text
        language plpgsql set search_path = pg_catalog,
            pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off
        set intervalstyle = postgres set lc_monetary = 'C'$head$, $body$
        begin
            return json_build_array({label}, pgps_statement.published_at, pg_get_userbyid(pgps_statement.publisher),
                coalesce(nullif(pgps_statement.raiser, '0'), pgps_statement.xid)::text::bigint,
                pgps_internal.broker_name(), case when pgps_statement.client_id is not null
                    then pgps_internal.raiser_of(pgps_statement.client_id, pgps_statement.publisher) end,
                (select json_agg(json_build_array(l.event_id,
                    (select row_to_json(pgps_row) from (select {attributes}) pgps_row)) order by l.event_id)
                    from {log} l where l.event_id >= pgps_statement.lo and l.event_id <= pgps_statement.hi
                        and l.xid = pgps_statement.xid
                        and pgps_internal.log_segment(l.event_id) in (pgps_internal.log_segment(pgps_statement.lo),
                            pgps_internal.log_segment(pgps_statement.hi))))::text;
        end$body$, write_carry.names);
end
$write$;
comment on function pgps_internal.write_carry(jsonb) is
'Writes pgps_internal.carry_<type>, JSON of one statement: event type, published_at, publisher, xid, origin, raiser,
tuples [event id, payload]';
