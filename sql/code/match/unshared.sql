-- What is shared out later (decision 113): to subscriptions that somebody is changing (share_out.sql), and what would
-- take a lane longer than asking its filters does. It is done in portions, each of one role, in short transactions of
-- the session that asks the lanes; so no filter is blamed for the time, and a role with very much of it is late alone.
-- Locks: turn_of_sharing, and the members that are shared out among, neither of which is waited for.
-- Writes: share, unshared.

create or replace function pgps_internal.shared_at_once() returns integer
language sql immutable
set search_path = pg_catalog, pg_temp
begin atomic
    -- Some 50 ms.
    select 5000;
end;
comment on function pgps_internal.shared_at_once() is
'About how many rows are shared out in one go, to all subscriptions of a role together';

create or replace function pgps_internal.share_in_lane(batch_id bigint, type_id integer, classes bigint[]) returns void
language plpgsql
as $$
declare
    v_rows bigint := (
        select sum(d.events * (select count(*) from pgps_internal.member m
            where m.class_id = c and m.type_id = share_in_lane.type_id and m.takes_batch))
        from unnest(share_in_lane.classes) c
        cross join lateral (select x.events from pgps_internal.delivery x where x.class_id = c
            and x.batch_id = share_in_lane.batch_id and x.type_id = share_in_lane.type_id offset 0) d);
begin
    perform pgps_internal.share_out(share_in_lane.batch_id, share_in_lane.type_id, share_in_lane.classes,
        v_rows > pgps_internal.shared_at_once());
end
$$;
comment on function pgps_internal.share_in_lane(bigint, integer, bigint[]) is
'As share_out, in a lane: what would be many rows is noted, and shared out afterwards';

create or replace function pgps_internal.next_unshared(owner oid, out places bigint[], out wanted bigint[])
language plpgsql
as $$
declare
    v_most bigint := pgps_internal.shared_at_once();
begin
    -- What is locked still is passed over, but not very much: so a role that has locked all it has is late itself.
    with free as materialized (
        select u.place, u.subscription_id, u.class_id, u.type_id, u.batch_id, m.from_batch
        from (select n.* from pgps_internal.unshared n where n.owner = next_unshared.owner
            order by n.place limit 4 * v_most) u
        join pgps_internal.member m using (subscription_id, class_id)
        order by u.place limit v_most for key share of m skip locked
    ),
    sized as (
        select f.place, d.events, coalesce(sum(d.events) over (order by f.place) - d.events, 0) as before
        from free f
        left join lateral (select x.events from pgps_internal.delivery x where x.class_id = f.class_id
            and x.batch_id = f.batch_id and x.type_id = f.type_id
            and (x.batch_id > f.from_batch
                or f.from_batch >= pgps_internal.hidden() and exists (select from pgps_internal.newcomer n
                    where n.subscription_id = f.subscription_id and x.batch_id > n.from_batch)) offset 0) d on true
    )
    select array_agg(s.place), array_agg(s.place) filter (where s.events is not null)
    into places, wanted
    from sized s where s.before < v_most;
end
$$;
comment on function pgps_internal.next_unshared(oid) is
'The oldest notes of a role that can be shared out now, as many as come to one portion (places); the last one may be
larger than that. wanted: those of them that are to be shared out still. Locks their members';

create or replace function pgps_internal.share_some(owner oid) returns bigint
language plpgsql
as $$
declare
    v_most bigint := pgps_internal.shared_at_once();
    -- By a statement of its own: the next one sees all that this one has seen.
    v_next record := pgps_internal.next_unshared(share_some.owner);
    v_done bigint;
begin
    -- If the filter was changed, the member is gone, and the class of the new one catches up. If that was rolled back,
    -- what was left out is shared out now.
    with chosen as materialized (
        select u.place, u.subscription_id, u.class_id, u.batch_id, u.shared_upto, d.delivery
        from pgps_internal.unshared u
        left join lateral (select x as delivery from pgps_internal.delivery x where x.class_id = u.class_id
            and x.batch_id = u.batch_id and x.type_id = u.type_id and u.place = any (v_next.wanted) offset 0) d on true
        where u.owner = share_some.owner and u.place = any (v_next.places)
    ),
    event as materialized (
        select c.place, c.subscription_id, c.batch_id, m.type_id, e.event_id, not e.event_id <@ m.skip as is_wanted
        from chosen c
        join pgps_internal.current_member m using (subscription_id, class_id)
        cross join lateral (select e.event_id from pgps_internal.event_ids(c.delivery) e(event_id)
            where e.event_id > c.shared_upto order by e.event_id limit v_most) e
        where (c.delivery).class_id is not null
    ),
    -- Where there may be more of a delivery, the note stays.
    reached as materialized (
        select e.place, max(e.event_id) as event_id from event e group by e.place having count(*) = v_most
    ),
    moved as (
        update pgps_internal.unshared u set shared_upto = r.event_id
        from reached r where u.owner = share_some.owner and u.place = r.place
    ),
    over as (
        delete from pgps_internal.unshared u
        where u.owner = share_some.owner and u.place in (
            select c.place from chosen c where not exists (select from reached r where r.place = c.place)
            union all
            select n.place from (select u.* from pgps_internal.unshared u where u.owner = share_some.owner
                order by u.place limit v_most) n
            where not exists (select from pgps_internal.member m
                where m.subscription_id = n.subscription_id and m.class_id = n.class_id))
        returning u.place
    ),
    shared as (
        insert into pgps_internal.share (subscription_id, batch_id, event_id, type_id)
        select e.subscription_id, e.batch_id, e.event_id, e.type_id from event e
        where e.is_wanted and not exists (select from pgps_internal.failure f
            where f.subscription_id = e.subscription_id and f.event_id = e.event_id)
        on conflict do nothing returning subscription_id
    ),
    told as (
        select pg_notify('pgps_' || s.subscription_id, '')::text as sent
        from (select distinct h.subscription_id from shared h) s)
    select (select count(*) from reached) + (select count(*) from over) + 0 * (select count(t.sent) from told t)
    into v_done;
    return v_done;
end
$$;
comment on function pgps_internal.share_some(oid) is
'Shares out one portion of what was left for a role; returns 0 when nothing could be done. The caller has the turn of
sharing';

create or replace function pgps_internal.share_left(seconds double precision) returns boolean
language plpgsql
as $$
declare
    v_owner oid;
begin
    if pg_sequence_last_value('pgps_internal.unshared_place_seq'::regclass) is null
            or pg_relation_size('pgps_internal.unshared'::regclass) = 0
            or not pgps_internal.try_lock('pgps_internal.turn_of_sharing', 'share row exclusive') then
        return false;
    end if;
    -- Whoever is drawn first, so that none waits for what another one brings in without end.
    for v_owner in
        with recursive owners(owner) as (
            select min(u.owner) from pgps_internal.unshared u
            union all
            select (select min(u.owner) from pgps_internal.unshared u where u.owner > o.owner)
            from owners o where o.owner is not null
        )
        select o.owner from owners o where o.owner is not null order by random()
    loop
        if pgps_internal.share_some(v_owner) > 0 then
            if clock_timestamp() - statement_timestamp() < share_left.seconds * interval '1 second'
                    or share_left.seconds is null then
                return true;
            end if;
            perform pg_notify('pgps_lanes', '');
            return false;
        end if;
    end loop;
    return false;
end
$$;
comment on function pgps_internal.share_left(double precision) is
'Shares out one portion of what was left, of one role. True when it should be called again: there may be more, and the
statement has not run for so many seconds (null = no limit)';

create or replace function pgps._share_left(seconds double precision) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off
set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan
as $$
begin
    perform pgps_internal.require_read_committed();
    return pgps_internal.share_left(_share_left.seconds);
end
$$;
comment on function pgps._share_left(double precision) is 'See pgps.run_lanes';

create or replace function pgps_internal.share_here() returns void
language plpgsql
as $$
declare
    v_began timestamptz := clock_timestamp();
    v_limit interval;
begin
    -- Mostly there never was anything, which the sequence tells (decision 70).
    if pg_sequence_last_value('pgps_internal.unshared_place_seq'::regclass) is null then
        return;
    end if;
    v_limit := pgps_internal.setting('dispatch_lane_timeout')::interval;
    while pgps_internal.share_left(null) loop
        exit when clock_timestamp() - v_began > v_limit;
    end loop;
end
$$;
comment on function pgps_internal.share_here() is
'Shares out what was left, in a dispatch by hand and no longer than it may ask one lane; a worker or pgps.run_lanes()
goes on with it';

create or replace function pgps_internal.hold_shares(subscription pgps_internal.subscription)
returns pgps_internal.batch
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last pgps_internal.batch := pgps_internal.last_batch();
begin
    -- The batch is read first: whatever a later one brings is noted for the old class, and the new one catches up with
    -- it.
    with gone as (
        delete from pgps_internal.unshared u
        where u.owner = (hold_shares.subscription).owner::oid and u.batch_id <= v_last.batch_id
            and u.subscription_id = (hold_shares.subscription).subscription_id
        returning u.subscription_id, u.class_id, u.type_id, u.batch_id, u.shared_upto
    )
    insert into pgps_internal.share (subscription_id, batch_id, event_id, type_id)
    select g.subscription_id, g.batch_id, e.event_id, g.type_id
    from gone g
    join pgps_internal.current_member m using (subscription_id, class_id)
    join pgps_internal.delivery d on d.class_id = g.class_id and d.batch_id = g.batch_id and d.type_id = g.type_id
    cross join lateral pgps_internal.event_ids(d) e(event_id)
    where e.event_id > g.shared_upto and not e.event_id <@ m.skip
        and (g.batch_id > m.from_batch
            or m.from_batch >= pgps_internal.hidden() and exists (select from pgps_internal.newcomer n
                where n.subscription_id = g.subscription_id and g.batch_id > n.from_batch))
    on conflict do nothing;
    return v_last;
end
$$;
comment on function pgps_internal.hold_shares(pgps_internal.subscription) is
'Shares out at once what was left to be shared out later for one subscription, and returns the last batch of which this
is true. The caller has its members locked, and the lane of its owner';

create or replace function pgps_internal.share_past(
    class_id bigint, after_batch bigint, upto bigint, later boolean
) returns void
language plpgsql
as $$
begin
    with due as materialized (
        select m.subscription_id, m.class_id, m.skip, d.batch_id, d.type_id, d as delivery
        from pgps_internal.current_member m
        join pgps_internal.delivery d using (class_id)
        where m.class_id = share_past.class_id and m.takes_batch
            and d.batch_id > greatest(share_past.after_batch, m.from_batch) and d.batch_id <= share_past.upto
    ),
    many as materialized (
        select share_past.later and sum((u.delivery).events) > pgps_internal.shared_at_once() as is_so from due u
    ),
    noted as (
        insert into pgps_internal.unshared (subscription_id, class_id, type_id, batch_id, owner)
        select u.subscription_id, u.class_id, u.type_id, u.batch_id, c.owner
        from many m join due u on m.is_so join pgps_internal.class c using (class_id)
        on conflict do nothing
    )
    insert into pgps_internal.share (subscription_id, batch_id, event_id, type_id)
    select u.subscription_id, u.batch_id, e.event_id, u.type_id
    from many m join due u on m.is_so is not true
    cross join lateral pgps_internal.event_ids(u.delivery) e(event_id)
    -- What has failed goes its own way: it comes when it is put back.
    where not e.event_id <@ u.skip and not exists (select from pgps_internal.failure f
        where f.subscription_id = u.subscription_id and f.event_id = e.event_id)
    on conflict do nothing;
end
$$;
comment on function pgps_internal.share_past(bigint, bigint, bigint, boolean) is
'Shares out the deliveries of a class that has been matched with the past, after a batch and up to another; later: notes
them instead when that would be many rows';

revoke all on function pgps._share_left(double precision) from public;
grant execute on function pgps._share_left(double precision) to pgps_worker, pgps_admin;
