-- What a worker calls for internal subscriptions: which of them have work, by priority, running each in a transaction
-- of its own (callbacks.sql), and what it does about one that ends the session.
-- Locks: the turn of the subscription, until the transaction ends; access share on the log of an event type, which is
-- not waited for.
-- Writes: suspect.

create or replace function pgps_internal.find_internal(name text) returns pgps_internal.subscription
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription;
begin
    select s.* into v_subscription from pgps_internal.subscription s where s.name = find_internal.name
        and s.callback is not null;
    if not found then
        raise exception 'internal subscription "%" does not exist', find_internal.name using errcode = '42704',
            hint = 'See pgps.subscriptions.';
    end if;
    return v_subscription;
end
$$;
comment on function pgps_internal.find_internal(text) is
'The internal subscription of that name; 42704 when there is none';

create or replace function pgps.pending_subscribers() returns table (subscription text, priority integer, owner name)
language plpgsql security definer stable
set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_generic_plan
set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
#variable_conflict use_column
begin
    -- Reads a few index entries for each subscription, and calls next_events only where these do not decide. Offset 0
    -- keeps the planner from a join that reads all deliveries.
    return query
    select s.name, s.priority, pg_get_userbyid(s.owner)
    from pgps_internal.subscription s
    left join lateral (select p.acked_batch, p.acked_event from pgps_internal.position p
        where p.subscription_id = s.subscription_id order by p.position_id desc limit 1) p on true
    where s.callback is not null and s.state = 'active' and (
        exists (
            select from pgps_internal.member m
            cross join lateral (select from pgps_internal.delivery d
                where d.class_id = m.class_id and d.batch_id > greatest(p.acked_batch, m.from_batch) offset 0) d
            where m.subscription_id = s.subscription_id and isempty(m.skip))
        or exists (
            select from pgps_internal.failure f
            where f.subscription_id = s.subscription_id and f.state = 'retrying' and f.due_at <= pgps_internal.clock())
        or exists (
            select from pgps_internal.member m
            cross join lateral (select d.batch_id, d.ids, d.event_ids from pgps_internal.delivery d
                where d.class_id = m.class_id and d.batch_id >= greatest(p.acked_batch, m.from_batch + 1) offset 0) d
            where m.subscription_id = s.subscription_id and (not isempty(m.skip)
                or d.batch_id = p.acked_batch
                    and greatest(upper(d.ids) - 1, (select max(u) from unnest(d.event_ids) u)) > p.acked_event)
        ) and exists (select from pgps_internal.next_events(s.subscription_id, coalesce(p.acked_batch, -1),
            coalesce(p.acked_event, 0), 1)))
    -- The first of each owner, then the second of each: a worker that takes only some of them serves all owners.
    order by row_number() over (partition by s.owner order by s.priority desc, s.subscription_id), s.priority desc,
        s.subscription_id;
end
$$;
comment on function pgps.pending_subscribers() is
'Internal subscriptions that have events waiting or retries due: the first of each owner, then the second of each, and
so on; of one owner those with the higher priority first. Needs pgps_worker or pgps_admin.';

create or replace function pgps.run_subscriber(subscription text, max_events integer = null, washed boolean = false)
returns bigint
language sql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
    select pgps_internal.run(pgps_internal.find_internal(run_subscriber.subscription),
        coalesce(run_subscriber.max_events, pgps_internal.setting('run_batch_events')::integer), false,
        coalesce(run_subscriber.washed, false))
$$;
comment on function pgps.run_subscriber(text, integer, boolean) is
'Runs the next events of one internal subscription in this transaction; returns how many, 0 when there are none or
another session is running it. A callback that raises fails for its event only. max_events: null = the setting
run_batch_events. washed: the caller resets the session afterwards, as a worker does; then only what matters in this
transaction is compared. LISTENs, advisory locks and numbers of sequences of callbacks stay, see pgps.run_subscribers,
which takes them back. Needs pgps_worker or pgps_admin. Errors: 42704, 25001 something was written in this transaction
before.';

create or replace function pgps_internal.next_delivery(subscription_id bigint) returns pgps_internal.received
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_position pgps_internal.position := pgps_internal.position_of(next_delivery.subscription_id);
    v_next pgps_internal.received;
begin
    select 0, f.event_id, f.type_id, f.attempts + 1 into v_next from pgps_internal.failure f
    where f.subscription_id = next_delivery.subscription_id and f.state = 'retrying'
        and f.due_at <= pgps_internal.clock()
    order by f.event_id limit 1;
    if not found then
        select n.batch_id, n.event_id, n.type_id, 1 into v_next
        from pgps_internal.next_events(next_delivery.subscription_id, v_position.acked_batch, v_position.acked_event,
            1) n;
    end if;
    return v_next;
end
$$;
comment on function pgps_internal.next_delivery(bigint) is
'The event that an internal subscription is given next: a retry that is due (of batch 0) or the next one; null when
there is none';

create or replace function pgps_internal.require_free(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = require_free.type_id;
    if found and not pgps_internal.try_lock(v_type.log, 'access share') then
        raise exception '%', pgps_internal.held_text(v_type.name)
        using errcode = '55P03', hint = 'Wait until it ends; pgps doctor shows which are old.';
    end if;
end
$$;
comment on function pgps_internal.require_free(integer) is
'Raises 55P03 when somebody is changing or dropping an event type: no callback is to blame for waiting for him';

create or replace function pgps.next_delivery(subscription text) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
declare
    v_next pgps_internal.received := pgps_internal.next_delivery(
        (pgps_internal.find_internal(next_delivery.subscription)).subscription_id);
begin
    perform pgps_internal.require_free(v_next.type_id);
    return v_next.event_id;
end
$$;
comment on function pgps.next_delivery(text) is
'The id of the event that pgps.run_subscriber(subscription, 1) would run now, null when none waits: for a worker that
may have to name it to pgps.fail_delivery afterwards. Needs pgps_worker or pgps_admin. Errors: 42704, 55P03 somebody is
changing or dropping its event type.';

create or replace function pgps.fail_delivery(subscription text, sqlstate text, error text, event_id bigint = null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_internal(fail_delivery.subscription);
    v_id bigint := v_subscription.subscription_id;
    v_next pgps_internal.received;
begin
    perform pgps_internal.require_read_committed();
    if not pgps_internal.try_subscription(v_id) then
        return null;
    end if;
    v_next := pgps_internal.next_delivery(v_id);
    if v_next.event_id is null or v_next.event_id <> fail_delivery.event_id then
        return null;
    end if;
    perform pgps_internal.require_free(v_next.type_id);
    perform pgps_internal.note_failures(v_subscription, array[v_next], 'callback', fail_delivery.sqlstate,
        fail_delivery.error, null);
    if v_next.batch_id > 0 then
        perform pgps_internal.move(v_id, v_next.batch_id, v_next.event_id, v_next.batch_id, v_next.event_id,
            (pgps_internal.position_of(v_id)).acked_total);
    end if;
    return v_next.event_id;
end
$$;
comment on function pgps.fail_delivery(text, text, text, bigint) is
'Files the failure of a subscription''s next event and moves on: for a worker whose callback was cancelled or took its
backend down. event_id: only if that is the next one still, since another worker may have done it meanwhile; null =
whichever is next. Returns the event id, null when nothing was filed. Needs pgps_worker or pgps_admin. Errors: 42704,
55P03 somebody is changing or dropping its event type.';

create or replace function pgps.try_suspect(subscription text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (select s.subscription_id from pgps_internal.subscription s where s.name = try_suspect.subscription);
    v_pid integer;
begin
    if v_id is null then
        -- Dropped meanwhile: running it will raise.
        return true;
    end if;
    insert into pgps_internal.suspect (subscription_id, pid, started_at)
    select v_id, a.pid, a.backend_start from pg_stat_get_activity(pg_backend_pid()) a
    on conflict on constraint suspect_pkey do update set pid = excluded.pid, started_at = excluded.started_at
    where suspect.pid = excluded.pid
        or not exists (select from pg_stat_get_activity(suspect.pid) a where a.backend_start = suspect.started_at)
    returning pid into v_pid;
    return v_pid is not null;
end
$$;
comment on function pgps.try_suspect(text) is
'Before a subscription is run event by event, to find the one that hangs or kills its callback: true when no other live
session does so. To be committed before the callback runs, which may take the session down. Needs pgps_worker or
pgps_admin.';

create or replace function pgps.release_suspects() returns void
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    delete from pgps_internal.suspect s where s.pid = pg_backend_pid()
$$;
comment on function pgps.release_suspects() is
'Removes the marks that pgps.try_suspect made for this session. Needs pgps_worker or pgps_admin.';

revoke all on function pgps.pending_subscribers(), pgps.run_subscriber(text, integer, boolean),
    pgps.next_delivery(text), pgps.fail_delivery(text, text, text, bigint), pgps.try_suspect(text),
    pgps.release_suspects() from public;
grant execute on function pgps.pending_subscribers(), pgps.run_subscriber(text, integer, boolean),
    pgps.next_delivery(text), pgps.fail_delivery(text, text, text, bigint), pgps.try_suspect(text),
    pgps.release_suspects() to pgps_worker, pgps_admin;
