-- Pages of in queues, for pgps.find_queued: what no batch has, then the batches downwards, then the archive.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.ids_below(
    log regclass, ranges int8multirange, xids xid8[], before_event bigint, most integer
) returns setof bigint
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The ranges are read from the highest downwards, and a nested loop keeps their order, so it stops when the page is
    -- full.
    return query execute format('select l.event_id
        from (select r from unnest($1) r where lower(r) < $3 order by lower(r) desc) w
        cross join lateral (select l.event_id from %s l
            where l.event_id >= lower(w.r) and l.event_id < least(upper(w.r), $3) %s
            order by l.event_id desc limit $4) l
        limit $4', ids_below.log, case when ids_below.xids is not null then 'and l.xid = any ($2)' else '' end)
    using ids_below.ranges, ids_below.xids, coalesce(ids_below.before_event, 9223372036854775807), ids_below.most;
end
$$;
comment on function pgps_internal.ids_below(regclass, int8multirange, xid8[], bigint, integer) is
'The highest events of a log within ranges and below one event, at most so many; xids: only those of these transactions,
null = of all';

create or replace function pgps_internal.is_pending(batch pgps_internal.batch_type) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from pgps_internal.member m
        cross join lateral (
            select coalesce(max(p.acked_batch), -1) as acked_batch, coalesce(max(p.acked_event), 0) as acked_event
            from (select p.* from pgps_internal.position p where p.subscription_id = m.subscription_id
                order by p.position_id desc limit 1) p
        ) p
        where m.type_id = (is_pending.batch).type_id and not m.takes_batch
            and (is_pending.batch).batch_id > m.from_batch and (is_pending.batch).batch_id >= p.acked_batch
            and ((is_pending.batch).batch_id > p.acked_batch or upper((is_pending.batch).ids) - 1 > p.acked_event)
            -- offset 0: asked for one member after the other, so that the first one that waits is the answer.
            and exists (select from pgps_internal.delivery d where d.class_id = m.class_id
                and d.batch_id = (is_pending.batch).batch_id offset 0)
    ) or exists (
        select from pgps_internal.share s join pgps_internal.member m using (subscription_id, type_id)
        where m.type_id = (is_pending.batch).type_id and m.takes_batch and s.batch_id = (is_pending.batch).batch_id
    ) or exists (
        select from pgps_internal.lane_next n
        where n.type_id = (is_pending.batch).type_id and n.batch_id <= (is_pending.batch).batch_id
    )
$$;
comment on function pgps_internal.is_pending(pgps_internal.batch_type) is
'Whether some lane has not matched a batch, or some subscription has not acknowledged it completely; as
pgps_internal.pending has it, for one batch';

create or replace function pgps_internal.least_pending(type_id integer) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select least(9223372036854775807,
        (select min(coalesce(p.acked_batch, -1)) from pgps_internal.member m
            left join lateral (select p.acked_batch from pgps_internal.position p
                where p.subscription_id = m.subscription_id order by p.position_id desc limit 1) p on true
            where m.type_id = least_pending.type_id and not m.takes_batch),
        (select min(s.batch_id) from pgps_internal.member m join pgps_internal.share s using (subscription_id)
            where m.type_id = least_pending.type_id and m.takes_batch),
        (select min(n.batch_id) from pgps_internal.lane_next n where n.type_id = least_pending.type_id))
$$;
comment on function pgps_internal.least_pending(integer) is
'A batch before which no event of a type waits for a subscription or lane';

create or replace function pgps_internal.page_of_in(
    event_type pgps_internal.event_type, before_batch bigint, before_event bigint, most integer
) returns table (batch bigint, event_id bigint)
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_type pgps_internal.event_type := page_of_in.event_type;
    v_batch pgps_internal.batch_type;
    v_left integer := page_of_in.most;
    v_upto bigint := page_of_in.before_event;
    v_least bigint;
    v_found integer;
    v_audited boolean := (select q.auditable from pgps_internal.queue q
        where q.type_id = v_type.type_id and q.kind = 'in');
begin
    if page_of_in.before_batch is null then
        return query
        select null::bigint, l.event_id
        from (select array_agg(distinct w.xid) as xids, range_agg(int8range(w.lo, w.hi, '[]')) as ranges
            from pgps_internal.undispatched w where w.type_id = v_type.type_id) w
        cross join lateral pgps_internal.ids_below(v_type.log, w.ranges, w.xids, v_upto, v_left) l(event_id);
        get diagnostics v_found = row_count;
        v_left := v_left - v_found;
        v_upto := null;
    end if;
    for v_batch in
        select b.* from pgps_internal.batch_type b
        where b.type_id = v_type.type_id
            and b.batch_id <= coalesce(page_of_in.before_batch, 9223372036854775807)
        order by b.batch_id desc
    loop
        exit when v_left <= 0 or v_batch.batch_id < v_least;
        if v_audited or pgps_internal.is_pending(v_batch) then
            return query select v_batch.batch_id, l.event_id
            from pgps_internal.ids_below(v_type.log, v_batch.ids, null,
                case when v_batch.batch_id = page_of_in.before_batch then v_upto end, v_left) l(event_id);
            get diagnostics v_found = row_count;
            v_left := v_left - v_found;
        else
            -- Looked up when it is needed first: mostly the newest batches wait.
            v_least := coalesce(v_least, pgps_internal.least_pending(v_type.type_id));
        end if;
    end loop;
    if v_audited and v_left > 0 then
        return query execute format('select 0::bigint, a.event_id from %s a
            where a.event_id < $1 and not exists (select from %s l where l.event_id = a.event_id)
            order by a.event_id desc limit $2', format('pgps_internal.%I', v_type.name || '_audit'), v_type.log)
        using coalesce(case when page_of_in.before_batch = 0 then v_upto end, 9223372036854775807), v_left;
    end if;
end
$$;
comment on function pgps_internal.page_of_in(pgps_internal.event_type, bigint, bigint, integer) is
'The newest events of an in queue: first those of no batch (batch null), then those of the batches, the newest batch
first, then those of the archive (batch 0)';

