-- A batch that is too much for the time of a slow lane is asked about in parts, each in a transaction of its own, so
-- that the other slow lanes have their turn. What the parts find is kept aside until the last one: whoever receives,
-- and the position of the lane, know whole batches only (decision 130).
-- Locks: the row of the lane is held by the caller.
-- Writes: delivery, lane_found, lane_part.

create or replace function pgps_internal.forget_part(lane_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgps_internal.lane_found f where f.lane_id = forget_part.lane_id;
    update pgps_internal.lane_part p set batch_id = null, class_id = null, type_id = null, event_id = null
    where p.lane_id = forget_part.lane_id and p.batch_id is not null;
end
$$;
comment on function pgps_internal.forget_part(bigint) is
'Has a lane begin anew with the batch that it is in the middle of';

create or replace function pgps_internal.disturb_lane(lane_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.forget_part(p.lane_id) from pgps_internal.lane_part p
    where p.lane_id = disturb_lane.lane_id and p.batch_id is not null and p.class_id is null;
end
$$;
comment on function pgps_internal.disturb_lane(bigint) is
'Before a class is made that begins where a lane is, or catches up with it: the lane must ask about its next batch
wholly, so it begins anew when it is in the middle of one';

create or replace function pgps_internal.cut_piece(
    batches pgps_internal.batch_type[], part pgps_internal.lane_part, out batches_now pgps_internal.batch_type[],
    out is_last boolean
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    with left_over as materialized (
        select b, e as event_id, row_number() over (order by b.type_id, e) as place
        from unnest(cut_piece.batches) b
        cross join unnest(b.ids) r
        cross join generate_series(lower(r), upper(r) - 1) e
        where b.batch_id = (cut_piece.part).batch_id
            and ((cut_piece.part).type_id is null
                or (b.type_id, e) > ((cut_piece.part).type_id, (cut_piece.part).event_id))
    ),
    now as (
        select (l.b).batch_id, (l.b).type_id, range_agg(int8range(l.event_id, l.event_id, '[]')) as ids,
            count(*) as events, (l.b).total, (l.b).repeats
        from left_over l where l.place <= (cut_piece.part).events
        group by l.b order by (l.b).type_id
    )
    select coalesce(array_agg(row(n.*)::pgps_internal.batch_type order by n.type_id), '{}'),
        (select count(*) <= (cut_piece.part).events from left_over)
    into batches_now, is_last from now n;
end
$$;
comment on function pgps_internal.cut_piece(pgps_internal.batch_type[], pgps_internal.lane_part) is
'Of the batch that a part names, the events that come next, and whether they are the last ones';

create or replace function pgps_internal.next_piece(
    lane_id bigint, batches pgps_internal.batch_type[], class_id bigint = null
) returns pgps_internal.lane_piece
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_piece pgps_internal.lane_piece;
    v_part pgps_internal.lane_part;
    v_cut record;
begin
    select p.* into v_part from pgps_internal.lane_part p where p.lane_id = next_piece.lane_id;
    if not found or next_piece.batches = '{}' then
        return row(null, next_piece.batches, true)::pgps_internal.lane_piece;
    elsif v_part.batch_id is distinct from next_piece.batches[1].batch_id
            or v_part.class_id is distinct from next_piece.class_id then
        perform pgps_internal.forget_part(v_part.lane_id);
        update pgps_internal.lane_part p set batch_id = next_piece.batches[1].batch_id, class_id = next_piece.class_id,
            type_id = null, event_id = null
        where p.lane_id = v_part.lane_id returning * into v_part;
    end if;
    v_cut := pgps_internal.cut_piece(next_piece.batches, v_part);
    return row(v_part, v_cut.batches_now, v_cut.is_last)::pgps_internal.lane_piece;
end
$$;
comment on function pgps_internal.next_piece(bigint, pgps_internal.batch_type[], bigint) is
'What a lane asks about next of these rows: all of them (part null), or a part of the first batch. class_id: of the
class that catches up with it, null = the lane matches it';

create or replace function pgps_internal.keep_found(lane_id bigint, batch_id bigint, classes bigint[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    with found as (
        delete from pgps_internal.delivery d
        where d.batch_id = keep_found.batch_id and d.class_id = any (keep_found.classes)
        returning d.*
    )
    insert into pgps_internal.lane_found (lane_id, class_id, type_id, events, event_ids, ids)
    select keep_found.lane_id, f.class_id, f.type_id, f.events, f.event_ids, f.ids from found f;
end
$$;
comment on function pgps_internal.keep_found(bigint, bigint, bigint[]) is
'Keeps aside what a part of a batch has brought these classes';

create or replace function pgps_internal.deliver_found(lane_id bigint, batch_id bigint)
returns table (type_id integer, classes bigint[])
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    with found as (
        delete from pgps_internal.lane_found f where f.lane_id = deliver_found.lane_id returning f.*
    ),
    merged as (
        select f.class_id, f.type_id, sum(f.events) as events, bool_and(f.event_ids is null) as in_ranges from found f
        -- What was suspended since is matched again when it is resumed.
        join pgps_internal.class c using (class_id) where c.is_active group by f.class_id, f.type_id
    ),
    listed as (
        select f.class_id, array_agg(e order by e) as event_ids
        from found f join merged m using (class_id)
        cross join lateral (select unnest(f.event_ids)
            union all select generate_series(lower(r), upper(r) - 1) from unnest(f.ids) r) x(e)
        where not m.in_ranges group by f.class_id
    ),
    ranged as (
        select f.class_id, range_agg(r) as ids from found f join merged m using (class_id) cross join unnest(f.ids) r
        where m.in_ranges group by f.class_id
    ),
    delivered as (
        insert into pgps_internal.delivery (batch_id, class_id, type_id, events, event_ids, ids)
        select deliver_found.batch_id, m.class_id, m.type_id, m.events, l.event_ids, r.ids
        from merged m left join listed l using (class_id) left join ranged r using (class_id) order by m.class_id
        returning type_id, class_id
    )
    select d.type_id, array_agg(d.class_id) from delivered d group by d.type_id;
end
$$;
comment on function pgps_internal.deliver_found(bigint, bigint) is
'After the last part of a batch: makes one delivery for each class of what all parts have brought it; returns the
classes that have one, by event type';

create or replace function pgps_internal.end_piece(piece pgps_internal.lane_piece) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last pgps_internal.batch_type := (end_piece.piece).batches[cardinality((end_piece.piece).batches)];
    v_limit interval := current_setting('statement_timeout')::interval;
begin
    update pgps_internal.lane_part p
    set batch_id = case when not (end_piece.piece).is_last then p.batch_id end,
        class_id = case when not (end_piece.piece).is_last then p.class_id end,
        type_id = case when not (end_piece.piece).is_last then v_last.type_id end,
        event_id = case when not (end_piece.piece).is_last then upper(v_last.ids) - 1 end,
        events = case when not (end_piece.piece).is_last
            and (v_limit = '0' or clock_timestamp() - statement_timestamp() < v_limit / 4)
            then 2 * p.events else p.events end
    where p.lane_id = ((end_piece.piece).part).lane_id;
end
$$;
comment on function pgps_internal.end_piece(pgps_internal.lane_piece) is
'Notes how far a lane is with its batch; the next part is larger if this one was asked about in a quarter of the time';

create or replace function pgps_internal.end_lane_piece(
    lane pgps_internal.lane, piece pgps_internal.lane_piece, shared integer[], inout run pgps_internal.lane_run
)
language plpgsql
as $$
declare
    -- Nothing may be left of the batch: whoever wanted the rest has gone.
    v_batch bigint := coalesce((end_lane_piece.piece).batches[1].batch_id, ((end_lane_piece.piece).part).batch_id);
begin
    if (end_lane_piece.piece).is_last then
        perform pgps_internal.wake_members(d.classes), case when d.type_id = any (end_lane_piece.shared)
            then pgps_internal.share_in_lane(v_batch, d.type_id, d.classes) end
        from pgps_internal.deliver_found((end_lane_piece.lane).lane_id, v_batch) d;
    else
        run.batches := 0;
    end if;
    run.is_done := false;
    perform pgps_internal.end_piece(end_lane_piece.piece);
end
$$;
comment on function pgps_internal.end_lane_piece(pgps_internal.lane, pgps_internal.lane_piece, integer[],
    pgps_internal.lane_run) is
'After a lane has asked about a part: with the last one the batch is matched, and what the parts found is delivered';

create or replace function pgps_internal.is_in_part(class pgps_internal.class, piece pgps_internal.lane_piece)
returns boolean
language plpgsql
as $$
declare
    v_lane bigint := ((is_in_part.piece).part).lane_id;
    v_batch bigint := (is_in_part.piece).batches[1].batch_id;
begin
    if v_lane is null then
        return false;
    end if;
    perform pgps_internal.keep_found(v_lane, v_batch, array[(is_in_part.class).class_id]),
        pgps_internal.end_piece(is_in_part.piece);
    if (is_in_part.piece).is_last then
        perform pgps_internal.deliver_found(v_lane, v_batch);
    end if;
    return not (is_in_part.piece).is_last;
end
$$;
comment on function pgps_internal.is_in_part(pgps_internal.class, pgps_internal.lane_piece) is
'After a class that catches up was matched with a part of a batch: keeps what that brought, and returns whether there is
more to come of it. Not in parts: false';

create or replace function pgps_internal.piece_events(lane pgps_internal.lane) returns bigint
language plpgsql stable
as $$
declare
    v_upto bigint := pgps_internal.lane_position((piece_events.lane).lane_id);
    v_class pgps_internal.class;
begin
    if not pgps_internal.has_guests((piece_events.lane).owner) then
        return (select sum(b.events) from unnest(pgps_internal.lane_rows(piece_events.lane, v_upto, 1)) b);
    elsif exists (select from pgps_internal.joining j join pgps_internal.subscription s using (subscription_id)
        where s.owner = (piece_events.lane).owner and j.failures < 3) then
        return null;
    end if;
    select c.* into v_class from pgps_internal.class c join pgps_internal.signature g using (signature_id)
    where c.is_pending and g.in_lane and c.owner = (piece_events.lane).owner order by c.class_id limit 1;
    return (select sum(b.events) from pgps_internal.batch_type b
        where b.type_id = v_class.type_id and b.batch_id > v_class.suspended_batch
            and b.batch_id <= greatest(v_upto, (select g.from_batch from pgps_internal.signature g
                where g.signature_id = v_class.signature_id)));
end
$$;
comment on function pgps_internal.piece_events(pgps_internal.lane) is
'How many events a lane asks about next if it does not do so in parts; null when it does something else';

create or replace function pgps_internal.ask_about_fewer(lane pgps_internal.lane) returns boolean
language plpgsql
as $$
declare
    v_lane bigint := (ask_about_fewer.lane).lane_id;
    v_events bigint := pgps_internal.piece_events(ask_about_fewer.lane);
begin
    v_events := least(v_events, (select p.events from pgps_internal.lane_part p where p.lane_id = v_lane),
        pgps_internal.setting('max_batch_events')::bigint);
    -- What takes so long for so few is slow whatever the size of the batch.
    if coalesce(v_events, 0) <= 100 then
        return false;
    end if;
    insert into pgps_internal.lane_part as p (lane_id, events) values (v_lane, greatest(v_events / 8, 100))
    on conflict on constraint lane_part_pkey do update set events = excluded.events;
    return true;
end
$$;
comment on function pgps_internal.ask_about_fewer(pgps_internal.lane) is
'After a lane has taken too long: has it ask about an eighth of the events at once. False when they are a hundred
already, or it was doing something else';
