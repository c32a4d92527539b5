-- Internal subscriptions: a callback in any procedural language, each subscription in its own transaction, by priority.
-- Optimistic: a whole batch and the position in one go; when it raises, event by event with savepoints, and the failures to
-- the exception queue. Locks: the turn of the subscription, until the transaction ends.

create or replace function pgps_internal.build_callback(subscription_id bigint, type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription;
    v_type pgps_internal.event_type;
    v_name text;
    v_batch boolean;
begin
    select s.* into v_subscription from pgps_internal.subscription s where s.subscription_id = build_callback.subscription_id;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = build_callback.type_id;
    v_name := format('pgps_internal.callback_%s_%s', v_subscription.subscription_id, v_type.type_id);
    v_batch := to_regprocedure(format('%s(%s)', v_subscription.callback, v_type.endpoint)) is null
        and to_regprocedure(format('%s(%s[])', v_subscription.callback, v_type.endpoint)) is not null;
    perform pgps_internal.create_function(format('%s(pgps_events pgps_event.%I[]) returns void', v_name, v_type.name),
        format('language plpgsql volatile security definer set enable_seqscan = on %s as %L', pgps_internal.environment_clause(v_subscription.environment),
        case when v_batch then format('begin perform %s(pgps_events); end', v_subscription.callback)
            else format('begin perform %s(pgps_e) from pg_catalog.unnest(pgps_events) pgps_e; end', v_subscription.callback) end));
    execute format('alter function %s(pgps_event.%I[]) owner to %s', v_name, v_type.name, v_subscription.owner);
end
$$;
comment on function pgps_internal.build_callback(bigint, integer) is
'Generates the function that calls a subscription''s callback for an array of events, with the rights and settings of its owner';

create or replace function pgps_internal.session_settings() returns text
language plpgsql stable
as $$
begin
    return pg_catalog.concat_ws(E'\n', pg_catalog.current_setting('search_path'), pg_catalog.current_setting('standard_conforming_strings'),
        pg_catalog.current_setting('row_security'), pg_catalog.current_setting('transform_null_equals'), pg_catalog.current_setting('array_nulls'),
        pg_catalog.current_setting('check_function_bodies'), pg_catalog.current_setting('synchronous_commit'),
        pg_catalog.current_setting('transaction_read_only'), pg_catalog.current_setting('default_transaction_read_only'),
        pg_catalog.current_setting('default_transaction_isolation'), pg_catalog.current_setting('statement_timeout'),
        coalesce(pg_catalog.current_setting('pgps.reliability', true), ''), coalesce(pg_catalog.current_setting('pgps.raiser', true), ''));
end
$$;
comment on function pgps_internal.session_settings() is
'Settings on which what runs after a callback depends, as one text. No search_path clause: it is about the caller''s.';

create or replace function pgps_internal.refuse_deferred(owner regrole) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_trigger record;
    v_role name := coalesce(nullif(current_setting('role'), 'none')::name, session_user);
begin
    if current_setting('server_version_num')::integer >= 180000 or pg_has_role(refuse_deferred.owner::oid, v_role, 'member') then
        return;
    end if;
    select t.tgname as name, t.tgrelid::regclass as relation into v_trigger
    from pg_trigger t
    where t.tgdeferrable and not t.tgisinternal
        and exists (select from pg_locks l where l.pid = pg_backend_pid() and l.locktype = 'relation' and l.relation = t.tgrelid
            and l.mode = 'RowExclusiveLock' and l.database = (select d.oid from pg_database d where d.datname = current_database()))
    limit 1;
    if found then
        raise exception 'the callback wrote to table %, whose trigger "%" is deferrable', v_trigger.relation, v_trigger.name
        using errcode = '0A000', hint = 'It would run at commit with the rights of the worker (before PostgreSQL 18). Make the trigger not deferrable.';
    end if;
end
$$;
comment on function pgps_internal.refuse_deferred(regrole) is
'Raises 0A000 when this transaction may have deferred a trigger of another role: until PostgreSQL 18 deferred triggers run as who commits';

create or replace function pgps_internal.call_back(subscription pgps_internal.subscription, type_id integer, ids bigint[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_settings text := pgps_internal.session_settings();
    v_prepared text := pgps_internal.prepared();
    v_cursors text[] := array(select c.name || c.creation_time from pg_cursors c where c.is_holdable);
    v_ids bigint[] := (select pgps_internal.visible_ids(t, (call_back.subscription).owner, call_back.ids)
        from pgps_internal.event_type t where t.type_id = call_back.type_id);
begin
    if cardinality(v_ids) = 0 then
        return;
    end if;
    execute format('select pgps_internal.callback_%s_%s(array(
            select e.event from unnest($1) with ordinality u(event_id, place) join pgps_internal.events_%2$s($1) e using (event_id) order by u.place))',
        (call_back.subscription).subscription_id, call_back.type_id)
    using v_ids;
    -- Written so that a search_path the callback has left behind means nothing here; the error takes it back.
    if pgps_internal.session_settings() operator(pg_catalog.<>) v_settings then
        raise exception 'the callback changed a setting of the session' using errcode = '55000',
            hint = 'Attach it to the function: ALTER FUNCTION … SET name = value, so that it ends with the call.';
    end if;
    -- A cursor with hold is run to its end at commit, with the rights of whoever runs the callbacks; the error takes it away.
    if exists (select from pg_catalog.pg_cursors c where c.is_holdable
            and (c.name operator(pg_catalog.||) c.creation_time::pg_catalog.text) operator(pg_catalog.<>) all (v_cursors)) then
        raise exception 'the callback left a cursor with hold open' using errcode = '0A000', hint = 'Close it, or leave WITH HOLD away.';
    end if;
    perform pgps_internal.forget_prepared(v_prepared);
    perform pgps_internal.refuse_deferred((call_back.subscription).owner);
end
$$;
comment on function pgps_internal.call_back(pgps_internal.subscription, integer, bigint[]) is 'Runs the callback over events in their order; what it raises, raises';

create or replace function pgps_internal.try_events(subscription pgps_internal.subscription, taken pgps_internal.received[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_run record;
    v_one pgps_internal.received;
    v_state text;
    v_error text;
    v_context text;
begin
    begin
        -- Runs of one type, in order.
        for v_run in
            select r.type_id, array_agg(r.event_id order by r.place) as ids
            from (select r.*, r.place - row_number() over (partition by r.type_id order by r.place) as run
                from unnest(try_events.taken) with ordinality r(batch_id, event_id, type_id, attempt, place)) r
            group by r.type_id, r.run order by min(r.place)
        loop
            perform pgps_internal.call_back(try_events.subscription, v_run.type_id, v_run.ids);
        end loop;
        return;
    exception when others or assert_failure or query_canceled then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text, v_context = pg_exception_context;
        if pgps_internal.is_cancelled(v_state, v_context) then
            raise;
        end if;
    end;
    if cardinality(try_events.taken) = 1 then
        v_one := try_events.taken[1];
        perform pgps_internal.note_failures(try_events.subscription, array[v_one], 'callback', v_state, v_error, null);
        return;
    end if;
    foreach v_one in array try_events.taken loop
        begin
            perform pgps_internal.call_back(try_events.subscription, v_one.type_id, array[v_one.event_id]);
        exception when others or assert_failure or query_canceled then
            get stacked diagnostics v_state = returned_sqlstate, v_error = message_text, v_context = pg_exception_context;
            if pgps_internal.is_cancelled(v_state, v_context) then
                raise;
            end if;
            perform pgps_internal.note_failures(try_events.subscription, array[v_one], 'callback', v_state, v_error, null);
            exit when exists (select from pgps_internal.subscription s
                where s.subscription_id = (try_events.subscription).subscription_id and s.state = 'suspended');
        end;
    end loop;
end
$$;
comment on function pgps_internal.try_events(pgps_internal.subscription, pgps_internal.received[]) is
'Runs a callback over events: all at once, and when that raises one by one; failures are noted, the others stand';

create or replace function pgps_internal.has_rights(subscription pgps_internal.subscription) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select (has_rights.subscription).is_pattern or not exists (
        select from pgps_internal.member m join pgps_internal.event_type t using (type_id)
        where m.subscription_id = (has_rights.subscription).subscription_id
            and not has_table_privilege((has_rights.subscription).owner::oid, t.endpoint, 'select'))
$$;
comment on function pgps_internal.has_rights(pgps_internal.subscription) is 'False when the owner has lost SELECT on the event type';

create or replace function pgps_internal.run(subscription pgps_internal.subscription, max_events integer, hurry boolean) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (run.subscription).subscription_id;
    v_position pgps_internal.position;
    v_due pgps_internal.received[];
    v_next pgps_internal.received[];
    v_last pgps_internal.received;
begin
    perform pgps_internal.require_read_committed();
    if not pgps_internal.try_subscription(v_id) then
        return 0;
    end if;
    if (select s.state from pgps_internal.subscription s where s.subscription_id = v_id) <> 'active' then
        return 0;
    end if;
    if not pgps_internal.has_rights(run.subscription) then
        update pgps_internal.subscription s set state = 'suspended', last_error = format('role %s may not receive event type "%s" any more', s.owner, s.event_type)
        where s.subscription_id = v_id;
        return 0;
    end if;
    v_position := pgps_internal.position_of(v_id);
    select array_agg((0, f.event_id, f.type_id, f.attempts + 1)::pgps_internal.received order by f.event_id) into v_due
    from (select f.* from pgps_internal.failure f
        where f.subscription_id = v_id and f.state = 'retrying' and (run.hurry or f.due_at <= clock_timestamp())
        order by f.event_id limit run.max_events) f;
    if v_due is not null then
        perform pgps_internal.settle(v_id, array(select d.event_id from unnest(v_due) d));
        perform pgps_internal.try_events(run.subscription, v_due);
    end if;
    select array_agg((n.batch_id, n.event_id, n.type_id, 1)::pgps_internal.received order by n.batch_id, n.event_id) into v_next
    from pgps_internal.next_events(v_id, v_position.acked_batch, v_position.acked_event,
        run.max_events - coalesce(cardinality(v_due), 0)) n;
    if v_next is not null then
        perform pgps_internal.try_events(run.subscription, v_next);
        if (select s.state from pgps_internal.subscription s where s.subscription_id = v_id) = 'suspended' then
            return coalesce(cardinality(v_due), 0);
        end if;
        v_last := v_next[cardinality(v_next)];
        perform pgps_internal.move(v_id, v_last.batch_id, v_last.event_id, v_last.batch_id, v_last.event_id,
            v_position.acked_total + cardinality(v_next));
        perform pgps_internal.settle(v_id, '{}');
    end if;
    return coalesce(cardinality(v_due), 0) + coalesce(cardinality(v_next), 0);
end
$$;
comment on function pgps_internal.run(pgps_internal.subscription, integer, boolean) is
'Runs the next events of an internal subscription and moves its position; hurry: retries that are not due yet as well';

create or replace function pgps_internal.find_internal(name text) returns pgps_internal.subscription
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription;
begin
    select s.* into v_subscription from pgps_internal.subscription s where s.name = find_internal.name and s.callback is not null;
    if not found then
        raise exception 'internal subscription "%" does not exist', find_internal.name using errcode = '42704', hint = 'See pgps.subscriptions.';
    end if;
    return v_subscription;
end
$$;
comment on function pgps_internal.find_internal(text) is 'The internal subscription of that name; 42704 when there is none';

create or replace function pgps.pending_subscribers() returns table (subscription text, priority integer, owner name)
language plpgsql security definer stable
set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_generic_plan set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
#variable_conflict use_column
begin
    -- A few index entries for each subscription; next_events only where these leave a doubt. Offset 0: joined otherwise, all deliveries
    -- there are would be read.
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
            where f.subscription_id = s.subscription_id and f.state = 'retrying' and f.due_at <= clock_timestamp())
        or exists (
            select from pgps_internal.member m
            cross join lateral (select d.batch_id, d.ids, d.event_ids from pgps_internal.delivery d
                where d.class_id = m.class_id and d.batch_id >= greatest(p.acked_batch, m.from_batch + 1) offset 0) d
            where m.subscription_id = s.subscription_id and (not isempty(m.skip)
                or d.batch_id = p.acked_batch and greatest(upper(d.ids) - 1, (select max(u) from unnest(d.event_ids) u)) > p.acked_event)
        ) and exists (select from pgps_internal.next_events(s.subscription_id, coalesce(p.acked_batch, -1), coalesce(p.acked_event, 0), 1)))
    -- The first of each owner, then the second of each: whoever takes some of them has something of everybody.
    order by row_number() over (partition by s.owner order by s.priority desc, s.subscription_id), s.priority desc, s.subscription_id;
end
$$;
comment on function pgps.pending_subscribers() is
'Internal subscriptions that have events waiting or retries due: the first of each owner, then the second of each, and so on; of one owner
those with the higher priority first. Needs pgps_worker or pgps_admin.';

create or replace function pgps.run_subscriber(subscription text, max_events integer = null) returns bigint
language sql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
    select pgps_internal.run(pgps_internal.find_internal(run_subscriber.subscription),
        coalesce(run_subscriber.max_events, pgps_internal.setting('run_batch_events')::integer), false)
$$;
comment on function pgps.run_subscriber(text, integer) is
'Runs the next events of one internal subscription in this transaction; returns how many, 0 when there are none or another session
is at it. A callback that raises fails for its event only. Needs pgps_worker or pgps_admin. Errors: 42704.';

create or replace procedure pgps.run_subscribers()
language plpgsql
as $$
declare
    v_name text;
    v_names text[];
    v_begun text[] := '{}';
begin
    -- Each subscription in its own transaction, as often as it has events; a failed event is tried again once a call. After each batch it is
    -- the next owner's turn.
    v_names := pgps._runnable();
    while pg_catalog.cardinality(v_names) operator(pg_catalog.>) 0 loop
        v_name := v_names[1];
        if pgps._run(v_name, v_name operator(pg_catalog.<>) all (v_begun)) operator(pg_catalog.>) 0 then
            v_begun := pg_catalog.array_append(v_begun, v_name);
            v_names := pgps._behind(v_names);
        else
            v_names := v_names[2:];
        end if;
        commit;
    end loop;
end
$$;
comment on procedure pgps.run_subscribers() is
'Runs all internal subscriptions (paper, section 5.2), each in its own transaction, until nothing waits: owners in turn, batch by batch, those of
one owner by priority; tries failed events again without waiting for their time. Not inside a transaction block. Needs pgps_worker or pgps_admin.';

create or replace function pgps._runnable() returns text[]
language sql security definer stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(array_agg(s.name order by s.highest desc, s.owner, s.priority desc, s.subscription_id), '{}')
    from (select s.*, max(s.priority) over (partition by s.owner) as highest from pgps_internal.subscription s
        where s.callback is not null and s.state = 'active') s
$$;
comment on function pgps._runnable() is 'Names of the active internal subscriptions, owner by owner, of each by priority; see pgps.run_subscribers';

create or replace function pgps._behind(names text[]) returns text[]
language sql security definer stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(array_agg(n.name order by s.owner is not distinct from f.owner, n.place), '{}')
    from unnest(_behind.names) with ordinality n(name, place)
    left join pgps_internal.subscription s using (name)
    left join pgps_internal.subscription f on f.name = _behind.names[1]
$$;
comment on function pgps._behind(text[]) is 'Names of subscriptions with those of the first one''s owner behind the others; see pgps.run_subscribers';

create or replace function pgps_internal.next_delivery(subscription_id bigint) returns pgps_internal.received
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_position pgps_internal.position := pgps_internal.position_of(next_delivery.subscription_id);
    v_next pgps_internal.received;
begin
    select 0, f.event_id, f.type_id, f.attempts + 1 into v_next from pgps_internal.failure f
    where f.subscription_id = next_delivery.subscription_id and f.state = 'retrying' and f.due_at <= clock_timestamp()
    order by f.event_id limit 1;
    if not found then
        select n.batch_id, n.event_id, n.type_id, 1 into v_next
        from pgps_internal.next_events(next_delivery.subscription_id, v_position.acked_batch, v_position.acked_event, 1) n;
    end if;
    return v_next;
end
$$;
comment on function pgps_internal.next_delivery(bigint) is
'The event that an internal subscription is given next: a retry that is due (of batch 0) or the next one; null when there is none';

create or replace function pgps._run(subscription text, hurry boolean) returns bigint
language sql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
    -- Not where nothing waits: to take the turn is to write.
    select case when (pgps_internal.next_delivery(s.subscription_id)).event_id is not null
            or _run.hurry and exists (select from pgps_internal.failure f where f.subscription_id = s.subscription_id and f.state = 'retrying')
        then pgps_internal.run(s, pgps_internal.setting('run_batch_events')::integer, _run.hurry) else 0 end
    from pgps_internal.subscription s where s.name = _run.subscription and s.callback is not null
$$;
comment on function pgps._run(text, boolean) is 'One transaction''s worth of an internal subscription; see pgps.run_subscribers';

create or replace function pgps.next_delivery(subscription text) returns bigint
language sql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
    select (pgps_internal.next_delivery((pgps_internal.find_internal(next_delivery.subscription)).subscription_id)).event_id
$$;
comment on function pgps.next_delivery(text) is
'The id of the event that pgps.run_subscriber(subscription, 1) would run now, null when none waits: for a worker that may have to name it
to pgps.fail_delivery afterwards. Needs pgps_worker or pgps_admin. Errors: 42704.';

create or replace function pgps.fail_delivery(subscription text, sqlstate text, error text, event_id bigint = null) returns bigint
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
    perform pgps_internal.note_failures(v_subscription, array[v_next], 'callback', fail_delivery.sqlstate, fail_delivery.error, null);
    if v_next.batch_id > 0 then
        perform pgps_internal.move(v_id, v_next.batch_id, v_next.event_id, v_next.batch_id, v_next.event_id,
            (pgps_internal.position_of(v_id)).acked_total);
    end if;
    return v_next.event_id;
end
$$;
comment on function pgps.fail_delivery(text, text, text, bigint) is
'Files the failure of a subscription''s next event and moves on: for a worker whose callback was cancelled or took its backend down.
event_id: only if that is the next one still, since another worker may have done it meanwhile; null = whichever is next.
Returns the event id, null when nothing was filed. Needs pgps_worker or pgps_admin. Errors: 42704.';

revoke all on all functions in schema pgps_internal from public;
revoke all on function pgps.pending_subscribers(), pgps.run_subscriber(text, integer), pgps._runnable(), pgps._behind(text[]), pgps._run(text, boolean),
    pgps.next_delivery(text),
    pgps.fail_delivery(text, text, text, bigint) from public;
revoke all on procedure pgps.run_subscribers() from public;
grant execute on function pgps.pending_subscribers(), pgps.run_subscriber(text, integer), pgps._runnable(), pgps._behind(text[]), pgps._run(text, boolean),
    pgps.next_delivery(text),
    pgps.fail_delivery(text, text, text, bigint) to pgps_worker, pgps_admin;
grant execute on procedure pgps.run_subscribers() to pgps_worker, pgps_admin;
