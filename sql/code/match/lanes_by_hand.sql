-- Lanes in a dispatch by hand (pgps.dispatch): those that are not slow are asked in its transaction, each within a
-- short time, so that nobody's filter holds up the others. What takes longer is left to a worker or pgps.run_lanes().
-- Locks: the row of a lane; the caller is the one dispatcher.
-- Writes: setting.

insert into pgps_internal.setting (name, value, kind, description) values
    ('dispatch_lane_timeout', '3 seconds', 'interval',
        'How long pgps.dispatch() asks the filters of one role over tables or functions, and a millisecond more for '
        'each event; what takes longer is left to a worker or pgps.run_lanes()')
on conflict (name) do nothing;

drop function if exists pgps_internal.run_lane_by_hand(bigint, interval);
create or replace function pgps_internal.run_lane_by_hand(lane_id bigint, "limit" interval, again boolean)
returns pgps_internal.lane_run
language plpgsql
as $$
declare
    v_began timestamptz;
    v_limit interval := run_lane_by_hand."limit";
    v_run pgps_internal.lane_run;
    v_state text;
    v_error text;
begin
    -- Stays behind when the session is killed, since a filter did not let itself be cancelled.
    perform setval('pgps_internal.lane_by_hand_seq', case when run_lane_by_hand.again
        then pgps_internal.lane_mark(run_lane_by_hand.lane_id) else run_lane_by_hand.lane_id end);
    -- The first call in a session loads PL/Python, which takes its time.
    perform pgps_internal.set_alarm(0);
    v_began := clock_timestamp();
    begin
        v_run := pgps_internal.run_lane(run_lane_by_hand.lane_id, false, 20, null, null, v_limit);
        perform pgps_internal.set_alarm(0);
        -- A signal that came just before that is noticed here.
        perform pg_sleep(0);
    exception when others or assert_failure or query_canceled then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
    end;
    perform pgps_internal.set_alarm(0), setval('pgps_internal.lane_by_hand_seq', 0);
    if v_error is not null and not (v_state = '57014' and clock_timestamp() - v_began >= v_limit) then
        raise exception '%', v_error using errcode = v_state;
    elsif v_error is not null or v_run.told is null
        -- A filter may swallow its cancellation, and return.
        and clock_timestamp() - v_began >= v_limit + v_run.events * interval '1 millisecond' then
        v_run := row(0, 0, true, (select pgps_internal.note_slow_lane(l, null, 1, v_limit) from pgps_internal.lane l
            where l.lane_id = run_lane_by_hand.lane_id))::pgps_internal.lane_run;
    end if;
    return v_run;
end
$$;
comment on function pgps_internal.run_lane_by_hand(bigint, interval, boolean) is
'As run_lane, in a dispatch by hand: a lane that takes longer than a limit is slow from then on. again: the last session
that matched this lane by hand was killed in it';

create or replace function pgps_internal.run_lanes_here() returns void
language plpgsql
as $$
declare
    v_limit interval := pgps_internal.setting('dispatch_lane_timeout')::interval;
    v_lane bigint;
    v_left bigint := (select s.last_value from pgps_internal.lane_by_hand_seq s);
    v_run pgps_internal.lane_run;
begin
    -- A server that stops, or a session that is ended for another reason, may do so in anybody's lane: it is the lane's
    -- fault only when that happens twice in a row. Slow ones have to wait for a worker, where there may be none.
    if v_left > pgps_internal.lane_mark(0) then
        perform pgps_internal.note_slow_lane(l, null, 1, v_limit), setval('pgps_internal.lane_by_hand_seq', 0)
        from pgps_internal.lane l where pgps_internal.lane_mark(l.lane_id) = v_left;
    end if;
    foreach v_lane in array pgps_internal.lanes_with_work(0, false) loop
        loop
            v_run := pgps_internal.run_lane_by_hand(v_lane, v_limit, v_lane = v_left);
            v_left := nullif(v_left, v_lane);
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
