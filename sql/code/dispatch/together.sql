-- Many event types in one batch, as when a thousand composite events were detected: what dispatch asks and notes for
-- each type is asked and noted for all of them at once. Most of what one type takes is setting up statements.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.ids_of_parts(parts pgps_internal.part[]) returns pgps_internal.part_ids[]
language plpgsql stable
as $$
declare
    v_ids pgps_internal.part_ids[];
    v_found pgps_internal.part_ids[] := '{}';
begin
    -- The functions that are generated for the types are called in one statement, which is parsed for each call; in
    -- portions, since an element of an array is found by counting.
    for v_place in 1..cardinality(ids_of_parts.parts) by 100 loop
        execute (select format('select array[%s]', string_agg(format('pgps_internal.part_ids_%1$s(($1[%2$s]).xids, '
                '($1[%2$s]).ranges)', p.type_id, p.place), ', ' order by p.place))
            from unnest(ids_of_parts.parts[v_place:v_place + 99]) with ordinality p(type_id, xids, ranges, place))
        using ids_of_parts.parts[v_place:v_place + 99] into v_ids;
        v_found := v_found || v_ids;
    end loop;
    return v_found;
end
$$;
comment on function pgps_internal.ids_of_parts(pgps_internal.part[]) is
'The events of parts, each of another type, in their order: see write_part_ids';

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
