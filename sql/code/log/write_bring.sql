-- Generated: pgps_internal.bring_<type>, which publishes what was staged, on the loopback connection. Called by
-- immediate.sql.
-- Writes: by name: the entry of an immediate type (generated).

create or replace function pgps_internal.write_bring(names jsonb) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- pgps_events has rows of the stage, with all their attributes, as text under the settings of forward_stage.
    return pgps_internal.write_function('pgps_internal.bring_{type_id}',
        $head$(pgps_events jsonb, pgps_publisher name, pgps_reliability text, pgps_raiser text, pgps_handler text,
            pgps_client text,
            pgps_timezone text) returns bigint
        language plpgsql volatile set search_path = pg_catalog,
            pg_temp set datestyle = 'ISO, YMD' set intervalstyle = postgres
        set lc_monetary = 'C'$head$, $body$
        declare
            v_type pgps_internal.event_type;
            v_carries boolean;
        begin
            select t.* into v_type from pgps_internal.event_type t where t.type_id = {type_id};
            if current_setting('timezone') <> pgps_timezone then
                perform set_config('timezone', pgps_timezone, true);
            end if;
            v_carries := pgps_internal.assume(v_type, pgps_publisher, pgps_reliability, pgps_raiser, pgps_handler,
                pgps_client);
            insert into {entry} ({columns}) select {r_columns}
                from jsonb_populate_recordset(null::{endpoint}, pgps_events) r;
            if v_carries then
                perform pgps_internal.carry(v_type, currval('pgps_internal.event_id_seq'));
            end if;
            return currval('pgps_internal.event_id_seq');
        end$body$, write_bring.names);
end
$write$;
comment on function pgps_internal.write_bring(jsonb) is
'Writes pgps_internal.bring_<type>, of an immediate type: publishes events in a transaction of their own';
