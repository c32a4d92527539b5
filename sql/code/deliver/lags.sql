-- How far subscriptions are behind, asked in portions of bounded cost: for the metrics of workers.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.backlogs_of(subscriptions bigint[], deliveries integer)
returns table (subscription_id bigint, depth bigint, oldest timestamptz)
language plpgsql stable
set search_path = pg_catalog, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
    return query
    -- What pgps_internal.backlog says, but from the first of the deliveries that wait: of some consumers a million do.
    select w.subscription_id, sum(w.depth)::bigint, min((select b.created_at from pgps_internal.batch b
        where b.batch_id = w.first_batch limit 1))
    from (
        select m.subscription_id, r.depth, r.first_batch
        from unnest(backlogs_of.subscriptions) u(id)
        join pgps_internal.waiting_member m on m.subscription_id = u.id
        cross join lateral (
            select sum(d.rest) as depth, min(d.batch_id) filter (where d.rest > 0) as first_batch
            from (
                select d.batch_id, case when d.batch_id > m.acked_batch and isempty(m.skip) then d.events
                    else (select coalesce(sum(upper(r) - lower(r)), 0)::bigint
                            from unnest(d.ids * int8multirange(int8range(a.event_id, null, '()')) - m.skip) r)
                        + (select count(*) from unnest(d.event_ids) e where e > a.event_id and not e <@ m.skip) end
                    as rest
                from pgps_internal.delivery d
                cross join lateral (select case when d.batch_id = m.acked_batch
                    then least(m.acked_event, 9223372036854775806) else -1 end as event_id) a
                where d.class_id = m.class_id and d.batch_id >= greatest(m.acked_batch, m.from_batch + 1)
                order by d.batch_id limit backlogs_of.deliveries
            ) d
        ) r
        union all
        select m.subscription_id, r.depth, r.first_batch
        from unnest(backlogs_of.subscriptions) u(id)
        join pgps_internal.member m on m.subscription_id = u.id and m.takes_batch
        cross join lateral (
            select count(*) as depth, min(h.batch_id) as first_batch
            from (select h.batch_id from pgps_internal.share h
                where h.subscription_id = m.subscription_id and h.type_id = m.type_id
                order by h.batch_id limit backlogs_of.deliveries) h
        ) r
    ) w
    group by w.subscription_id;
end
$$;
comment on function pgps_internal.backlogs_of(bigint[], integer) is
'How many events wait for each of some subscriptions, and since when: of its first deliveries (or shares), so many';

create or replace function pgps_internal.rates_of(subscriptions bigint[])
returns table (subscription_id bigint, rate double precision)
language plpgsql stable
set search_path = pg_catalog, pg_temp set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := pgps_internal.clock();
begin
    return query
    -- Of those that have moved in the last minute; over fewer rows than in pgps.subscriptions, since each is read by
    -- itself.
    select s.subscription_id, coalesce(case when s.handler = 'any' and s.callback is null then h.settled
        else h.moved end / nullif(extract(epoch from v_now - h.since), 0), 0)::double precision
    from unnest(rates_of.subscriptions) u(id)
    join pgps_internal.subscription s on s.subscription_id = u.id
    cross join lateral (select p.moved_at from pgps_internal.position p where p.subscription_id = s.subscription_id
        order by p.position_id desc limit 1) n
    cross join lateral (
        select sum(h.acked_total) as settled, max(h.acked_total) - min(h.acked_total) as moved, min(h.moved_at) as since
        from (select h.acked_total, h.moved_at from pgps_internal.position h
            where h.subscription_id = s.subscription_id order by h.position_id desc limit 20) h
        where h.moved_at > v_now - interval '1 minute') h
    where n.moved_at > v_now - interval '1 minute';
end
$$;
comment on function pgps_internal.rates_of(bigint[]) is
'How many events a second some subscriptions acknowledge: over their last twenty acknowledgements of the last minute';

drop function if exists pgps.lag_counts(bigint, integer, bigint[]);
create function pgps.lag_counts(after bigint = 0, max_rows integer = 100, also bigint[] = '{}')
returns table (subscription_id bigint, subscription text, depth bigint, lag_seconds double precision,
    rate double precision)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set jit = off
as $$
#variable_conflict use_column
declare
    v_asked bigint[];
begin
    if lag_counts.max_rows is null or lag_counts.max_rows not between 1 and 1000 then
        raise exception 'max_rows % is not between 1 and 1000', lag_counts.max_rows using errcode = '22023',
            hint = 'Ask for the next portion with the highest subscription_id of this one as after.';
    end if;
    v_asked := array(
        (select s.subscription_id from pgps_internal.subscription s
            where s.subscription_id > coalesce(lag_counts.after, 0) and not s.is_hidden
            order by s.subscription_id limit lag_counts.max_rows)
        union
        (select distinct u.id from unnest(lag_counts.also) u(id) limit 1000));
    return query
    select s.subscription_id, s.name, coalesce(w.depth, 0),
        coalesce(extract(epoch from pgps_internal.clock() - least(w.oldest, l.oldest)), 0)::double precision,
        coalesce(r.rate, 0)
    from pgps_internal.subscription s
    left join pgps_internal.backlogs_of(v_asked, 1000) w using (subscription_id)
    left join pgps_internal.rates_of(v_asked) r using (subscription_id)
    left join (select l.* from pgps_internal.lane_backlog l where l.subscription_id = any (v_asked)) l
        using (subscription_id)
    where s.subscription_id = any (v_asked) and not s.is_hidden
    order by s.subscription_id;
end
$$;
comment on function pgps.lag_counts(bigint, integer, bigint[]) is
'For a worker''s metrics: how many events wait for a subscription (depth), and for how long the oldest of them has, in
seconds, as in pgps.subscriptions; but depth counts a thousand batches at most, the oldest that have events for it, so
that one who is far behind costs no more. rate: events that it acknowledges in a second, over its last twenty
acknowledgements of the last minute. Asks the next max_rows (1 to 1000) subscriptions after a subscription_id (null or 0
= from the first), and those that also names (at most 1000; null = none; ids that do not exist are left out), so that
many are asked in portions. Needs pgps_worker or pgps_admin. Locks: none. Errors: 42501, 22023 max_rows.';

revoke all on function pgps.lag_counts(bigint, integer, bigint[]) from public;
grant execute on function pgps.lag_counts(bigint, integer, bigint[]) to pgps_worker, pgps_admin;
