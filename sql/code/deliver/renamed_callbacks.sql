-- A callback is stored as text, with the numbers of the functions that it may name: when one of them is renamed, or
-- moves to another schema, the subscription goes on with the new name (decision 29).
-- Locks: the row of a subscription whose callback is renamed.
-- Writes: callback_function, subscription.

create or replace function pgps_internal.functions_of_callback(subscription pgps_internal.subscription)
returns setof oid
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    -- The name as pgps.parse_callback has written it; PostgreSQL can read it by itself.
    v_names text[] := parse_ident((functions_of_callback.subscription).callback);
    v_name text := v_names[cardinality(v_names)];
begin
    return query
    select p.oid from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where p.proname = v_name and n.nspname = coalesce(v_names[cardinality(v_names) - 1], (
        -- The first schema of the path with such a function; functions of pg_catalog are never renamed.
        select (parse_ident(i.item))[1]
        from unnest(pgps_internal.path_items((functions_of_callback.subscription).environment ->> 'search_path'))
            with ordinality i(item, place)
        where exists (select from pg_proc f join pg_namespace s on s.oid = f.pronamespace
            where f.proname = v_name and s.nspname = (parse_ident(i.item))[1])
        order by i.place limit 1));
end
$$;
comment on function pgps_internal.functions_of_callback(pgps_internal.subscription) is
'The functions that a subscription''s callback may mean: all of its name, whatever they take';

create or replace function pgps_internal.note_callback(subscription pgps_internal.subscription) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgps_internal.callback_function f
    where f.subscription_id = (note_callback.subscription).subscription_id;
    insert into pgps_internal.callback_function (subscription_id, function_id, noted_in)
    select (note_callback.subscription).subscription_id, f, pgps_internal.here()
    from pgps_internal.functions_of_callback(note_callback.subscription) f;
end
$$;
comment on function pgps_internal.note_callback(pgps_internal.subscription) is
'Notes the numbers of the functions that a subscription''s callback may mean';

create or replace function pgps_internal.follow_callbacks(objects oid[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record;
    v_left oid[];
    v_subscription pgps_internal.subscription;
begin
    for v_found in
        select s as subscription, f.function_id, format('%I.%I', n.nspname, p.proname) as name
        from pgps_internal.callback_function f
        join pg_proc p on p.oid = f.function_id join pg_namespace n on n.oid = p.pronamespace
        join pgps_internal.subscription s using (subscription_id)
        where f.noted_in = pgps_internal.here()
            and (p.oid = any (follow_callbacks.objects) or n.oid = any (follow_callbacks.objects))
        order by s.subscription_id, f.function_id
    loop
        select s.* into v_subscription from pgps_internal.subscription s
        where s.subscription_id = (v_found.subscription).subscription_id;
        v_left := array(select pgps_internal.functions_of_callback(v_subscription));
        continue when v_found.function_id = any (v_left);
        if v_left <> '{}' then
            -- Others have kept the name: which of them the callback means depends on what it passes.
            raise warning 'the callback of subscription "%" names %, of which one is % now', v_subscription.name,
                v_subscription.callback, v_found.name
            using hint = 'If that was the one, give it its name back; or subscribe anew with the new name.';
            continue;
        end if;
        update pgps_internal.subscription s set callback = v_found.name
        where s.subscription_id = v_subscription.subscription_id returning * into v_subscription;
        perform pgps_internal.build_callback(v_subscription.subscription_id, m.type_id)
        from (select distinct m.type_id from pgps_internal.member m
            where m.subscription_id = v_subscription.subscription_id) m;
        perform pgps_internal.note_callback(v_subscription);
    end loop;
end
$$;
comment on function pgps_internal.follow_callbacks(oid[]) is
'Has callbacks whose function, or its schema, was renamed go on with the new name; warns where functions of the old
name are left';

do $$
begin
    -- Subscriptions of an older release, or of a restored dump.
    perform pgps_internal.note_callback(s) from pgps_internal.subscription s
    where s.callback is not null and not exists (select from pgps_internal.callback_function f
        where f.subscription_id = s.subscription_id and f.noted_in = pgps_internal.here());
end
$$;
