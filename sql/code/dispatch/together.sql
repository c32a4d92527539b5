-- Many event types in one batch, as when a thousand composite events were detected: what dispatch asks and notes for
-- each type is asked and noted for all of them at once. Most of what one type takes is setting up statements.
-- Locks: access share on the logs of composite events of which something is in the batch, until the transaction ends.
-- Writes: nothing.

create or replace function pgps_internal.dense_types(parts pgps_internal.part[]) returns integer[]
language plpgsql
as $$
declare
    v_logs text;
    v_types integer[];
begin
    -- Nobody but the detector says so.
    if pg_sequence_last_value('pgps_internal.composite_state_seq'::regclass) is null then
        return '{}';
    end if;
    with p as materialized (
        select p.type_id, p.xids, t.log from unnest(dense_types.parts) p
        join pgps_internal.composite using (type_id) join pgps_internal.event_type t using (type_id)
        -- A crash empties other logs, and leaves what was recorded.
        where t.persistent and t.reliability = 'guaranteed'
    ),
    dense as (
        select c.type_id
        from (select distinct u as xid from p cross join lateral unnest(p.xids) u) x
        cross join lateral (select c.type_id, c.is_dense from pgps_internal.control c where c.xid = x.xid offset 0) c
        group by c.type_id having bool_and(coalesce(c.is_dense, false))
    )
    select array_agg(p.type_id), string_agg('only ' || p.log::text, ', ') into v_types, v_logs
    from p join dense using (type_id);
    if v_types is not null then
        -- As whoever looks into the logs: who alters or drops one is waited for, or it is left to a later batch.
        execute format('lock table %s in access share mode', v_logs);
    end if;
    return coalesce(v_types, '{}');
end
$$;
comment on function pgps_internal.dense_types(pgps_internal.part[]) is
'Of the event types of parts, those whose ids need not be looked for: all statements of these transactions say that the
ids between their first and their last are theirs. Locks their logs, as looking does';

create or replace function pgps_internal.ids_of_parts(parts pgps_internal.part[]) returns pgps_internal.part_ids[]
language plpgsql
as $$
declare
    v_dense integer[] := pgps_internal.dense_types(ids_of_parts.parts);
    v_unknown bigint[];
    v_ids pgps_internal.part_ids[];
    v_found pgps_internal.part_ids[];
begin
    select array_agg(case when p.type_id = any (v_dense) then (p.ranges,
                (select sum(upper(r) - lower(r)) from unnest(p.ranges) r), false)::pgps_internal.part_ids end
            order by p.place),
        array_agg(p.place order by p.place) filter (where p.type_id <> all (v_dense))
    into v_found, v_unknown
    from unnest(ids_of_parts.parts) with ordinality p(type_id, xids, ranges, place);
    -- The functions that are generated for the types are called in one statement, which is parsed for each call; in
    -- portions, since an element of an array is found by counting.
    for v_first in 1..coalesce(cardinality(v_unknown), 0) by 100 loop
        execute (select format('select array[%s]', string_agg(format('pgps_internal.part_ids_%1$s(($1[%2$s]).xids, '
                '($1[%2$s]).ranges)', (ids_of_parts.parts[u]).type_id, place), ', ' order by place))
            from unnest(v_unknown[v_first:v_first + 99]) with ordinality w(u, place))
        using (select array_agg(ids_of_parts.parts[u] order by place)
            from unnest(v_unknown[v_first:v_first + 99]) with ordinality w(u, place)) into v_ids;
        for v_place in 1..cardinality(v_ids) loop
            v_found[v_unknown[v_first + v_place - 1]] := v_ids[v_place];
        end loop;
    end loop;
    return v_found;
end
$$;
comment on function pgps_internal.ids_of_parts(pgps_internal.part[]) is
'The events of parts, each of another type, in their order: as their statements say, else see write_part_ids';

create or replace function pgps_internal.dispatch_together(batch_id bigint, parts pgps_internal.part[]) returns bigint
language plpgsql
as $$
declare
    v_known pgps_internal.dispatched_type[];
    v_parts pgps_internal.part[];
    v_ids pgps_internal.part_ids[];
    v_place integer;
    v_woken bigint;
    v_events bigint;
begin
    -- Without types that were dropped while events waited: their rows in the control queue go with their segment.
    select array_agg(d order by p.place), array_agg((p.type_id, p.xids, p.ranges)::pgps_internal.part order by p.place)
    into v_known, v_parts
    from unnest(dispatch_together.parts) with ordinality p(type_id, xids, ranges, place)
    join pgps_internal.dispatched_type d using (type_id);
    if v_known is null then
        return 0;
    end if;
    v_ids := pgps_internal.ids_of_parts(v_parts);
    v_events := pgps_internal.note_types(dispatch_together.batch_id, v_parts, v_ids);
    -- What is left to do for each: types of which somebody gets something, and those whose events may be repeats.
    for v_place in
        select k.place from unnest(v_known, v_ids) with ordinality
            k(type_id, event_type, signatures, has_unfiltered, features, ids, events, numbered, place)
        where k.numbered or k.events > 0 and (k.has_unfiltered or cardinality(k.signatures) > 0 or k.features <> '{}')
        order by k.place
    loop
        if (v_ids[v_place]).numbered then
            v_events := v_events + pgps_internal.dispatch_part(dispatch_together.batch_id, v_parts[v_place], false);
            continue;
        end if;
        v_woken := pgps_internal.match(dispatch_together.batch_id, (v_known[v_place]).event_type, (v_ids[v_place]).ids,
            (v_ids[v_place]).events, (v_known[v_place]).has_unfiltered, (v_known[v_place]).signatures, false);
        if (v_known[v_place]).features <> '{}' then
            perform pgps_internal.after_match(dispatch_together.batch_id, (v_known[v_place]).event_type,
                (v_parts[v_place]).xids, (v_ids[v_place]).ids, (v_known[v_place]).features);
        end if;
    end loop;
    return v_events;
end
$$;
comment on function pgps_internal.dispatch_together(bigint, pgps_internal.part[]) is
'Does for many event types what pgps_internal.dispatch_part does for one; returns the number of events';
