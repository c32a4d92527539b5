-- What subscriptions skip of what comes over links: who receives only notes it (to_skip), since he waits for nobody;
-- before the events are matched, the dispatcher adds it to the members, and to those that a lane has yet to make.
-- Locks: rows of member and joining, which are not waited for: a subscription that somebody is changing gets it later.
-- Writes: joining, member, to_skip.

create or replace function pgps_internal.skip_early(origin_id integer, upto bigint, ids int8multirange, types integer[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.to_skip (type_id, ids, subscription_ids)
    select e.type_id, skip_early.ids, array_agg(distinct e.subscription_id)
    from pgps_internal.early e
    where e.origin_id = skip_early.origin_id and (e.since is null or e.since >= skip_early.upto)
        and e.type_id = any (skip_early.types)
        -- Those are judged by the dispatcher, in order: what came just before them is not judged here.
        and not exists (select from pgps_internal.newcomer n where n.subscription_id = e.subscription_id
            and (not n.is_pushed or n.until >= pg_current_xact_id()))
    group by e.type_id;
end
$$;
comment on function pgps_internal.skip_early(integer, bigint, int8multirange, integer[]) is
'Rule 5 of the horizon: a subscription skips what comes of an origin before its filter is in force for that origin';

create or replace function pgps_internal.skipping(skips bigint[])
returns table (subscription_id bigint, class_id bigint, type_id integer, ids int8multirange)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    select m.subscription_id, m.class_id, m.type_id, range_agg(k.ids)
    from pgps_internal.to_skip k
    join (
        select n.subscription_id, n.class_id, n.type_id from pgps_internal.member n
        union all
        select j.subscription_id, null, j.type_id from pgps_internal.joining j
    ) m on m.type_id = k.type_id and (k.subscription_ids is null or m.subscription_id = any (k.subscription_ids))
    where k.skip_id = any (skipping.skips)
        and (k.subscription_ids is not null or exists (select from pgps_internal.subscription s
            where s.subscription_id = m.subscription_id and s.kind <> 'link'))
    group by m.subscription_id, m.class_id, m.type_id;
end
$$;
comment on function pgps_internal.skipping(bigint[]) is
'Which members are to skip what, by some rows of to_skip; class_id null: one that a lane has yet to make';

create or replace function pgps_internal.apply_skips() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_skips bigint[] := array(select k.skip_id from pgps_internal.to_skip k where k.type_id <> 0);
    v_members tid[];
    v_joining tid[];
begin
    if v_skips = '{}' then
        return;
    end if;
    -- Locked first, and changed by the next statements, which see them as they are then.
    v_members := array(select m.ctid from pgps_internal.member m
        where (m.subscription_id, m.class_id) in (select w.subscription_id, w.class_id
            from pgps_internal.skipping(v_skips) w)
        order by m.subscription_id, m.class_id for no key update skip locked);
    v_joining := array(select j.ctid from pgps_internal.joining j
        where (j.subscription_id, j.type_id) in (select w.subscription_id, w.type_id
            from pgps_internal.skipping(v_skips) w where w.class_id is null)
        order by j.subscription_id, j.type_id for no key update skip locked);
    -- What somebody is changing stays noted, and is added when he is ready.
    insert into pgps_internal.to_skip (type_id, ids, subscription_ids)
    select w.type_id, w.ids, array_agg(w.subscription_id)
    from pgps_internal.skipping(v_skips) w
    where (w.subscription_id, coalesce(w.class_id, -w.type_id)) not in (
        select m.subscription_id, m.class_id from unnest(v_members) f(id) join pgps_internal.member m on m.ctid = f.id
        union all
        select j.subscription_id, -j.type_id from unnest(v_joining) f(id)
            join pgps_internal.joining j on j.ctid = f.id)
    group by w.type_id, w.ids;
    update pgps_internal.member m set skip = m.skip + w.ids
    from unnest(v_members) f(id), pgps_internal.skipping(v_skips) w
    where m.ctid = f.id and m.subscription_id = w.subscription_id and m.class_id = w.class_id;
    update pgps_internal.joining j set skip = j.skip + w.ids
    from unnest(v_joining) f(id), pgps_internal.skipping(v_skips) w
    where j.ctid = f.id and j.subscription_id = w.subscription_id and j.type_id = w.type_id and w.class_id is null;
    delete from pgps_internal.to_skip k where k.skip_id = any (v_skips);
end
$$;
comment on function pgps_internal.apply_skips() is
'Adds what was noted to what subscriptions skip; for the dispatcher, before it matches these events. What concerns a
subscription that somebody is changing stays noted';

create or replace function pgps_internal.apply_skips_of(owner regrole) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_members tid[];
begin
    if not exists (select from pgps_internal.to_skip k where k.type_id <> 0) then
        return;
    end if;
    -- Of members that the dispatcher could not have, because this lane was making them. The notes stay, for others.
    v_members := array(select m.ctid from pgps_internal.member m
        join pgps_internal.class c using (class_id) join pgps_internal.signature g using (signature_id)
        where g.in_lane and g.owner = apply_skips_of.owner and exists (select from pgps_internal.to_skip k
            where k.type_id = m.type_id and not k.ids <@ m.skip
                and (k.subscription_ids is null or m.subscription_id = any (k.subscription_ids)))
        order by m.subscription_id, m.class_id for no key update of m skip locked);
    update pgps_internal.member m set skip = m.skip + w.ids
    from unnest(v_members) f(id), pgps_internal.skipping(array(select k.skip_id from pgps_internal.to_skip k)) w
    where m.ctid = f.id and m.subscription_id = w.subscription_id and m.class_id = w.class_id;
end
$$;
comment on function pgps_internal.apply_skips_of(regrole) is
'As apply_skips, for the subscriptions of a role that its lane matches; for that lane, after it has read what batches
there are';
