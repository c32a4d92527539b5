-- A transaction too large for a batch is matched in parts: batches of bounded size, cut by event ids, that are noted in
-- one transaction of the dispatcher and so become visible together (decision 25). No statement, array or row ever holds
-- all of it. A caller with a time limit for statements calls part by part: pgps.dispatch_batch, pgps.dispatch_large,
-- pgps.dispatch_next_part.
-- Locks: those of dispatch, until the transaction ends.
-- Writes: large_part.

create or replace function pgps_internal.size_if_large(batch_window pgps_internal.batch_window, max_events integer)
returns bigint
language plpgsql
as $$
declare
    v_part pgps_internal.part;
    v_events bigint := 0;
begin
    foreach v_part in array (size_if_large.batch_window).parts loop
        -- The span of the ids is known at once, and there are at most so many: count only if it is too large.
        if upper(v_part.ranges) - lower(v_part.ranges) > size_if_large.max_events then
            v_events := v_events + pgps_internal.count_ids(v_part.ranges);
        end if;
    end loop;
    -- The first batch of a new epoch is not split: it has many transactions, each of which would have to be looked for
    -- in every part.
    if v_events <= size_if_large.max_events or v_events <= 3 * pgps_internal.setting('max_part_events')::bigint
            or pgps_internal.temporary('pgps_rebaseline') is not null then
        return 0;
    end if;
    return v_events;
end
$$;
comment on function pgps_internal.size_if_large(pgps_internal.batch_window, integer) is
'How many events a batch would have, if it is to be dispatched in parts; else 0';

create or replace function pgps_internal.part_bounds(parts pgps_internal.part[]) returns bigint[]
language plpgsql
as $$
declare
    v_size bigint := pgps_internal.setting('max_part_events')::bigint;
    v_lowest bigint := (select min(lower(p.ranges)) from unnest(part_bounds.parts) p);
    v_upper bigint := (select max(upper(p.ranges)) from unnest(part_bounds.parts) p);
    v_whole int8multirange;
begin
    -- A registered client is told of a statement as one occurrence, so no statement is cut.
    select range_agg(int8range(c.lo, c.hi, '(]')) into v_whole
    from unnest(part_bounds.parts) p join pgps_internal.control c on c.xid = any (p.xids) and c.type_id = p.type_id
    where c.lo < c.hi and exists (select from pgps_internal.feature f where f.type_id = p.type_id
        and f.name = 'registration');
    -- Nor is an item that came over a link: neighbours have all of it when they have something of it. It was one batch
    -- of its origin, so it is not too large for one here.
    if pg_sequence_last_value('pgps_internal.arrival_id_seq'::regclass) is not null then
        select range_agg(w.r) into v_whole
        from (
            select unnest(v_whole) union all
            select int8range(a.lo, a.hi, '(]') from pgps_internal.arrival a
            where a.hi >= v_lowest and a.lo < v_upper and a.lo < a.hi
        ) w(r);
    end if;
    -- Cut at multiples of the size, so that a part lies in one segment of the log.
    return v_lowest || array(
        select b from generate_series((v_lowest / v_size + 1) * v_size, v_upper - 1, v_size) b
        where v_whole is null or not b <@ v_whole order by b) || v_upper;
end
$$;
comment on function pgps_internal.part_bounds(pgps_internal.part[]) is
'The event ids at which a large transaction is cut: its lowest first, the one after its highest last';

create or replace function pgps_internal.open_parts(batch_window pgps_internal.batch_window) returns bigint
language plpgsql
as $$
declare
    v_bounds bigint[] := pgps_internal.part_bounds((open_parts.batch_window).parts);
    v_batch bigint := pgps_internal.note_batch((open_parts.batch_window).batch);
    v_largest bigint;
begin
    with split as (
        select p.type_id, k, range_agg(int8range(greatest(lower(r), v_bounds[k]),
            least(upper(r), v_bounds[k + 1]))) as ranges
        from unnest((open_parts.batch_window).parts) p
        cross join lateral unnest(p.ranges) r
        cross join lateral generate_series(width_bucket(lower(r), v_bounds), width_bucket(upper(r) - 1, v_bounds)) k
        group by p.type_id, k
    ),
    noted as (
        insert into pgps_internal.large_part (batch_id, type_id, xids, ranges)
        select v_batch + dense_rank() over (order by s.k) - 1, s.type_id, p.xids, s.ranges
        from split s join unnest((open_parts.batch_window).parts) p using (type_id)
        returning pgps_internal.count_ids(ranges) as events
    )
    select max(n.events) into v_largest from noted n;
    return v_largest;
end
$$;
comment on function pgps_internal.open_parts(pgps_internal.batch_window) is
'Notes a batch, and the parts that it and the batches after it will be; returns how many events the largest part has';

create or replace function pgps_internal.dispatch_large_part(batch_id bigint) returns bigint
language plpgsql
as $$
declare
    v_batch pgps_internal.batch := pgps_internal.last_batch();
    v_parts pgps_internal.part[];
begin
    -- All parts have the same snapshots: with the newest batch, either the whole transaction is dispatched or nothing
    -- of it.
    if v_batch.batch_id < dispatch_large_part.batch_id then
        v_batch.batch_id := dispatch_large_part.batch_id;
        v_batch.created_at := pgps_internal.clock();
        perform pgps_internal.note_batch(v_batch);
    end if;
    with gone as (
        delete from pgps_internal.large_part p where p.batch_id = dispatch_large_part.batch_id
        returning p.type_id, p.xids, p.ranges
    )
    select array_agg((g.type_id, g.xids, g.ranges)::pgps_internal.part) into v_parts from gone g;
    return pgps_internal.dispatch_parts(dispatch_large_part.batch_id, v_parts);
end
$$;
comment on function pgps_internal.dispatch_large_part(bigint) is
'Matches one part of a large transaction as a batch of its own; returns how many events';

drop function if exists pgps_internal.most_at_once();
create or replace function pgps_internal.most_at_once(setting text) returns integer
language sql immutable
-- A worker has a time limit for each statement: what is larger is matched in parts. No SET clause, so that the planner
-- puts the expression in its place.
return least(setting::integer, 10000);
comment on function pgps_internal.most_at_once(text) is
'How many events a batch of a worker has at most: the setting max_batch_events, whose value is given, but no more than
10,000';

create or replace function pgps.dispatch_batch(max_events integer = null) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off
set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan
as $$
declare
    v_most integer;
    v_is_pending boolean;
    v_is_mended boolean;
    v_is_ready boolean;
    v_last pgps_internal.batch;
    v_window pgps_internal.batch_window;
    v_part pgps_internal.part;
    v_events bigint := 0;
    v_large bigint;
begin
    if dispatch_batch.max_events <= 0 then
        raise exception 'invalid max_events %', dispatch_batch.max_events using errcode = '22023',
            hint = 'Give a positive number, or null for the setting max_batch_events.';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        perform pgps_internal.require_read_committed();
    end if;
    lock table only pgps_internal.batch in share row exclusive mode;
    -- All questions in one statement, to save executor start-up.
    select coalesce(dispatch_batch.max_events, pgps_internal.most_at_once(s.value)),
        exists (select from pgps_internal.class c where c.is_pending) or exists (select from pgps_internal.newcomer)
    into v_most, v_is_pending
    from pgps_internal.setting s where s.name = 'max_batch_events';
    v_is_ready := pgps_internal.before_windows(v_is_pending);
    v_is_mended := pgps_internal.may_be_mended();
    while v_events = 0 loop
        if v_is_mended then
            v_events := pgps_internal.dispatch_mended(v_most);
            exit when v_events > 0;
        end if;
        v_last := pgps_internal.last_batch();
        v_window := case when v_last.batch_id is null or pgps_internal.is_same_life(v_last)
            then pgps_internal.next_window(v_last, v_most) else pgps_internal.begin_epoch(v_last) end;
        exit when (v_window.batch).batch_id is null;
        v_is_ready := pgps_internal.before_window(v_last, v_window.parts);
        foreach v_part in array v_window.parts loop
            if upper(v_part.ranges) - lower(v_part.ranges) > v_most then
                v_large := pgps_internal.size_if_large(v_window, v_most);
                if v_large > 0 then
                    return -v_large;
                end if;
                exit;
            end if;
        end loop;
        v_window.batch.batch_id := pgps_internal.note_batch(v_window.batch);
        v_events := pgps_internal.dispatch_parts((v_window.batch).batch_id, v_window.parts);
    end loop;
    if (v_window.batch).created_at < pgps_internal.clock() - interval '20 ms' then
        perform pgps_internal.note_matched((v_window.batch).batch_id - 1);
    end if;
    return v_events;
end
$$;
comment on function pgps.dispatch_batch(integer) is
'For a worker: as pgps.dispatch(max_events), but one batch and without the lanes (pgps.run_lanes); null: the setting
max_batch_events, 10,000 at most. For a transaction too large for one statement it returns the number of events,
negative, and leaves it to pgps.dispatch_large. Needs pgps_worker or pgps_admin. Errors: 22023 not positive, 42501.';

create or replace function pgps.dispatch_large(max_events integer = null) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off
set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan
as $$
declare
    v_most integer := coalesce(dispatch_large.max_events,
        pgps_internal.most_at_once(pgps_internal.setting('max_batch_events')));
    v_window pgps_internal.batch_window;
    v_last pgps_internal.batch;
    v_is_ready boolean;
begin
    if v_most <= 0 then
        raise exception 'invalid max_events %', v_most using errcode = '22023',
            hint = 'Give a positive number, or null for the setting max_batch_events.';
    end if;
    perform pgps_internal.require_read_committed();
    lock table only pgps_internal.batch in share row exclusive mode;
    v_last := pgps_internal.last_batch();
    v_window := pgps_internal.cut_window(v_most);
    if (v_window.batch).batch_id is null then
        return 0;
    end if;
    v_is_ready := pgps_internal.before_window(v_last, v_window.parts);
    return coalesce(pgps_internal.open_parts(v_window), 0);
end
$$;
comment on function pgps.dispatch_large(integer) is
'For a worker: begins to dispatch what pgps.dispatch_batch(max_events) found too large; returns how many events the
largest part has, 0 = nothing waits any more. In the same transaction pgps.dispatch_next_part() matches part after part
until it returns null: the parts become visible together when the transaction commits, and none of them takes longer
than a batch. Other dispatchers wait for it. Needs pgps_worker or pgps_admin. null: as in dispatch_batch. Errors: 22023
not positive, 42501.';

create or replace function pgps.dispatch_next_part() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off
set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan
as $$
declare
    v_last pgps_internal.batch;
    v_events bigint;
begin
    lock table only pgps_internal.batch in share row exclusive mode;
    v_events := (select pgps_internal.dispatch_large_part(min(p.batch_id)) from pgps_internal.large_part p
        having count(*) > 0);
    if v_events is not null and not exists (select from pgps_internal.large_part) then
        v_last := pgps_internal.last_batch();
        -- The batch before the first part: only parts of one transaction have the same snapshots and the same end.
        perform pgps_internal.note_matched(coalesce((select b.batch_id from pgps_internal.batch b
            where b.snapshot::text <> v_last.snapshot::text or b.upto is distinct from v_last.upto
                order by b.batch_id desc limit 1), 0));
    end if;
    return v_events;
end
$$;
comment on function pgps.dispatch_next_part() is
'For a worker: matches the next part of what pgps.dispatch_large has begun in this transaction; returns how many events,
null when none is left. Needs pgps_worker or pgps_admin. Errors: 42501.';

revoke all on function pgps.dispatch_batch(integer), pgps.dispatch_large(integer), pgps.dispatch_next_part()
    from public;
grant execute on function pgps.dispatch_batch(integer), pgps.dispatch_large(integer),
    pgps.dispatch_next_part() to pgps_worker, pgps_admin;
