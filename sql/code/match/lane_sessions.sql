-- The sessions that match lanes: each registers, so that another one can end it when a filter does not let itself be
-- cancelled.
-- Locks: share row exclusive on lane_session while a session registers; the row of a lane.
-- Writes: lane_session.

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
        where a.state = 'active' and clock_timestamp() - a.query_start > v_limit
            -- What is above the marks of lanes is no lane's.
            and pg_sequence_last_value(format('pgps_internal.lane_mark_%s', s.slot)::regclass) < 1::bigint << 62);
end
$$;
comment on function pgps.end_stuck_lanes() is
'As pgps.end_lane, for the sessions of all workers whose statement has taken longer than three times the limit of a lane
and 10 s. Needs pgps_worker or pgps_admin.';

revoke all on function pgps.open_lanes(), pgps.end_lane(integer), pgps.end_stuck_lanes() from public;
grant execute on function pgps.open_lanes(), pgps.end_lane(integer), pgps.end_stuck_lanes() to pgps_worker,
    pgps_admin;
