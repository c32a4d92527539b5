-- pgps.totals: the sums over a reader's subscriptions, at a cost that does not grow with them. The view
-- pgps.subscriptions asks each what waits for it; here many are estimated from a thousand that stand for all (decision
-- 75).
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.stand_ins(owners oid[], most integer)
returns table (subscription_id bigint, weight double precision)
language sql stable
set search_path = pg_catalog, pg_temp
begin atomic
    select x.subscription_id, greatest(x.number::double precision / stand_ins.most, 1)
    from (
        select k.subscription_id,
            -- In an order that has nothing to do with them, and is the same at the next look.
            row_number() over (partition by k.kind order by hashint8extended(k.subscription_id, 0)) as place,
            count(*) over (partition by k.kind) as number
        from (
            select s.subscription_id, case when s.state <> 'active' then 1 when l.dead_after is not null then 2 else 3
                end as kind
            from pgps_internal.subscription s
            left join pgps_internal.backlog_limit l using (subscription_id)
            where s.owner = any (stand_ins.owners) and not s.is_hidden
        ) k
    ) x
    where x.place <= stand_ins.most;
end;
comment on function pgps_internal.stand_ins(oid[], integer) is
'Subscriptions that stand for all of some owners, and for how many each: of those that are stopped, of those with
dead_after, and of the others at most so many';

create or replace function pgps_internal.count_failures(owners oid[], most integer)
returns table (failed bigint, retrying bigint)
language sql stable
set search_path = pg_catalog, pg_temp
begin atomic
    -- From one subscription that has failures to the next, as failure_counts does.
    with recursive has_failed as (
        (select f.subscription_id as id from pgps_internal.failure f order by f.subscription_id limit 1)
        union all
        select (select f.subscription_id from pgps_internal.failure f where f.subscription_id > h.id
            order by f.subscription_id limit 1)
        from has_failed h where h.id is not null
    )
    select count(*) filter (where c.state = 'failed'), count(*) filter (where c.state <> 'failed')
    from (
        select f.state
        from has_failed h
        join pgps_internal.subscription s on s.subscription_id = h.id and s.owner = any (count_failures.owners)
        cross join lateral (select f.state from pgps_internal.failure f
            where f.subscription_id = h.id and (f.state = 'failed' or f.step <> 'nack' and f.state <> 'settled')
            offset 0) f
        limit count_failures.most + 1
    ) c;
end;
comment on function pgps_internal.count_failures(oid[], integer) is
'How many exceptions the subscriptions of some owners have, failed and tried again; counted up to most, and then one
more in all';

create or replace function pgps_internal.do_totals(caller name, args jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_most integer := coalesce((args ->> 'max_subscriptions')::integer, 1000);
    v_exceptions integer := coalesce((args ->> 'max_exceptions')::integer, 10000);
    v_owners oid[];
    v_found jsonb;
    v_failed record;
begin
    if v_most not between 1 and 1000000 or v_exceptions not between 1 and 1000000 then
        raise exception 'max_subscriptions % or max_exceptions % is not between 1 and 1000000', v_most, v_exceptions
        using errcode = '22023', hint = 'Without a limit: select sum(depth), sum(failed) from pgps.subscriptions';
    end if;
    v_owners := array(select o.owner from (select distinct s.owner::oid from pgps_internal.subscription s) o(owner)
        where pg_has_role(caller, o.owner, 'usage') or pg_has_role(caller, 'pgps_admin', 'usage'));
    select jsonb_build_object('subscriptions', coalesce(round(sum(x.weight)), 0),
        'paused', coalesce(round(sum(x.weight) filter (where v.state = 'paused')), 0),
        'suspended', coalesce(round(sum(x.weight) filter (where v.state = 'suspended')), 0),
        'dead', coalesce(round(sum(x.weight) filter (where v.state = 'dead')), 0),
        'slow', coalesce(round(sum(x.weight) filter (where v.state = 'slow')), 0),
        'depth', coalesce(round(sum(x.weight * v.depth)), 0), 'lag_seconds', coalesce(max(v.lag_seconds), 0),
        'rate', coalesce(sum(x.weight * v.rate), 0), 'asked', count(*), 'is_estimated', coalesce(max(x.weight) > 1,
            false))
    into v_found
    from pgps_internal.stand_ins(v_owners, v_most) x
    -- offset 0: the view is asked about these alone.
    cross join lateral (select v.state, v.depth, v.lag_seconds, v.rate from pgps.subscriptions v
        where v.subscription_id = x.subscription_id offset 0) v;
    select c.failed, c.retrying into v_failed from pgps_internal.count_failures(v_owners, v_exceptions) c;
    return v_found || jsonb_build_object('failed', v_failed.failed, 'retrying', v_failed.retrying,
        'is_limited', v_failed.failed + v_failed.retrying > v_exceptions);
end
$$;
comment on function pgps_internal.do_totals(name, jsonb) is 'See pgps.totals';

create or replace function pgps.totals(max_subscriptions integer = 1000, max_exceptions integer = 10000)
returns table (
    subscriptions bigint, paused bigint, suspended bigint, dead bigint, slow bigint, depth bigint,
    lag_seconds double precision, rate double precision, asked bigint, is_estimated boolean,
    failed bigint, retrying bigint, is_limited boolean
)
language sql rows 1
begin atomic
    select x.subscriptions, x.paused, x.suspended, x.dead, x.slow, x.depth, x.lag_seconds, x.rate, x.asked,
        x.is_estimated, x.failed, x.retrying, x.is_limited
    from pgps._call('totals', jsonb_build_object('max_subscriptions', $1, 'max_exceptions', $2)) c(r)
    cross join lateral jsonb_to_record(c.r) x(subscriptions bigint, paused bigint, suspended bigint, dead bigint,
        slow bigint, depth bigint, lag_seconds double precision, rate double precision, asked bigint,
        is_estimated boolean, failed bigint, retrying bigint, is_limited boolean);
end;
comment on function pgps.totals(integer, integer) is
'One row of sums over the reader''s subscriptions, all for pgps_admin, as pgps.subscriptions has them: how many, in
which state, the events that wait for them (depth), the longest time that one waits, in seconds, events a second, and
exceptions. At most max_subscriptions (1 to 1000000) are asked of those that are stopped, of those with dead_after, and
of the others; if there are more, is_estimated says that what waits, the rate, and states are reckoned from those that
were asked, and lag_seconds is theirs. Exceptions are counted up to max_exceptions (1 to 1000000): is_limited says that
there are more. Errors: 22023 max_subscriptions, max_exceptions.';

grant execute on function pgps.totals(integer, integer) to public;
