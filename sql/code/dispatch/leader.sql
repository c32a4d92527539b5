-- Which session dispatches: the leader, named in a row. Whether it sleeps is stored in a sequence, which is read and
-- set outside of transactions, and which no other role can set; how it is woken stands in wake.sql (decision 23).
-- Locks: share row exclusive on the leader's table while it changes.
-- Writes: leader.

create or replace function pgps_internal.say_asleep() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform setval('pgps_internal.wake_seq', extract(epoch from clock_timestamp())::bigint);
end
$$;
comment on function pgps_internal.say_asleep() is
'Tells publishers, effective at once, to wake the dispatcher; they believe it for some seconds';

create or replace function pgps_internal.leads() returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select from pgps_internal.leader l join pg_stat_get_activity(pg_backend_pid()) a on a.pid = l.pid
            and a.backend_start = l.started_at);
end
$$;
comment on function pgps_internal.leads() is 'True in the session that dispatches';

drop function if exists pgps.try_lead();

create or replace function pgps.try_lead(bell integer = null) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_leader pgps_internal.leader;
    v_is_me boolean;
    v_lives boolean;
begin
    -- The first round looks without the lock. The second looks again with it, since the leader may have changed in
    -- between.
    for v_round in 1..2 loop
        select l.* into v_leader from pgps_internal.leader l;
        select coalesce(bool_or(a.pid = pg_backend_pid()), false), count(*) > 0 into v_is_me, v_lives
        from pg_stat_get_activity(v_leader.pid) a where v_leader.pid is not null
            and a.backend_start = v_leader.started_at;
        exit when v_is_me and v_leader.bell_pid is not distinct from try_lead.bell;
        if v_lives and not v_is_me then
            return false;
        elsif v_round = 1 then
            lock table only pgps_internal.leader in share row exclusive mode;
            perform pg_stat_clear_snapshot();
        else
            insert into pgps_internal.leader (pid, started_at, bell_pid, bell_started_at)
            select a.pid, a.backend_start, b.pid, b.backend_start
            from pg_stat_get_activity(pg_backend_pid()) a left
                join pg_stat_get_activity(try_lead.bell) b on b.pid = try_lead.bell
            on conflict ((true)) do update
            set pid = excluded.pid, started_at = excluded.started_at, bell_pid = excluded.bell_pid,
                bell_started_at = excluded.bell_started_at;
        end if;
    end loop;
    if not v_is_me or pg_sequence_last_value('pgps_internal.wake_seq'::regclass) > 0 then
        perform pgps_internal.say_asleep();
    end if;
    return true;
end
$$;
comment on function pgps.try_lead(integer) is
'Makes this session the leader unless another one is alive; true while it is the leader, until it ends. To be called
again every second while the leader sleeps, so that publishers go on waking it. bell: the process of another session of
the leader''s, which calls pgps.await_ring.';

create or replace function pgps.stay_awake() returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not pgps_internal.leads() then
        return false;
    end if;
    perform setval('pgps_internal.wake_seq', 0);
    return true;
end
$$;
comment on function pgps.stay_awake() is
'Tells publishers, effective at once, that they need not wake the leader; false in a session that does not lead';

create or replace function pgps.fall_asleep() returns pg_snapshot
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if pgps_internal.leads() then
        perform pgps_internal.say_asleep();
    end if;
    return pg_current_snapshot();
end
$$;
comment on function pgps.fall_asleep() is
'Tells publishers to wake the leader again, and returns a snapshot of the transactions that were still running then:
until they have ended, a commit may come without waking anybody';

create or replace function pgps.is_told_awake() returns boolean
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$ select coalesce(pg_sequence_last_value('pgps_internal.wake_seq'::regclass) = 0, false) $$;
comment on function pgps.is_told_awake() is
'True when publishers take the leader to be awake: it said so, or was rung. A leader that sleeps nevertheless has missed
the ring.';

create or replace function pgps.all_ended(since pg_snapshot) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select pg_snapshot_xmin(pg_current_snapshot()) >= pg_snapshot_xmax(all_ended.since) $$;
comment on function pgps.all_ended(pg_snapshot) is
'True when every transaction has ended whose id is below the end of a snapshot: not always all that ran when it was
taken, since it ends behind the newest that had ended';

revoke all on function pgps.try_lead(integer), pgps.stay_awake(), pgps.fall_asleep(), pgps.is_told_awake(),
    pgps.all_ended(pg_snapshot) from public;
grant execute on function pgps.try_lead(integer), pgps.stay_awake(), pgps.fall_asleep(), pgps.is_told_awake(),
    pgps.all_ended(pg_snapshot) to pgps_worker, pgps_admin;
-- Read by whoever publishes.
grant select on sequence pgps_internal.wake_seq to public;
