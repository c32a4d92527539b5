-- Who dispatches, and how it and the waiting clients are woken. Locks: advisory (1885826163, 2) awake, (1885826163, 3) leader.

create or replace function pgps_internal.wake_members(classes bigint[]) returns bigint
language plpgsql
as $$
declare
    v_woken bigint;
    v_sum text;
begin
    -- The same channel twice is sent once by the server. Of many subscriptions only those that have no channel of their own, or are not
    -- active, are looked up.
    perform pg_notify(case when s.subscription_id is null then 'pgps_' || m.subscription_id else 'pgps_internal' end, '')
    from unnest(wake_members.classes) c
    join pgps_internal.member m on m.class_id = c
    left join pgps_internal.subscription s on s.subscription_id = m.subscription_id and (s.callback is not null or s.state <> 'active')
    where s.subscription_id is null or s.state = 'active';
    get diagnostics v_woken = row_count;
    -- A text that is only added to: what somebody else has put there is nothing to stumble over.
    v_sum := set_config('pgps.woken', concat_ws('+', nullif(current_setting('pgps.woken', true), ''), v_woken), true);
    return v_woken;
end
$$;
comment on function pgps_internal.wake_members(bigint[]) is
'One NOTIFY for each subscription whose class has something in a batch, one for all internal ones; the setting pgps.woken tells the
worker, until the transaction ends, how many there are of both, a sum for each event type';

create or replace function pgps.try_lead() returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from pg_locks l where l.locktype = 'advisory' and l.classid = 1885826163 and l.objid = 3 and l.objsubid = 2
            and l.database = (select d.oid from pg_database d where d.datname = current_database()) and l.pid = pg_backend_pid() and l.granted)
        or pg_try_advisory_lock(1885826163, 3) then
        return true;
    end if;
    perform pgps_internal.evict_impostor(3);
    return false;
end
$$;
comment on function pgps.try_lead() is 'Makes this session the leader if there is none; true while it is. Held until the session ends.';

create or replace function pgps.stay_awake() returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
begin
    -- It waits: among many publishers there is always one that commits with the lock shared, and a mere try would never get it, while a
    -- request that waits makes their tries fail at once (302 events a second with tries only, 2,731 with the lock, 20 publishers).
    perform pg_advisory_lock(1885826163, 2);
    return true;
exception when lock_not_available then
    perform pgps_internal.evict_impostor(2);
    return false;
end
$$;
comment on function pgps.stay_awake() is
'Takes the awake lock, so that publishers need not NOTIFY; waits up to 0.1 s for those that commit just now, false after that';

create or replace function pgps.fall_asleep() returns pg_snapshot
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_advisory_unlock(1885826163, 2)
    from pg_locks l where l.locktype = 'advisory' and l.classid = 1885826163 and l.objid = 2 and l.objsubid = 2
        and l.database = (select d.oid from pg_database d where d.datname = current_database())
        and l.pid = pg_backend_pid() and l.mode = 'ExclusiveLock' and l.granted;
    return pg_current_snapshot();
end
$$;
comment on function pgps.fall_asleep() is
'Lets the awake lock go and returns who was still running then: until these have ended, a commit may come without NOTIFY';

create or replace function pgps.all_ended(since pg_snapshot) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select pg_snapshot_xmin(pg_current_snapshot()) >= pg_snapshot_xmax(all_ended.since) $$;
comment on function pgps.all_ended(pg_snapshot) is 'True when every transaction that ran at that snapshot has ended';

revoke all on all functions in schema pgps_internal from public;
revoke all on function pgps.try_lead(), pgps.stay_awake(), pgps.fall_asleep(), pgps.all_ended(pg_snapshot) from public;
grant execute on function pgps.try_lead(), pgps.stay_awake(), pgps.fall_asleep(), pgps.all_ended(pg_snapshot) to pgps_worker, pgps_admin;
