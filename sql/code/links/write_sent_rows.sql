-- Generated: pgps_link.<type>_sent, the view that a link's session copies its events from. Read by copy.sql and by
-- links' sessions.
-- Writes: nothing.

create or replace function pgps_internal.write_sent_rows(event_type pgps_internal.event_type, names jsonb)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- Rows are read while they are found, not collected first. The barrier keeps readers from seeing other rows: only
    -- leakproof comparisons are pushed below it.
    return pgps_internal.write_view('pgps_link.{sent}', $view$with (security_barrier = true) as
        select o.lseq as pgps_item, l.*
        from (select o.lseq, r from pgps_internal.shipment o, unnest(o.slices) s, unnest(s.ids) r
            where o.neighbour_id = (select pgps._sender()) and s.type_id = {type_id} order by o.lseq, r) o
        cross join lateral (select coalesce(x.pgps_origin_event, x.event_id) as pgps_event{wire} from {log} x
            where x.event_id >= lower(o.r) and x.event_id < upper(o.r) order by x.event_id offset 0) l$view$,
        'pgps_link, pgps_worker, pgps_admin', write_sent_rows.names || jsonb_build_object(
            'sent', quote_ident((write_sent_rows.event_type).name || '_sent'), 'wire', (
                select coalesce(string_agg(format(case when (c.value ->> 'as_text')::boolean
                    then ', x.%1$I::text as %1$I' else ', x.%1$I' end, c.value ->> 'name'),
                    '' order by c.n), '')
                from jsonb_array_elements(pgps_internal.wire_columns((write_sent_rows.event_type).endpoint))
                    with ordinality c(value, n))));
end
$write$;
comment on function pgps_internal.write_sent_rows(pgps_internal.event_type, jsonb) is
'Writes pgps_link.<type>_sent: what the session of a link has to send, item by item';
