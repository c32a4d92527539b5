-- Generated: pgps_queue.<type>_log, the events that the broker holds. Read by streams (streams.sql) and by Spark.
-- Writes: nothing.

create or replace function pgps._is_seen(log regclass) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- What pg_class says is so in the snapshot, what pg_relation_filenode says is so now. Reclaim gives back some of
    -- the segments: the others tell that the log is still the same.
    if (select bool_and(c.relfilenode <> pg_relation_filenode(c.oid)) from pg_inherits i
            join pg_class c on c.oid = i.inhrelid where i.inhparent = _is_seen.log) then
        raise exception 'the log % was written anew after the snapshot in which it is read', _is_seen.log
        using errcode = '40001', hint = 'Somebody has changed the event type or its queues meanwhile: try again.';
    end if;
    return true;
end
$$;
comment on function pgps._is_seen(regclass) is
'Returns true. COPY and cursors take their snapshot before they wait for a lock; in that, a log that was written anew
meanwhile is empty. Errors: 40001 it was';

create or replace function pgps_internal.write_log_view(event_type pgps_internal.event_type, names jsonb)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- Scalar subqueries: columns that a query does not name cost nothing.
    return pgps_internal.write_view('pgps_queue.{queue}', $view$with (security_invoker = true) as
        select {shown} l.event_id, l.xid, ({published_at}) as published_at, ({publisher}) as publisher,
            coalesce(({origin}), (select p.broker from pgps_internal.progress p)) as origin,
            (select {as_json} from (select {attributes}) pgps_row) as payload
        from {log} l
        union all
        select {shown} l.event_id, l.xid, l.pgps_published_at, pg_get_userbyid(l.pgps_publisher),
            coalesce(l.pgps_origin, (select p.broker from pgps_internal.progress p)),
            (select {as_json} from (select {attributes}) pgps_row) as payload
        from {kept} l where not exists (select from {log} x where x.event_id = l.event_id)
        -- Finds no row, but whether the log is the one that the query sees. Not in the branch of the log, which could
        -- not be read in the order of its index then; and with an id that the planner does not know.
        union all select {each_attribute} l._producer_seq, null, null, null, null, null from only {endpoint} l
        where not (select pgps._is_seen({log_label}::regclass))$view$,
        'public',
        write_log_view.names || jsonb_build_object('queue', quote_ident((write_log_view.event_type).name || '_log'),
            'log_label', quote_literal(write_log_view.names ->> 'log'),
            'shown', pgps_internal.shown_attributes((write_log_view.event_type).endpoint,
                '{event_id,xid,published_at,publisher,origin,payload}'),
            -- Looked up for each column that is read: a reader of the payload alone needs no statement.
            'published_at', pgps_internal.statement_of('c.published_at', write_log_view.names ->> 'type_id',
                source => 'pgps_internal.statement'),
            'publisher', pgps_internal.statement_of('c.publisher', write_log_view.names ->> 'type_id',
                source => 'pgps_internal.statement'),
            'origin', pgps_internal.statement_of('c.origin', write_log_view.names ->> 'type_id',
                source => 'pgps_internal.statement')));
end
$write$;
comment on function pgps_internal.write_log_view(pgps_internal.event_type, jsonb) is
'Writes pgps_queue.<type>_log: the events that the broker holds, by id, without the states of the queues; for readers of
streams';

grant execute on function pgps._is_seen(regclass) to public;
