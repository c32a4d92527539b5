-- pgps.trace: which brokers an event was at, and when.
-- Writes: nothing.

create or replace function pgps_internal.explain_origin(
    event_type pgps_internal.event_type, event_id bigint, origin_id integer
) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_event bigint;
    v_hops text;
begin
    execute format('select l.pgps_origin_event from %s l where l.event_id = $1', (explain_origin.event_type).log)
        using explain_origin.event_id into v_event;
    select string_agg(h.value ->> 'broker', ', ' order by h.n) into v_hops
    from (select i.hops from pgps_internal.arrival i
        where i.origin_id = explain_origin.origin_id and i.hi >= explain_origin.event_id
            and explain_origin.event_id <@ i.ids limit 1) a,
        jsonb_array_elements(a.hops) with ordinality h(value, n);
    return jsonb_build_array(jsonb_build_array('origin', format('event %s of broker %s, by way of: %s', v_event,
        (select o.name from pgps_internal.origin o where o.origin_id = explain_origin.origin_id),
            coalesce(v_hops, 'long reclaimed'))));
end
$$;
comment on function pgps_internal.explain_origin(pgps_internal.event_type, bigint, integer) is
'The step of pgps.explain for an event that came over a link';

create or replace function pgps_internal.do_trace(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_event bigint := (args ->> 'event_id')::bigint;
    v_type pgps_internal.event_type;
    v_hops jsonb;
begin
    if args ->> 'origin' is null or v_event is null then
        raise exception 'origin or event_id is null' using errcode = '22023',
            hint = 'Give both as the in queue has them: columns origin and origin_event_id.';
    end if;
    for v_type in select t.* from pgps_internal.event_type t
        where has_table_privilege(caller, t.endpoint, 'select') or pg_has_role(caller, 'pgps_admin', 'usage')
            order by t.type_id loop
        execute format($sql$
            select coalesce(i.hops, '[]')
                || jsonb_build_array(jsonb_build_object('broker', pgps_internal.broker_name(), 'event_id', l.event_id,
                'at', (select b.created_at from pgps_internal.batch_type y join pgps_internal.batch b using (batch_id)
                    where y.type_id = $3 and l.event_id <@ y.ids order by b.batch_id desc limit 1), 'published_at',
                        c.published_at))
            from %s l
            cross join lateral (%s) c
            left join pgps_internal.origin o on o.origin_id = coalesce(c.origin_id, pgps_internal.self_origin())
            left join lateral (select i.hops from pgps_internal.arrival i where i.origin_id = c.origin_id
                and i.hi >= l.event_id and l.event_id <@ i.ids
                limit 1) i on true
            where coalesce(l.pgps_origin_event, l.event_id) = $2
                and (o.origin_id is null and $1 = pgps_internal.broker_name()
                    or $1 in (o.name, o.broker_id::text))$sql$,
            v_type.log, pgps_internal.statement_of('c.*', '$3')) using args ->> 'origin', v_event, v_type.type_id
                into v_hops;
        if v_hops is not null then
            -- Whether the caller may see this event is decided with the caller's own rights, in pgps.trace.
            return jsonb_build_object('hops', v_hops, 'queue', case when v_type.has_policy
                and not pg_has_role(caller, 'pgps_admin', 'usage')
                then v_type.name || '_in' end);
        end if;
    end loop;
    return null;
end
$$;
comment on function pgps_internal.do_trace(name, jsonb) is 'See pgps.trace';

create or replace function pgps.trace(origin text, event_id bigint)
returns table (hop integer, broker text, dispatched_at timestamptz, local_event_id bigint)
language plpgsql rows 6
as $$
#variable_conflict use_column
declare
    v_found pg_catalog.jsonb := pgps._call('trace',
        pg_catalog.jsonb_build_object('origin', trace.origin, 'event_id', trace.event_id));
    v_visible bigint;
begin
    if v_found operator(pg_catalog.->>) 'queue' is not null then
        -- With the caller's rights: a row-level policy may hide the event.
        execute pg_catalog.format('select q.event_id from pgps_queue.%I q where q.event_id operator(pg_catalog.=) $1',
            v_found operator(pg_catalog.->>) 'queue')
        using (v_found operator(pg_catalog.#>>) '{hops,-1,event_id}')::bigint into v_visible;
        if v_visible is null then
            return;
        end if;
    end if;
    return query
    select h.place::integer, h.value operator(pg_catalog.->>) 'broker',
        (h.value operator(pg_catalog.->>) 'at')::pg_catalog.timestamptz,
        (h.value operator(pg_catalog.->>) 'event_id')::bigint
    from pg_catalog.jsonb_array_elements(v_found operator(pg_catalog.->) 'hops') with ordinality h(value, place)
    order by h.place;
end
$$;
comment on function pgps.trace(text, bigint) is
'The path of an event from its origin to this broker: each broker it was at, when it was dispatched there (by that
broker''s clock), and, in the row of this broker, its id here. origin: name or id of the broker that published it;
event_id: its id there (columns origin and origin_event_id of the in queue). No rows: not here, or hidden by a policy.
Needs SELECT on its type, or pgps_admin. Errors: 22023 null.';

grant execute on function pgps.trace(text, bigint) to public;
