-- The exception queue: what was given up (failures.sql) is put back by pgps.retry_exception, and dropped by
-- pgps.discard_exception.
-- Locks: the rows of failures.
-- Writes: asked_again, discarded, failure, share; by name: the log of a type.

create or replace function pgps_internal.choose_failures(caller name, args jsonb)
returns table (subscription_id bigint, event_id bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_type pgps_internal.event_type;
    v_name text := case when args ->> 'subscription' is not null then pgps_internal.fold(args ->> 'subscription') end;
begin
    if pgps_internal.is_of_link(args) then
        return;
    end if;
    v_type := pgps_internal.find_type(args ->> 'event_type');
    if v_name is not null and not exists (select from pgps_internal.subscription s where s.name = v_name) then
        raise exception 'subscription "%" does not exist', v_name using errcode = '42704',
            hint = 'See pgps.subscriptions.';
    elsif not pg_has_role(caller, 'pgps_admin', 'usage') and not exists (
            select from pgps_internal.subscription s join pgps_internal.member m using (subscription_id)
            where m.type_id = v_type.type_id and pg_has_role(caller, s.owner::oid, 'usage')
                and (v_name is null or s.name = v_name))
        and not pgps_internal.may_drop(caller, v_type) then
        raise exception 'role "%" may not settle exceptions of event type "%"', caller, v_type.name
        using errcode = '42501', hint = 'Exceptions belong to the owner of the subscription and to pgps_admin.';
    end if;
    return query
    select f.subscription_id, f.event_id
    from pgps_internal.failure f join pgps_internal.subscription s using (subscription_id)
    where f.type_id = v_type.type_id and (f.state = 'failed' or f.state = 'retrying' and f.step = 'callback'
        -- One that was put back has no attempts yet: it is on its way.
        and f.attempts > 0)
        and (args ->> 'event_id' is null or f.event_id = (args ->> 'event_id')::bigint)
            and (v_name is null or s.name = v_name)
        and (pg_has_role(caller, 'pgps_admin', 'usage') or pg_has_role(caller, s.owner::oid, 'usage'))
    for update of f;
end
$$;
comment on function pgps_internal.choose_failures(name, jsonb) is
'The failures that a call of pgps.retry_exception or pgps.discard_exception is about, locked. Errors: 42704, 42501.';

create or replace function pgps_internal.wants_now(
    class pgps_internal.class, event_type pgps_internal.event_type, event_id bigint
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class bigint := (wants_now.class).class_id;
    v_ids int8multirange := pgps_internal.visible(wants_now.event_type, (wants_now.class).owner,
        int8multirange(int8range(wants_now.event_id, wants_now.event_id, '[]')));
    v_signature pgps_internal.signature;
begin
    if (wants_now.class).signature_id is null then
        return not isempty(v_ids);
    end if;
    -- A filter that is new since the last batch, or suspended, is not among those that are asked.
    if not (wants_now.class).is_active then
        perform pgps_internal.set_class_active(v_class, true);
    end if;
    select g.* into v_signature from pgps_internal.signature g
        where g.signature_id = (wants_now.class).signature_id;
    return coalesce(v_class = any (pgps_internal.match_signature(0, v_signature, v_ids,
        int8range(v_class, v_class, '[]'))), false);
end
$$;
comment on function pgps_internal.wants_now(pgps_internal.class, pgps_internal.event_type, bigint) is
'Asks the filter of a class about one event, as batch 0; what it leaves has to be taken back';

create or replace function pgps_internal.still_wanted(subscription_id bigint, event_id bigint) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_failure pgps_internal.failure;
    v_type pgps_internal.event_type;
    v_class pgps_internal.class;
    v_columns text;
    v_matches boolean;
    v_is_asked boolean := false;
    v_state text;
    v_error text;
    v_context text;
begin
    select f.* into v_failure from pgps_internal.failure f
    where f.subscription_id = still_wanted.subscription_id and f.event_id = still_wanted.event_id;
    if not found or v_failure.step <> 'filter' then
        return found;
    end if;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = v_failure.type_id;
    select c.* into v_class from pgps_internal.member m join pgps_internal.class c using (class_id)
    where m.subscription_id = still_wanted.subscription_id and m.type_id = v_failure.type_id limit 1;
    -- Filters are asked about the log, so an event kept aside is copied back into it, and matched as batch 0.
    v_columns := pgps_internal.column_list(v_type.endpoint);
    -- One at a time, so that each sees what another one has brought back.
    execute format('select pgps_internal.hold(''a'', $2) where not exists (select from %s l where l.event_id = $1)',
        v_type.log) using still_wanted.event_id, v_type.type_id;
    execute format('insert into %1$s (event_id, xid, pgps_origin_event, %2$s) select k.event_id, k.xid, '
        'k.pgps_origin_event, %2$s from pgps_internal.%3$I k
        where k.event_id = $1 and not exists (select from %1$s l where l.event_id = $1)', v_type.log, v_columns,
            v_type.name || '_kept')
    using still_wanted.event_id;
    begin
        v_matches := v_class.class_id is not null
            and pgps_internal.wants_now(v_class, v_type, still_wanted.event_id);
        v_is_asked := true;
        raise exception 'take back' using errcode = 'PS001';
    exception when others or assert_failure or query_canceled then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text, v_context = pg_exception_context;
        if not v_is_asked and pgps_internal.is_cancelled(v_state, v_context) then
            raise;
        end if;
    end;
    if not v_is_asked then
        update pgps_internal.failure f set attempts = f.attempts + 1, sqlstate = v_state, error = v_error,
            failed_at = pgps_internal.clock()
        where f.subscription_id = still_wanted.subscription_id and f.event_id = still_wanted.event_id;
        return false;
    end if;
    if not v_matches then
        delete from pgps_internal.failure f where f.subscription_id = still_wanted.subscription_id
            and f.event_id = still_wanted.event_id;
    end if;
    return v_matches;
end
$$;
comment on function pgps_internal.still_wanted(bigint, bigint) is
'Whether a failed event goes back to its subscription: a filter that had raised is asked again, and the failure is
forgotten when it does not match';

create or replace function pgps_internal.do_retry(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Into variables first: joined with an empty table, choose_failures might not be run, nor its check of rights.
    v_chosen bigint[];
    v_events bigint[];
    v_left bigint;
begin
    select array_agg(c.subscription_id), array_agg(c.event_id) into v_chosen, v_events
        from pgps_internal.choose_failures(caller, args) c;
    v_left := pgps_internal.retry_found(v_chosen, v_events) + pgps_internal.ask_in_lane(caller, v_chosen, v_events);
    -- Into variables again: in one query, PostgreSQL might ask the filters before it has excluded those that are left
    -- to lanes.
    select array_agg(c.subscription_id), array_agg(c.event_id) into v_chosen, v_events
        from unnest(v_chosen, v_events) c(subscription_id, event_id)
        join pgps_internal.subscription s using (subscription_id)
    where s.kind <> 'composite' and not exists (select from pgps_internal.asked_again a
        where a.subscription_id = c.subscription_id and a.event_id = c.event_id);
    select array_agg(c.subscription_id), array_agg(c.event_id) into v_chosen, v_events
        from unnest(v_chosen, v_events) c(subscription_id, event_id)
    where pgps_internal.still_wanted(c.subscription_id, c.event_id);
    return v_left + pgps_internal.put_failed_back(v_chosen, v_events) + pgps_internal.retry_refused(caller, args);
end
$$;
comment on function pgps_internal.do_retry(name, jsonb) is 'See pgps.retry_exception';

create or replace function pgps_internal.ask_in_lane(caller name, subscriptions bigint[], events bigint[])
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    -- A filter that reads more than the event may run any code, so it is never planned or run in a statement of another
    -- role.
    insert into pgps_internal.asked_again (subscription_id, event_id, owner)
    select c.subscription_id, c.event_id, s.owner
    from unnest(ask_in_lane.subscriptions, ask_in_lane.events) c(subscription_id, event_id)
    join pgps_internal.subscription s using (subscription_id)
    join pgps_internal.failure f on f.subscription_id = c.subscription_id and f.event_id = c.event_id
        and f.step = 'filter'
    where not pgps_internal.acts_for(ask_in_lane.caller, s.owner) and exists (
        select from pgps_internal.member m join pgps_internal.class k using (class_id) join pgps_internal.signature g
            using (signature_id)
        where m.subscription_id = c.subscription_id and m.type_id = f.type_id and g.in_lane)
    on conflict do nothing;
    get diagnostics v_count = row_count;
    if v_count > 0 then
        perform pg_notify('pgps_lanes', '');
    end if;
    return v_count;
end
$$;
comment on function pgps_internal.ask_in_lane(name, bigint[], bigint[]) is
'Leaves failed events to their owners'' lanes, which ask the filters again, unless caller acts for the owner; returns
how many';

create or replace function pgps_internal.ask_again(owner regrole, only_one boolean) returns boolean
language plpgsql
as $$
declare
    v_asked record;
    v_found boolean := false;
begin
    for v_asked in
        delete from pgps_internal.asked_again a where (a.subscription_id, a.event_id) in (
            select b.subscription_id, b.event_id from pgps_internal.asked_again b where b.owner = ask_again.owner
            order by b.subscription_id, b.event_id limit case when ask_again.only_one then 1
                else 100 end for update skip locked)
        returning a.subscription_id, a.event_id
    loop
        v_found := true;
        if pgps_internal.still_wanted(v_asked.subscription_id, v_asked.event_id) then
            perform pgps_internal.put_failed_back(array[v_asked.subscription_id], array[v_asked.event_id]);
        end if;
    end loop;
    return v_found;
end
$$;
comment on function pgps_internal.ask_again(regrole, boolean) is
'In a lane: asks filters again about events that an administrator has put back. False when there are none';

create or replace function pgps_internal.acts_for(caller name, owner regrole) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select acts_for.caller = pg_get_userbyid(acts_for.owner::oid)
        or pgps_internal.may_become(acts_for.caller, acts_for.owner::oid)
        and not (select r.rolsuper from pg_roles r where r.rolname = acts_for.caller)
$$;
comment on function pgps_internal.acts_for(name, regrole) is
'True when caller is owner or was made a member of it, so that owner''s code may run in caller''s statement; not for a
superuser, who is a member of every role without having been made one';

create or replace function pgps_internal.put_failed_back(subscriptions bigint[], events bigint[]) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
    v_subscriptions bigint[];
begin
    with back as (
        update pgps_internal.failure f set state = 'retrying', attempts = 0, due_at = pgps_internal.clock()
        from unnest(put_failed_back.subscriptions, put_failed_back.events) c(subscription_id, event_id)
        where f.subscription_id = c.subscription_id and f.event_id = c.event_id returning f.subscription_id, f.event_id,
            f.type_id
    ),
    shared as (
        insert into pgps_internal.share (subscription_id, batch_id, event_id, type_id)
        select b.subscription_id, 0, b.event_id, b.type_id from back b join pgps_internal.subscription s
            using (subscription_id)
        where s.handler = 'any' and s.callback is null on conflict do nothing
    )
    select count(*), array_agg(distinct b.subscription_id) into v_count, v_subscriptions from back b;
    perform pgps_internal.wake_consumers(v_subscriptions);
    return v_count;
end
$$;
comment on function pgps_internal.put_failed_back(bigint[], bigint[]) is
'Has failed events delivered again; returns how many';

create or replace function pgps.retry_exception(event_type text, event_id bigint = null, subscription text = null)
returns bigint
language sql
begin atomic
    select (pgps._call('retry',
        jsonb_build_object('event_type', retry_exception.event_type, 'event_id', retry_exception.event_id,
        'subscription', retry_exception.subscription)) #>> '{}')::bigint;
end;
comment on function pgps.retry_exception(text, bigint, text) is
'Puts failed events back to their subscriptions, with their attempts counted anew; all of the type that match; returns
how many. event_id, subscription: null = all. An event whose filter had failed goes back if that matches now; where the
filter reads more than the event and the caller is an administrator who is no member of its owner, the owner''s lane
asks it a moment later: the event is counted, and stays failed if the filter fails again. A detection whose attributes
raised is published, unless they raise again. What a link brought and this broker''s constraints refused (subscription
''link <neighbour>'', event_id that of its origin) is published here, as an event of its origin, after what has come
since and for every subscription there is now; brokers that take its events from this one do not get it. If it is
refused again, it stays. A gap cannot be retried. Needs to own the subscriptions, or pgps_admin. Errors: 42704, 42501,
55000 a gap.';

create or replace function pgps_internal.do_discard(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscriptions bigint[];
    v_events bigint[];
    v_chosen pgps_internal.failure[];
begin
    select array_agg(c.subscription_id), array_agg(c.event_id) into v_subscriptions, v_events
        from pgps_internal.choose_failures(caller, args) c;
    v_chosen := array(select f from unnest(v_subscriptions, v_events) c(subscription_id, event_id)
        join pgps_internal.failure f using (subscription_id, event_id));
    insert into pgps_internal.discarded (type_id, subscription, event_id, attempts, sqlstate, error, failed_at, state)
    select g.type_id, s.name, g.event_id, g.attempts, g.sqlstate, g.error, g.failed_at, 'discarded'
    from unnest(v_chosen) g join pgps_internal.subscription s using (subscription_id)
    join pgps_internal.queue q on q.type_id = g.type_id and q.kind = 'exception' and q.auditable;
    perform pgps_internal.settle(g.subscription_id, array_agg(g.event_id)) from unnest(v_chosen) g
        group by g.subscription_id;
    return cardinality(v_chosen) + pgps_internal.discard_refused(caller, args) + pgps_internal.discard_gaps(caller,
        args);
end
$$;
comment on function pgps_internal.do_discard(name, jsonb) is 'See pgps.discard_exception';

create or replace function pgps.discard_exception(event_type text, event_id bigint = null, subscription text = null)
returns bigint
language sql
begin atomic
    select (pgps._call('discard',
        jsonb_build_object('event_type', discard_exception.event_type, 'event_id', discard_exception.event_id,
        'subscription', discard_exception.subscription)) #>> '{}')::bigint;
end;
comment on function pgps.discard_exception(text, bigint, text) is
'Drops failed events from the exception queue, all of the type that match; returns how many. An auditable exception
queue keeps a record. Of a gap (see pgps.exceptions) it drops the note; event_id is that of its first event. event_type:
null = acknowledges the gaps in what came over links: all, or (subscription ''link <neighbour>'') those of one link.
event_id, subscription: null = all. Needs to own the subscriptions, or pgps_admin. Errors: 42704, 42501.';

grant execute on function pgps.retry_exception(text, bigint, text),
    pgps.discard_exception(text, bigint, text) to public;
