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
                where not pgps_internal.is_told((rewind.origin).parent, k, pgps_internal.links_to(v_id))
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
            where a.origin_id = o.origin_id and not a.is_live
                and pgps_internal.is_told(o.parent, k, pgps_internal.links_to(v_id))),
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
    event_type pgps_internal.event_type, lseqs bigint[], origins integer[], batches bigint[], ids int8multirange[]
) returns table (lseq bigint, known int8multirange, counted int8multirange, is_gone boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- All batches are there as long as the first one is.
    v_is_whole boolean := (select min(b.batch_id) from pgps_internal.batch_type b) <= 1;
    v_trimmed bigint := (select max(t.event_id) from pgps_internal.trimmed t
        where t.type_id = (held_already.event_type).type_id);
begin
    return query execute format('
        with asked as materialized (
            select * from unnest($1, $2, $3, $4) q(lseq, origin_id, upto, ids)
        ),
        came as materialized (
            select q.lseq, a.ids from asked q join pgps_internal.arrival a using (origin_id, upto)
            where a.origin_id = any ($2) and a.ids is not null
        ),
        there as materialized (
            select c.lseq, l.event_id, l.xid, l.pgps_origin_event
            from came c cross join unnest(c.ids) w(ids) cross join lateral (
                select e.event_id, e.xid, e.pgps_origin_event from %1$s e
                where e.event_id >= lower(w.ids) and e.event_id < upper(w.ids)) l
        ),
        -- Unless its batch was truncated before it: who asks is answered from the ledger of batches.
        listed as materialized (
            select coalesce(range_agg(r), ''{}'') as ids from (select min(t.event_id) as lo, max(t.event_id) as hi
                from there t having not $5) t
            join pgps_internal.batch_type b on b.type_id = $6 and b.ids && int8range(t.lo, t.hi, ''[]'')
            cross join unnest(b.ids) r
        ),
        pairs as (
            select s.lseq, s.pgps_id, bool_or($5
                    or not pgps_internal.is_dispatched(t.xid, t.event_id, pgps_internal.last_batch())
                    or (select i.ids from listed i) @> t.event_id
                    or exists (select from pgps_internal.set_aside d where d.type_id = $6 and d.batch_id is null
                        and d.ranges @> t.event_id)) as is_held
            from (select q.lseq, i.id, s.pgps_id, s.pgps_event
                from asked q cross join unnest(q.ids) r cross join generate_series(lower(r), upper(r) - 1) i(id)
                join pg_temp.pgps_stage_%2$s s on s.pgps_id = i.id) s
            join there t on t.lseq = s.lseq and t.pgps_origin_event = s.pgps_event
            group by s.lseq, s.pgps_id
        )
        select q.lseq, coalesce(k.known, ''{}''), coalesce(k.counted, ''{}''),
            exists (select from came c where c.lseq = q.lseq and lower(c.ids) <= $7)
        from asked q left join (select p.lseq,
                range_agg(int8range(p.pgps_id, p.pgps_id, ''[]'')) filter (where p.is_held) as known,
                range_agg(int8range(p.pgps_id, p.pgps_id, ''[]'')) as counted from pairs p group by p.lseq) k
            using (lseq)', (held_already.event_type).log, (held_already.event_type).type_id)
    using held_already.lseqs, held_already.origins, held_already.batches, held_already.ids, coalesce(v_is_whole, true),
        (held_already.event_type).type_id, v_trimmed;
end
$$;
comment on function pgps_internal.held_already(pgps_internal.event_type, bigint[], integer[], bigint[],
int8multirange[]) is
'Of the events of a type (ids) in items that are fetched again (lseqs), each of a batch of an origin: which are here
(known), which were counted when they came (counted), which may be more, and whether some of the batch is truncated';

create or replace function pgps_internal.with_held(neighbour pgps_internal.neighbour, items jsonb, slices jsonb)
returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slices jsonb := with_held.slices;
    v_asked record;
begin
    if not exists (select from pgps_internal.origin o
            where o.parent = (with_held.neighbour).neighbour_id and o.rewind_from is not null) then
        return v_slices;
    end if;
    for v_asked in
        select t as event_type, array_agg(q.lseq) as lseqs, array_agg(q.origin_id) as origins,
            array_agg(q.upto) as batches, array_agg(q.ids) as ids
        from (select (s.value ->> 'type_id')::integer as type_id, i.lseq, o.origin_id, i.upto, range_agg(r) as ids
            from jsonb_to_recordset(with_held.items) i(lseq bigint, broker uuid, epoch integer, attachment integer,
                upto bigint)
            join pgps_internal.origin o on o.broker_id = i.broker and o.epoch = i.epoch
            join jsonb_array_elements(v_slices) s on (s.value ->> 'lseq')::bigint = i.lseq
            cross join unnest((s.value ->> 'ids')::int8multirange) r
            where o.parent = (with_held.neighbour).neighbour_id and o.rewind_from is not null
                and o.attachment = i.attachment and i.upto <= pgps_internal.horizon(o.origin_id)
            group by 1, 2, 3, 4) q
        join pgps_internal.event_type t using (type_id)
        group by t.type_id, t
    loop
        select to_jsonb(array_agg(s.value || coalesce(case
            when (s.value ->> 'type_id')::integer = (v_asked.event_type).type_id
            then jsonb_build_object('known', h.known, 'counted', h.counted, 'is_gone', h.is_gone) end, '{}')
            order by n))
        into v_slices
        from jsonb_array_elements(v_slices) with ordinality s(value, n)
        left join pgps_internal.held_already(v_asked.event_type, v_asked.lseqs, v_asked.origins, v_asked.batches,
            v_asked.ids) h on h.lseq = (s.value ->> 'lseq')::bigint;
    end loop;
    return v_slices;
end
$$;
comment on function pgps_internal.with_held(pgps_internal.neighbour, jsonb, jsonb) is
'The slices of a batch; those of items that are fetched again with what of their events is here already, asked at once
for all of a type: known, counted, is_gone (pgps_internal.held_already)';

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
    v_slices jsonb := admit_rewound.slices;
    v_ids int8multirange;
    v_had int8multirange;
    v_new int8multirange;
    v_tallies pgps_internal.tally[];
begin
    if v_slices = '[]' then
        return '{}';
    elsif not v_slices -> 0 ? 'known' then
        v_slices := pgps_internal.with_held(admit_rewound.neighbour, jsonb_build_array(admit_rewound.item), v_slices);
    end if;
    v_ids := (pgps_internal.slices_of_item(admit_rewound.item, v_slices)).ids;
    -- Which events are here already, by origin and event id; and which were counted already, which may be more.
    v_had := v_ids * coalesce((select range_agg(r)
        from jsonb_array_elements(v_slices) s, unnest((s.value ->> 'known')::int8multirange) r), '{}');
    v_new := v_ids - v_had;
    v_tallies := array(select ((s.value ->> 'type_id')::integer, sum(upper(r) - lower(r)))::pgps_internal.tally
        from jsonb_array_elements(v_slices) s,
            unnest((s.value ->> 'ids')::int8multirange - (s.value ->> 'counted')::int8multirange) r
        group by s.value ->> 'type_id');
    -- Events that were counted and truncated since cannot be told from new ones.
    perform pgps_internal.excuse((admit_rewound.origin).origin_id, v_upto, t.type_id)
    from (select distinct (s.value ->> 'type_id')::integer as type_id from jsonb_array_elements(v_slices) s
        where (s.value ->> 'is_gone')::boolean) t;
    if isempty(v_new) then
        -- Most of a rewind is here already, and members of the type are then neither locked nor written.
        return v_had;
    end if;
    -- Fetched for children only: local subscriptions have had what was for them, and skip these.
    perform pgps_internal.skip_here(t.type_id, t.ids)
    from (select (s.value ->> 'type_id')::integer as type_id, range_agg(r) as ids
        from jsonb_array_elements(v_slices) s, unnest((s.value ->> 'ids')::int8multirange * v_new) r group by 1) t;
    insert into pgps_internal.arrival (neighbour_id, lseq, mark, origin_id, attachment, upto, horizon, events, lo, hi,
        ids, tallies, hops)
    values ((admit_rewound.neighbour).neighbour_id, (admit_rewound.item ->> 'lseq')::bigint, admit_rewound.mark,
        (admit_rewound.origin).origin_id, (admit_rewound.origin).attachment, v_upto,
        pgps_internal.horizon((admit_rewound.origin).origin_id), pgps_internal.count_ids(v_new), lower(v_new),
        upper(v_new) - 1, v_new, v_tallies, nullif(admit_rewound.item -> 'hops', 'null'));
    return v_had;
end
$$;
comment on function pgps_internal.admit_rewound(pgps_internal.neighbour, pgps_internal.origin, jsonb, jsonb, text) is
'Takes an item of a rewind, up to the horizon: what is new of it is kept for children. slices: the item''s own, with
what is held (pgps_internal.with_held). Returns the ids of what was here already';
