-- What subscriptions still need of the log, and reclaim of their positions.
-- Locks: see log/reclaim.sql.
-- Writes: position.

create or replace function pgps_internal.low_of_subscriptions(type_id integer) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select min(d.batch_id) - 1
        from pgps_internal.member m
        cross join lateral pgps_internal.position_seen(m.subscription_id) p
        cross join lateral (select d.* from pgps_internal.delivery d
            where d.class_id = m.class_id and d.batch_id >= greatest(p.acked_batch, m.from_batch + 1)
                and (d.batch_id > p.acked_batch
                    or exists (select from pgps_internal.event_ids(d) e(event_id) where e.event_id > p.acked_event
                        and not e.event_id <@ m.skip))
            order by d.batch_id limit 1) d
        where not m.takes_batch and (low_of_subscriptions.type_id is null or m.type_id = low_of_subscriptions.type_id));
end
$$;
comment on function pgps_internal.low_of_subscriptions(integer) is
'The batch up to which every subscription (of a type) has acknowledged everything; null when nothing waits';

create or replace function pgps_internal.low_of_shares(type_id integer) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Reads only the first row of each subscription, from the index: share has a row for each event that waits.
    return least((select min(u.batch_id) - 1 from pgps_internal.unshared u
            where low_of_shares.type_id is null or u.type_id = low_of_shares.type_id), (
        select min(s.batch_id) - 1 from pgps_internal.member m
        cross join lateral (select s.batch_id from pgps_internal.share s
            where s.subscription_id = m.subscription_id and s.batch_id > 0 and s.type_id = m.type_id
            order by s.batch_id, s.event_id limit 1) s
        where m.takes_batch and (low_of_shares.type_id is null or m.type_id = low_of_shares.type_id)));
end
$$;
comment on function pgps_internal.low_of_shares(integer) is
'As low_of_subscriptions, for subscriptions with competing consumers';

create or replace function pgps_internal.reclaim_positions() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_newest bigint := coalesce(pg_sequence_last_value('pgps_internal.position_id_seq'), 0);
begin
    return pgps_internal.reclaim_ledger('position', v_newest, v_newest);
end
$$;
comment on function pgps_internal.reclaim_positions() is
'Truncates old segments of the positions; the newest of each subscription is carried over';

create or replace function pgps_internal.carry_over_positions(segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.position
            (subscription_id, acked_batch, acked_event, received_batch, received_event, acked_total, outstanding, '
                'moved_at, consumer, seen_batch, seen_event)
        (select distinct on (o.subscription_id) o.subscription_id, o.acked_batch, o.acked_event, o.received_batch, '
            'o.received_event,
            o.acked_total, o.outstanding, o.moved_at, o.consumer, o.seen_batch, o.seen_event
        from %1$s o join pgps_internal.subscription s using (subscription_id)
        where not (s.handler = ''any'' and s.callback is null) and not exists (select from pgps_internal.position n
            where n.subscription_id = o.subscription_id and n.position_id > o.position_id and n.tableoid <> %2$s::oid)
        order by o.subscription_id, o.position_id desc)
        union all
        select o.subscription_id, -1, 0, -1, 0, sum(o.acked_total), 0, ''-infinity'', null, null::bigint,
            null::bigint
        from %1$s o join pgps_internal.subscription s using (subscription_id)
        where s.handler = ''any'' and s.callback is null group by o.subscription_id',
        carry_over_positions.segment, carry_over_positions.segment::oid);
end
$$;
comment on function pgps_internal.carry_over_positions(regclass) is
'Before a segment of the positions is truncated: writes the newest of each subscription anew; of shared ones, the sum';
