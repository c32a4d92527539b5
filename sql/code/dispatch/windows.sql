-- What the next batch consists of: the transactions that are committed now, and were not when the last batch was cut.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.last_batch() returns pgps_internal.batch
language plpgsql stable
as $$
declare
    v_batch pgps_internal.batch;
begin
    -- Not in SQL: a SQL function is planned again at each call.
    select b.* into v_batch from pgps_internal.batch b order by b.batch_id desc limit 1;
    return v_batch;
end
$$;
comment on function pgps_internal.last_batch() is 'The newest batch; null before the first dispatch';

create or replace function pgps_internal.is_dispatched(xid xid8, event_id bigint, last pgps_internal.batch)
returns boolean
language sql immutable
begin atomic
    select coalesce(pg_visible_in_snapshot(is_dispatched.xid, (is_dispatched.last).previous)
        or is_dispatched.event_id <= (is_dispatched.last).base_hi
        or pg_visible_in_snapshot(is_dispatched.xid, (is_dispatched.last).snapshot)
            and ((is_dispatched.last).upto is null or is_dispatched.xid <= (is_dispatched.last).upto), false);
end;
comment on function pgps_internal.is_dispatched(xid8, bigint, pgps_internal.batch) is
'True when the events of transaction xid are in a batch up to last';

create or replace function pgps_internal.committed_now() returns pg_snapshot
language plpgsql stable
as $$
declare
    v_now pg_snapshot := pg_current_snapshot();
    v_own xid8 := pg_current_xact_id_if_assigned();
begin
    if v_own is null or v_own >= pg_snapshot_xmax(v_now) then
        return v_now;
    end if;
    -- A snapshot does not list the transaction that takes it. As soon as a later one has ended, this one would count as
    -- ended, too: what it has published would be dispatched, and what it publishes afterwards never.
    return (select format('%s:%s:%s', pg_snapshot_xmin(v_now), pg_snapshot_xmax(v_now),
        string_agg(x.xid::text, ',' order by x.xid))
        from (select pg_snapshot_xip(v_now) as xid union all select v_own) x)::pg_snapshot;
end
$$;
comment on function pgps_internal.committed_now() is
'The current snapshot, in which this transaction is in progress like any other';

create or replace function pgps_internal.waiting(last pgps_internal.batch, current pg_snapshot)
returns setof pgps_internal.control
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_before pg_snapshot := (waiting.last).previous;
    v_xmax xid8;
    v_in_progress xid8[];
begin
    if waiting.last is null or (waiting.last).batch_id is null then
        return query select c.* from pgps_internal.control c where pg_visible_in_snapshot(c.xid, waiting.current);
        return;
    elsif (waiting.last).upto is null then
        v_before := (waiting.last).snapshot;
    end if;
    v_xmax := pg_snapshot_xmax(v_before);
    v_in_progress := array(select pg_snapshot_xip(v_before));
    if (waiting.last).upto is not null then
        -- What had not committed when the window was cut waits, too, below the last transaction that was taken of it.
        v_in_progress := array(select unnest(v_in_progress) union select pg_snapshot_xip((waiting.last).snapshot));
    end if;
    return query
    select c.* from pgps_internal.control c
    where c.xid >= greatest(v_xmax, (waiting.last).upto) and c.xid < pg_snapshot_xmax(waiting.current)
        and pg_visible_in_snapshot(c.xid, waiting.current) and c.hi > (waiting.last).base_hi
        and ((waiting.last).upto is null or c.xid > (waiting.last).upto);
    if cardinality(v_in_progress) > 0 then
        return query
        select c.* from pgps_internal.control c
        where c.xid = any (v_in_progress) and (c.xid < v_xmax or c.xid <= (waiting.last).upto)
            and pg_visible_in_snapshot(c.xid, waiting.current) and c.hi > (waiting.last).base_hi
            and ((waiting.last).upto is null or c.xid > (waiting.last).upto
                or not pg_visible_in_snapshot(c.xid, (waiting.last).snapshot));
    end if;
end
$$;
comment on function pgps_internal.waiting(pgps_internal.batch, pg_snapshot) is
'Control rows of transactions that current sees and that no batch up to last has: an index range above the last snapshot
and, by id, the transactions that were in progress then. Sequence numbers are not in commit order: a cursor on them
would lose late commits.';

create or replace function pgps_internal.cut_window(max_events integer) returns pgps_internal.batch_window
language plpgsql
as $$
declare
    v_last pgps_internal.batch := pgps_internal.last_batch();
begin
    return case when v_last.batch_id is null or pgps_internal.is_same_life(v_last)
        then pgps_internal.next_window(v_last, cut_window.max_events) else pgps_internal.begin_epoch(v_last) end;
end
$$;
comment on function pgps_internal.cut_window(integer) is
'The next batch and what it consists of; nulls when nothing waits. Records nothing, except the beginning of a new
epoch.';

create or replace function pgps_internal.last_batch_before(at timestamptz) returns bigint
language plpgsql stable
as $$
begin
    -- Batches are numbered in the order of their times: reading backwards visits only those that are newer.
    return coalesce((select b.batch_id from pgps_internal.batch b where b.created_at < last_batch_before.at
        order by b.batch_id desc limit 1), 0);
end
$$;
comment on function pgps_internal.last_batch_before(timestamptz) is
'The newest batch that is older than a time; 0 when none is';

create or replace function pgps_internal.next_window(last pgps_internal.batch, max_events integer)
returns pgps_internal.batch_window
language plpgsql
as $$
declare
    v_current pg_snapshot := case when (next_window.last).upto is null then pgps_internal.committed_now()
        else (next_window.last).snapshot end;
    v_before pg_snapshot := coalesce((next_window.last).snapshot, '1:1:');
    v_events bigint;
    v_max bigint;
    v_upto xid8;
    v_parts pgps_internal.part[];
begin
    if (next_window.last).upto is null and pg_snapshot_xmax(v_before) = pg_snapshot_xmin(v_before) then
        -- No transaction was in progress at the last cut, as when single events come at intervals. What waits is one
        -- range of the index then, and in the common case less than a batch.
        select array_agg((t.type_id, t.xids, t.ranges)::pgps_internal.part), sum(t.events), max(t.hi) into v_parts,
            v_events, v_max
        from (
            select c.type_id, array_agg(c.xid) as xids, range_agg(int8range(c.lo, c.hi, '[]')) as ranges,
                sum(c.hi - c.lo + 1) as events,
                max(c.hi) as hi
            from pgps_internal.control c
            where c.xid >= pg_snapshot_xmax(v_before) and c.xid < pg_snapshot_xmax(v_current)
                and pg_visible_in_snapshot(c.xid, v_current)
                and c.hi > coalesce((next_window.last).base_hi, 0)
            group by c.type_id
        ) t;
    end if;
    if v_events is null or v_events > next_window.max_events then
        select w.parts, w.max_hi, w.upto into v_parts, v_max, v_upto
        from pgps_internal.limited_window(next_window.last, v_current, next_window.max_events) w;
    end if;
    if v_parts is null then
        if (next_window.last).upto is not null then
            -- The window is used up; go on with a new snapshot.
            next_window.last.previous := (next_window.last).snapshot;
            next_window.last.upto := null;
            return pgps_internal.next_window(next_window.last, next_window.max_events);
        end if;
        return null;
    end if;
    return row(row(coalesce((next_window.last).batch_id, 0) + 1, case when (next_window.last).upto is null then v_before
        else (next_window.last).previous end,
        v_current, v_upto, coalesce((next_window.last).base_hi, 0), greatest((next_window.last).max_hi, v_max),
        coalesce((next_window.last).incarnation, pgps_internal.incarnation()), pg_postmaster_start_time(),
        pgps_internal.clock())::pgps_internal.batch, v_parts)::pgps_internal.batch_window;
end
$$;
comment on function pgps_internal.next_window(pgps_internal.batch, integer) is
'The next batch and what it consists of for each event type; nulls when nothing waits. A window larger than max_events
is cut between transactions: "upto" is the last one taken.';

create or replace function pgps_internal.limited_window(
    last pgps_internal.batch, current pg_snapshot, max_events integer, out parts pgps_internal.part[],
    out max_hi bigint, out upto xid8
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Whole transactions in the order of their ids, so that one session's stay in order, until there are enough events.
    with w as materialized (
        select c.*, sum(c.hi - c.lo + 1) over (order by c.xid) as running
            from pgps_internal.waiting(limited_window.last, limited_window.current) c
    ),
    chosen as (
        select w.* from w
        where w.running <= limited_window.max_events or w.xid = (select min(f.xid) from w f)
    ),
    by_type as (
        select (c.type_id, array_agg(distinct c.xid),
            range_agg(int8range(c.lo, c.hi, '[]')))::pgps_internal.part as part
        from chosen c group by c.type_id
    )
    select (select array_agg(b.part) from by_type b), (select max(c.hi) from chosen c),
        (select max(c.xid) from chosen c having max(c.xid) < (select max(w.xid) from w))
    into limited_window.parts, limited_window.max_hi, limited_window.upto;
end
$$;
comment on function pgps_internal.limited_window(pgps_internal.batch, pg_snapshot, integer) is
'What waits in a window, by event type, up to about max_events; upto: the last transaction taken, null when all were';
