-- Classes, which subscriptions are asked about together, and lanes, as people and metrics see them.
-- Locks: none.
-- Writes: nothing.

create or replace view pgps.classes with (security_barrier) as
select s.name as subscription, t.name as event_type, c.class_id,
    (select count(*) from pgps_internal.member x where x.class_id = c.class_id) as subscriptions,
    case when g.in_lane then 'lane' when g.signature_id is not null then 'dispatch' end as asked_in, g.signature_id,
    g.shape,
    case when g.signature_id is not null then
        (select count(*) from pgps_internal.class x where x.signature_id = g.signature_id and x.is_active) end
        as classes
from pgps_internal.subscription s
join pgps_internal.member m using (subscription_id)
join pgps_internal.class c using (class_id)
join pgps_internal.event_type t on t.type_id = m.type_id
left join pgps_internal.signature g using (signature_id)
where not s.is_hidden and (pg_has_role(current_user, s.owner::oid, 'usage')
    or pg_has_role(current_user, 'pgps_admin', 'usage'));
comment on view pgps.classes is
'The class of each of the reader''s subscriptions, all for pgps_admin; of one to a prefix a row for each event type.
subscriptions: how many share the class, composite events with such a leaf among them, since their role and predicate
are the same: the predicate is asked once for all of them. shape, signature_id, classes: the predicate without its
constants, and how many classes are asked by its query together. asked_in: dispatch, or lane (pgps.lanes) when the
predicate may read more than the event or has held up the dispatcher (dispatch_filter_timeout), or the role has more
shapes (dispatch_filters) or competing consumers (dispatch_shares) for the event type than are asked there. The last
four are null without a filter';

grant select on pgps.classes to public;

create or replace view pgps_internal.lane_backlog as
select m.subscription_id, min(b.created_at) as oldest
from pgps_internal.member m
join pgps_internal.class c on c.class_id = m.class_id and c.is_active
join pgps_internal.signature g on g.signature_id = c.signature_id and g.in_lane
join pgps_internal.lane_next n on n.owner = g.owner and n.type_id = m.type_id
join pgps_internal.batch b on b.batch_id = n.batch_id
group by m.subscription_id;
comment on view pgps_internal.lane_backlog is
'Subscriptions whose owner''s lane is behind, and when the first batch came that it has not matched';

create or replace view pgps.lanes with (security_barrier) as
select pg_get_userbyid(l.owner) as role,
    case when l.is_slow then 'slow' when n.first is not null or j.joining > 0 then 'behind' else 'idle' end as state,
    p.batch_id as position, coalesce(n.signatures, 0)::bigint as filters, coalesce(b.batches, 0)::bigint as lag_batches,
    coalesce(b.events, 0)::bigint as lag_events,
    coalesce(extract(epoch from pgps._clock() - (select x.created_at from pgps_internal.batch x
        where x.batch_id = n.first limit 1)), 0)::double precision
        as lag_seconds,
    j.joining, l.last_error, l.failed_at
from pgps_internal.lane l
join pgps_internal.lane_place p using (lane_id)
left join lateral (select min(x.batch_id) as first,
    (select count(*) from pgps_internal.signature g where g.in_lane and g.owner = l.owner) as signatures
    from pgps_internal.lane_next x where x.lane_id = l.lane_id) n on true
left join lateral (select count(distinct x.batch_id) as batches, sum(x.events) as events
    from pgps_internal.lane_type t join pgps_internal.batch_type x on x.type_id = t.type_id
    where t.owner = l.owner and n.first is not null and x.batch_id >= n.first
        and x.batch_id > greatest(p.batch_id, t.from_batch)) b on true
cross join lateral (select count(*) as joining from pgps_internal.joining q join pgps_internal.subscription s
    using (subscription_id)
    where s.owner = l.owner) j
where pg_has_role(current_user, l.owner::oid, 'usage') or pg_has_role(current_user, 'pgps_admin', 'usage');
comment on view pgps.lanes is
'The lanes, where the filters of each role are asked that read more than the event; the reader''s, all for pgps_admin.
state: idle, behind or slow (a filter took longer than lane_timeout); position: the batch up to which the filters have
been asked; lag_batches, lag_events, lag_seconds: what waits for them, and for how long; joining: new event types that
pattern subscriptions have still to join';

create or replace function pgps.slow_lane_counts()
returns table (role name, lag_batches bigint, lag_events bigint, lag_seconds double precision, last_error text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
    if exists (select from pgps_internal.lane l where l.is_slow) then
        return query
        select v.role, v.lag_batches, v.lag_events, v.lag_seconds, left(v.last_error, 1000) from pgps.lanes v
            where v.state = 'slow' order by v.role;
    end if;
end
$$;
comment on function pgps.slow_lane_counts() is
'For a worker''s metrics: the slow lanes of pgps.lanes, and how much waits for each. Needs pgps_worker or pgps_admin.
Errors: 42501.';

grant select on pgps.lanes to public;

revoke all on function pgps.slow_lane_counts() from public;
grant execute on function pgps.slow_lane_counts() to pgps_worker, pgps_admin;
