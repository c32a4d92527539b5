-- The catalogue views: event types, queues, subscriptions and so on. Each shows what the reader may see.
-- Writes: nothing.

create or replace view pgps.event_types with (security_barrier) as
select t.name, pg_get_userbyid(t.owner) as owner,
    (select to_jsonb(array_agg(jsonb_build_object('name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
            'not_null', a.attnotnull, 'default', pg_get_expr(d.adbin, d.adrelid)) order by a.attnum))
        from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attrelid = t.endpoint and a.attnum > 0 and not a.attisdropped
            and a.attname not in ('_producer', '_producer_seq')) as attributes,
    t.visibility, t.reliability, t.persistent and t.reliability = 'guaranteed' as persistent,
    (select q.auditable from pgps_internal.queue q where q.type_id = t.type_id and q.kind = 'in') as auditable,
        t.handler,
    has_table_privilege(current_user, t.endpoint, 'insert') as can_publish,
    has_table_privilege(current_user, t.endpoint, 'select') as can_subscribe,
    (select count(*) from pgps_internal.member m where m.type_id = t.type_id) as subscriptions,
    coalesce(b.total, 0) as published,
    (select x.created_at from pgps_internal.batch x where x.batch_id = b.batch_id limit 1) as last_published_at,
    t.created_at, case when k.type_id is null or k.is_mended then 'active' else 'set aside' end as state,
    case when not k.is_mended then k.error end as last_error, case when not k.is_mended then k.hint end as hint
from pgps_internal.event_type t
left join pgps_internal.broken_type k using (type_id)
left join lateral (select b.total, b.batch_id from pgps_internal.batch_type b where b.type_id = t.type_id
    order by b.batch_id desc limit 1) b on true
where has_table_privilege(current_user, t.endpoint, 'select') or has_table_privilege(current_user, t.endpoint, 'insert')
    or pg_has_role(current_user, 'pgps_admin', 'usage');
comment on view pgps.event_types is
'Event types that the reader may publish, subscribe to or administer. state: active, or set aside: their generated code
failed in dispatch (last_error), their events wait, and hint says what to type (pgps.resume_event_type)';

create or replace view pgps.queues with (security_barrier) as
select q.queue, q.event_type, q.kind, q.persistent, q.auditable, q.retention, q.depth, q.oldest, q.size_bytes
from (
    -- One select for each kind: a query for one kind of queue, or without its figures, does not ask for the others.
    select q.name as queue, t.name as event_type, q.kind, t.persistent and t.reliability = 'guaranteed' as persistent,
        q.auditable, q.retention,
        -- Counted here and not in the view: only of those that a query asks for. The sum may be too much.
        case when w.events <= 100000 then coalesce(pgps._count_waiting(t.name, current_user), w.events)
            else coalesce(w.events, 0) end as depth, w.oldest,
        (select sum(pg_total_relation_size(i.inhrelid)) from pg_inherits i where i.inhparent = t.log)::bigint
        as size_bytes, t.endpoint
    from pgps_internal.queue q join pgps_internal.event_type t using (type_id)
    left join pgps_internal.waiting_events w using (type_id) where q.kind = 'in'
    union all
    select q.name, t.name, q.kind, t.persistent and t.reliability = 'guaranteed', q.auditable, q.retention, o.depth,
        o.oldest, null, t.endpoint
    from pgps_internal.queue q join pgps_internal.event_type t using (type_id)
    left join lateral (select coalesce(sum(x.depth), 0)::bigint as depth, min(x.oldest) as oldest
        from pgps_internal.backlog x where x.type_id = t.type_id) o on true where q.kind = 'out'
    union all
    select q.name, t.name, q.kind, t.persistent and t.reliability = 'guaranteed', q.auditable, q.retention,
        f.failed + coalesce(r.refused, 0), least(f.oldest, r.oldest), null, t.endpoint
    from pgps_internal.queue q join pgps_internal.event_type t using (type_id)
    left join lateral (select count(*) filter (where f.state = 'failed' or f.step <> 'nack' and f.state <> 'settled')
            as failed, min(f.failed_at) as oldest
        from pgps_internal.failure f where f.type_id = t.type_id) f on true
    left join (select r.type_id, count(*) as refused, min(r.failed_at) as oldest
        from pgps_internal.rejected r group by r.type_id) r using (type_id) where q.kind = 'exception'
) q
where has_table_privilege(current_user, q.endpoint, 'select') or pg_has_role(current_user, 'pgps_admin', 'usage');
comment on view pgps.queues is
'The in, out and exception queues of the event types that the reader may subscribe to or administer; depth in events:
for an in queue those that wait for dispatch, of more than 100,000 an estimate. Pages of a queue: pgps.find_queued';

create or replace view pgps.advertisements with (security_barrier) as
select t.name as event_type, pg_get_userbyid(a.role) as role, a.advertised_at,
    (select p.broker from pgps_internal.progress p) as origin, null::text as via, c.last_published_at,
    coalesce(c.rate, 0)::double precision as rate
from pgps_internal.advertisement a join pgps_internal.event_type t using (type_id)
left join (
    select c.type_id, c.publisher, max(c.published_at) as last_published_at,
        sum(c.hi - c.lo + 1) filter (where c.published_at > pgps._clock() - interval '1 minute') / 60.0 as rate
    from pgps_internal.control c where c.origin_id is null group by c.type_id, c.publisher
) c on c.type_id = a.type_id and c.publisher = a.role
where has_table_privilege(current_user, t.endpoint, 'select') or has_table_privilege(current_user, t.endpoint, 'insert')
    or pg_has_role(current_user, 'pgps_admin', 'usage')
union all
select t.name, null, null, o.name, n.name, c.last_published_at, coalesce(c.rate, 0)
from pgps_internal.offer f
join pgps_internal.origin o using (origin_id)
join pgps_internal.neighbour n using (neighbour_id)
join pgps_internal.event_type t on t.name = any (f.types)
left join (
    select c.type_id, c.origin_id, max(c.published_at) as last_published_at,
        sum(c.hi - c.lo + 1) filter (where c.published_at > pgps._clock() - interval '1 minute') / 60.0 as rate
    from pgps_internal.control c where c.origin_id is not null group by c.type_id, c.origin_id
) c on c.type_id = t.type_id and c.origin_id = o.origin_id
where has_table_privilege(current_user, t.endpoint, 'select') or has_table_privilege(current_user, t.endpoint, 'insert')
    or pg_has_role(current_user, 'pgps_admin', 'usage');
comment on view pgps.advertisements is
'Who has announced to publish what: roles here, and other brokers (origin) by way of a neighbour (via).
last_published_at: the newest publication that the control queue still has, null when it has none; rate: about how many
events a second, in the last minute';

create or replace view pgps.subscriptions with (security_barrier) as
select s.subscription_id, s.name, pg_get_userbyid(s.owner) as owner, s.event_type, s.filter, s.scope,
    case s.kind when 'internal' then 'internal' else 'external' end as kind,
    case when s.arguments is not null then format('%s(%s)', s.callback, s.arguments)
        when s.takes = 'record' then s.callback || '(record)'
        when s.takes is not null
            then format('%s(pgps_event.%I%s)', s.callback, s.event_type, case s.takes when 'batch' then '[]' end)
        else s.callback end as execute, s.priority, s.handler,
    -- regrole prints the bare OID of a role that was dropped.
    case when s.owner::text = s.owner::oid::text then 'suspended' when s.state = 'active' and a.is_dead then 'dead'
        when s.state = 'active' and n.lane_id is not null then 'slow' else s.state end as state,
    'pgps_' || s.subscription_id as channel, s.max_attempts, d.depth, d.oldest, d.depth as lag_events,
    -- Batches that the owner's lane has not matched yet count, too: they may have events for the subscription.
    coalesce(extract(epoch from pgps._clock() - least(d.oldest, (select x.oldest from pgps_internal.lane_backlog x
        where x.subscription_id = s.subscription_id))), 0)::double precision as lag_seconds,
    -- Evaluated only for subscriptions that have moved recently, which most have not.
    case when p.moved_at > pgps._clock() - interval '1 minute' then (
        select coalesce(case when s.handler = 'any' and s.callback is null then sum(h.acked_total)
                else max(h.acked_total) - min(h.acked_total) end / nullif(extract(epoch
                    from pgps._clock() - min(h.moved_at)), 0), 0)
        from (select h.* from pgps_internal.position h where h.subscription_id = s.subscription_id
            order by h.position_id desc limit 100) h
        where h.moved_at > pgps._clock() - interval '1 minute') else 0 end::double precision as rate,
    p.acked_total as delivered, f.attempts, f.retrying, f.failed,
    case when s.owner::text = s.owner::oid::text
        then 'its owner was dropped: pgps.alter_subscription(name, owner => role) or pgps.unsubscribe'
        when s.last_error is null and n.lane_id is not null
            then format('the filters of role %s are slow (pgps.lanes): %s', n.owner, n.last_error)
        else s.last_error end as last_error, s.created_at,
    l.dead_after, l.max_backlog,
    case when l.max_backlog is not null then l.on_backlog end as on_backlog,
    a.is_dead,
    case when s.callback is not null then coalesce((select r.coupling from pgps_internal.coupled_rule r
        where r.subscription_id = s.subscription_id), 'detached') end as coupling
from pgps_internal.subscription s
join pgps_internal.standing p using (subscription_id)
left join pgps_internal.backlog_limit l using (subscription_id)
-- Left joins with one row each: what a query does not name is not counted for it.
left join lateral (select coalesce(sum(x.depth), 0)::bigint as depth, min(x.oldest) as oldest
    from pgps_internal.backlog x where x.subscription_id = s.subscription_id) d on true
left join lateral (select coalesce(sum(f.attempts), 0)::bigint as attempts,
    count(*) filter (where f.state in ('retrying', 'leased')) as retrying,
    count(*) filter (where f.state = 'failed') as failed from pgps_internal.failure f
        where f.subscription_id = s.subscription_id) f on true
cross join lateral (select
    case when l.dead_after is null or d.depth = 0 or greatest(d.oldest, p.moved_at) > pgps._clock() - l.dead_after
        then false
        -- A consumer of a shared subscription may hold what waits for as long as its lease lasts.
        else not exists (select from pgps_internal.share h where h.subscription_id = s.subscription_id
            and h.leased_until > pgps._clock() - l.dead_after)
        end as is_dead) a
-- A slow lane that is behind: what it has not matched yet may have events for the subscription.
left join pgps_internal.lane n on n.owner = s.owner and n.is_slow
    and exists (select from pgps_internal.member m join pgps_internal.class c using (class_id)
        join pgps_internal.signature g using (signature_id)
        join pgps_internal.lane_next x on x.owner = g.owner and x.type_id = m.type_id
        where m.subscription_id = s.subscription_id and g.in_lane)
where not s.is_hidden and (pg_has_role(current_user, s.owner::oid, 'usage')
    or pg_has_role(current_user, 'pgps_admin', 'usage'));
comment on view pgps.subscriptions is
'The reader''s subscriptions, all for pgps_admin: state, how far behind in events and seconds, events per second of the
last minute, failures. A client that waits for events listens on channel. state: active, slow (the lane of its
owner''s filters is slow and behind, last_error says why: its events come late), paused, suspended (last_error
says why), or dead: is_dead, that is, nobody has received or acknowledged anything (internal: it was not run) for
dead_after while events waited. A dead subscription goes on where it was as soon as somebody receives; events it was
handed are handed out again. Without dead_after none is dead.';

create or replace view pgps.rules with (security_barrier) as
select r.name, r.table_name, r.operations, t.name as event_type, r.attributes, r.condition, r.run_as,
    pg_get_userbyid(r.owner) as owner, w.state, w.fired, r.moment
from pgps_internal.rule r join pgps_internal.event_type t using (type_id) join pg_class c on c.oid = r.table_name
cross join lateral (
    select case when count(g.oid) = 0 then 'missing' when bool_or(g.tgenabled = 'D') then 'disabled'
            else 'active' end as state,
        sum(pg_stat_get_function_calls(p.oid))::bigint as fired
    from pg_proc p left join pg_trigger g on g.tgfoid = p.oid and g.tgrelid = r.table_name
    where p.pronamespace = 'pgps_internal'::regnamespace
        and p.proname in (select format('rule_%s_%s', r.rule_id, lower(o)) from unnest(r.operations) o)
) w
where pg_has_role(current_user, r.owner::oid, 'usage') or pg_has_role(current_user, 'pgps_admin', 'usage');
comment on view pgps.rules is
'The reader''s active rules, all for pgps_admin. state: active, disabled (a trigger of it on the table is), or missing.
fired: for how many statements, null unless the server counts calls of functions (track_functions). What a rule has
published is counted for its event type, in pgps.activity; a rule that raises an error makes the statement fail';

create or replace view pgps.policies with (security_barrier) as
select t.name as event_type, p.name, pg_get_userbyid(p.role) as role, p.using_expression
from pgps_internal.policy p join pgps_internal.event_type t using (type_id)
where pg_has_role(current_user, p.role::oid, 'usage') or pg_has_role(current_user, 'pgps_admin', 'usage');
comment on view pgps.policies is 'Row-level policies for the reader''s roles, all for pgps_admin';

create or replace view pgps.exceptions with (security_barrier) as
select t.name as event_type, f.event_id, s.name as subscription, f.failed_at, f.attempts, f.sqlstate, f.error, f.state,
    null::jsonb as payload
from pgps_internal.failure f
join pgps_internal.subscription s using (subscription_id)
join pgps_internal.event_type t on t.type_id = f.type_id
where (f.state = 'failed' or f.step <> 'nack' and f.state <> 'settled')
    and (pg_has_role(current_user, s.owner::oid, 'usage') or pg_has_role(current_user, 'pgps_admin', 'usage'))
union all
-- Events of a link that this broker's constraints refused, or that no broker has any more.
select t.name, r.origin_event, format('link %s', r.neighbour), r.failed_at, r.attempts, r.sqlstate, r.error,
    case when r.sqlstate = '58030' then 'gap' else 'refused' end, r.payload
from pgps_internal.rejected r
left join pgps_internal.event_type t using (type_id)
where pg_has_role(current_user, 'pgps_admin', 'usage')
union all
select t.name, g.first_event, s.name, g.noted_at, 0, '54000',
    format('%s events, from %s to %s in delivery order, were passed over: more than max_backlog %s waited', g.events,
        g.first_event, g.last_event,
        g.max_backlog), 'gap', null
from pgps_internal.backlog_gap g
join pgps_internal.subscription s using (subscription_id)
join pgps_internal.event_type t on t.type_id = g.type_id
where pg_has_role(current_user, s.owner::oid, 'usage') or pg_has_role(current_user, 'pgps_admin', 'usage');
comment on view pgps.exceptions is
'The exception queues together: of the reader''s subscriptions, all for pgps_admin. For pgps_admin also what came over a
link (subscription: link and the neighbour''s name): state refused, an event that this broker''s constraints refused,
event_id the one at its origin, payload the event; state gap, events that nobody has any more, of no event type. A gap
of a subscription: its oldest events were passed over, since more waited than its max_backlog; error says how many, from
which to which, event_id is the first; pgps.discard_exception takes note of it';

create or replace view pgps.workers with (security_barrier) as
select a.pid, split_part(a.application_name, '/', 2) as worker,
    nullif(split_part(a.application_name, '/', 3), '') as service, a.usename as role,
    a.client_addr, a.backend_start as started_at, a.state,
    exists (select from pgps_internal.leader l where l.pid = a.pid
        and pgps._is_alive(format('%s@%s', l.pid, extract(epoch from l.started_at)))) as leader
from pg_stat_get_activity(null) g
join pg_stat_activity a on a.pid = g.pid
where a.application_name ~ '^pgps-worker/' and a.datname = current_database();
comment on view pgps.workers is 'Connections of running workers; leader: the one that dispatches';

create or replace view pgps.activity with (security_barrier) as
select t.name as event_type, coalesce(b.total, 0) as published,
    (select coalesce(sum(p.acked_total), 0)::bigint
        from (select distinct m.subscription_id from pgps_internal.member m where m.type_id = t.type_id) m
        join pgps_internal.standing p using (subscription_id)) as matched,
    coalesce(b.repeats, 0) as repeats,
    (select count(*) from pgps_internal.batch_type x where x.type_id = t.type_id) as batches,
    (select x.created_at from pgps_internal.batch x where x.batch_id = b.batch_id limit 1) as last_batch_at,
    case when w.events <= 100000 then coalesce(pgps._count_waiting(t.name, current_user), w.events)
        else coalesce(w.events, 0) end as waiting,
    w.oldest as oldest_waiting, r.rate
from pgps_internal.event_type t
left join lateral (select b.total, b.repeats, b.batch_id from pgps_internal.batch_type b where b.type_id = t.type_id
    order by b.batch_id desc limit 1) b on true
left join pgps_internal.waiting_events w using (type_id)
cross join lateral (select coalesce(sum(x.events) / 60.0, 0)::double precision as rate
    from pgps_internal.batch_type x join pgps_internal.batch y using (batch_id)
    where x.type_id = t.type_id and y.created_at > pgps._clock() - interval '1 minute') r
where has_table_privilege(current_user, t.endpoint, 'select') or has_table_privilege(current_user, t.endpoint, 'insert')
    or pg_has_role(current_user, 'pgps_admin', 'usage');
comment on view pgps.activity is
'Activity by event type: events dispatched, acknowledged, repeats dropped, batches, rate (events per second of the last
minute), waiting for dispatch';

create or replace view pgps.settings with (security_barrier) as
select s.name, s.value, s.kind, s.description from pgps_internal.setting s
where s.name in ('tick_interval') or s.name like '%\_per\_role' or pg_has_role(current_user, 'pgps_admin', 'usage')
    or pg_has_role(current_user, 'pgps_worker', 'usage');
comment on view pgps.settings is
'Settings of the broker, of which everybody sees what limits roles; change them with pgps.configure';

grant select on pgps.event_types, pgps.queues, pgps.advertisements, pgps.subscriptions, pgps.rules, pgps.policies,
    pgps.exceptions, pgps.workers, pgps.activity, pgps.settings to public;
