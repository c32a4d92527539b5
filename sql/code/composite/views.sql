-- What people see of composite events.
-- Writes: nothing.

create or replace view pgps.composite_events with (security_barrier) as
select t.name, c.expression, c.context, c.partition_by, c.within, c.filter, c.scope, pg_get_userbyid(c.owner) as owner,
    case when c.owner::text = c.owner::oid::text or w.is_suspended
            or not c.enabled and c.last_error is not null then 'suspended'
        when not c.enabled then 'paused' else 'active' end as state,
    coalesce(b.events, 0)::bigint as lag, coalesce(s.open, 0) as open, coalesce(s.keys, 0) as keys,
    coalesce(s.detected, 0) as detected, coalesce(s.late, 0) as late, coalesce(s.given_up, 0) as given_up,
    case when c.owner::text = c.owner::oid::text then 'its owner was dropped'
        else coalesce(case when w.is_suspended then w.last_error end, case when c.is_held
            then 'it waits: an event type that it reads is being changed or dropped in a transaction that is open'
            when exists (select from pgps_internal.set_aside a join pgps_internal.composite_leaf l using (type_id)
                where l.composite_id = c.composite_id and a.batch_id is null)
            then 'it waits: an event type that it reads is set aside (pgps.event_types)' end,
            c.last_error, f.error,
            case when c.enabled and (c.runs_code and c.owner = any (o.slow) or c.owner = any (o.whole))
                then 'the composite events of its owner are slow: it is detected apart from others' end,
            w.last_error)
        end as last_error,
    c.attributes, c.time_basis, c.lateness, c.max_open, s.stepped_at, c.created_at,
    c.start, t.reliability, t.persistent and t.reliability = 'guaranteed' as persistent, t.handler,
    (select bool_and(q.auditable) from pgps_internal.queue q where q.type_id = t.type_id) as auditable,
    c.environment || jsonb_build_object('timezone', coalesce(c.given ->> 'zone', c.environment ->> 'timezone'))
        as settings
from pgps_internal.composite c
join pgps_internal.event_type t using (type_id)
cross join (select array(select s.owner from pgps_internal.slow_detection s where s.is_slow) as slow,
    array(select s.owner from pgps_internal.slow_detection s where s.is_slow and s.is_whole) as whole) o
cross join lateral (select min(n.batch_id) as batch_id, sum(n.open)::bigint as open, sum(n.keys)::bigint as keys,
    sum(n.detected)::bigint as detected, sum(n.late)::bigint as late, sum(n.given_up)::bigint as given_up,
    max(n.stepped_at) as stepped_at
    from pgps_internal.step_now n where n.composite_id = c.composite_id) s
cross join lateral (select coalesce(bool_or(u.state <> 'active'), false) as is_suspended,
    coalesce(max(u.last_error) filter (where u.state <> 'active'), max(u.last_error)) as last_error
    from pgps_internal.composite_leaf l join pgps_internal.subscription u using (subscription_id)
    where l.composite_id = c.composite_id) w
cross join lateral (select sum(d.events) as events
    from pgps_internal.composite_leaf l join pgps_internal.member m using (subscription_id)
    join pgps_internal.delivery d on d.class_id = m.class_id
        and d.batch_id > greatest(m.from_batch, coalesce(s.batch_id, c.after_batch))
    where l.composite_id = c.composite_id) b
-- An event on which the predicate of a leaf raised is no event of that leaf; it is among the exceptions.
left join lateral (select format('%s (in the predicate of event type "%s", event %s)', x.error, y.name, x.event_id)
        as error
    from pgps_internal.composite_leaf l join pgps_internal.failure x using (subscription_id)
    join pgps_internal.event_type y on y.type_id = x.type_id
    where l.composite_id = c.composite_id and x.step = 'filter' and x.state = 'failed'
    order by x.failed_at desc, x.event_id desc limit 1) f on true
where has_table_privilege(current_user, t.endpoint, 'select') or pg_has_role(current_user, 'pgps_admin', 'usage');
comment on view pgps.composite_events is
'Composite events that the reader may subscribe to or administer. expression: its normal form; lag: events of its leaves
that are dispatched and not taken yet; open: open occurrences, in so many keys; detected, late, given_up: since it was
created; settings: those of the session that created it which its predicates, filter and clock keep, such as timezone';

create or replace function pgps.suspended_composite_events() returns table (name text, error text, hint text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select t.name, left(coalesce(case when c.owner::text = c.owner::oid::text then 'its owner was dropped' end,
            w.last_error, c.last_error), 1000),
        case when c.owner::text = c.owner::oid::text
            then format('select pgps.drop_event_type(%L, true)', quote_ident(t.name))
        else format('mend the cause, then: select pgps.alter_composite_event(%L, enabled => true)',
            quote_ident(t.name)) end
    from pgps_internal.composite c join pgps_internal.event_type t using (type_id)
    cross join lateral (select bool_or(u.state = 'suspended') as is_suspended, max(u.last_error) as last_error
        from pgps_internal.composite_leaf l join pgps_internal.subscription u using (subscription_id)
        where l.composite_id = c.composite_id and u.state = 'suspended') w
    where c.owner::text = c.owner::oid::text or w.is_suspended or not c.enabled and c.last_error is not null
    order by t.name;
end
$$;
comment on function pgps.suspended_composite_events() is
'For a worker''s log and metrics, and pgps doctor: composite events that detect nothing since what they are made of
failed, the error, and what to type. Needs pgps_worker or pgps_admin. Errors: 42501.';

revoke all on function pgps.suspended_composite_events() from public;
grant execute on function pgps.suspended_composite_events() to pgps_worker, pgps_admin;

create or replace view pgps.open_occurrences with (security_barrier) as
select t.name, case when k.key not like '#%' then k.key::jsonb end as partition_key,
    coalesce((select n ->> 'text' from jsonb_array_elements(c.parsed -> 'nodes') n where n ->> 'name' = o.node),
        o.node) as node,
    case o.slot when -1 then 'waits for the watermark' else 'operand ' || o.slot + 1 end as role,
    (select x.name from jsonb_array_elements(c.parsed -> 'nodes') n
        join pgps_internal.composite_leaf l on l.composite_id = c.composite_id
            and l.leaf = (n -> 'leaves' ->> 0)::integer
        join pgps_internal.event_type x on x.type_id = l.type_id
        where n ->> 'name' = e.event ->> 3) as event_type,
    case when json_array_length(o.data) = 7 and strpos(coalesce(o.data ->> 5, ''), e'\n') = 0
        then (o.data ->> 4)::bigint end as event_id,
    w.since, w.since + c.within as expires_at
from pgps_internal.composite c
join pgps_internal.event_type t using (type_id)
join pgps_internal.open_now o using (state_id)
join pgps_internal.key_now k on k.state_id = o.state_id and k.key = o.key
cross join lateral (select 'epoch'::timestamptz
    + trunc((o.data ->> 1)::numeric / 1267650600228229401496703205376)::bigint * interval '1 microsecond' as since) w
-- An event is (serial, start, end, leaf and three more); a part of the expression holds those that it is made of.
left join lateral (
    select v as event from jsonb_path_query(o.data::jsonb,
        'strict $.** ? (@.type() == "array" && @.size() == 7 && @[3].type() == "string")') v
    order by (v ->> 1)::numeric limit 1) e on true
where pg_has_role(current_user, 'pgps_admin', 'usage') or has_table_privilege(current_user, t.endpoint, 'select')
    -- A policy limits which occurrences a role may have; of what is open, nobody knows yet whether they are among them.
    and (pg_has_role(current_user, c.owner::oid, 'usage') or not exists (select from pgps_internal.policy p
        where p.type_id = t.type_id and pg_has_role(current_user, p.role::oid, 'usage')));
comment on view pgps.open_occurrences is
'What is open of composite events: events, or occurrences of parts of the expression (event_id null), that wait for what
completes them. node: the sub-expression they are open in; role: as which of its operands; event_type: of the event that
opened it, null for a tick of the clock. A role that a policy limits for the composite event sees nothing of it here,
unless it owns it';

create or replace view pgps.late_events with (security_barrier) as
select t.name, l.event_id, e.name as event_type, l.at, l.reason, l.noted_at
from pgps_internal.composite_late l
join pgps_internal.composite c using (composite_id)
join pgps_internal.event_type t on t.type_id = c.type_id
left join pgps_internal.event_type e on e.type_id = l.type_id
where pg_has_role(current_user, 'pgps_admin', 'usage') or has_table_privilege(current_user, t.endpoint, 'select')
    and (pg_has_role(current_user, c.owner::oid, 'usage') or not exists (select from pgps_internal.policy p
        where p.type_id = t.type_id and pg_has_role(current_user, p.role::oid, 'usage')));
comment on view pgps.late_events is
'Events that composite events of the time basis event could not take, with the reason; kept for a week. A role that a
policy limits for the composite event sees nothing of it here, unless it owns it';

grant select on pgps.composite_events, pgps.open_occurrences, pgps.late_events to public;
