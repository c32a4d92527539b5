-- Generated: pgps_queue.<type>_in, _out and _exception, the queues of an event type as views. The views that they read
-- are in queue_views.sql.
-- Writes: by name: no table (a hint names the endpoint).

create or replace function pgps_internal.write_all_events(names jsonb) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- An event is in the log, or was kept aside for a failure or archived for an audit when its segment was reclaimed,
    -- or both.
    return pgps_internal.render($query$select event_id, {own_attributes} 1 as pgps_one from {log}
        union all select event_id, {own_attributes} 1 from {kept} k
            where not exists (select from {log} x where x.event_id = k.event_id)
        union all select event_id, {own_attributes} 1 from {audit} a
            where not exists (select from {log} x where x.event_id = a.event_id)
            and not exists (select from {kept} k where k.event_id = a.event_id)$query$, write_all_events.names);
end
$write$;
comment on function pgps_internal.write_all_events(jsonb) is
'The query of all events of a type that the broker has, wherever they are';

create or replace function pgps_internal.refuse_queue_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'cannot % queue "%": queues are read only', tg_op, tg_table_name
    using errcode = '55000', hint = case tg_argv[0]
        when 'in' then format('Publish with INSERT INTO pgps_event.%I. A published event stays as it is.', tg_argv[1])
        when 'out' then 'An event leaves it when it is acknowledged: pgps.receive and pgps.ack, or pgps.take; what a '
            'subscription is to pass over: pgps.seek.'
        else format('Put failed events back with: select pgps.retry_exception(%1$L), or drop them with: '
            'select pgps.discard_exception(%1$L)', quote_ident(tg_argv[1])) end;
end
$$;
comment on function pgps_internal.refuse_queue_change() is
'Raises 55000 for INSERT, UPDATE and DELETE of a queue, whoever asks; arguments: the kind of queue, the event type';

create or replace function pgps_internal.read_only(view pgps_internal.piece, kind text, event_type text)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
declare
    v_view pgps_internal.piece := read_only.view;
begin
    -- A statement trigger fires also when there is no row; on a view it fires only where a row trigger stands in for
    -- the change.
    v_view.definition := concat(v_view.definition, format($triggers$;
        create or replace trigger pgps_refuse before insert or update or delete on %1$s
        for each statement execute function pgps_internal.refuse_queue_change(%2$L, %3$L);
        create or replace trigger pgps_refuse_row instead of insert or update or delete on %1$s
        for each row execute function pgps_internal.refuse_queue_change(%2$L, %3$L)$triggers$,
        v_view.name, read_only.kind, read_only.event_type));
    return v_view;
end
$write$;
comment on function pgps_internal.read_only(pgps_internal.piece, text, text) is
'The piece of a queue''s view, with triggers that say what to do instead of changing it';

create or replace function pgps_internal.write_queue_in(event_type pgps_internal.event_type, names jsonb)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- Each queue ends with a part that has no rows and costs nothing: it names the endpoint, so PostgreSQL refuses
    -- readers without SELECT on it, whatever else of the view is planned. A function that raises would not do: it is
    -- not called where policies leave nothing to read.
    return pgps_internal.read_only(pgps_internal.write_view('pgps_queue.{queue}',
        $view$with (security_invoker = true) as
        select {shown} l.event_id, l.pgps_published_at as enqueued_at, l.pgps_xid as xid, l.pgps_publisher as publisher,
            coalesce(l.pgps_origin, p.broker) as origin, l.pgps_state as state,
            coalesce(l.pgps_origin_event, l.event_id) as origin_event_id
        from (
            select {each_attribute} l.event_id, coalesce(c.publishers_xid, l.xid) as pgps_xid,
                c.published_at as pgps_published_at, c.publisher as pgps_publisher, c.origin as pgps_origin,
                l.pgps_origin_event,
                case when coalesce(pg_visible_in_snapshot(l.xid, p.previous) or l.event_id <= p.base_hi
                    or pg_visible_in_snapshot(l.xid, p.snapshot) and (p.upto is null or l.xid <= p.upto), false)
                    then 'dispatched' else 'waiting' end as pgps_state
            from {log} l cross join pgps_internal.progress p
            left join lateral ({statement}) c on true
            union all
            select {each_attribute} l.event_id, l.xid, l.pgps_published_at, pg_get_userbyid(l.pgps_publisher),
                l.pgps_origin, l.pgps_origin_event, 'archived' from {audit} l
            where not exists (select from {log} x where x.event_id = l.event_id)
        ) l cross join pgps_internal.progress p
        where l.pgps_state = 'waiting'
            or l.pgps_published_at >= (select case when q.auditable
                then coalesce(pgps._clock() - q.retention, '-infinity') else 'infinity' end
                from pgps_internal.queue_audit q where q.type_id = {type_id} and q.kind = 'in')
            or l.event_id <@ (select coalesce(range_agg(r), '{}') from pgps_internal.pending b, unnest(b.ids) r
                where b.type_id = {type_id})
        union all select {each_attribute} null, null, null, null, null, null, null from only {endpoint} l
            where false$view$, 'public',
        write_queue_in.names || jsonb_build_object('queue', quote_ident((write_queue_in.event_type).name || '_in'),
            'statement', pgps_internal.statement_of('c.published_at, c.publisher, c.origin, c.publishers_xid',
                write_queue_in.names ->> 'type_id', source => 'pgps_internal.statement'),
            'shown',
            pgps_internal.shown_attributes((write_queue_in.event_type).endpoint,
                '{event_id,enqueued_at,xid,publisher,origin,state,origin_event_id}'))),
        'in', (write_queue_in.event_type).name);
end
$write$;
comment on function pgps_internal.write_queue_in(pgps_internal.event_type, jsonb) is
'Writes pgps_queue.<type>_in: published events that are not dispatched, not acknowledged by all subscriptions, or kept
for an audit';

create or replace function pgps_internal.write_queue_out(event_type pgps_internal.event_type, names jsonb)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.read_only(pgps_internal.write_view('pgps_queue.{queue}',
        $view$with (security_invoker = true) as
        select {shown} o.event_id, o.subscription, o.matched_at, o.attempts, o.state
        from pgps_internal.outgoing o
        join ({events}) l using (event_id)
        where o.type_id = {type_id} and (o.state not in ('delivered', 'failed', 'gap')
            or (select q.auditable from pgps_internal.queue_audit q where q.type_id = {type_id} and q.kind = 'out'))
        union all select {each_attribute} null, null, null, null, null from only {endpoint} l where false$view$,
        'public',
        write_queue_out.names || jsonb_build_object('queue', quote_ident((write_queue_out.event_type).name || '_out'),
            'events', pgps_internal.write_all_events(write_queue_out.names), 'shown',
            pgps_internal.shown_attributes((write_queue_out.event_type).endpoint,
                '{event_id,subscription,matched_at,attempts,state}'))),
        'out', (write_queue_out.event_type).name);
end
$write$;
comment on function pgps_internal.write_queue_out(pgps_internal.event_type, jsonb) is
'Writes pgps_queue.<type>_out: what waits for subscriptions, and what they had if that is kept for an audit';

create or replace function pgps_internal.write_queue_exception(event_type pgps_internal.event_type, names jsonb)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.read_only(pgps_internal.write_view('pgps_queue.{queue}',
        $view$with (security_invoker = true) as
        select {shown} f.event_id, f.subscription, f.failed_at, f.attempts, f.sqlstate, f.error, f.state
        from pgps_internal.failed f
        join ({events}) l using (event_id)
        where f.type_id = {type_id}
        union all select {each_attribute} null, null, null, null, null, null, null from only {endpoint} l
            where false$view$, 'public',
        write_queue_exception.names
            || jsonb_build_object('queue', quote_ident((write_queue_exception.event_type).name || '_exception'),
            'events', pgps_internal.write_all_events(write_queue_exception.names), 'shown',
            pgps_internal.shown_attributes((write_queue_exception.event_type).endpoint,
                '{event_id,subscription,failed_at,attempts,sqlstate,error,state}'))),
        'exception', (write_queue_exception.event_type).name);
end
$write$;
comment on function pgps_internal.write_queue_exception(pgps_internal.event_type, jsonb) is
'Writes pgps_queue.<type>_exception: what could not be handed over, with the error';
