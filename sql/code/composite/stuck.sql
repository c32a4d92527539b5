-- Detection that does not let itself be cancelled: a filter or an attribute that swallows its cancellation would hold
-- up the composite events of everybody. What a session that detects is about stands in the sequence of its slot, as
-- for sessions that match lanes (lane_sessions.sql), and another session ends it.
-- Locks: those of pgps.open_lanes; the row of a composite event.
-- Writes: lane_session.

create or replace function pgps_internal.detection_mark(composite_id bigint, seconds double precision) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_began timestamptz := clock_timestamp();
begin
    -- Above the marks of lanes: 31 bits for the composite event, 31 for when its time is over.
    return (1::bigint << 62) + (detection_mark.composite_id % (1::bigint << 31) << 31) + ceil(detection_mark.seconds
        + extract(epoch from v_began - timestamptz '2025-01-01 00:00+00'))::bigint;
end
$$;
comment on function pgps_internal.detection_mark(bigint, double precision) is
'What a session marks in the sequence of its slot while code of a composite event''s owner runs, for so many seconds at
most';

create or replace function pgps_internal.detection_slot() returns integer
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select s.slot from pgps_internal.lane_session s join pg_stat_get_activity(pg_backend_pid()) a
        on a.pid = s.pid and a.backend_start = s.started_at
$$;
comment on function pgps_internal.detection_slot() is 'The slot of this session; null unless it is one of a worker''s';

create or replace function pgps_internal.mark_detection(composite_id bigint, "limit" interval) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot integer := pgps_internal.detection_slot();
begin
    if v_slot is not null then
        perform setval(format('pgps_internal.lane_mark_%s', v_slot)::regclass,
            case when mark_detection.composite_id is null then 1::bigint << 62
                else pgps_internal.detection_mark(mark_detection.composite_id,
                    extract(epoch from mark_detection."limit")::double precision) end);
    end if;
end
$$;
comment on function pgps_internal.mark_detection(bigint, interval) is
'Notes whose filter or attributes a session evaluates, and how long that may take, at once and whether or not the
transaction commits; composite_id: null = nobody''s';

create or replace function pgps.open_detection() returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot integer := pgps.open_lanes();
begin
    perform setval(format('pgps_internal.lane_mark_%s', v_slot)::regclass, 1::bigint << 62);
    return v_slot;
end
$$;
comment on function pgps.open_detection() is
'Registers this session as one that detects, so that pgps.end_stuck_detection can end it; returns its slot. Needs
pgps_worker or pgps_admin. Errors: 53300 too many.';

create or replace function pgps_internal.end_detection(session pgps_internal.lane_session, composite_id bigint)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
begin
    if not pg_terminate_backend((end_detection.session).pid, 5000) then
        return format('server process %s does not end', (end_detection.session).pid);
    end if;
    delete from pgps_internal.lane_session s
    where s.slot = (end_detection.session).slot and s.pid = (end_detection.session).pid;
    select t.name into v_name from pgps_internal.composite c join pgps_internal.event_type t using (type_id)
    where c.composite_id = end_detection.composite_id;
    if not found then
        return null;
    end if;
    perform pgps_internal.suspend_composite(end_detection.composite_id,
        'its filter or attributes take too long, and do not let themselves be cancelled');
    return format('suspended composite event "%s": its filter or attributes do not let themselves be cancelled',
        v_name);
end
$$;
comment on function pgps_internal.end_detection(pgps_internal.lane_session, bigint) is
'Ends a session that detects, and suspends the composite event that it was about. Returns the message to report';

create or replace function pgps.end_stuck_detection() returns text[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s'
as $$
declare
    v_now bigint := extract(epoch from statement_timestamp() - timestamptz '2025-01-01 00:00+00')::bigint;
begin
    return array(
        select pgps_internal.end_detection(m.session, m.mark >> 31)
        from (select s as session, x.value - (1::bigint << 62) as mark
            from pgps_internal.lane_session s
            join pg_stat_get_activity(null) a on a.pid = s.pid and a.backend_start = s.started_at
            cross join lateral (select pg_sequence_last_value(
                format('pgps_internal.lane_mark_%s', s.slot)::regclass) as value) x
            where x.value > 1::bigint << 62 offset 0) m
        -- It is cancelled when its time is over; who does not heed that is ended.
        where (m.mark & ((1::bigint << 31) - 1)) + 5 < v_now);
end
$$;
comment on function pgps.end_stuck_detection() is
'Ends sessions of pgps.open_detection in which a filter or an attribute of a composite event goes on 5 s after it was
cancelled, and suspends that composite event. Returns messages to report. Waits up to 5 s for each to end. Needs
pgps_worker or pgps_admin.';

revoke all on function pgps.open_detection(), pgps.end_stuck_detection() from public;
grant execute on function pgps.open_detection(), pgps.end_stuck_detection() to pgps_worker, pgps_admin;
