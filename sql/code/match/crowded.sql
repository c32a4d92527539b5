-- What the dispatcher asks for one role: each form of filter takes its time in every batch, whoever the batch is for.
-- So a role has only so many forms of filters over an event type there; the others are asked in its lane, where they
-- hold up nobody else (decision 88). In the same way it shares events out to so many subscriptions of a role only: each
-- is a row for each event, whoever waits for the batch (decision 108).
-- Locks: the dispatcher's lock, which is not waited for.
-- Writes: setting, signature.

insert into pgps_internal.setting (name, value, kind, description) values
    ('dispatch_filters', '32', 'integer',
        'How many forms of filters of one role over one event type the dispatcher asks; further ones are asked in the '
        'role''s lane (pgps.classes, pgps.lanes)'),
    ('dispatch_shares', '100', 'integer',
        'To how many subscriptions with competing consumers, of one role over one event type, the dispatcher shares '
        'out the events; to further ones the role''s lane does, with or without a filter (pgps.classes, pgps.lanes)')
on conflict (name) do nothing;

create or replace function pgps_internal.is_crowded(type_id integer, owner regrole) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select count(*) from pgps_internal.signature g
        where g.type_id = is_crowded.type_id and g.owner = is_crowded.owner and not g.in_lane)
        >= pgps_internal.setting('dispatch_filters')::integer or pgps_internal.is_apart(is_crowded.owner);
end
$$;
comment on function pgps_internal.is_crowded(integer, regrole) is
'True when the dispatcher asks as many forms of filters of a role over an event type as it may, or one of them has held
it up lately';

create or replace function pgps_internal.shares_many(subscription pgps_internal.subscription, type_id integer)
returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_most integer := pgps_internal.setting('dispatch_shares')::integer;
begin
    if (shares_many.subscription).handler <> 'any' or (shares_many.subscription).callback is not null then
        return false;
    end if;
    -- Counted no further than that, since there may be very many in the lane; and only the owner's are read, so nobody
    -- pays for those of others.
    return (select count(*) from (
        select from pgps_internal.subscription s
        cross join lateral (select m.class_id from pgps_internal.member m
            where m.subscription_id = s.subscription_id and m.type_id = shares_many.type_id and m.takes_batch
            offset 0) m
        join pgps_internal.class c using (class_id) left join pgps_internal.signature g using (signature_id)
        where s.owner = (shares_many.subscription).owner and s.handler = 'any' and s.callback is null
            and g.in_lane is not true and s.subscription_id <> (shares_many.subscription).subscription_id
        limit v_most) x) >= v_most;
end
$$;
comment on function pgps_internal.shares_many(pgps_internal.subscription, integer) is
'True for a subscription with competing consumers when the dispatcher shares an event type out to as many others of its
owner as it may';

create or replace function pgps_internal.find_class_of(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type, private boolean
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_filter text := (find_class_of.subscription).filter;
    v_types text[] := (find_class_of.subscription).parameter_types;
    v_in_lane boolean := case when (find_class_of.subscription).is_pattern and v_filter is not null then true end;
begin
    if v_in_lane is null
            and pgps_internal.shares_many(find_class_of.subscription, (find_class_of.event_type).type_id) then
        v_in_lane := true;
        -- A lane asks filters, and this one is true of every event.
        if v_filter is null then
            v_filter := 'true';
            v_types := '{}';
        end if;
    end if;
    return pgps_internal.find_class(find_class_of.event_type, (find_class_of.subscription).owner, v_filter, v_types,
        (find_class_of.subscription).environment, find_class_of.private, v_in_lane);
end
$$;
comment on function pgps_internal.find_class_of(pgps_internal.subscription, pgps_internal.event_type, boolean) is
'Finds the class of a subscription on an event type, or makes it: in the lane of its owner, if it is a pattern with a
filter, or shares_many. private: always make a new one';

create or replace function pgps_internal.thin_out() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_most integer := pgps_internal.setting('dispatch_filters')::integer;
    v_held integer[];
    v_moved integer[];
begin
    if not exists (select from pgps_internal.signature g where not g.in_lane
        group by g.type_id, g.owner having count(*) > v_most) then
        return;
    -- No batch is matched meanwhile: what is in one up to the last was asked by the dispatcher, what comes by the lane.
    elsif not pgps_internal.try_lock('pgps_internal.batch', 'share row exclusive') then
        return;
    end if;
    v_held := array(select t.type_id from (select distinct g.type_id from pgps_internal.signature g where not g.in_lane
        group by g.type_id, g.owner having count(*) > v_most) t where pgps_internal.hold_type(t.type_id));
    perform pgps_internal.open_lane(o.owner) from (
        select g.owner from pgps_internal.signature g where not g.in_lane and g.owner::text <> g.owner::oid::text
        group by g.type_id, g.owner having count(*) > v_most) o;
    with placed as (
        select g.signature_id, row_number() over (partition by g.type_id, g.owner order by g.signature_id) as place
        from pgps_internal.signature g
        where not g.in_lane and g.type_id = any (v_held)
            and exists (select from pgps_internal.lane l where l.owner = g.owner)
    ),
    moved as (
        update pgps_internal.signature g
        set in_lane = true, from_batch = coalesce((pgps_internal.last_batch()).batch_id, 0)
        from placed p
        where p.signature_id = g.signature_id and p.place > v_most
            and not pgps_internal.is_bound(p.signature_id)
            and not exists (select from pgps_internal.signature o where o.type_id = g.type_id and o.owner = g.owner
                and md5(o.shape) = md5(g.shape) and o.parameter_types = g.parameter_types
                and o.environment = g.environment and o.in_lane)
        returning g.type_id
    )
    select array_agg(distinct m.type_id) into v_moved from moved m;
    perform pgps_internal.add_feature(m, 'lane') from unnest(v_moved) m;
end
$$;
comment on function pgps_internal.thin_out() is
'Moves the filters of roles that have more forms of them with the dispatcher than they may, since the setting was
lowered or by an upgrade, to their lanes; unless a dispatch is running';
