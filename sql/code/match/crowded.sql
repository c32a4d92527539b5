-- What the dispatcher asks for one role: each form of filter takes its time in every batch, whoever the batch is for.
-- So a role has only so many forms of filters over an event type there; the others are asked in its lane, where they
-- hold up nobody else (decision 88).
-- Locks: the dispatcher's lock, which is not waited for.
-- Writes: setting, signature.

insert into pgps_internal.setting (name, value, kind, description) values
    ('dispatch_filters', '32', 'integer',
        'How many forms of filters of one role over one event type the dispatcher asks; further ones are asked in the '
        'role''s lane (pgps.classes, pgps.lanes)')
on conflict (name) do nothing;

create or replace function pgps_internal.is_crowded(type_id integer, owner regrole) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select count(*) from pgps_internal.signature g
        where g.type_id = is_crowded.type_id and g.owner = is_crowded.owner and not g.in_lane)
        >= pgps_internal.setting('dispatch_filters')::integer;
end
$$;
comment on function pgps_internal.is_crowded(integer, regrole) is
'True when the dispatcher asks as many forms of filters of a role over an event type as it may';

create or replace function pgps_internal.thin_out() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_most integer := pgps_internal.setting('dispatch_filters')::integer;
    v_moved integer[];
begin
    if not exists (select from pgps_internal.signature g where not g.in_lane
        group by g.type_id, g.owner having count(*) > v_most) then
        return;
    -- No batch is matched meanwhile: what is in one up to the last was asked by the dispatcher, what comes by the lane.
    elsif not pgps_internal.try_lock('pgps_internal.batch', 'share row exclusive') then
        return;
    end if;
    perform pgps_internal.open_lane(o.owner) from (
        select g.owner from pgps_internal.signature g where not g.in_lane and g.owner::text <> g.owner::oid::text
        group by g.type_id, g.owner having count(*) > v_most) o;
    with placed as (
        select g.signature_id, row_number() over (partition by g.type_id, g.owner order by g.signature_id) as place
        from pgps_internal.signature g
        where not g.in_lane and exists (select from pgps_internal.lane l where l.owner = g.owner)
    ),
    moved as (
        update pgps_internal.signature g
        set in_lane = true, from_batch = coalesce((pgps_internal.last_batch()).batch_id, 0)
        from placed p
        where p.signature_id = g.signature_id and p.place > v_most
            -- Links and composite events go by what the dispatcher has matched.
            and not exists (select from pgps_internal.class c join pgps_internal.member m using (class_id)
                join pgps_internal.subscription s using (subscription_id)
                where c.signature_id = g.signature_id and s.kind in ('link', 'composite'))
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
