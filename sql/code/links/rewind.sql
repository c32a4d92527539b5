-- A rewind: what a broker fetches from its parent once more, since a new child lacks it and it is not in the log any
-- longer. Rules 2 to 4 in docs/internals/links.md.
-- Locks: those of routes.
-- Writes: activation, arrival, origin, to_skip.

create or replace function pgps_internal.rewind(origin pgps_internal.origin) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer := (rewind.origin).origin_id;
    -- Only of children whose filters the parent has been told: what the others want would not come.
    v_start bigint := (select min(a.horizon) from pgps_internal.attached a
        where a.origin_id = v_id and not a.is_live and cardinality(a.keep) > 0
            and a.neighbour_id <> (rewind.origin).parent
            and not exists (select from unnest(a.keep) k join pgps_internal.link_filter f on f.key = k
                where not pgps_internal.is_told((rewind.origin).parent, k)
                    and pgps_internal.may_carry((rewind.origin).parent, f.type_id)));
begin
    if v_start is null then
        return;
    end if;
    -- A new attachment: the parent answers it, or rewinds in turn, up to the origin, which has everything. It starts
    -- where the children are, but never ahead of this broker's own horizon: what lies between is not here yet, and a
    -- child that is ahead waits only for the answer.
    v_start := least(v_start, pgps_internal.horizon(v_id));
    update pgps_internal.origin o
    set rewind_keep = array(select distinct k from pgps_internal.attached a, unnest(a.keep) k
            where a.origin_id = o.origin_id and not a.is_live and pgps_internal.is_told(o.parent, k)),
        rewind_start = v_start, rewind_from = v_start, attachment = o.attachment + 1
    where o.origin_id = v_id;
    update pgps_internal.activation a set is_confirmed = false where a.origin_id = v_id;
end
$$;
comment on function pgps_internal.rewind(pgps_internal.origin) is
'Attaches to the parent again, from where the waiting children are, or from this broker''s own horizon if that is lower;
the horizon itself stays as it is';

create or replace function pgps_internal.end_rewind(origin pgps_internal.origin) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.activation as a (origin_id, key, since, is_confirmed)
    select distinct (end_rewind.origin).origin_id, f.key, (end_rewind.origin).rewind_start, false
    from pgps_internal.attached c, unnest(c.keep) k join pgps_internal.link_filter f on f.key = k
    where c.origin_id = (end_rewind.origin).origin_id and not c.is_live
        and c.horizon >= (end_rewind.origin).rewind_start
        and f.key = any ((end_rewind.origin).rewind_keep)
    on conflict on constraint activation_pkey do update set since = least(a.since, excluded.since);
    update pgps_internal.origin o set rewind_start = null, rewind_from = null, rewind_keep = '{}'
    where o.origin_id = (end_rewind.origin).origin_id;
    perform pgps_internal.recount_anew((end_rewind.origin).origin_id);
    perform pg_notify('pgps_link', '');
end
$$;
comment on function pgps_internal.end_rewind(pgps_internal.origin) is
'Ends a rewind when all that was asked for again has come: the children''s filters are in force here from its start on';

create or replace function pgps_internal.held_already(
    event_type pgps_internal.event_type, ids int8multirange, origin_id integer, upto bigint,
    out known int8multirange, out counted int8multirange
) language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_first bigint := (select min(b.batch_id) from pgps_internal.batch_type b);
begin
    execute format('select coalesce(range_agg(int8range(s.pgps_id, s.pgps_id, ''[]'')) filter (where '
        'k.is_held), ''{}''),
            coalesce(range_agg(int8range(s.pgps_id, s.pgps_id, ''[]'')), ''{}'')
        from pg_temp.pgps_stage_%s s
        cross join lateral (
            -- Unless its batch was truncated before it: who asks is answered from the ledger of batches.
            select bool_or($4 <= 1 or not pgps_internal.is_dispatched(l.xid, l.event_id, pgps_internal.last_batch())
                or exists (select from pgps_internal.batch_type b where b.type_id = $5 and b.ids @> l.event_id)
                or exists (select from pgps_internal.set_aside s where s.type_id = $5 and s.batch_id is null
                    and s.ranges @> l.event_id)) as is_held
            from pgps_internal.arrival a, unnest(a.ids) w(ids), %s l
            where a.origin_id = $2 and a.upto = $3 and l.event_id >= lower(w.ids) and l.event_id < upper(w.ids)
                and l.pgps_origin_event = s.pgps_event) k
        where s.pgps_id <@ $1 and k.is_held is not null',
        (held_already.event_type).type_id, (held_already.event_type).log)
    using held_already.ids, held_already.origin_id, held_already.upto, v_first, (held_already.event_type).type_id
    into known, counted;
end
$$;
comment on function pgps_internal.held_already(pgps_internal.event_type, int8multirange, integer, bigint) is
'Which events of an item that is fetched again are here (known), and which were counted when they came (counted), which
may be more';

create or replace function pgps_internal.skip_here(type_id integer, ids int8multirange) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.to_skip (type_id, ids) values (skip_here.type_id, skip_here.ids);
end
$$;
comment on function pgps_internal.skip_here(integer, int8multirange) is
'Makes the subscriptions of this broker skip events of a type, which are for children only';

create or replace function pgps_internal.admit_rewound(
    neighbour pgps_internal.neighbour, origin pgps_internal.origin, item jsonb, slices jsonb, mark text
) returns int8multirange
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_upto bigint := (admit_rewound.item ->> 'upto')::bigint;
    -- Those of this item, chosen once: a batch has hundreds of items, each with slices of its own.
    v_slices jsonb;
    v_type pgps_internal.event_type;
    v_known int8multirange;
    v_counted int8multirange;
    v_had int8multirange := '{}';
    v_ids int8multirange;
    v_new int8multirange;
    v_tallies pgps_internal.tally[] := '{}';
begin
    select coalesce(to_jsonb(array_agg(s.value)), '[]') into v_slices from jsonb_array_elements(admit_rewound.slices) s
    where s.value -> 'lseq' = admit_rewound.item -> 'lseq';
    select coalesce(range_agg(r), '{}') into v_ids
    from jsonb_array_elements(v_slices) s, unnest((s.value ->> 'ids')::int8multirange) r;
    for v_type in select t.* from pgps_internal.event_type t
        where t.type_id in (select (s.value ->> 'type_id')::integer from jsonb_array_elements(v_slices) s)
    loop
        -- Which events are here already, by origin and event id; and which were counted already, which may be more.
        select h.known, h.counted into v_known, v_counted
        from pgps_internal.held_already(v_type, v_ids, (admit_rewound.origin).origin_id, v_upto) h;
        v_had := v_had + v_known;
        v_tallies := v_tallies || array(select (v_type.type_id, sum(upper(r) - lower(r)))::pgps_internal.tally
            from jsonb_array_elements(v_slices) s, unnest((s.value ->> 'ids')::int8multirange - v_counted) r
            where (s.value ->> 'type_id')::integer = v_type.type_id having count(*) > 0);
        if exists (select from pgps_internal.arrival a where a.origin_id = (admit_rewound.origin).origin_id
                and a.upto = v_upto and pgps_internal.is_truncated(v_type.type_id, a.ids)) then
            -- Events that were counted and truncated since cannot be told from new ones.
            perform pgps_internal.excuse((admit_rewound.origin).origin_id, v_upto, v_type.type_id);
        end if;
        -- Fetched for children only: local subscriptions have had what was for them, and skip these. Most of a rewind
        -- is here already, and members of the type are then neither locked nor written.
        select coalesce(range_agg(r), '{}') into v_new
        from jsonb_array_elements(v_slices) s, unnest((s.value ->> 'ids')::int8multirange - v_known) r
        where (s.value ->> 'type_id')::integer = v_type.type_id;
        continue when isempty(v_new);
        perform pgps_internal.skip_here(v_type.type_id, v_new);
    end loop;
    if not isempty(v_ids - v_had) then
        insert into pgps_internal.arrival (neighbour_id, lseq, mark, origin_id, attachment, upto, horizon, events, lo,
            hi, ids, tallies, hops)
        values ((admit_rewound.neighbour).neighbour_id, (admit_rewound.item ->> 'lseq')::bigint, admit_rewound.mark,
            (admit_rewound.origin).origin_id, (admit_rewound.origin).attachment, v_upto,
            pgps_internal.horizon((admit_rewound.origin).origin_id), pgps_internal.count_ids(v_ids - v_had),
            lower(v_ids - v_had), upper(v_ids - v_had) - 1, v_ids - v_had, v_tallies,
            nullif(admit_rewound.item -> 'hops', 'null'));
    end if;
    return v_had;
end
$$;
comment on function pgps_internal.admit_rewound(pgps_internal.neighbour, pgps_internal.origin, jsonb, jsonb, text) is
'Takes an item of a rewind, up to the horizon: what is new of it is kept for children. Returns the ids of what was here
already';
