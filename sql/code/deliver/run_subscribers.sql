-- CALL pgps.run_subscribers() runs internal subscriptions in the caller's session, owners in turn, each batch in its
-- own transaction. A worker does the same with pgps.run_subscriber. Callbacks leave nothing in the session: see
-- left_behind.sql.
-- Locks: those of pgps_internal.run.
-- Writes: nothing.

create or replace procedure pgps.run_subscribers()
language plpgsql
as $$
declare
    v_name text;
    v_names text[];
    v_begun text[] := '{}';
    v_locks text[];
begin
    -- What this session has deferred runs now, with its own rights, and is not seen by callbacks.
    commit;
    v_names := pgps._runnable();
    commit;
    v_locks := pgps._session_locks();
    -- Each batch runs in its own transaction; then it is the next owner's turn. A subscription is run as long as it has
    -- events; its failed events are tried again once a call.
    while pg_catalog.cardinality(v_names) operator(pg_catalog.>) 0 loop
        v_name := v_names[1];
        if pgps._run(v_name, v_name operator(pg_catalog.<>) all (v_begun)) operator(pg_catalog.>) 0 then
            v_begun := pg_catalog.array_append(v_begun, v_name);
            v_names := pgps._behind(v_names);
            commit;
            perform pgps._restore_locks(v_locks);
        else
            v_names := v_names[2:];
        end if;
        commit;
    end loop;
    if v_begun operator(pg_catalog.<>) '{}' then
        -- currval and lastval belong to the session: forgetting them is better than showing a number of a callback's.
        discard sequences;
    end if;
end
$$;
comment on procedure pgps.run_subscribers() is
'Runs all internal subscriptions (paper, section 5.2), each in its own transaction, until nothing waits: owners in turn,
batch by batch, those of one owner by priority; tries failed events again without waiting for their time. Callbacks run
in this session and leave nothing in it: settings are compared, temporary objects, LISTENs and advisory locks taken
back, prepared statements and currval forgotten. Custom settings, like my.own, that no role or database sets are not
noticed; a worker resets its sessions and does not have that gap. Not inside a transaction block. Needs pgps_worker or
pgps_admin. Errors: 2D000 in a transaction, 55000 a cursor with hold is open, or a callback gave one of your locks
away.';

create or replace function pgps._runnable() returns text[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_cursor text := (select c.name from pg_cursors c where c.is_holdable limit 1);
begin
    if v_cursor is not null then
        raise exception 'cursor "%" is open with hold', v_cursor using errcode = '55000',
            hint = format('Callbacks could read from it. First: close %I', v_cursor);
    end if;
    perform pgps_internal.learn_settings();
    return (select coalesce(array_agg(s.name order by s.highest desc, s.owner, s.priority desc, s.subscription_id),
        '{}')
        from (select s.*, max(s.priority) over (partition by s.owner) as highest from pgps_internal.subscription s
            where s.callback is not null and s.state = 'active') s);
end
$$;
comment on function pgps._runnable() is
'Names of the active internal subscriptions, owner by owner, of each by priority; see pgps.run_subscribers';

create or replace function pgps._behind(names text[]) returns text[]
language sql security definer stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(array_agg(n.name order by s.owner is not distinct from f.owner, n.place), '{}')
    from unnest(_behind.names) with ordinality n(name, place)
    left join pgps_internal.subscription s using (name)
    left join pgps_internal.subscription f on f.name = _behind.names[1]
$$;
comment on function pgps._behind(text[]) is
'Names of subscriptions with those of the first one''s owner moved to the end; see pgps.run_subscribers';

create or replace function pgps._run(subscription text, hurry boolean) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
declare
    v_channels text[] := array(select pg_listening_channels());
    v_channel text;
    v_subscription pgps_internal.subscription;
    v_events bigint;
begin
    select s.* into v_subscription from pgps_internal.subscription s where s.name = _run.subscription
        and s.callback is not null;
    -- Nothing waits, so the turn is not taken: taking it writes.
    if not found or (pgps_internal.next_delivery(v_subscription.subscription_id)).event_id is null
        and not (_run.hurry and exists (
            select from pgps_internal.failure f where f.subscription_id = v_subscription.subscription_id
                and f.state = 'retrying')) then
        return 0;
    end if;
    v_events := pgps_internal.run(v_subscription, pgps_internal.setting('run_batch_events')::integer, _run.hurry,
        false);
    -- A callback's LISTEN and UNLISTEN take effect at the commit, in their order, and cannot be seen before. These come
    -- last, so they restore what the session had.
    unlisten *;
    foreach v_channel in array v_channels loop
        execute format('listen %I', v_channel);
    end loop;
    return v_events;
end
$$;
comment on function pgps._run(text, boolean) is
'One transaction''s worth of an internal subscription; see pgps.run_subscribers';

create or replace function pgps._session_locks() returns text[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select coalesce(array_agg(format(case l.objsubid when 1 then '%3$s(%4$s)' else '%3$s(%1$s, %2$s)' end,
        l.classid::bigint::bit(32)::integer,
        l.objid::bigint::bit(32)::integer, case l.mode when 'ShareLock' then '_shared' else '' end,
        (l.classid::bigint << 32) | l.objid::bigint)), '{}')
    from pg_locks l
    where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted
        and l.database = (select d.oid from pg_database d where d.datname = current_database()));
end
$$;
comment on function pgps._session_locks() is
'Advisory locks that this session holds, as in pg_advisory_lock_shared(1, 2); see pgps.run_subscribers';

create or replace function pgps._restore_locks(before text[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lock text;
    v_done boolean;
begin
    if cardinality(_restore_locks.before) = 0 then
        perform pg_advisory_unlock_all();
        return;
    end if;
    for v_lock in select unnest(pgps._session_locks()) except select unnest(_restore_locks.before) loop
        while v_lock = any (pgps._session_locks()) loop
            execute 'select pg_advisory_unlock' || v_lock;
        end loop;
    end loop;
    for v_lock in select unnest(_restore_locks.before) except select unnest(pgps._session_locks()) loop
        execute 'select pg_try_advisory_lock' || v_lock into v_done;
        if not v_done then
            raise exception 'a callback has released your advisory lock %', v_lock using errcode = '55000',
                hint = 'Somebody else has it now. Run subscribers from a session that holds no advisory locks.';
        end if;
    end loop;
end
$$;
comment on function pgps._restore_locks(text[]) is
'Between transactions: releases the session''s advisory locks that callbacks took, and takes those again that they
released. Errors: 55000.';

revoke all on function pgps._runnable(), pgps._behind(text[]), pgps._run(text, boolean), pgps._session_locks(),
    pgps._restore_locks(text[]) from public;
revoke all on procedure pgps.run_subscribers() from public;
grant execute on function pgps._runnable(), pgps._behind(text[]), pgps._run(text, boolean), pgps._session_locks(),
    pgps._restore_locks(text[])
to pgps_worker, pgps_admin;
grant execute on procedure pgps.run_subscribers() to pgps_worker, pgps_admin;
