-- What went wrong for subscriptions, for a worker's log and metrics: event ids, errors, and the commands that help;
-- never an attribute of an event.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps.troubles(since timestamptz, max_rows integer = 100)
returns table (kind text, subscription text, event_type text, event_id bigint, attempts integer, sqlstate text,
    error text, hint text, happened_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    if troubles.max_rows < 0 then
        raise exception 'invalid max_rows %', troubles.max_rows using errcode = '22023',
            hint = 'Give a positive number, or null for all of them.';
    end if;
    return query
    select f.step as kind, s.name, t.name, f.event_id, f.attempts, f.sqlstate, left(f.error, 1000),
        case when f.state = 'failed'
            then format('mend the cause, then: select pgps.retry_exception(%1$L, event_id => %2$s, subscription => '
            '%3$L), or '
            'pgps.discard_exception likewise', quote_ident(t.name), f.event_id, quote_ident(s.name))
        else format('it is tried again, %s times in all', s.max_attempts) end, f.failed_at as happened_at
    from pgps_internal.failure f
    join pgps_internal.subscription s using (subscription_id)
    join pgps_internal.event_type t on t.type_id = f.type_id
    where f.failed_at > troubles.since and f.state <> 'settled'
    union all
    select 'gap', s.name, t.name, g.first_event, 0, '54000',
        format('%s events, up to event %s, were passed over: more than max_backlog %s waited', g.events, g.last_event,
            g.max_backlog),
        format('start its consumer; what the broker still has comes again after: select pgps.seek(%1$L, ''%2$s''); '
            'take note of it: '
            'select pgps.discard_exception(%3$L, %2$s, %1$L)', quote_ident(s.name), g.first_event, quote_ident(t.name)),
                g.noted_at
    from pgps_internal.backlog_gap g
    join pgps_internal.subscription s using (subscription_id)
    join pgps_internal.event_type t on t.type_id = g.type_id
    where g.noted_at > troubles.since
    order by happened_at limit troubles.max_rows;
end
$$;
comment on function pgps.troubles(timestamptz, integer) is
'For a worker''s log: events that failed, or were passed over, since a time, the oldest first, at most max_rows: kind
(filter, callback, nack; gap: event_id is the first that was passed over), subscription, event, how often it was tried,
the error, and a hint with the command to type. Shows no attribute of an event: a worker''s log may be read by those who
may not read the events. Needs pgps_worker or pgps_admin. Errors: 42501, 22023 max_rows.';

create or replace function pgps_internal.failure_counts()
returns table (subscription_id bigint, failed bigint, retrying bigint, last_event bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp set jit = off
as $$
begin
    return query
    -- One look-up in the index for each subscription that has failures, not one row for each failure.
    with recursive has_failed as (
        (select f.subscription_id as id from pgps_internal.failure f order by f.subscription_id limit 1)
        union all
        select (select f.subscription_id from pgps_internal.failure f where f.subscription_id > h.id
            order by f.subscription_id limit 1)
        from has_failed h where h.id is not null
    )
    select h.id, c.failed, c.retrying, c.last_event
    from has_failed h
    cross join lateral (
        select count(*) filter (where f.state = 'failed') as failed,
            count(*) filter (where f.state = 'retrying') as retrying,
            max(f.event_id) as last_event
        from (select f.state, f.event_id from pgps_internal.failure f
            where f.subscription_id = h.id and f.state <> 'settled'
            order by f.event_id desc limit 10000) f
    ) c
    where c.last_event is not null;
end
$$;
comment on function pgps_internal.failure_counts() is
'How many events of each subscription failed or are tried again, of its 10,000 newest, and the newest of them';

create or replace function pgps.trouble_counts()
returns table (
    subscription text, state text, last_error text, failed bigint, retrying bigint, last_event bigint, hint text,
    passed_over bigint, depth bigint
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
    return query
    with failed as materialized (select f.* from pgps_internal.failure_counts() f),
    gaps as (
        select g.subscription_id, sum(g.events)::bigint as events from pgps_internal.backlog_gap g
        group by g.subscription_id
    ),
    -- Finding out whether one is dead costs more than all the rest. offset 0: the view is asked about these alone.
    dead as (
        select v.* from pgps_internal.backlog_limit l
        cross join lateral (select v.subscription_id, v.state, v.depth from pgps.subscriptions v
            where v.subscription_id = l.subscription_id offset 0) v
        where l.dead_after is not null and v.state = 'dead'
    ),
    found as (
        select f.subscription_id from failed f
        union select g.subscription_id from gaps g
        union select d.subscription_id from dead d
        -- The condition on callback is that of an index: state alone has none.
        union select s.subscription_id from pgps_internal.subscription s
        where s.state = 'suspended' and (s.callback is not null or s.state <> 'active')
        union select s.subscription_id from pgps_internal.subscription s
        where s.owner not in (select r.oid from pg_roles r)
    )
    select s.name, case when r.oid is null then 'suspended' else coalesce(d.state, s.state) end,
        case when r.oid is null then 'its owner was dropped' else left(s.last_error, 1000) end,
        coalesce(f.failed, 0), coalesce(f.retrying, 0), f.last_event,
        case when r.oid is null
                then format('select pgps.alter_subscription(%1$L, owner => ''…'') or select pgps.unsubscribe(%1$L)',
                    quote_ident(s.name))
            when s.state = 'suspended' then pgps_internal.remedy(s)
            when d.state = 'dead'
                then format('start its consumer; or give it up: select pgps.unsubscribe(%L)', quote_ident(s.name)) end,
        coalesce(g.events, 0), d.depth
    from pgps_internal.subscription s
    left join pg_roles r on r.oid = s.owner
    left join failed f using (subscription_id)
    left join gaps g using (subscription_id)
    left join dead d using (subscription_id)
    -- An array, so that the planner expects few, and looks them up.
    where s.subscription_id = any (array(select x.subscription_id from found x)) and not s.is_hidden
    order by s.name;
end
$$;
comment on function pgps.trouble_counts() is
'For a worker''s metrics: subscriptions that are suspended (also since their owner was dropped) or dead (then with how
many events wait, depth), or have events that failed, are tried again or were passed over, how many of each, the newest
event that failed, and what to type for one that is suspended or dead. Failures are counted up to 10,000 for each
subscription. Needs pgps_worker or pgps_admin. Errors: 42501.';

create or replace function pgps_internal.remedy(subscription pgps_internal.subscription) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := quote_literal(quote_ident((remedy.subscription).name));
begin
    return case when (remedy.subscription).filter is not null and exists (
            select from pgps_internal.member m join pgps_internal.class c using (class_id)
            where m.subscription_id = (remedy.subscription).subscription_id and not c.is_active)
        then format('select pgps.alter_subscription(%s, filter => ''…''), or mend what the filter uses, then: select '
            'pgps.resume(%1$s)', v_name)
        when (remedy.subscription).last_error like 'backlog: %'
        then format('start its consumer, then: select pgps.resume(%s); or give what waits up: select '
            'pgps.seek(%1$s, ''now''), pgps.resume(%1$s)', v_name)
        else format('mend the cause, then: select pgps.resume(%s)', v_name) end;
end
$$;
comment on function pgps_internal.remedy(pgps_internal.subscription) is 'What to type when a subscription is suspended';

revoke all on function pgps.troubles(timestamptz, integer), pgps.trouble_counts() from public;
grant execute on function pgps.troubles(timestamptz, integer), pgps.trouble_counts() to pgps_worker, pgps_admin;
