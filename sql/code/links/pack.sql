-- Packing: what was delivered to a neighbour's subscription becomes numbered items. Called by pgps.link_next, under its
-- settings.
-- Locks: the turn of sending (shared).
-- Writes: shipment.

-- One statement without settings, so that PostgreSQL inlines it into the calling query.
create or replace function pgps_internal.delivered_between(subscription_id bigint, after bigint, upto bigint)
returns table (batch_id bigint, type_id integer, ids int8multirange)
language sql stable rows 100
begin atomic
    select d.batch_id, d.type_id, range_agg(u.r) as ids
    from pgps_internal.member m
    cross join lateral (select d.* from pgps_internal.delivery d
        where d.class_id = m.class_id and d.batch_id > greatest(delivered_between.after, m.from_batch)
            and d.batch_id <= delivered_between.upto) d
    cross join lateral (
        select unnest(d.ids)
        union all
        select int8range(e, e, '[]') from unnest(d.event_ids) e
    ) u(r)
    where m.subscription_id = delivered_between.subscription_id
    group by d.batch_id, d.type_id;
end;
comment on function pgps_internal.delivered_between(bigint, bigint, bigint) is
'What was delivered to a subscription in batches after one, up to another: the ids of a type in a batch';

create or replace function pgps_internal.from_elsewhere(taken pgps_internal.parcel[]) returns pgps_internal.parcel[]
language plpgsql stable
as $$
begin
    -- They are found in the ledger of arrivals, by their ids. Common case: there never was one.
    if pg_sequence_last_value('pgps_internal.arrival_id_seq'::regclass) is null then
        return null;
    end if;
    return (select array_agg((t.batch_id, t.type_id, t.ids * i.ids, i.origin_id, i.upto)::pgps_internal.parcel)
        from unnest(from_elsewhere.taken) t join pgps_internal.arrival i on i.hi >= lower(t.ids)
            and i.lo < upper(t.ids) and i.ids && t.ids);
end
$$;
comment on function pgps_internal.from_elsewhere(pgps_internal.parcel[]) is
'The parts of what was delivered that came from other origins; null when there are none';

create or replace function pgps_internal.pack_only(
    neighbour pgps_internal.neighbour, item pgps_internal.parcel, last_sent bigint
) returns boolean
language plpgsql
as $$
declare
    v_origin integer := coalesce((pack_only.item).origin_id, (select o.origin_id from pgps_internal.origin o
        where o.is_self and (pack_only.item).batch_id > o.from_batch
            and (pack_only.item).batch_id <= coalesce(o.to_batch, (pack_only.item).batch_id)));
    v_upto bigint := coalesce((pack_only.item).upto, (pack_only.item).batch_id);
begin
    insert into pgps_internal.shipment (neighbour_id, lseq, kind, origin_id, attachment, previous, upto, batch_id,
        events, slices)
    select a.neighbour_id, pack_only.last_sent + 1, 'data', a.origin_id, a.attachment, a.sent, v_upto,
        (pack_only.item).batch_id, pgps_internal.count_ids((pack_only.item).ids),
        array[((pack_only.item).type_id, (pack_only.item).ids)::pgps_internal.slice]
    from (select a.*, pgps_internal.sent(a.neighbour_id, a.origin_id, a.attachment) as sent
        from pgps_internal.attached a where a.neighbour_id = (pack_only.neighbour).neighbour_id
            and a.origin_id = v_origin and a.is_live offset 0) a
    where a.sent < v_upto and not exists (select from pgps_internal.gap g
        where g.origin_id = a.origin_id and g.upto > a.sent and g.upto < v_upto);
    return found;
end
$$;
comment on function pgps_internal.pack_only(pgps_internal.neighbour, pgps_internal.parcel, bigint) is
'As pgps_internal.pack, for the one item that there is, without a look at others; false: there was no item to make, or
a gap to be told before it. origin_id, upto: null = published here';

create or replace function pgps_internal.pack(
    neighbour pgps_internal.neighbour, at pgps_internal.position, last_batch bigint, last_sent bigint
) returns void
language plpgsql
as $$
declare
    v_id integer := (pack.neighbour).neighbour_id;
    v_taken pgps_internal.parcel[];
    v_items pgps_internal.parcel[];
begin
    -- Several statements, each with little executor start-up: mostly nothing is wanted, and the later ones do not run.
    select array_agg((t.batch_id, t.type_id, t.ids, null, null)::pgps_internal.parcel) into v_taken
    from pgps_internal.delivered_between((pack.neighbour).subscription_id, (pack.at).received_batch,
        pack.last_batch) t;
    if v_taken is null then
        return;
    end if;
    v_items := pgps_internal.from_elsewhere(v_taken);
    -- Common case: the batch has events of one type and one origin.
    if cardinality(v_taken) = 1 and (v_items is null or cardinality(v_items) = 1 and v_items[1].ids = v_taken[1].ids)
        and pgps_internal.pack_only(pack.neighbour, coalesce(v_items[1], v_taken[1]), pack.last_sent) then
        return;
    end if;
    select v_items || array_agg((t.batch_id, t.type_id, t.ids - coalesce(f.ids, '{}'), o.origin_id,
        t.batch_id)::pgps_internal.parcel) into v_items
    from unnest(v_taken) t
    join pgps_internal.origin o on o.is_self and t.batch_id > o.from_batch
        and t.batch_id <= coalesce(o.to_batch, t.batch_id)
    left join (select f.batch_id, f.type_id, range_agg(r) as ids from unnest(v_items) f, unnest(f.ids) r
        group by f.batch_id, f.type_id) f
        on f.batch_id = t.batch_id and f.type_id = t.type_id;
    with wanted as (
        select i.batch_id, i.origin_id, i.upto, a.attachment,
            pgps_internal.sent(v_id, i.origin_id, a.attachment) as sent,
            sum(pgps_internal.count_ids(i.ids)) as events,
            array_agg((i.type_id, i.ids)::pgps_internal.slice order by i.type_id) as slices
        from unnest(v_items) i
        join pgps_internal.attached a on a.neighbour_id = v_id and a.origin_id = i.origin_id and a.is_live
        where not isempty(i.ids)
        group by i.batch_id, i.origin_id, i.upto, a.attachment
    )
    insert into pgps_internal.shipment (neighbour_id, lseq, kind, origin_id, attachment, previous, upto, batch_id,
        events, slices, body)
    select v_id, pack.last_sent + row_number() over (order by x.batch_id, x.place, x.origin_id), x.kind, x.origin_id,
        x.attachment, x.previous, x.upto, case when x.kind = 'data' then x.batch_id end, x.events, x.slices, x.body
    from (
        select 'data' as kind, w.upto as place, w.batch_id, w.origin_id, w.attachment,
            coalesce(lag(w.upto) over (partition by w.origin_id order by w.upto), w.sent) as previous, w.upto, w.events,
            w.slices, null::jsonb as body
        from wanted w
        where w.upto > w.sent
        union all
        -- Gaps in what is here are told before the items behind them.
        select 'gap', g.upto, min(w.batch_id), null, null, null, null, 0, null,
            pgps_internal.gap_body(g, w.attachment, w.sent)
        from wanted w join pgps_internal.gap g on g.origin_id = w.origin_id and g.upto > w.sent and g.upto < w.upto
        group by g.*, g.upto, w.attachment, w.sent
    ) x;
end
$$;
comment on function pgps_internal.pack(pgps_internal.neighbour, pgps_internal.position, bigint, bigint) is
'Makes items of the deliveries for a neighbour up to a batch: one for each batch of each origin, however many of its
filters want an event';
