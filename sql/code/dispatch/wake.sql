-- Who dispatches, and how the dispatcher and the waiting clients are woken (decision 23). The leader is named in a row.
-- Whether it sleeps is stored in a sequence, which is read and set outside of transactions, and which no other role can
-- set.
-- Locks: share row exclusive on the leader's table while it changes.
-- Writes: leader.

create or replace function pgps_internal.wake_members(classes bigint[]) returns bigint
language plpgsql
as $$
declare
    v_woken bigint;
    v_sum text;
begin
    -- The server sends the same channel once for a transaction. Of many subscriptions only those are looked up that
    -- have no channel of their own or are not active.
    perform pg_notify(case when s.subscription_id is null then 'pgps_' || m.subscription_id else 'pgps_internal' end,
        '')
    from unnest(wake_members.classes) c
    join pgps_internal.member m on m.class_id = c
    left join pgps_internal.subscription s on s.subscription_id = m.subscription_id
        and (s.callback is not null or s.state <> 'active')
    where s.subscription_id is null or s.state = 'active';
    get diagnostics v_woken = row_count;
    -- The setting is a text that is only appended to, so that a value which somebody else has put there causes no
    -- error.
    v_sum := set_config('pgps.woken', concat_ws('+', nullif(current_setting('pgps.woken', true), ''), v_woken), true);
    return v_woken;
end
$$;
comment on function pgps_internal.wake_members(bigint[]) is
'Sends one NOTIFY for each subscription whose class has something in a batch, and one for all internal ones. Until the
transaction ends, the setting pgps.woken tells the worker how many subscriptions of both kinds there are, as a sum with
a term for each event type';

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

create or replace function pgps._ring() returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Everybody can call this, and it tells publishers that nobody need wake the leader: it does so only where
    -- publishers ring, and while the leader sleeps.
    if current_setting('max_prepared_transactions') = '0'
        or coalesce(pg_sequence_last_value('pgps_internal.wake_seq'::regclass), 0) = 0 then
        return false;
    end if;
    -- Sequences are set outside of this transaction, which may be prepared and therefore must not NOTIFY. wake_seq
    -- keeps others from ringing as well. The ring is counted before the signal, so that a session that is about to wait
    -- sees it.
    perform setval('pgps_internal.wake_seq', 0), nextval('pgps_internal.ring_seq');
    perform pg_cancel_backend(l.bell_pid)
    from pgps_internal.leader l join pg_stat_get_activity(l.bell_pid) a on a.pid = l.bell_pid
        and a.backend_start = l.bell_started_at;
    return true;
end
$$;
comment on function pgps._ring() is
'Wakes the dispatcher now, before the caller commits: it looks until all transactions that run now have ended';

create or replace function pgps.await_ring(heard bigint) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    begin
        if coalesce(pg_sequence_last_value('pgps_internal.ring_seq'::regclass), 0) <= await_ring.heard then
            -- No longer than that, since whoever waits holds back the oldest snapshot of the database.
            perform pg_sleep(1);
        end if;
    exception when query_canceled then
        null;
    end;
    return coalesce(pg_sequence_last_value('pgps_internal.ring_seq'::regclass), 0);
end
$$;
comment on function pgps.await_ring(bigint) is
'Waits until publishers have rung more often than heard, at most a second, and returns how often they have. Needs
pgps_worker or pgps_admin.';

create or replace function pgps_internal.wake_dispatcher() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The same condition as in the rule of an endpoint, see pgps_internal.publication.
    if pg_sequence_last_value('pgps_internal.wake_seq'::regclass) > date_part('epoch', clock_timestamp()) - 5 then
        if current_setting('max_prepared_transactions') = '0' then
            perform pg_notify('pgps_dispatch', '');
        else
            perform pgps._ring();
        end if;
    end if;
end
$$;
comment on function pgps_internal.wake_dispatcher() is
'Wakes the dispatcher, if it sleeps, for what this transaction publishes by other ways than an endpoint';

create or replace function pgps.all_ended(since pg_snapshot) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select pg_snapshot_xmin(pg_current_snapshot()) >= pg_snapshot_xmax(all_ended.since) $$;
comment on function pgps.all_ended(pg_snapshot) is
'True when every transaction that ran when the snapshot was taken has ended';

revoke all on function pgps.try_lead(integer), pgps.stay_awake(), pgps.fall_asleep(), pgps.is_told_awake(),
    pgps.await_ring(bigint),
    pgps.all_ended(pg_snapshot) from public;
grant execute on function pgps.try_lead(integer), pgps.stay_awake(), pgps.fall_asleep(), pgps.is_told_awake(),
    pgps.await_ring(bigint),
    pgps.all_ended(pg_snapshot) to pgps_worker, pgps_admin;
-- Read and called by whoever publishes.
grant select on sequence pgps_internal.wake_seq to public;
grant execute on function pgps._ring() to public;
