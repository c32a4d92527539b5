-- Generated: pgps_internal.wire_<type>, a row as it travels in a small batch. See small_batches.sql.
-- Writes: nothing.

create or replace function pgps_internal.write_wire(event_type pgps_internal.event_type) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
declare
    v_name text := format('pgps_internal.wire_%s', (write_wire.event_type).type_id);
begin
    return row('type', v_name, format('drop type if exists %1$s; create type %1$s as (pgps_event bigint%2$s)', v_name, (
            select string_agg(format(', %I %s', c.value ->> 'name', c.value ->> 'type'), '' order by c.n)
            from jsonb_array_elements(pgps_internal.wire_columns((write_wire.event_type).endpoint))
                with ordinality c(value, n))),
        null, null)::pgps_internal.piece;
end
$write$;
comment on function pgps_internal.write_wire(pgps_internal.event_type) is
'Writes the row type of small batches: the event''s id at its origin, and the attributes';
