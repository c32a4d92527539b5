-- Running lanes: what a worker calls, or somebody by hand. Quick lanes are matched one after the other, several in a
-- short transaction; a slow one is matched alone, with the time limit of the setting lane_timeout.
-- Locks: the row of a lane.
-- Writes: nothing.

create or replace function pgps._lanes(seen bigint, slow boolean, out lanes bigint[], out last bigint)
language plpgsql security definer stable
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off
set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan
as $$
begin
    -- The newest batch is read first: a batch that comes in between is looked for again by the next call.
    last := coalesce((pgps_internal.last_batch()).batch_id, 0);
    lanes := pgps_internal.lanes_with_work(_lanes.seen, _lanes.slow);
end
$$;
comment on function pgps._lanes(bigint, boolean) is 'See pgps.run_lanes';

create or replace function pgps._run_lanes(
    lanes bigint[], at integer, slow boolean, seconds double precision, out next integer, out late boolean,
    out told text[]
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off
set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan
as $$
declare
    v_run pgps_internal.lane_run;
    v_began timestamptz := clock_timestamp();
    v_entered timestamptz;
    v_slot integer := (select s.slot from pgps_internal.lane_session s where s.pid = pg_backend_pid());
begin
    perform pgps_internal.require_read_committed();
    next := coalesce(_run_lanes.at, 1);
    late := false;
    told := '{}';
    -- Several lanes to a transaction while they take no time: the transaction is part of what a lane with one event
    -- costs.
    while next <= cardinality(_run_lanes.lanes) and not late
        and clock_timestamp() - v_began < interval '20 milliseconds' loop
        v_entered := clock_timestamp();
        -- A slow lane matches one batch at a time, since its time limit is for one batch.
        v_run := pgps_internal.run_lane(_run_lanes.lanes[next], _run_lanes.slow, case when _run_lanes.slow then 1
            else 100 end, _run_lanes.seconds,
            v_slot);
        if v_run.told is null and not _run_lanes.slow and cardinality(_run_lanes.lanes) > 1
                and v_run.batches <= 1 and clock_timestamp() - v_entered > interval '0.25 seconds' then
            -- Others wait for it, and again for each batch.
            v_run.told := pgps_internal.note_slow_lane(l, null, 1, '0.25 seconds') from pgps_internal.lane l
                where l.lane_id = _run_lanes.lanes[next];
        end if;
        if v_run.told is not null then
            told := told || v_run.told;
        end if;
        if coalesce(v_run.is_done, true) or v_run.told is not null then
            next := next + 1;
        end if;
        late := coalesce(clock_timestamp() - statement_timestamp() > _run_lanes.seconds * interval '1 second', false);
    end loop;
    if next > cardinality(_run_lanes.lanes) or late then
        next := null;
    end if;
end
$$;
comment on function pgps._run_lanes(bigint[], integer, boolean, double precision) is
'Matches lanes in one transaction, beginning with number at of the array; next: the number to go on with, null = none
left, or late. See pgps.run_lanes';

create or replace procedure pgps.run_lanes(
    inout seen bigint = 0, inout told text[] = '{}', slow boolean = null, seconds double precision = null
)
language plpgsql
as $$
declare
    v_lanes bigint[];
    v_last bigint;
    v_next integer;
    v_late boolean;
    v_told text[];
    v_more boolean := true;
begin
    -- All names are qualified, and no operator is used: a filter may have left another search_path behind.
    select l.lanes, l.last into v_lanes, v_last from pgps._lanes(run_lanes.seen, run_lanes.slow) l;
    loop
        select r.next, r.late, r.told into v_next, v_late, v_told
            from pgps._run_lanes(v_lanes, v_next, run_lanes.slow, run_lanes.seconds) r;
        commit;
        run_lanes.told := pg_catalog.array_cat(run_lanes.told, v_told);
        exit when v_next is null;
    end loop;
    while run_lanes.slow is not true and v_more loop
        select s.more into v_more from pgps._share_left(run_lanes.seconds) s(more);
        commit;
    end loop;
    if not v_late then
        run_lanes.seen := v_last;
    end if;
end
$$;
comment on procedure pgps.run_lanes(bigint, text[], boolean, double precision) is
'Matches filters that read more than the event (lanes, one for each role), in short transactions; the worker calls it,
and pgps.dispatch does the same for lanes that are not slow. Then shares out to competing consumers what the lanes left
for that, in portions, unless slow is true. slow: true = only slow lanes, false = only the others, null
= both. seconds: begins no batch later than that, null = no limit. seen: looks only for batches after this one, and is
the newest one on return; told: messages about what was too slow. Not inside a transaction block. Needs pgps_worker or
pgps_admin.';

create or replace function pgps.slow_lanes() returns table (lane_id bigint, role name, timeout double precision)
language plpgsql security definer stable
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
begin
    return query
    select l.lane_id, pg_get_userbyid(l.owner), extract(epoch from pgps_internal.lane_limit(l))::double precision
    from unnest(pgps_internal.lanes_with_work(0, true)) with ordinality w(id, place)
        join pgps_internal.lane l on l.lane_id = w.id
    order by w.place;
end
$$;
comment on function pgps.slow_lanes() is
'Slow lanes that have something to do, for pgps.run_slow_lane, and the time limit of each in seconds. Needs pgps_worker
or pgps_admin.';

create or replace function pgps_internal.lane_limit(lane pgps_internal.lane) returns interval
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- A role with hundreds of signatures needs longer, although none of its filters is slow.
    select pgps_internal.setting('lane_timeout')::interval
        * greatest(1, ceil((select count(*) from pgps_internal.signature g where g.in_lane
            and g.owner = (lane_limit.lane).owner) / 100.0))
$$;
comment on function pgps_internal.lane_limit(pgps_internal.lane) is 'How long one batch of a lane may take';

create or replace function pgps.run_slow_lane(lane_id bigint, out is_done boolean, out told text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off
set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan
as $$
declare
    v_run pgps_internal.lane_run;
begin
    perform pgps_internal.require_read_committed();
    v_run := pgps_internal.run_lane(run_slow_lane.lane_id, true, 1, null,
        (select s.slot from pgps_internal.lane_session s where s.pid = pg_backend_pid()));
    is_done := coalesce(v_run.is_done, true);
    told := v_run.told;
end
$$;
comment on function pgps.run_slow_lane(bigint) is
'Matches one batch of a slow lane in this transaction; statement_timeout is the limit, and a filter that exceeds it is
noted. Needs pgps_worker or pgps_admin.';

revoke all on function pgps._lanes(bigint, boolean), pgps._run_lanes(bigint[], integer, boolean, double precision),
    pgps.slow_lanes(), pgps.run_slow_lane(bigint) from public;
revoke all on procedure pgps.run_lanes(bigint, text[], boolean, double precision) from public;
grant execute on function pgps._lanes(bigint, boolean), pgps._run_lanes(bigint[], integer, boolean, double precision),
    pgps.slow_lanes(), pgps.run_slow_lane(bigint) to pgps_worker, pgps_admin;
grant execute on procedure pgps.run_lanes(bigint, text[], boolean, double precision) to pgps_worker, pgps_admin;
