-- pgps.count_exceptions: how many exceptions each subscription has, counted up to a limit. The view pgps.subscriptions
-- counts them all, which with a million takes as long as reading them.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.do_count_exceptions(caller name, args jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rows integer := coalesce((args ->> 'max_rows')::integer, 100);
    v_most integer := coalesce((args ->> 'max_count')::integer, 10000);
begin
    if v_rows not between 1 and 1000 then
        raise exception 'max_rows % is not between 1 and 1000', v_rows using errcode = '22023',
            hint = 'Ask for the next page with the last name of this one as after.';
    elsif v_most not between 1 and 1000000 then
        raise exception 'max_count % is not between 1 and 1000000', v_most using errcode = '22023',
            hint = 'Without a limit: select name, failed from pgps.subscriptions where failed > 0';
    end if;
    return coalesce((
        select to_jsonb(array_agg(jsonb_build_object('subscription', x.name, 'event_type', x.event_type, 'state',
            x.state, 'failed', x.failed, 'retrying', x.retrying, 'is_limited', greatest(x.failed, x.retrying) > v_most,
            'last_error', x.last_error) order by x.name))
        from (
            select s.name, s.event_type, s.state, s.last_error, f.failed, f.retrying
            from pgps_internal.subscription s
            -- One look into the index says that a subscription has no failures, as most have none.
            cross join lateral (
                select count(*) filter (where f.state = 'failed') as failed,
                    count(*) filter (where f.state in ('retrying', 'leased')) as retrying
                from (select f.state from pgps_internal.failure f
                    where f.subscription_id = s.subscription_id and f.state <> 'settled' limit v_most + 1) f
                offset 0
            ) f
            where s.name > coalesce(args ->> 'after', '') and not s.is_hidden and f.failed + f.retrying > 0
                and (pg_has_role(caller, s.owner::oid, 'usage') or pg_has_role(caller, 'pgps_admin', 'usage'))
            order by s.name limit v_rows
        ) x), '[]');
end
$$;
comment on function pgps_internal.do_count_exceptions(name, jsonb) is 'See pgps.count_exceptions';

create or replace function pgps.count_exceptions(
    after text = null, max_count integer = 10000, max_rows integer = 100
)
returns table (
    subscription text, event_type text, state text, failed bigint, retrying bigint, is_limited boolean, last_error text
)
language sql rows 100
begin atomic
    select x.subscription, x.event_type, x.state, x.failed, x.retrying, x.is_limited, x.last_error
    from jsonb_array_elements(pgps._call('count_exceptions', jsonb_build_object('after', $1, 'max_count', $2,
            'max_rows', $3))) with ordinality u(r, place)
    cross join lateral jsonb_to_record(u.r) x(subscription text, event_type text, state text, failed bigint,
        retrying bigint, is_limited boolean, last_error text)
    order by u.place;
end;
comment on function pgps.count_exceptions(text, integer, integer) is
'How many exceptions the reader''s subscriptions have, all for pgps_admin, in the order of their names: failed, and
retrying (handed out or tried again); those that have none are left out. Counted up to max_count (1 to 1000000) for
each: is_limited says that there are more. state: as it was set. after: the last name of the page before; null =
from the first. At most max_rows (1 to 1000). Errors: 22023 max_count, max_rows.';

grant execute on function pgps.count_exceptions(text, integer, integer) to public;
