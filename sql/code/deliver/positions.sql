-- Where a subscription is in the deliveries of its classes: an append-only ledger of positions (decision 4).
-- Locks: none.
-- Writes: position, share.

create or replace function pgps_internal.position_of(subscription_id bigint) returns pgps_internal.position
language plpgsql volatile
set plan_cache_mode = force_generic_plan
as $$
declare
    v_position pgps_internal.position;
    v_newest bigint := pg_sequence_last_value('pgps_internal.position_id_seq'::regclass);
begin
    -- The newest position is usually in the newest segment: one scan to set up, not four.
    select p.* into v_position from pgps_internal.position p
    where p.subscription_id = position_of.subscription_id
        and pgps_internal.position_segment(p.position_id) = pgps_internal.position_segment(v_newest)
        and p.position_id >= pgps_internal.position_segment_start(v_newest)
    order by p.position_id desc limit 1;
    if not found then
        select p.* into v_position from pgps_internal.position p
        where p.subscription_id = position_of.subscription_id order by p.position_id desc limit 1;
    end if;
    if not found then
        v_position := row(0, position_of.subscription_id, -1, 0, -1, 0, 0, 0, null, null, null,
            null)::pgps_internal.position;
    end if;
    return v_position;
end
$$;
comment on function pgps_internal.position_of(bigint) is
'How far a subscription is: (batch, event) acknowledged and received; -1 = from the start. Volatile: see decision 105';

create or replace function pgps_internal.position_seen(subscription_id bigint) returns pgps_internal.position
language plpgsql stable
set plan_cache_mode = force_generic_plan
as $$
declare
    v_position pgps_internal.position;
    v_newest bigint := pg_sequence_last_value('pgps_internal.position_id_seq'::regclass);
begin
    select p.* into v_position from pgps_internal.position p
    where p.subscription_id = position_seen.subscription_id
        and pgps_internal.position_segment(p.position_id) = pgps_internal.position_segment(v_newest)
        and p.position_id >= pgps_internal.position_segment_start(v_newest)
    order by p.position_id desc limit 1;
    if not found then
        select p.* into v_position from pgps_internal.position p
        where p.subscription_id = position_seen.subscription_id order by p.position_id desc limit 1;
    end if;
    if not found then
        v_position := row(0, position_seen.subscription_id, -1, 0, -1, 0, 0, 0, null, null, null,
            null)::pgps_internal.position;
    end if;
    return v_position;
end
$$;
comment on function pgps_internal.position_seen(bigint) is
'As position_of, in the snapshot of the statement that asks, for reclaim: what is kept for positions and what is kept
for shipments is one picture. In another session it may be -1 while positions are carried over';

create or replace function pgps_internal.move(
    subscription_id bigint, acked_batch bigint, acked_event bigint, received_batch bigint, received_event bigint,
    acked_total bigint = 0, outstanding integer = 0,
    consumer text = null, seen_batch bigint = null, seen_event bigint = null
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.position (subscription_id, acked_batch, acked_event, received_batch, received_event,
        acked_total, outstanding, consumer, seen_batch, seen_event)
    values (move.subscription_id, move.acked_batch, move.acked_event, move.received_batch, move.received_event,
        move.acked_total, move.outstanding, move.consumer, move.seen_batch, move.seen_event);
end
$$;
comment on function pgps_internal.move(
    bigint, bigint, bigint, bigint, bigint, bigint, integer, text, bigint, bigint
) is
'Adds a position to the ledger; outstanding: how many events are received and not acknowledged, consumer: by whom; seen:
up to where events were handed out before, when that is after what is received now';

create or replace function pgps_internal.has_rest(
    event_ids bigint[], ids int8multirange, skip int8multirange, after_event bigint
) returns boolean
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return not has_rest.ids * int8multirange(int8range(has_rest.after_event, null, '()')) <@ has_rest.skip
        or exists (select from unnest(has_rest.event_ids) e(id)
            where (has_rest.after_event is null or e.id > has_rest.after_event) and not e.id <@ has_rest.skip);
end
$$;
comment on function pgps_internal.has_rest(bigint[], int8multirange, int8multirange, bigint) is
'True when a delivery, as a list or as ranges, has an event after one (null: any event) that is not skipped';

-- Shared by the queries for what comes next after a position. They are one statement without settings, so that
-- PostgreSQL inlines them into the calling query. With ties: a batch may have several deliveries of one class, when its
-- filter was asked in parts (isolate.sql), and several of one subscription, one for each type; a caller that took only
-- some of a batch would lose the others.
create or replace function pgps_internal.deliveries_behind(
    class_id bigint, from_batch bigint, skip int8multirange, after_batch bigint, after_event bigint
) returns setof pgps_internal.delivery
language sql stable rows 100
begin atomic
    select d.* from pgps_internal.delivery d
    where d.class_id = deliveries_behind.class_id
        and d.batch_id >= greatest(deliveries_behind.after_batch, deliveries_behind.from_batch + 1)
        and (d.batch_id > deliveries_behind.after_batch or deliveries_behind.after_event < any (d.event_ids)
            or deliveries_behind.after_event < upper(d.ids) - 1)
        and (deliveries_behind.skip is null or isempty(deliveries_behind.skip)
            or pgps_internal.has_rest(d.event_ids, d.ids, deliveries_behind.skip,
            case when d.batch_id = deliveries_behind.after_batch then deliveries_behind.after_event end));
end;
comment on function pgps_internal.deliveries_behind(bigint, bigint, int8multirange, bigint, bigint) is
'The deliveries of a class, in no order, that have an event after a position (batch, event). from_batch, skip (null =
none): of the member. The first may have events up to the position as well, and each may have skipped ones: the caller
leaves these out';

drop function if exists pgps_internal.deliveries_after(pgps_internal.member, bigint, bigint, bigint);
create or replace function pgps_internal.deliveries_after(
    class_id bigint, from_batch bigint, skip int8multirange, after_batch bigint, after_event bigint, most bigint
) returns setof pgps_internal.delivery
language sql stable rows 100
begin atomic
    select d.* from pgps_internal.deliveries_behind(deliveries_after.class_id, deliveries_after.from_batch,
        deliveries_after.skip, deliveries_after.after_batch, deliveries_after.after_event) d
    order by d.batch_id fetch first (deliveries_after.most) rows with ties;
end;
comment on function pgps_internal.deliveries_after(bigint, bigint, int8multirange, bigint, bigint, bigint) is
'The next deliveries of a class, in order, that have an event after a position; see pgps_internal.deliveries_behind.
most: how many, completed to whole batches';

create or replace function pgps_internal.deliveries_between(
    class_id bigint, from_batch bigint, skip int8multirange, after_batch bigint, after_event bigint, upto_batch bigint,
    most bigint
) returns setof pgps_internal.delivery
language sql stable rows 100
begin atomic
    select d.* from pgps_internal.deliveries_behind(deliveries_between.class_id, deliveries_between.from_batch,
        deliveries_between.skip, deliveries_between.after_batch, deliveries_between.after_event) d
    where d.batch_id <= deliveries_between.upto_batch
    order by d.batch_id fetch first (deliveries_between.most) rows with ties;
end;
comment on function pgps_internal.deliveries_between(
    bigint, bigint, int8multirange, bigint, bigint, bigint, bigint
) is
'The same as pgps_internal.deliveries_after, up to the end of a batch';

create or replace view pgps_internal.assigned as
select m.subscription_id, m.takes_batch, d.batch_id, d.class_id, d.type_id, e.event_id
from pgps_internal.member m
join pgps_internal.delivery d on d.class_id = m.class_id and d.batch_id > m.from_batch
cross join lateral (
    select unnest(d.event_ids) as event_id
    union all
    select generate_series(lower(r), upper(r) - 1) from unnest(d.ids) r
) e
where not e.event_id <@ m.skip;
comment on view pgps_internal.assigned is
'All events delivered to a subscription, before and after its position: a row for each. Restrict queries to a range of
batches';

create or replace function pgps_internal.next_unskipped(
    subscription_id bigint, after_batch bigint, after_event bigint, max_events integer
) returns table (batch_id bigint, event_id bigint, type_id integer)
language plpgsql stable rows 100
as $$
#variable_conflict use_column
declare
    v_failed int8multirange;
    v_most bigint;
begin
    select coalesce(range_agg(int8range(f.event_id, f.event_id, '[]')), '{}'), next_unskipped.max_events + count(*)
        into v_failed, v_most
    from pgps_internal.failure f where f.subscription_id = next_unskipped.subscription_id;
    return query
    select d.batch_id, e.event_id, d.type_id
    from (
        -- Unfolds only as many deliveries as it needs, so that a backlog does not slow down each call. A batch has a
        -- delivery for each type, so what comes before is counted by whole batches (range, which takes less time than
        -- groups). A delivery with skipped events counts as none: how many are skipped is not known before it is
        -- unfolded.
        select d.batch_id, d.type_id, d.event_ids, d.ids, m.skip,
            coalesce(sum(case when d.batch_id > next_unskipped.after_batch and isempty(m.skip) then d.events else 0 end)
                over (order by d.batch_id range between unbounded preceding and 1 preceding), 0) as before
        from pgps_internal.current_member m
        cross join lateral pgps_internal.deliveries_after(m.class_id, m.from_batch, m.skip, next_unskipped.after_batch,
            next_unskipped.after_event, v_most) d
        where m.subscription_id = next_unskipped.subscription_id
    ) d
    cross join lateral (
        select unnest(d.event_ids) as event_id
        union all
        select generate_series(lower(r), least(upper(r), lower(r) + v_most) - 1)
        from unnest(d.ids - d.skip - v_failed - case when d.batch_id = next_unskipped.after_batch
            then int8multirange(int8range(null, next_unskipped.after_event, '(]')) else '{}' end) r
    ) e
    where d.before < v_most
        and (d.batch_id > next_unskipped.after_batch or e.event_id > next_unskipped.after_event)
        and not e.event_id <@ d.skip and not e.event_id <@ v_failed
    order by d.batch_id, e.event_id
    limit next_unskipped.max_events;
end
$$;
comment on function pgps_internal.next_unskipped(bigint, bigint, bigint, integer) is
'The next events of a subscription of which some are skipped, put back or failed; see pgps_internal.next_events, which
calls it with its settings';

create or replace function pgps_internal.next_events(
    subscription_id bigint, after_batch bigint, after_event bigint, max_events integer
) returns table (batch_id bigint, event_id bigint, type_id integer)
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_most bigint := next_events.max_events;
begin
    -- Common case: nobody ever had to meet an event type later, which a sequence tells.
    if pg_sequence_last_value('pgps_internal.unmet_place_seq'::regclass) is not null
            and pgps_internal.is_unmet(next_events.subscription_id) then
        return;
    end if;
    -- Decided once: checking event by event whether it is skipped or has failed took a third of the time.
    if exists (select from pgps_internal.failure f where f.subscription_id = next_events.subscription_id)
        or exists (select from pgps_internal.current_member m
            where m.subscription_id = next_events.subscription_id and not isempty(m.skip)) then
        return query select n.* from pgps_internal.next_unskipped(next_events.subscription_id, next_events.after_batch,
            next_events.after_event, next_events.max_events) n;
        return;
    end if;
    -- Common case: nothing is skipped or failed, so all that has to be left out is what the position has passed in the
    -- first batch.
    return query
    select d.batch_id, e.event_id, d.type_id
    from (
        select d.batch_id, d.type_id, d.event_ids, d.ids,
            coalesce(sum(case when d.batch_id > next_events.after_batch then d.events else 0 end)
            over (order by d.batch_id range between unbounded preceding and 1 preceding), 0) as before
        from pgps_internal.member m
        cross join lateral pgps_internal.deliveries_after(m.class_id, m.from_batch, null, next_events.after_batch,
            next_events.after_event, v_most) d
        where m.subscription_id = next_events.subscription_id
    ) d
    cross join lateral (
        select unnest(d.event_ids) as event_id
        union all
        select generate_series(lower(r), least(upper(r), lower(r) + v_most) - 1)
        from unnest(case when d.batch_id > next_events.after_batch then d.ids
            else d.ids - int8multirange(int8range(null, next_events.after_event, '(]')) end) r
    ) e
    where d.before < v_most and (d.batch_id > next_events.after_batch or e.event_id > next_events.after_event)
    order by d.batch_id, e.event_id
    limit next_events.max_events;
end
$$;
comment on function pgps_internal.next_events(bigint, bigint, bigint, integer) is
'The next events of a subscription after a position, in delivery order: batch, then event id; without those that are put
back or failed';

create or replace function pgps_internal.next_received(
    subscription_id bigint, at pgps_internal.position, max_events integer, has_failures boolean
)
returns pgps_internal.received[]
language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_after_batch bigint := (next_received.at).acked_batch;
    v_after_event bigint := (next_received.at).acked_event;
    v_seen_batch bigint := coalesce((next_received.at).seen_batch, (next_received.at).received_batch);
    v_seen_event bigint := coalesce((next_received.at).seen_event, (next_received.at).received_event);
    v_deliveries pgps_internal.delivery[];
    v_events bigint;
    v_is_plain boolean;
begin
    -- Shortcut for a consumer that is woken for one or two events, for which setting up next_events would take most of
    -- the time. Used only when fewer than three deliveries wait and nothing in them has to be left out but what the
    -- position has passed: nothing is noted to be skipped (current_member.sql), and what the member skips is below what
    -- waits, as mostly. Null: so it is, as far as the ids are there, and either kind of them may be missing.
    select array_agg(d.delivery), sum((d.delivery).events), bool_and(coalesce(isempty(m.skip)
        or upper(m.skip) <= all ((d.delivery).event_ids || lower((d.delivery).ids)), true))
    into v_deliveries, v_events, v_is_plain
    from pgps_internal.member m
    cross join lateral (
        select d as delivery from pgps_internal.delivery d
        where d.class_id = m.class_id and d.batch_id >= greatest(v_after_batch, m.from_batch + 1)
            and (d.batch_id > v_after_batch or v_after_event < any (d.event_ids) or v_after_event < upper(d.ids) - 1)
        order by d.batch_id limit 3
    ) d
    where m.subscription_id = next_received.subscription_id;
    if v_deliveries is null then
        return null;
    elsif cardinality(v_deliveries) < 3 and v_events <= 100 and v_is_plain and not next_received.has_failures
            and (pg_sequence_last_value('pgps_internal.to_skip_skip_id_seq'::regclass) is null
                or pg_relation_size('pgps_internal.to_skip'::regclass) = 0) then
        return nullif(array(
            select (d.batch_id, e.event_id, d.type_id,
                case when (d.batch_id, e.event_id) <= (v_seen_batch, v_seen_event) then 2 else 1 end
                )::pgps_internal.received
            from unnest(v_deliveries) d
            cross join lateral (
                select unnest(d.event_ids)
                union all
                select generate_series(lower(r), upper(r) - 1) from unnest(d.ids) r
            ) e(event_id)
            where d.batch_id > v_after_batch or e.event_id > v_after_event
            order by d.batch_id, e.event_id
            limit next_received.max_events), '{}');
    end if;
    return (
        select array_agg((n.batch_id, n.event_id, n.type_id,
            case when (n.batch_id, n.event_id) <= (v_seen_batch, v_seen_event) then 2
                else 1 end)::pgps_internal.received
            order by n.batch_id, n.event_id)
        from pgps_internal.next_events(next_received.subscription_id, v_after_batch, v_after_event,
            next_received.max_events) n);
end
$$;
comment on function pgps_internal.next_received(bigint, pgps_internal.position, integer, boolean) is
'What next_events finds after a position, to be handed out: as attempt 2 up to where it was handed out before, else 1;
null when there is nothing';

create or replace function pgps_internal.pass_over(
    subscription pgps_internal.subscription, handed_out pgps_internal.received[]
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (pass_over.subscription).subscription_id;
    v_position pgps_internal.position := pgps_internal.position_of(v_id);
    v_last pgps_internal.received;
begin
    delete from pgps_internal.share s using unnest(pass_over.handed_out) t
    where s.subscription_id = v_id and s.batch_id = t.batch_id and s.event_id = t.event_id;
    if (pass_over.subscription).handler = 'all' then
        select t.* into v_last from unnest(pass_over.handed_out) t
        where not exists (select from pgps_internal.failure f where f.subscription_id = v_id
            and f.event_id = t.event_id)
        order by t.batch_id desc, t.event_id desc limit 1;
        if found then
            perform pgps_internal.move(v_id, v_last.batch_id, v_last.event_id, v_last.batch_id, v_last.event_id,
                v_position.acked_total);
        end if;
    end if;
    perform pgps_internal.settle(v_id, array(select t.event_id from unnest(pass_over.handed_out) t));
end
$$;
comment on function pgps_internal.pass_over(pgps_internal.subscription, pgps_internal.received[]) is
'Moves on when none of the events taken can be shown: an unlogged log is empty after a crash, and a policy may hide
events meanwhile';

create or replace function pgps_internal.is_ahead(subscription_id bigint, event_id bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Looked for in the deliveries as they are: a million events may wait.
    return exists (
        select from pgps_internal.position_of(is_ahead.subscription_id) p
        join pgps_internal.member m on m.subscription_id = p.subscription_id and not m.takes_batch
        join pgps_internal.delivery d on d.class_id = m.class_id
            and d.batch_id >= greatest(p.acked_batch, m.from_batch + 1)
        where (d.ids @> is_ahead.event_id or is_ahead.event_id = any (d.event_ids))
            and (d.batch_id, is_ahead.event_id) > (p.acked_batch, p.acked_event)
            and not is_ahead.event_id <@ m.skip);
end
$$;
comment on function pgps_internal.is_ahead(bigint, bigint) is
'True while the position of a subscription has not reached an event that was delivered to it';

create or replace function pgps_internal.received_events(subscription_id bigint, at pgps_internal.position)
returns table (batch_id bigint, event_id bigint, type_id integer)
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    select a.batch_id, a.event_id, a.type_id
    from pgps_internal.assigned a
    where a.subscription_id = received_events.subscription_id
        and a.batch_id >= (received_events.at).acked_batch and a.batch_id <= (received_events.at).received_batch
        and (a.batch_id, a.event_id) > ((received_events.at).acked_batch, (received_events.at).acked_event)
        and (a.batch_id, a.event_id) <= ((received_events.at).received_batch, (received_events.at).received_event);
end
$$;
comment on function pgps_internal.received_events(bigint, pgps_internal.position) is
'Events received and not acknowledged';
