-- pgps.find_exceptions: a page of the exceptions, the newest first. The view pgps.exceptions is several relations in
-- one, and PostgreSQL would sort all of their rows to find the newest: with a million of them that takes seconds.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.exceptions_query() returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select $sql$
        with failed as (
            select * from (
                select t.name as event_type, f.event_id, s.name::text as subscription, f.failed_at, f.attempts,
                    f.sqlstate, f.error, f.state, null::jsonb as payload
                from pgps_internal.failure f
                join pgps_internal.subscription s using (subscription_id)
                join pgps_internal.event_type t on t.type_id = f.type_id
                where (f.state = 'failed' or f.step <> 'nack' and f.state <> 'settled') %2$s %3$s %4$s
            ) x where true %1$s order by x.failed_at desc, x.event_id desc, x.subscription desc limit $9
        ),
        gaps as (
            select * from (
                select t.name, g.first_event as event_id, s.name::text as subscription, g.noted_at as failed_at, 0,
                    '54000'::text as sqlstate, format('%%s events, from %%s to %%s in delivery order, were passed '
                        'over: more than max_backlog %%s waited', g.events, g.first_event, g.last_event,
                        g.max_backlog) as error, 'gap'::text, null::jsonb
                from pgps_internal.backlog_gap g
                join pgps_internal.subscription s using (subscription_id)
                join pgps_internal.event_type t on t.type_id = g.type_id
                where true %2$s %5$s %4$s
            ) x where true %1$s order by x.failed_at desc, x.event_id desc, x.subscription desc limit $9
        ),
        refused as (
            select * from (
                select t.name, r.origin_event as event_id, format('link %%s', r.neighbour) as subscription, r.failed_at,
                    r.attempts, r.sqlstate, r.error, case when r.sqlstate = '58030' then 'gap' else 'refused' end,
                    r.payload
                from pgps_internal.rejected r left join pgps_internal.event_type t using (type_id)
                where $8 and $4 is null %6$s
            ) x where true %1$s order by x.failed_at desc, coalesce(x.event_id, 0) desc, x.subscription desc limit $9
        )
        select to_jsonb(array_agg(x order by x.failed_at desc, coalesce(x.event_id, 0) desc, x.subscription desc))
        from (select * from (table failed union all table gaps union all table refused) x
            order by x.failed_at desc, coalesce(x.event_id, 0) desc, x.subscription desc limit $9) x
    $sql$
$$;
comment on function pgps_internal.exceptions_query() is
'The statement of pgps.find_exceptions, for format: further conditions, then those of the subscription, of the event
type and of the caller for failures; of the event type for gaps; and for what came over a link';

create or replace function pgps_internal.do_find_exceptions(caller name, args jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rows integer := coalesce((args ->> 'max_rows')::integer, 100);
    v_type_id integer := case when args ->> 'event_type' is not null
        then (pgps_internal.find_type(args ->> 'event_type')).type_id end;
    v_subscription text := args ->> 'subscription';
    v_subscription_id bigint;
    v_is_admin boolean := pg_has_role(caller, 'pgps_admin', 'usage');
    v_where text := '';
    v_found jsonb;
begin
    if v_rows not between 1 and 1000 then
        raise exception 'max_rows % is not between 1 and 1000', v_rows using errcode = '22023',
            hint = 'Ask for the next page with before, before_event and before_subscription of the last row.';
    end if;
    if v_subscription is not null and v_subscription not like 'link %' then
        select s.subscription_id into v_subscription_id from pgps_internal.subscription s
        where s.name = pgps_internal.fold(v_subscription)
            and (v_is_admin or pg_has_role(caller, s.owner::oid, 'usage'));
        if not found then
            raise exception 'subscription "%" does not exist', pgps_internal.fold(v_subscription)
            using errcode = '42704', hint = 'See pgps.subscriptions.';
        end if;
    end if;
    -- Only what is asked for stands in the statement, so that it is planned for that.
    if args ->> 'before' is not null then
        v_where := ' and x.failed_at <= $1 and (x.failed_at, coalesce(x.event_id, 0), x.subscription) < ($1, '
            'coalesce($2, 0), coalesce($3, ''''))';
    end if;
    if args ->> 'sqlstate' is not null then
        v_where := v_where || ' and x.sqlstate = $6';
    end if;
    if args ->> 'containing' is not null then
        v_where := v_where || ' and strpos(lower(x.error), lower($7)) > 0';
    end if;
    execute format(pgps_internal.exceptions_query(), v_where,
        case when v_subscription_id is not null then 'and s.subscription_id = $4'
            when v_subscription is not null then 'and false' else '' end,
        case when v_type_id is not null then 'and f.type_id = $5' else '' end,
        case when v_is_admin then '' else format('and pg_has_role(%L, s.owner::oid, ''usage'')', caller) end,
        case when v_type_id is not null then 'and g.type_id = $5' else '' end,
        case when v_type_id is not null then 'and r.type_id = $5' else '' end
            || case when v_subscription is not null then format(' and r.neighbour = %L', substr(v_subscription, 6))
                else '' end)
    using (args ->> 'before')::timestamptz, (args ->> 'before_event')::bigint, args ->> 'before_subscription',
        v_subscription_id, v_type_id, args ->> 'sqlstate', args ->> 'containing', v_is_admin, v_rows
    into v_found;
    return coalesce(v_found, '[]');
end
$$;
comment on function pgps_internal.do_find_exceptions(name, jsonb) is 'See pgps.find_exceptions';

create or replace function pgps.find_exceptions(
    event_type text = null, subscription text = null, sqlstate text = null, containing text = null,
    before timestamptz = null, before_event bigint = null, before_subscription text = null, max_rows integer = 100
)
returns table (
    event_type text, event_id bigint, subscription text, failed_at timestamptz, attempts integer, sqlstate text,
    error text, state text, payload jsonb
)
language sql rows 100
begin atomic
    select x.event_type, x.event_id, x.subscription, x.failed_at, x.attempts, x.sqlstate, x.error, x.state, x.payload
    from jsonb_to_recordset(pgps._call('find_exceptions', jsonb_build_object('event_type', $1, 'subscription', $2,
        'sqlstate', $3, 'containing', $4, 'before', $5, 'before_event', $6, 'before_subscription', $7, 'max_rows', $8)))
        x(event_type text, event_id bigint, subscription text, failed_at timestamptz, attempts integer, sqlstate text,
            error text, state text, payload jsonb);
end;
comment on function pgps.find_exceptions(text, text, text, text, timestamptz, bigint, text, integer) is
'A page of pgps.exceptions, the newest first, at most max_rows (1 to 1000); as quick with a million of them as with ten.
event_type, subscription (''link <neighbour>'' for what came over a link), sqlstate, containing (a part of the error,
without regard to case): null = all. before, before_event, before_subscription: failed_at, event_id and subscription of
the last row of the page before; null = from the newest on. Needs to own the subscriptions, or pgps_admin; of others
there are no rows. Errors: 42704, 22023 max_rows.';

grant execute on function pgps.find_exceptions(text, text, text, text, timestamptz, bigint, text, integer) to public;
