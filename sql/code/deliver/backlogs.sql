-- Limits of what waits for a subscription: a subscription beyond its limit is suspended, or its oldest events are
-- passed over and noted as a gap. pgps.reclaim applies them before it determines what is still needed.
-- Locks: the turn of a subscription whose events are passed over; one whose turn is taken is left for the next time.
-- Writes: backlog_gap, backlog_limit, failure, share, subscription.

create or replace function pgps_internal.backlog_of(subscription_id bigint) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp set jit = off
as $$ select coalesce(sum(b.depth), 0)::bigint from pgps_internal.backlog b
    where b.subscription_id = backlog_of.subscription_id $$;
comment on function pgps_internal.backlog_of(bigint) is
'How many events wait for a subscription, as pgps.subscriptions shows it';

create or replace function pgps_internal.rest_of(
    delivery pgps_internal.delivery, skip int8multirange, after_event bigint, upto_event bigint, out events bigint,
    out first_event bigint,
    out last_event bigint
)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select count(*), min(e.event_id), max(e.event_id) from pgps_internal.event_ids(rest_of.delivery) e(event_id)
    where (rest_of.after_event is null or e.event_id > rest_of.after_event)
        and (rest_of.upto_event is null or e.event_id <= rest_of.upto_event)
        and not e.event_id <@ rest_of.skip
$$;
comment on function pgps_internal.rest_of(pgps_internal.delivery, int8multirange, bigint, bigint) is
'The events of a delivery after one event up to another (null: no limit) that are not skipped: how many, the lowest, the
highest';

create or replace function pgps_internal.window_end(
    subscription_id bigint, at pgps_internal.position, keep bigint, out batch bigint, out event bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_within bigint;
begin
    -- Counts whole batches first, unfolding only the one at the position and those with skipped events; then unfolds
    -- the batch in which the limit lies, to find the event.
    with waiting as (
        select d.batch_id, sum(case when d.batch_id > (window_end.at).acked_batch and isempty(m.skip) then d.events
            else (pgps_internal.rest_of(d, m.skip, case when d.batch_id = (window_end.at).acked_batch
                then (window_end.at).acked_event end, null)).events
            end) as events
        from pgps_internal.waiting_member m
        join pgps_internal.delivery d on d.class_id = m.class_id
            and d.batch_id >= greatest((window_end.at).acked_batch, m.from_batch + 1)
        where m.subscription_id = window_end.subscription_id group by d.batch_id
    ),
    summed as (
        select w.batch_id, w.events, sum(w.events) over (order by w.batch_id) as running, sum(w.events) over () as whole
            from waiting w
    )
    select s.batch_id, s.whole - window_end.keep - (s.running - s.events) into window_end.batch, v_within
    from summed s where s.running >= s.whole - window_end.keep and s.whole > window_end.keep
        order by s.batch_id limit 1;
    select e.event_id into window_end.event
    from pgps_internal.waiting_member m
    join pgps_internal.delivery d on d.class_id = m.class_id and d.batch_id = window_end.batch
        and d.batch_id > m.from_batch
    cross join lateral pgps_internal.event_ids(d) e(event_id)
    where m.subscription_id = window_end.subscription_id and not e.event_id <@ m.skip
        and (d.batch_id > (window_end.at).acked_batch or e.event_id > (window_end.at).acked_event)
    order by e.event_id offset v_within - 1 limit 1;
end
$$;
comment on function pgps_internal.window_end(bigint, pgps_internal.position, bigint) is
'The last event that a subscription has to pass over for "keep" events to be left; nulls when no more than that wait';

create or replace function pgps_internal.note_gap(gap pgps_internal.backlog_gap) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A gap that begins where the last one ended extends it: nothing was taken in between.
    update pgps_internal.backlog_gap g set events = g.events + (note_gap.gap).events,
        last_event = (note_gap.gap).last_event,
        upto_batch = (note_gap.gap).upto_batch, upto_event = (note_gap.gap).upto_event,
        max_backlog = (note_gap.gap).max_backlog,
        noted_at = pgps_internal.clock()
    where g.gap_id = (select y.gap_id from pgps_internal.backlog_gap y where y.gap_id = (
            select max(x.gap_id) from pgps_internal.backlog_gap x
            where x.subscription_id = (note_gap.gap).subscription_id and x.type_id = (note_gap.gap).type_id)
            -- Whoever discards it, or acknowledges it, is not waited for.
            for no key update skip locked)
        and g.ids is null and (note_gap.gap).ids is null
        and (g.upto_batch, g.upto_event) = ((note_gap.gap).after_batch, (note_gap.gap).after_event);
    if not found then
        insert into pgps_internal.backlog_gap (subscription_id, type_id, events, first_event, last_event, after_batch,
            after_event, upto_batch, upto_event,
            ids, max_backlog)
        select (note_gap.gap).subscription_id, (note_gap.gap).type_id, (note_gap.gap).events,
            (note_gap.gap).first_event, (note_gap.gap).last_event,
            (note_gap.gap).after_batch, (note_gap.gap).after_event, (note_gap.gap).upto_batch,
                (note_gap.gap).upto_event, (note_gap.gap).ids,
            (note_gap.gap).max_backlog;
    end if;
end
$$;
comment on function pgps_internal.note_gap(pgps_internal.backlog_gap) is
'Records events that a subscription will not get: as a new gap, or added to its last gap of the type';

create or replace function pgps_internal.drop_oldest(subscription_id bigint, keep bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_id bigint := drop_oldest.subscription_id;
    v_from pgps_internal.position := pgps_internal.position_of(v_id);
    v_to pgps_internal.position := v_from;
    v_end record;
begin
    select * into v_end from pgps_internal.window_end(v_id, v_from, drop_oldest.keep);
    if v_end.event is null then
        return;
    end if;
    perform pgps_internal.note_gap(row(null, v_id, w.type_id, w.events, w.first_event, w.last_event, v_from.acked_batch,
        v_from.acked_event,
        v_end.batch, v_end.event, null, drop_oldest.keep, null)::pgps_internal.backlog_gap)
    from (
        select d.type_id, sum((d.rest).events) as events,
            (array_agg((d.rest).first_event order by d.batch_id, (d.rest).first_event))[1] as first_event,
            (array_agg((d.rest).last_event order by d.batch_id desc, (d.rest).last_event desc))[1] as last_event
        from (
            select d.batch_id, d.type_id, pgps_internal.rest_of(d, m.skip + coalesce(
                    -- Failed events are left out: they are settled in the exception queue.
                    (select range_agg(int8range(f.event_id, f.event_id, '[]')) from pgps_internal.failure f
                        where f.subscription_id = v_id), '{}'),
                case when d.batch_id = v_from.acked_batch then v_from.acked_event end, case
                    when d.batch_id = v_end.batch then v_end.event end) as rest
            from pgps_internal.member m
            join pgps_internal.delivery d on d.class_id = m.class_id
                and d.batch_id >= greatest(v_from.acked_batch, m.from_batch + 1)
                and d.batch_id <= v_end.batch
            where m.subscription_id = v_id offset 0
        ) d
        where (d.rest).events > 0 group by d.type_id
    ) w;
    v_to.acked_batch := v_end.batch;
    v_to.acked_event := v_end.event;
    if (v_to.received_batch, v_to.received_event) <= (v_end.batch, v_end.event) then
        perform pgps_internal.move(v_id, v_end.batch, v_end.event, v_end.batch, v_end.event, v_from.acked_total, 0,
            v_from.consumer);
    else
        perform pgps_internal.move(v_id, v_end.batch, v_end.event, v_to.received_batch, v_to.received_event,
            v_from.acked_total,
            (select count(*) from pgps_internal.received_events(v_id, v_to) n
                where not exists (select from pgps_internal.failure f
                where f.subscription_id = v_id and f.event_id = n.event_id))::integer, v_from.consumer);
    end if;
end
$$;
comment on function pgps_internal.drop_oldest(bigint, bigint) is
'Passes over the oldest of what waits for a subscription, received or not, until "keep" events are left, and notes the
gap. The caller holds the turn of the subscription';

create or replace function pgps_internal.drop_oldest_shares(subscription_id bigint, keep bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_id bigint := drop_oldest_shares.subscription_id;
begin
    with old as materialized (
        -- Events under a running lease are kept: a consumer is processing them.
        select s.batch_id, s.event_id from pgps_internal.share s
        where s.subscription_id = v_id and (s.leased_until is null or s.leased_until < pgps_internal.clock())
        order by s.batch_id, s.event_id limit greatest(pgps_internal.backlog_of(v_id) - drop_oldest_shares.keep, 0)
        for update of s skip locked
    ),
    gone as (
        delete from pgps_internal.share s using old o
        where s.subscription_id = v_id and s.batch_id = o.batch_id and s.event_id = o.event_id returning s.type_id,
            s.batch_id, s.event_id
    ),
    settled as (
        delete from pgps_internal.failure f using gone g where f.subscription_id = v_id and f.event_id = g.event_id
    )
    insert into pgps_internal.backlog_gap (subscription_id, type_id, events, first_event, last_event, after_batch,
        after_event, upto_batch, upto_event, ids,
        max_backlog)
    select v_id, g.type_id, count(*), (array_agg(g.event_id order by g.batch_id, g.event_id))[1],
        (array_agg(g.event_id order by g.batch_id desc, g.event_id desc))[1], min(g.batch_id), 0, max(g.batch_id), 0,
        range_agg(int8range(g.event_id, g.event_id, '[]')), drop_oldest_shares.keep
    from gone g group by g.type_id;
end
$$;
comment on function pgps_internal.drop_oldest_shares(bigint, bigint) is
'As drop_oldest, where competing consumers share what waits';

create or replace function pgps_internal.apply_backlog_limits() returns void
language plpgsql
set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_over record;
begin
    for v_over in
        select l.subscription_id, l.max_backlog, l.on_backlog, s.handler = 'any' and s.callback is null as is_shared,
            b.depth
        from pgps_internal.backlog_limit l
        join pgps_internal.subscription s using (subscription_id)
        cross join lateral (select pgps_internal.backlog_of(l.subscription_id) as depth offset 0) b
        where l.max_backlog is not null
            and (l.on_backlog = 'drop_oldest' or l.on_backlog = 'suspend' and s.state <> 'suspended')
            and (b.depth > l.max_backlog) <> l.is_resting
            -- A pending class has still to be matched with past batches: its backlog is not complete yet.
            and not exists (select from pgps_internal.member m join pgps_internal.class c using (class_id)
                where m.subscription_id = l.subscription_id and c.is_pending)
        order by l.subscription_id
    loop
        if v_over.depth <= v_over.max_backlog then
            update pgps_internal.backlog_limit l set is_resting = false
            where l.subscription_id = (select x.subscription_id from pgps_internal.backlog_limit x
                where x.subscription_id = v_over.subscription_id for no key update skip locked);
        elsif not pgps_internal.try_subscription(v_over.subscription_id)
            -- Nor does it pass events that are still to be matched, of a type that has just been made.
            or pgps_internal.is_unmet(v_over.subscription_id)
            or exists (select from pgps_internal.member m where m.subscription_id = v_over.subscription_id
                and not pgps_internal.hold_type(m.type_id)) then
            continue;
        elsif v_over.on_backlog = 'suspend' then
            update pgps_internal.subscription s set state = 'suspended',
                last_error = format('backlog: %s events wait, more than its max_backlog %s', v_over.depth,
                    v_over.max_backlog)
            where s.subscription_id = (select x.subscription_id from pgps_internal.subscription x
                where x.subscription_id = v_over.subscription_id for no key update skip locked);
            perform pg_notify('pgps_' || v_over.subscription_id, '');
        elsif v_over.is_shared then
            perform pgps_internal.drop_oldest_shares(v_over.subscription_id, v_over.max_backlog);
        else
            perform pgps_internal.drop_oldest(v_over.subscription_id, v_over.max_backlog);
        end if;
    end loop;
end
$$;
comment on function pgps_internal.apply_backlog_limits() is
'Suspends subscriptions for which more waits than their max_backlog, or passes their oldest events over. Costs nothing
without limits; with them, the cost grows with the batches that wait';

create or replace function pgps_internal.discard_gaps(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    if pgps_internal.is_of_link(args) then
        return 0;
    end if;
    delete from pgps_internal.backlog_gap g using pgps_internal.subscription s
    where s.subscription_id = g.subscription_id and g.type_id = (pgps_internal.find_type(args ->> 'event_type')).type_id
        and (args ->> 'event_id' is null or g.first_event = (args ->> 'event_id')::bigint)
        and (args ->> 'subscription' is null or s.name = pgps_internal.fold(args ->> 'subscription'))
        and (pg_has_role(discard_gaps.caller, 'pgps_admin', 'usage')
            or pg_has_role(discard_gaps.caller, s.owner::oid, 'usage'));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
comment on function pgps_internal.discard_gaps(name, jsonb) is
'Acknowledges gaps of subscriptions, for pgps.discard_exception, which has checked rights; returns how many';
