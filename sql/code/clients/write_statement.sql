-- Generated: pgps_internal.statement_<type>, the statement that published an event. Called by occurrences.sql.
-- Writes: nothing.

create or replace function pgps_internal.write_statement(names jsonb) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.write_function('pgps_internal.statement_{type_id}', $head$(pgps_event bigint)
        returns pgps_internal.control
        language plpgsql set search_path = pg_catalog,
            pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off$head$, $body$
        declare
            v_statement pgps_internal.control;
            v_xid xid8 := (select l.xid from {log} l where l.event_id = pgps_event
                and pgps_internal.log_segment(l.event_id) = pgps_internal.log_segment(pgps_event));
        begin
            select c.* into v_statement from ({statement}) c;
            if not found and v_xid is not null then
                v_statement.xid := v_xid;
                v_statement.lo := pgps_event;
                v_statement.hi := pgps_event;
            end if;
            return v_statement;
        end$body$, write_statement.names || jsonb_build_object('statement',
            pgps_internal.statement_of('c.*', write_statement.names ->> 'type_id', 'pgps_event', 'v_xid')));
end
$write$;
comment on function pgps_internal.write_statement(jsonb) is
'Writes pgps_internal.statement_<type>: the control queue''s row of the statement that published an event; a statement
of that event alone when the row is gone';
