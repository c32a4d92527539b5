-- What went wrong for subscriptions, for a worker's log and metrics: event ids, errors, and the commands that help;
-- never an attribute of an event.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps.troubles(since timestamptz, max_rows integer = 100)
returns table (kind text, subscription text, event_type text, event_id bigint, attempts integer, sqlstate text,
    error text, hint text, happened_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off
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

create or replace function pgps.trouble_counts()
returns table (
    subscription text, state text, last_error text, failed bigint, retrying bigint, last_event bigint, hint text,
    passed_over bigint, depth bigint
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    select s.name, case when r.oid is null then 'suspended' else coalesce(v.state, s.state) end,
        case when r.oid is null then 'its owner was dropped' else left(s.last_error, 1000) end,
        coalesce(f.failed, 0), coalesce(f.retrying, 0), f.last_event,
        case when r.oid is null
                then format('select pgps.alter_subscription(%1$L, owner => ''…'') or select pgps.unsubscribe(%1$L)',
                    quote_ident(s.name))
            when s.state = 'suspended' then pgps_internal.remedy(s)
            when v.state = 'dead'
                then format('start its consumer; or give it up: select pgps.unsubscribe(%L)', quote_ident(s.name)) end,
        coalesce(g.events, 0), v.depth
    from pgps_internal.subscription s
    left join pg_roles r on r.oid = s.owner
    left join (
        select f.subscription_id, count(*) filter (where f.state = 'failed') as failed,
            count(*) filter (where f.state = 'retrying') as retrying,
            (array_agg(f.event_id order by f.failed_at desc))[1] as last_event
        from pgps_internal.failure f where f.state <> 'settled' group by f.subscription_id
    ) f using (subscription_id)
    left join (select g.subscription_id, sum(g.events)::bigint as events from pgps_internal.backlog_gap g
        group by g.subscription_id) g
        using (subscription_id)
    -- Only subscriptions with dead_after: finding out whether one is dead costs more than all the rest.
    left join pgps_internal.backlog_limit l on l.subscription_id = s.subscription_id and l.dead_after is not null
    left join lateral (select v.state, v.depth from pgps.subscriptions v
        where v.subscription_id = l.subscription_id and v.state = 'dead') v on true
    where not s.is_hidden and (f.subscription_id is not null or g.subscription_id is not null or s.state = 'suspended'
        or v.state is not null or r.oid is null)
    order by s.name;
end
$$;
comment on function pgps.trouble_counts() is
'For a worker''s metrics: subscriptions that are suspended (also since their owner was dropped) or dead (then with how
many events wait, depth), or have events that failed, are tried again or were passed over, how many of each, which event
failed last, and what to type for one that is suspended or dead. Needs pgps_worker or pgps_admin. Errors: 42501.';

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
