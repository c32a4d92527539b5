-- Running lanes, dealing with slow ones, and showing them. Lanes are quick or slow: quick ones are matched one after
-- the other, several in a short transaction; a slow one is matched alone, with the time limit of the setting
-- lane_timeout.
-- Locks: the row of a lane; share row exclusive on lane_session while a session registers.
-- Writes: asked_again, class, joining, lane, lane_session, setting, subscription.

insert into pgps_internal.setting (name, value, kind, description) values
    ('lane_timeout', '5 seconds', 'interval',
        'A filter over tables or functions that takes longer for a batch has failed; three times in a row suspend it')
on conflict (name) do nothing;

create or replace function pgps_internal.mark_lane(slot integer, lane_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if mark_lane.slot is not null then
        -- The offset keeps lanes apart from signatures, whose ids replace this mark while they are matched.
        perform setval(format('pgps_internal.lane_mark_%s', mark_lane.slot)::regclass,
            coalesce((1::bigint << 50) + mark_lane.lane_id, 0));
    end if;
end
$$;
comment on function pgps_internal.mark_lane(integer, bigint) is
'Notes which lane a session is matching, at once and whether or not the transaction commits; lane_id: null = none';

create or replace function pgps_internal.note_quick_lane(lane pgps_internal.lane) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not (note_quick_lane.lane).is_slow then
        return;
    end if;
    -- The filters have got through this batch: their failures are counted from zero.
    update pgps_internal.class c set failures = 0
    from pgps_internal.signature g where g.signature_id = c.signature_id and g.in_lane
        and g.owner = (note_quick_lane.lane).owner
        and c.is_active and c.failures > 0;
    if (note_quick_lane.lane).slow_until < pgps_internal.clock()
        and clock_timestamp() - statement_timestamp() < interval '0.25 seconds' then
        update pgps_internal.lane l set is_slow = false, last_error = null
            where l.lane_id = (note_quick_lane.lane).lane_id;
    end if;
end
$$;
comment on function pgps_internal.note_quick_lane(pgps_internal.lane) is
'Notes that a slow lane got through; when that was quick, the lane is matched together with the other quick ones from
now on';

create or replace function pgps_internal.note_slow_lane(
    lane pgps_internal.lane, signature_id bigint, strikes integer, "limit" interval
) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_failures integer := pgps_internal.setting('filter_failures')::integer;
    v_error text := format('takes longer than %s s', trim_scale(extract(epoch from note_slow_lane."limit")));
    v_names text;
    v_again integer := case when (note_slow_lane.lane).failed_at > pgps_internal.clock() - interval '1 hour'
        then (note_slow_lane.lane).offences else 0 end + 1;
begin
    -- Slow for longer each time: a lane that is quick and slow by turns would otherwise delay the others each time.
    update pgps_internal.lane l set is_slow = true, offences = v_again, failed_at = pgps_internal.clock(),
        last_error = 'a filter ' || v_error,
        slow_until = pgps_internal.clock() + least(power(2, least(v_again, 12)), 3600) * interval '1 second'
    where l.lane_id = (note_slow_lane.lane).lane_id;
    perform pg_notify('pgps_lanes', '');
    if not (note_slow_lane.lane).is_slow then
        return format('the filters of role %s are slow: a filter %s', (note_slow_lane.lane).owner, v_error);
    elsif note_slow_lane.signature_id is null then
        return pgps_internal.note_slow_joining(note_slow_lane.lane, note_slow_lane.strikes, v_error);
    end if;
    update pgps_internal.class c set failures = c.failures + note_slow_lane.strikes * (v_failures + 2) / 3,
        last_error = v_error
    where c.signature_id = note_slow_lane.signature_id and c.is_active;
    perform pgps_internal.suspend_class(c.class_id, pgps_internal.lane_position((note_slow_lane.lane).lane_id),
        format('filter: %s', v_error))
    from pgps_internal.class c where c.signature_id = note_slow_lane.signature_id and c.is_active
        and c.failures >= v_failures;
    select string_agg(s.name, ', ' order by s.name) into v_names
    from pgps_internal.class c join pgps_internal.member m using (class_id) join pgps_internal.subscription s
        using (subscription_id)
    where c.signature_id = note_slow_lane.signature_id and not c.is_active and s.state = 'suspended';
    return case when v_names is not null then format('suspended %s: the filter %s', v_names, v_error)
        else format('a filter of role %s %s', (note_slow_lane.lane).owner, v_error) end;
end
$$;
comment on function pgps_internal.note_slow_lane(pgps_internal.lane, bigint, integer, interval) is
'Notes that a filter has taken too long: a quick lane becomes a slow one; in a slow one three strikes suspend the
subscriptions of the filter. Returns the message to report. signature_id: null = it was one that joins an event type,
catches up or is asked again';

create or replace function pgps_internal.note_broken_lane(lane pgps_internal.lane, sqlstate text, error text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgps_internal.lane l set is_slow = true, failed_at = pgps_internal.clock(),
        slow_until = pgps_internal.clock() + interval '10 seconds',
        last_error = format('%s (%s)', note_broken_lane.error, note_broken_lane.sqlstate)
    where l.lane_id = (note_broken_lane.lane).lane_id;
    return format('the filters of role %s cannot be asked: %s (%s)', (note_broken_lane.lane).owner,
        note_broken_lane.error, note_broken_lane.sqlstate);
end
$$;
comment on function pgps_internal.note_broken_lane(pgps_internal.lane, text, text) is
'Notes that a lane failed, and not in a filter: it is tried again among the slow ones. Returns the message to report';

create or replace function pgps_internal.note_slow_joining(lane pgps_internal.lane, strikes integer, error text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_joining pgps_internal.joining;
    v_class bigint;
    v_name text;
begin
    select j.* into v_joining from pgps_internal.joining j join pgps_internal.subscription s using (subscription_id)
    where s.owner = (note_slow_joining.lane).owner and j.failures < 3 order by j.from_batch, j.type_id,
        j.subscription_id limit 1;
    if not found then
        -- Otherwise it was one that was catching up: its subscriptions are suspended.
        select c.class_id into v_class from pgps_internal.class c join pgps_internal.signature g using (signature_id)
        where c.is_pending and g.in_lane and c.owner = (note_slow_joining.lane).owner order by c.class_id limit 1;
        if not found then
            -- Or one that was asked again about an event, which stays in the exception queue.
            delete from pgps_internal.asked_again a
                where (a.subscription_id, a.event_id) = (select b.subscription_id, b.event_id
                from pgps_internal.asked_again b where b.owner = (note_slow_joining.lane).owner
                    order by b.subscription_id, b.event_id limit 1);
            return format('a filter of role %s %s', (note_slow_joining.lane).owner, note_slow_joining.error);
        end if;
        update pgps_internal.class c set is_pending = false, last_error = note_slow_joining.error
            where c.class_id = v_class;
        update pgps_internal.subscription s set state = 'suspended',
            last_error = format('filter: %s', note_slow_joining.error)
        from pgps_internal.member m where m.class_id = v_class and s.subscription_id = m.subscription_id
            and s.kind <> 'link';
        return format('a filter of role %s %s', (note_slow_joining.lane).owner, note_slow_joining.error);
    end if;
    update pgps_internal.joining j set failures = greatest(j.failures, 0) + note_slow_joining.strikes
    where j.subscription_id = v_joining.subscription_id and j.type_id = v_joining.type_id returning * into v_joining;
    select t.name into v_name from pgps_internal.event_type t where t.type_id = v_joining.type_id;
    update pgps_internal.subscription s set last_error = format('event type "%s": the filter %s', v_name,
        note_slow_joining.error),
        state = case when v_joining.failures >= 3 then 'suspended' else s.state end
    where s.subscription_id = v_joining.subscription_id;
    return format('a filter of role %s %s: it does not join event type "%s"', (note_slow_joining.lane).owner,
        note_slow_joining.error, v_name);
end
$$;
comment on function pgps_internal.note_slow_joining(pgps_internal.lane, integer, text) is
'Notes that a filter has taken too long while it joined an event type, where three strikes suspend its subscription,
while it caught up, where one does, or while it was asked again. Returns the message to report';

-- ---------------------------------------------------------------------------------------------------------------------
-- Running lanes
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.run_lanes_here() returns void
language plpgsql
as $$
declare
    v_lane bigint;
    v_run pgps_internal.lane_run;
begin
    foreach v_lane in array pgps_internal.lanes_with_work(0, false) loop
        loop
            v_run := pgps_internal.run_lane(v_lane, false, 100, null, null);
            exit when v_run is null or v_run.is_done or v_run.told is not null;
        end loop;
        if v_run.told is not null then
            raise warning '%', v_run.told
                using hint = 'See pgps.lanes. A worker, or call pgps.run_lanes(), goes on with it.';
        end if;
    end loop;
end
$$;
comment on function pgps_internal.run_lanes_here() is
'Matches the lanes that are not slow and that no other session has, in this transaction; see pgps.dispatch';

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
        -- A slow lane matches one batch at a time, since its time limit is for one batch.
        v_run := pgps_internal.run_lane(_run_lanes.lanes[next], _run_lanes.slow, case when _run_lanes.slow then 1
            else 100 end, _run_lanes.seconds,
            v_slot);
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
    if not v_late then
        run_lanes.seen := v_last;
    end if;
end
$$;
comment on procedure pgps.run_lanes(bigint, text[], boolean, double precision) is
'Matches filters that read more than the event (lanes, one for each role), in short transactions; the worker calls it,
and pgps.dispatch does the same for lanes that are not slow. slow: true = only slow lanes, false = only the others, null
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

-- ---------------------------------------------------------------------------------------------------------------------
-- The sessions that match lanes
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps.open_lanes() returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot integer;
begin
    lock table pgps_internal.lane_session in share row exclusive mode;
    delete from pgps_internal.lane_session s
    where s.pid = pg_backend_pid()
        or not exists (select from pg_stat_get_activity(s.pid) a where a.backend_start = s.started_at);
    insert into pgps_internal.lane_session (slot, pid, started_at)
    select n, pg_backend_pid(), (select a.backend_start from pg_stat_get_activity(pg_backend_pid()) a)
    from generate_series(0, 31) n where not exists (select from pgps_internal.lane_session s where s.slot = n)
        order by n limit 1
    returning slot into v_slot;
    if v_slot is null then
        raise exception 'there are 32 sessions that match lanes already' using errcode = '53300',
            hint = 'Run fewer workers.';
    end if;
    perform pgps_internal.mark_lane(v_slot, null) from (select) one;
    return v_slot;
end
$$;
comment on function pgps.open_lanes() is
'Registers this session as one that matches lanes, so that pgps.end_lane can end it; returns its number. Needs
pgps_worker or pgps_admin. Errors: 53300 too many.';

create or replace function pgps.end_lane(session integer) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s'
as $$
declare
    v_session pgps_internal.lane_session;
    v_mark bigint;
    v_signature bigint;
    v_lane pgps_internal.lane;
begin
    select s.* into v_session from pgps_internal.lane_session s where s.slot = end_lane.session;
    if not found then
        return null;
    end if;
    execute format('select last_value from pgps_internal.lane_mark_%s', v_session.slot) into v_mark;
    if exists (select from pg_stat_get_activity(v_session.pid) a where a.backend_start = v_session.started_at)
            and not pg_terminate_backend(v_session.pid, 5000) then
        return format('server process %s does not end', v_session.pid);
    end if;
    delete from pgps_internal.lane_session s where s.slot = v_session.slot and s.pid = v_session.pid;
    v_signature := case when v_mark < 1::bigint << 50 then v_mark end;
    select l.* into v_lane from pgps_internal.lane l
    where l.lane_id = v_mark - (1::bigint << 50)
        or l.owner = (select g.owner from pgps_internal.signature g where g.signature_id = v_signature)
    for update;
    if not found then
        return null;
    end if;
    return pgps_internal.note_slow_lane(v_lane, v_signature, 3, pgps_internal.lane_limit(v_lane));
end
$$;
comment on function pgps.end_lane(session integer) is
'Ends a session of pgps.open_lanes whose filter cannot be cancelled, and notes that filter: a quick lane becomes a slow
one, in a slow one the filter''s subscriptions are suspended. Returns the message to report. Waits up to 5 s for the
session to end. Needs pgps_worker or pgps_admin.';

create or replace function pgps.end_stuck_lanes() returns text[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_limit interval := 10 * interval '1 second' + 3 * coalesce((select max(pgps_internal.lane_limit(l))
        from pgps_internal.lane l), interval '0');
begin
    return array(select pgps.end_lane(s.slot) from pgps_internal.lane_session s
        join pg_stat_get_activity(null) a on a.pid = s.pid and a.backend_start = s.started_at
        where a.state = 'active' and clock_timestamp() - a.query_start > v_limit);
end
$$;
comment on function pgps.end_stuck_lanes() is
'As pgps.end_lane, for the sessions of all workers whose statement has taken longer than three times the limit of a lane
and 10 s. Needs pgps_worker or pgps_admin.';

-- ---------------------------------------------------------------------------------------------------------------------
-- Views and metrics
-- ---------------------------------------------------------------------------------------------------------------------

create or replace view pgps.lanes as
select pg_get_userbyid(l.owner) as role,
    case when l.is_slow then 'slow' when n.first is not null or j.joining > 0 then 'behind' else 'idle' end as state,
    p.batch_id as position, coalesce(n.signatures, 0)::bigint as filters, coalesce(b.batches, 0)::bigint as lag_batches,
    coalesce(b.events, 0)::bigint as lag_events,
    coalesce(extract(epoch from pgps._clock() - (select x.created_at from pgps_internal.batch x
        where x.batch_id = n.first limit 1)), 0)::double precision
        as lag_seconds,
    j.joining, l.last_error, l.failed_at
from pgps_internal.lane l
join pgps_internal.lane_place p using (lane_id)
left join lateral (select min(x.batch_id) as first,
    (select count(*) from pgps_internal.signature g where g.in_lane and g.owner = l.owner) as signatures
    from pgps_internal.lane_next x where x.lane_id = l.lane_id) n on true
left join lateral (select count(distinct x.batch_id) as batches, sum(x.events) as events
    from pgps_internal.lane_type t join pgps_internal.batch_type x on x.type_id = t.type_id
    where t.owner = l.owner and n.first is not null and x.batch_id >= n.first
        and x.batch_id > greatest(p.batch_id, t.from_batch)) b on true
cross join lateral (select count(*) as joining from pgps_internal.joining q join pgps_internal.subscription s
    using (subscription_id)
    where s.owner = l.owner) j
where pg_has_role(current_user, l.owner::oid, 'usage') or pg_has_role(current_user, 'pgps_admin', 'usage');
comment on view pgps.lanes is
'The lanes, where the filters of each role are asked that read more than the event; the reader''s, all for pgps_admin.
state: idle, behind or slow (a filter took longer than lane_timeout); position: the batch up to which the filters have
been asked; lag_batches, lag_events, lag_seconds: what waits for them, and for how long; joining: new event types that
pattern subscriptions have still to join';

create or replace function pgps.slow_lane_counts()
returns table (role name, lag_batches bigint, lag_events bigint, lag_seconds double precision, last_error text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
    if exists (select from pgps_internal.lane l where l.is_slow) then
        return query
        select v.role, v.lag_batches, v.lag_events, v.lag_seconds, left(v.last_error, 1000) from pgps.lanes v
            where v.state = 'slow' order by v.role;
    end if;
end
$$;
comment on function pgps.slow_lane_counts() is
'For a worker''s metrics: the slow lanes of pgps.lanes, and how much waits for each. Needs pgps_worker or pgps_admin.
Errors: 42501.';

grant select on pgps.lanes to public;
revoke all on all functions in schema pgps_internal from public;
revoke all on function pgps._lanes(bigint, boolean), pgps._run_lanes(bigint[], integer, boolean, double precision),
    pgps.slow_lanes(), pgps.run_slow_lane(bigint),
    pgps.slow_lane_counts(), pgps.open_lanes(), pgps.end_lane(integer), pgps.end_stuck_lanes() from public;
revoke all on procedure pgps.run_lanes(bigint, text[], boolean, double precision) from public;
grant execute on function pgps._lanes(bigint, boolean), pgps._run_lanes(bigint[], integer, boolean, double precision),
    pgps.slow_lanes(), pgps.run_slow_lane(bigint),
    pgps.slow_lane_counts(), pgps.open_lanes(), pgps.end_lane(integer), pgps.end_stuck_lanes() to pgps_worker,
    pgps_admin;
grant execute on procedure pgps.run_lanes(bigint, text[], boolean, double precision) to pgps_worker, pgps_admin;
