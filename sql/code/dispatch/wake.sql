-- How the dispatcher that sleeps (leader.sql) and the waiting clients are woken (decision 23).
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.wake_members(classes bigint[]) returns bigint
language plpgsql
as $$
declare
    v_woken bigint;
    v_sum text;
begin
    -- The server sends the same channel once for a transaction. Of many subscriptions only those are looked up that
    -- have no channel of their own or are not active.
    select count(pg_notify(case when s.subscription_id is null then 'pgps_' || m.subscription_id
        else 'pgps_internal' end, '')::text)
    into v_woken
    from pgps_internal.member m
    left join pgps_internal.subscription s on s.subscription_id = m.subscription_id
        and (s.callback is not null or s.state <> 'active')
    where m.class_id = any (wake_members.classes) and (s.subscription_id is null or s.state = 'active');
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

create or replace function pgps_internal.wake_consumers(subscription_ids bigint[]) returns void
language plpgsql
as $$
begin
    perform pg_notify(case when s.callback is null then 'pgps_' || s.subscription_id else 'pgps_internal' end, '')
    from pgps_internal.subscription s where s.subscription_id = any (wake_consumers.subscription_ids);
end
$$;
comment on function pgps_internal.wake_consumers(bigint[]) is
'Wakes those who receive from subscriptions when something may wait that no batch has brought';

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

revoke all on function pgps.await_ring(bigint) from public;
grant execute on function pgps.await_ring(bigint) to pgps_worker, pgps_admin;
-- Called by whoever publishes.
grant execute on function pgps._ring() to public;
