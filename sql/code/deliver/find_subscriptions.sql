-- pgps.find_subscriptions: names, page by page. The view pgps.subscriptions computes figures of each subscription, and
-- PostgreSQL does so for all of them before it sorts: with ten thousand that takes seconds.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.do_find_subscriptions(caller name, args jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rows integer := coalesce((args ->> 'max_rows')::integer, 100);
begin
    if v_rows not between 1 and 1000 then
        raise exception 'max_rows % is not between 1 and 1000', v_rows using errcode = '22023',
            hint = 'Ask for the next page with the last name of this one as after.';
    end if;
    return coalesce((
        select to_jsonb(array_agg(x.name order by x.name))
        from (
            select s.name from pgps_internal.subscription s
            where s.name > coalesce(args ->> 'after', '') and not s.is_hidden
                and (pg_has_role(caller, s.owner::oid, 'usage') or pg_has_role(caller, 'pgps_admin', 'usage'))
                and (args ->> 'containing' is null or strpos(s.name, args ->> 'containing') > 0)
                and (args ->> 'event_type' is null or s.event_type = args ->> 'event_type')
                and (args ->> 'state' is null or s.state = args ->> 'state')
            order by s.name limit v_rows
        ) x), '[]');
end
$$;
comment on function pgps_internal.do_find_subscriptions(name, jsonb) is 'See pgps.find_subscriptions';

create or replace function pgps.find_subscriptions(
    containing text = null, event_type text = null, state text = null, after text = null, max_rows integer = 100
)
returns table (name text)
language sql rows 100
begin atomic
    select x.value from jsonb_array_elements_text(pgps._call('find_subscriptions', jsonb_build_object(
        'containing', $1, 'event_type', $2, 'state', $3, 'after', $4, 'max_rows', $5))) with ordinality x(value, place)
    order by x.place;
end;
comment on function pgps.find_subscriptions(text, text, text, text, integer) is
'Names of the subscriptions that pgps.subscriptions has, in their order, at most max_rows (1 to 1000); quick however
many there are. containing: a part of the name; event_type: as the subscription has it; state: active, paused or
suspended, as it was set, while being slow or dead is found out by pgps.subscriptions alone; null = all. after: the last
name of the page before. Errors: 22023 max_rows.';

grant execute on function pgps.find_subscriptions(text, text, text, text, integer) to public;
