-- Generated: pgps_internal.store_<type>, which puts the rows of a small batch into the log. Called by
-- small_batches.sql.
-- Writes: by name: the log (generated).

create or replace function pgps_internal.write_store(event_type pgps_internal.event_type, names jsonb)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.write_function('pgps_internal.store_{type_id}', $head$(pgps_rows jsonb, pgps_attributes jsonb)
        returns bigint[]
        language plpgsql {wire_settings}$head$, $body$
        declare
            v_ids bigint[];
        begin
            if pgps_attributes is distinct from {wire_known}::jsonb then
                return null;
            end if;
            with stored as (
                insert into {log} (pgps_origin_event{wire_columns})
                select (x.w).pgps_event{wire_stored}
                from (select r.value::pgps_internal.wire_{type_id} as w, r.n
                    from jsonb_array_elements_text(pgps_rows) with ordinality r(value, n) offset 0) x
                order by x.n
                returning event_id
            )
            select coalesce(array_agg(t.event_id order by t.event_id), '{}') into v_ids from stored t;
            return v_ids;
        end$body$, write_store.names || pgps_internal.wire_names((write_store.event_type).endpoint));
end
$write$;
comment on function pgps_internal.write_store(pgps_internal.event_type, jsonb) is
'Writes pgps_internal.store_<type>: puts rows that came as text into the log; returns their ids, or null when the
attributes are not the expected ones';
