-- Callbacks of internal subscriptions, in any procedural language. A whole batch and the position are tried in one go;
-- when the callback raises, the events are tried one by one in subtransactions, and failures go to the exception queue.
-- Locks: the turn of the subscription, and the log of the event type, access share, until the transaction ends.
-- Writes: subscription.

create or replace function pgps_internal.build_callback(subscription_id bigint, type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.build(pgps_internal.write_callback(s, t), t.type_id) from pgps_internal.subscription s,
        pgps_internal.event_type t
    where s.subscription_id = build_callback.subscription_id and t.type_id = build_callback.type_id;
end
$$;
comment on function pgps_internal.build_callback(bigint, integer) is
'Generates the function that calls a subscription''s callback for an array of events, with the rights and settings of
its owner';

create or replace function pgps_internal.callback_argument(callback text, endpoint regclass) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case
        when to_regprocedure(format('%s(%s)', callback_argument.callback, callback_argument.endpoint)) is not null
            then 'event'
        when to_regprocedure(format('%s(%s[])', callback_argument.callback, callback_argument.endpoint)) is not null
            then 'batch'
        when to_regprocedure(format('%s(record)', callback_argument.callback)) is not null then 'record' end
$$;
comment on function pgps_internal.callback_argument(text, regclass) is
'What a callback that is given without arguments takes: an event, a batch of events, a record; null when there is no
such function';

create or replace function pgps_internal.call_back(
    subscription pgps_internal.subscription, type_id integer, ids bigint[], before pgps_internal.session_state,
    is_last boolean
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_function text := format('pgps_internal.callback_%s_%s', (call_back.subscription).subscription_id,
        call_back.type_id);
    v_ids bigint[];
begin
    -- Who alters the type is waited for before the code that reads its events is looked up, which he has made anew.
    perform pgps_internal.hold_log(t) from pgps_internal.event_type t where t.type_id = call_back.type_id;
    v_ids := (select pgps_internal.visible_ids(t, (call_back.subscription).owner, call_back.ids)
        from pgps_internal.event_type t where t.type_id = call_back.type_id);
    if pg_catalog.cardinality(v_ids) operator(pg_catalog.>) 0 then
        execute format('select %s(array(
                select e.event from unnest($1) with ordinality u(event_id, place) join pgps_internal.events_%s($1) e '
                    'using (event_id)
                order by u.place))', v_function, call_back.type_id)
        using v_ids;
    end if;
    if pg_catalog.to_regproc(v_function) is null then
        raise exception 'the callback has dropped its own subscription "%"', (call_back.subscription).name
        using errcode = '55000', hint = 'Drop it, or its event type, from outside of its callback.';
    end if;
    -- From here on nothing depends on search_path, which the callback may have changed: check_settings raises then, and
    -- the rollback restores it.
    if is_last then
        perform pgps_internal.run_deferred(pg_catalog.concat('select ', v_function, '(null)'), 'the callback');
    end if;
    perform pgps_internal.check_settings(before, 'the callback');
    perform pgps_internal.check_session(before, 'the callback');
end
$$;
comment on function pgps_internal.call_back(pgps_internal.subscription, integer, bigint[], pgps_internal.session_state,
    boolean) is
'Runs the callback over events in their order; its errors are passed on. before: the session as it was; is_last: nothing
follows in its subtransaction, so what is deferred runs now';

drop function if exists
    pgps_internal.try_events(pgps_internal.subscription, pgps_internal.received[], boolean),
    pgps_internal.try_each(pgps_internal.subscription, pgps_internal.received[], pgps_internal.session_state);
create or replace function pgps_internal.try_events(
    subscription pgps_internal.subscription, handed_out pgps_internal.received[], washed boolean
) returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before pgps_internal.session_state := pgps_internal.session_state(try_events.washed);
    v_runs integer;
    v_run record;
    v_state text;
    v_error text;
    v_context text;
begin
    for v_try in 1..2 loop
        begin
            -- One call for consecutive events of the same type.
            for v_run in
                select r.type_id, array_agg(r.event_id order by r.place) as ids,
                    row_number() over (order by min(r.place)) as place,
                    count(*) over () as runs
                from (select r.*, r.place - row_number() over (partition by r.type_id order by r.place) as run
                    from unnest(try_events.handed_out) with ordinality r(batch_id, event_id, type_id, attempt, place)) r
                group by r.type_id, r.run order by min(r.place)
            loop
                perform pgps_internal.call_back(try_events.subscription, v_run.type_id, v_run.ids, v_before,
                    v_run.place = v_run.runs);
            end loop;
            return cardinality(try_events.handed_out);
        exception when others or assert_failure or query_canceled then
            get stacked diagnostics v_state = returned_sqlstate, v_error = message_text,
                v_context = pg_exception_context;
            perform pgps_internal.forget_prepared(v_before.prepared);
            if pgps_internal.is_cancelled(v_state, v_context) then
                raise;
            end if;
        end;
        -- An attribute was dropped while this waited for the log: the code that reads events is another now.
        exit when v_state <> '42703';
    end loop;
    if cardinality(try_events.handed_out) = 1 then
        perform pgps_internal.note_failures(try_events.subscription, try_events.handed_out, 'callback', v_state,
            v_error, null);
        return 1;
    end if;
    return pgps_internal.try_each(try_events.subscription, try_events.handed_out, v_before);
end
$$;
comment on function pgps_internal.try_events(pgps_internal.subscription, pgps_internal.received[], boolean) is
'Runs a callback over events: all at once, and when that raises one by one; failures are noted, the others stand.
Returns how many of them that was: fewer when the subscription has been suspended, with the last of them as a failure';

create or replace function pgps_internal.try_each(
    subscription pgps_internal.subscription, handed_out pgps_internal.received[], before pgps_internal.session_state
) returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_defer text := pgps_internal.defer_again();
    v_one pgps_internal.received;
    v_tried integer := 0;
    v_state text;
    v_error text;
    v_context text;
begin
    foreach v_one in array try_each.handed_out loop
        v_tried := v_tried + 1;
        begin
            perform pgps_internal.call_back(try_each.subscription, v_one.type_id, array[v_one.event_id],
                try_each.before, true);
            -- Constraints are deferred again for the next event as they were for the first.
            execute v_defer;
        exception when others or assert_failure or query_canceled then
            get stacked diagnostics v_state = returned_sqlstate, v_error = message_text,
            v_context = pg_exception_context;
            perform pgps_internal.forget_prepared((try_each.before).prepared);
            if pgps_internal.is_cancelled(v_state, v_context) then
                raise;
            end if;
            perform pgps_internal.note_failures(try_each.subscription, array[v_one], 'callback', v_state, v_error,
                null);
            exit when exists (select from pgps_internal.subscription s
                where s.subscription_id = (try_each.subscription).subscription_id and s.state = 'suspended');
        end;
    end loop;
    return v_tried;
end
$$;
comment on function pgps_internal.try_each(pgps_internal.subscription, pgps_internal.received[],
    pgps_internal.session_state) is
'Runs a callback over events one by one, each in a subtransaction of its own; failures are noted. Returns how many were
tried: it ends with one for which the subscription is suspended';

create or replace function pgps_internal.has_rights(subscription pgps_internal.subscription) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select (has_rights.subscription).is_pattern or not exists (
        select from pgps_internal.member m join pgps_internal.event_type t using (type_id)
        where m.subscription_id = (has_rights.subscription).subscription_id
            and not has_table_privilege((has_rights.subscription).owner::oid, t.endpoint, 'select'))
$$;
comment on function pgps_internal.has_rights(pgps_internal.subscription) is
'False when the owner has lost SELECT on the event type; always true for a subscription to a prefix';

create or replace function pgps_internal.due_again(subscription_id bigint, max_events integer, hurry boolean)
returns pgps_internal.received[]
language sql
set search_path = pg_catalog, pg_temp
as $$
    select array_agg((0, f.event_id, f.type_id, f.attempts + 1)::pgps_internal.received order by f.event_id)
    from (select f.* from pgps_internal.failure f
        where f.subscription_id = due_again.subscription_id and f.state = 'retrying'
            and (due_again.hurry or f.due_at <= pgps_internal.clock())
        order by f.event_id limit due_again.max_events) f
$$;
comment on function pgps_internal.due_again(bigint, integer, boolean) is
'The oldest failures of a subscription that are to be tried again now, with the attempt that it will be; null when there
is none. hurry: also those that are not due yet';

create or replace function pgps_internal.run(
    subscription pgps_internal.subscription, max_events integer, hurry boolean, washed boolean
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (run.subscription).subscription_id;
    v_position pgps_internal.position;
    v_due pgps_internal.received[];
    v_next pgps_internal.received[];
    v_last pgps_internal.received;
    v_tried integer := 0;
    v_events integer := 0;
begin
    perform pgps_internal.require_read_committed(), pgps_internal.require_unwritten('callbacks cannot be run');
    if not pgps_internal.try_subscription(v_id) then
        return 0;
    end if;
    if (select s.state from pgps_internal.subscription s where s.subscription_id = v_id) <> 'active' then
        return 0;
    end if;
    if not pgps_internal.has_rights(run.subscription) then
        update pgps_internal.subscription s set state = 'suspended',
            last_error = format('role %s may not receive event type "%s" any more', s.owner, s.event_type)
        where s.subscription_id = (select x.subscription_id from pgps_internal.subscription x
            where x.subscription_id = v_id for no key update skip locked);
        return 0;
    end if;
    v_position := pgps_internal.position_of(v_id);
    v_due := pgps_internal.due_again(v_id, run.max_events, run.hurry);
    if v_due is not null then
        v_events := pgps_internal.try_events(run.subscription, v_due, run.washed);
        -- Those that failed again have been tried once more since; those that were not tried stay as they are.
        perform pgps_internal.settle(v_id, array(
            select d.event_id from unnest(v_due[:v_events]) d
            join pgps_internal.failure f on f.subscription_id = v_id and f.event_id = d.event_id
            where f.attempts < d.attempt));
        execute pgps_internal.defer_again();
        if v_events < cardinality(v_due) then return v_events; end if;
    end if;
    select array_agg((n.batch_id, n.event_id, n.type_id, 1)::pgps_internal.received order by n.batch_id, n.event_id)
        into v_next
    from pgps_internal.next_events(v_id, v_position.acked_batch, v_position.acked_event,
        run.max_events - coalesce(cardinality(v_due), 0)) n;
    if v_next is not null then
        v_tried := pgps_internal.try_events(run.subscription, v_next, run.washed);
        -- When it was suspended in the middle, what has been called stands, and what failed last is a failure. The
        -- callback may have moved its subscription itself.
        v_last := v_next[v_tried];
        perform pgps_internal.move(v_id, v_last.batch_id, v_last.event_id, v_last.batch_id, v_last.event_id,
            v_position.acked_total + v_tried)
        where (pgps_internal.position_of(v_id)).position_id is not distinct from v_position.position_id;
        perform pgps_internal.settle(v_id, '{}');
    end if;
    return v_events + v_tried;
end
$$;
comment on function pgps_internal.run(pgps_internal.subscription, integer, boolean, boolean) is
'Runs the next events of an internal subscription and moves its position; hurry: retries that are not due yet as well;
washed: see session_state';
