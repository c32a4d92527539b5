-- What Prometheus is told of a broker: figures that cost little however many subscriptions there are.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.segment_bytes(segment regclass) returns bigint
language sql
begin atomic
    -- Of four segments two have been truncated; looking at their indexes, too, costs most of the time of a scrape.
    select case when pg_relation_size($1) > 0 then pg_total_relation_size($1) else 0 end;
end;
comment on function pgps_internal.segment_bytes(regclass) is
'The space of a segment of a log or a ledger, with its indexes; of one without rows 0';

create or replace function pgps_internal.type_metrics()
returns table (metric text, kind text, labels jsonb, value double precision)
language plpgsql stable
set search_path = pg_catalog, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
    return query
    -- What waits is counted by the numbers that were given, not in the log.
    select m.metric, m.kind, jsonb_build_object('event_type', t.name), m.value
    from pgps_internal.event_type t
    left join lateral (select b.total from pgps_internal.batch_type b where b.type_id = t.type_id
        order by b.batch_id desc limit 1) b on true
    left join pgps_internal.waiting_events w using (type_id)
    cross join lateral (values
        ('pgps_published_events_total', 'counter', coalesce(b.total, 0)::double precision),
        ('pgps_waiting_events', 'gauge', coalesce(w.events, 0)::double precision),
        ('pgps_oldest_waiting_seconds', 'gauge',
            coalesce(extract(epoch from pgps_internal.clock() - w.oldest), 0)::double precision),
        ('pgps_log_bytes', 'gauge', (select coalesce(sum(pgps_internal.segment_bytes(i.inhrelid)), 0)
            from pg_inherits i where i.inhparent = t.log)::double precision)) m(metric, kind, value);
end
$$;
comment on function pgps_internal.type_metrics() is
'Figures of each event type: published, waiting for dispatch and for how long, space of the log; see pgps.metrics';

create or replace function pgps.metrics()
returns table (metric text, kind text, labels jsonb, value double precision)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select m.* from pgps_internal.type_metrics() m;
    return query
    select 'pgps_subscriptions', 'gauge', jsonb_build_object('state', x.state),
        coalesce(sum(s.number) filter (where x.state = case when r.oid is null and s.state is not null
            then 'suspended' else s.state end), 0)::double precision
    from (values ('active'), ('paused'), ('suspended')) x(state)
    -- Counted first, so that what follows is done for each owner and state, not for each subscription.
    left join (
        select s.owner, s.state, count(*) as number from pgps_internal.subscription s where not s.is_hidden
        group by s.owner, s.state
    ) s on true
    left join pg_roles r on r.oid = s.owner
    group by x.state;
    return query
    select 'pgps_composite_event_suspended', 'gauge', jsonb_build_object('composite_event', c.name),
        1::double precision
    from pgps.suspended_composite_events() c;
    return query
    select 'pgps_link_refused', 'gauge', jsonb_build_object('neighbour', r.neighbour,
        'state', case when r.sqlstate = '58030' then 'gap' else 'refused' end), count(*)::double precision
    from pgps_internal.rejected r group by 3;
    return query
    select m.metric, m.kind, '{}'::jsonb, m.value::double precision
    from (values
        ('pgps_ledger_bytes', 'gauge', (select coalesce(sum(pgps_internal.segment_bytes(i.inhrelid)), 0)
            from pgps_internal.ledgers() l join pg_inherits i
            on i.inhparent = to_regclass(format('pgps_internal.%I', l.ledger)))),
        ('pgps_batches_total', 'counter', (select coalesce(max(b.batch_id), 0) from pgps_internal.batch b)),
        ('pgps_last_batch_age_seconds', 'gauge', (select extract(epoch from pgps_internal.clock() - b.created_at)
            from pgps_internal.batch b order by b.batch_id desc limit 1)),
        -- Reclaim and dispatch wait for a transaction that has written, or has a snapshot.
        ('pgps_oldest_transaction_seconds', 'gauge', greatest(
            (select extract(epoch from clock_timestamp() - min(a.xact_start)) from pg_stat_activity a
                where a.datname = current_database() and a.pid <> pg_backend_pid()
                    and (a.backend_xid is not null or a.backend_xmin is not null)),
            (select extract(epoch from clock_timestamp() - min(p.prepared)) from pg_prepared_xacts p
                where p.database = current_database()), 0)),
        ('pgps_connections', 'gauge', (select count(*) from pg_stat_activity a
            where a.backend_type = 'client backend')),
        ('pgps_max_connections', 'gauge', current_setting('max_connections')::numeric)
    ) m(metric, kind, value)
    where m.value is not null;
end
$$;
comment on function pgps.metrics() is
'Figures of the broker for a scraper, with the names and kinds of Prometheus: by event type what was published, what
waits for dispatch and for how long, and the space of its log; subscriptions by state; composite events that are
suspended; what links refused; the space of
the ledgers; batches; the age of the oldest transaction, for which reclaim waits; connections. Costs little, also with
ten thousand subscriptions. Needs pgps_worker or pgps_admin. Errors: 42501.';

revoke all on function pgps.metrics() from public;
grant execute on function pgps.metrics() to pgps_worker, pgps_admin;
