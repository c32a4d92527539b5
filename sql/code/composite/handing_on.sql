-- What a step has published is dispatched by the session that took it, as soon as its transaction has ended: nobody
-- need be woken for that. A session that does so has the setting pgps.dispatches: 'itself', or 'due' when there is
-- something. With another value the leader is told, as it is where this fails; should a session end in between, the
-- leader looks within a second.
-- Locks: share row exclusive on the parent of the batches, until the transaction ends; waits 20 ms for it.
-- Writes: nothing.

create or replace function pgps_internal.hand_on(events bigint) returns boolean
language plpgsql
as $$
begin
    -- Many are better dispatched beside the next step.
    if hand_on.events > 100 or coalesce(current_setting('pgps.dispatches', true), '') not in ('itself', 'due') then
        return false;
    end if;
    -- For the session; a rollback takes it back.
    perform set_config('pgps.dispatches', 'due', false);
    return true;
end
$$;
comment on function pgps_internal.hand_on(bigint) is
'True when this session will dispatch by itself what it has published, so many events; see pgps.dispatch_detected';

create or replace function pgps.dispatch_detected() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_timeout text := current_setting('lock_timeout');
    v_events bigint;
begin
    if current_setting('pgps.dispatches', true) is distinct from 'due' then
        return 0;
    end if;
    perform set_config('pgps.dispatches', 'itself', false);
    begin
        -- Who has it for longer dispatches much, and who detects has timers to heed.
        perform set_config('lock_timeout', '20ms', true);
        lock table only pgps_internal.batch in share row exclusive mode;
    exception when lock_not_available then
        perform pg_notify('pgps_dispatch', '');
        return 0;
    end;
    perform set_config('lock_timeout', v_timeout, true);
    v_events := pgps.dispatch_batch();
    if v_events not between 0 and 100 or (pgps_internal.last_batch()).upto is not null then
        -- Not all that waited was in this batch.
        perform pg_notify('pgps_dispatch', '');
    end if;
    return v_events;
end
$$;
comment on function pgps.dispatch_detected() is
'Behind pgps.detect_share, in a transaction of its own: as pgps.dispatch_batch() when that has published something which
nobody else is told of, else 0; also when another session dispatches, which is told then. For sessions with the setting
pgps.dispatches = itself. Needs pgps_worker or pgps_admin. Errors: 42501.';

revoke all on function pgps.dispatch_detected() from public;
grant execute on function pgps.dispatch_detected() to pgps_worker, pgps_admin;
