-- Reclaim of the ledgers of dispatch, and what outlives its segment there: the numbers of producers, and the totals of
-- event types.
-- Locks: see log/reclaim.sql; the segments of one number of all these ledgers.
-- Writes: batch_type, producer; by name: segments of ledgers.

create or replace function pgps_internal.carry_over_producers(segment regclass, newest bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.producer (batch_id, type_id, publisher, producer, taken, seen_at)
        select distinct on (o.type_id, o.publisher, o.producer) %s, o.type_id, o.publisher, o.producer, o.taken, '
            'o.seen_at
        from %s o join pgps_internal.event_type t using (type_id)
        where (t.dedupe_retention is null or o.seen_at > pgps_internal.clock() - t.dedupe_retention)
            and not exists (select from pgps_internal.producer n
                where n.type_id = o.type_id and n.publisher = o.publisher and n.producer = o.producer and n.batch_id '
                    '> o.batch_id
                    and n.tableoid <> %s::oid)
        order by o.type_id, o.publisher, o.producer, o.batch_id desc',
        carry_over_producers.newest, carry_over_producers.segment, carry_over_producers.segment::oid);
end
$$;
comment on function pgps_internal.carry_over_producers(regclass, bigint) is
'Before a segment of producers'' numbers is truncated: writes the newest row of each producer again, under the number of
the newest batch';

create or replace function pgps_internal.carry_over_totals(segment regclass, newest bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.batch_type (batch_id, type_id, ids, events, total, repeats)
        select distinct on (o.type_id) %s, o.type_id, ''{}'', 0, o.total, o.repeats
        from %s o join pgps_internal.event_type t using (type_id)
        where not exists (select from pgps_internal.batch_type n
            where n.type_id = o.type_id and n.batch_id > o.batch_id and n.tableoid <> %s::oid)
        order by o.type_id, o.batch_id desc', carry_over_totals.newest, carry_over_totals.segment,
            carry_over_totals.segment::oid);
end
$$;
comment on function pgps_internal.carry_over_totals(regclass, bigint) is
'Before a segment of what batches have of event types is truncated: writes the totals of each type again, under the
number of the newest batch';

create or replace function pgps_internal.are_past(segments regclass[], low bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_segment regclass;
    v_top bigint;
begin
    foreach v_segment in array are_past.segments loop
        execute format('select max(x.batch_id) from %s x', v_segment) into v_top;
        if v_top > are_past.low then
            return false;
        end if;
    end loop;
    return true;
end
$$;
comment on function pgps_internal.are_past(regclass[], bigint) is
'True when segments of ledgers have nothing of batches behind low';

create or replace function pgps_internal.reclaim_batches(low bigint, newest bigint) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- What refers to batches is carried over before they go.
    v_ledgers constant text[] := array['delivery', 'producer', 'batch_type', 'batch'];
    v_segments regclass[];
    v_reclaimed bigint := 0;
begin
    for v_slot in 0..3 loop
        v_segments := array(select format('pgps_internal.%I', l || '_' || v_slot)::regclass from unnest(v_ledgers) l);
        continue when v_slot = pgps_internal.batch_segment(reclaim_batches.newest)
            or (select sum(pg_relation_size(s)) from unnest(v_segments) s) = 0;
        continue when not pgps_internal.are_past(v_segments, reclaim_batches.low);
        -- All of a number go together, or none: what a session uses refers to the others.
        continue when not (select bool_and(pgps_internal.try_lock(s)) from unnest(v_segments) s);
        -- Their deliveries are archived, so these types must stay.
        continue when exists (select from pgps_internal.queue q
            where q.kind = 'out' and q.auditable and not pgps_internal.hold_type(q.type_id));
        -- Looked at again, now that they are locked: a subscription may have gone back to these batches meanwhile.
        continue when not pgps_internal.are_past(v_segments, least(pgps_internal.kept_batch(), reclaim_batches.low));
        for v_n in 1..cardinality(v_ledgers) loop
            perform pgps_internal.carry_over(v_ledgers[v_n], v_segments[v_n], reclaim_batches.newest);
            v_reclaimed := v_reclaimed + (pg_relation_size(v_segments[v_n]) > 0)::integer;
            execute format('truncate only %s', v_segments[v_n]);
        end loop;
    end loop;
    return v_reclaimed;
end
$$;
comment on function pgps_internal.reclaim_batches(bigint, bigint) is
'Truncates the segments of batches up to low, and of what refers to them; newest: the newest batch';
