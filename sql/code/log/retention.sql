-- What is kept for brokers behind the neighbours: they may take another path, and then ask again from their horizon.
-- The broker that published it keeps it; the others need not, since they fetch it from there (rule 4 in
-- docs/internals/links.md). Locks: none.
-- Writes: attached.

create or replace function pgps_internal.lows(neighbour_id integer) returns table (kind text, key text, value jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now numeric := extract(epoch from pgps_internal.clock());
    v_pause numeric := extract(epoch from pgps_internal.setting('link_report_interval')::interval);
begin
    -- Rate-limited: this value changes with every batch.
    return query
    -- Found once for each origin, in whatever order the planner joins.
    with x as materialized (
        select o.origin_id::text as key,
            jsonb_build_object('broker', o.broker_id, 'epoch', o.epoch, 'attachment', o.attachment,
            'low', least(pgps_internal.horizon(o.origin_id), o.rewind_from,
                (select min(a.low) from pgps_internal.attached a
                where a.origin_id = o.origin_id and a.neighbour_id <> o.parent))) as value
        from pgps_internal.origin o where o.parent = lows.neighbour_id and not o.is_self
    )
    select 'low', x.key, case when t.value is null or t.value ? 'is_stale'
        or t.value -> 'attachment' <> x.value -> 'attachment'
        or t.value - 'at' <> x.value and (t.value ->> 'at')::numeric <= v_now - v_pause then x.value
            || jsonb_build_object('at', v_now) else t.value end
    from x
    join pgps_internal.told h on h.neighbour_id = lows.neighbour_id and h.kind = 'attach' and h.key = x.key
    left join pgps_internal.told t on t.neighbour_id = lows.neighbour_id and t.kind = 'low' and t.key = x.key;
end
$$;
comment on function pgps_internal.lows(integer) is
'For each origin that a neighbour is the parent of, the batch up to which this broker and all behind it have everything,
as told to that neighbour';

create or replace function pgps_internal.hear_low(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- By now it has said what it attaches here, and for the rest nothing is held any more (pgps_internal.hold_for).
    delete from pgps_internal.attached a where a.neighbour_id = (hear_low.neighbour).neighbour_id and a.attachment < 0;
    update pgps_internal.attached a set low = (hear_low.body ->> 'low')::bigint
    from pgps_internal.origin o
    where a.neighbour_id = (hear_low.neighbour).neighbour_id and o.origin_id = a.origin_id
        and a.attachment = (hear_low.body ->> 'attachment')::integer
        and o.broker_id = (hear_low.body ->> 'broker')::uuid and o.epoch = (hear_low.body ->> 'epoch')::integer;
end
$$;
comment on function pgps_internal.hear_low(pgps_internal.neighbour, jsonb) is
'Notes that a neighbour, and all behind it, have everything of an origin up to a batch; ignored when it is about another
attachment';

create or replace function pgps_internal.newest_before(at timestamptz) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_low bigint := (select min(b.batch_id) from pgps_internal.batch b) - 1;
    v_high bigint := (pgps_internal.last_batch()).batch_id;
    v_middle bigint;
begin
    -- Binary search: batches are numbered in the order of their time, and there may be millions.
    while v_low < v_high loop
        v_middle := (v_low + v_high + 1) / 2;
        if (select b.created_at from pgps_internal.batch b where b.batch_id <= v_middle
            order by b.batch_id desc limit 1) < newest_before.at then
            v_low := v_middle;
        else
            v_high := v_middle - 1;
        end if;
    end loop;
    return nullif(v_low, (select min(b.batch_id) from pgps_internal.batch b) - 1);
end
$$;
comment on function pgps_internal.newest_before(timestamptz) is
'The newest batch that was cut before a time; null when there is none';

create or replace function pgps_internal.kept_for_links(type_id integer) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_linked bigint;
begin
    select min(greatest(a.low, o.from_batch)) into v_linked
    from pgps_internal.attached a join pgps_internal.origin o using (origin_id) join pgps_internal.neighbour n
        using (neighbour_id)
    where o.is_self and a.low < coalesce(o.to_batch, a.low + 1)
        -- Of one that has begun anew nobody knows yet what it wants.
        and (a.attachment < 0 or exists (select from pgps_internal.member m where m.subscription_id = n.subscription_id
            and (kept_for_links.type_id is null or m.type_id = kept_for_links.type_id)));
    if v_linked is not null then
        v_linked := greatest(v_linked,
            pgps_internal.newest_before(pgps_internal.clock() - pgps_internal.setting('link_retention')::interval));
    end if;
    return v_linked;
end
$$;
comment on function pgps_internal.kept_for_links(integer) is
'The batch up to which all brokers behind the neighbours have everything (of a type; null = any), or which is older than
the setting link_retention; null when nothing is kept for them';
