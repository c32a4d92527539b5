-- When a filter raises: finds out which filter on which event, puts the event into the exception queue, and suspends a
-- filter that is broken or keeps failing. One bad filter or event affects no other.
-- Writes: class, delivery, failure, subscription.

create or replace function pgps_internal.match_carefully(
    batch_id bigint, signature pgps_internal.signature, ids int8multirange
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_shaky bigint[] := array(select c.class_id from pgps_internal.class c
        where c.signature_id = (match_carefully.signature).signature_id and c.is_active and c.failures > 0);
begin
    perform pgps_internal.isolate(match_carefully.batch_id, match_carefully.signature, match_carefully.ids, null);
    -- Only failures in consecutive batches count: a class that got through this batch starts from zero.
    update pgps_internal.class c set failures = 0
    where c.is_active and not exists (
            select from pgps_internal.member m join pgps_internal.failure f using (subscription_id)
            where m.class_id = c.class_id and f.step = 'filter' and f.event_id <@ match_carefully.ids)
        and c.class_id in (select l.class_id from pgps_internal.class l
            where l.class_id = any (v_shaky) for no key update skip locked);
end
$$;
comment on function pgps_internal.match_carefully(bigint, pgps_internal.signature, int8multirange) is
'Matches a signature although a filter may raise; what fails goes to the exception queue';

create or replace function pgps_internal.isolate(
    batch_id bigint, signature pgps_internal.signature, ids int8multirange, classes int8range
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_events bigint[];
    v_classes bigint[];
    v_state text;
    v_error text;
    v_context text;
begin
    begin
        perform pgps_internal.match_signature(isolate.batch_id, isolate.signature, isolate.ids, isolate.classes);
        return;
    exception when others or assert_failure or query_canceled then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text, v_context = pg_exception_context;
        -- A filter in a lane may lock something itself; what the dispatcher asks locks nothing.
        if pgps_internal.is_cancelled(v_state, v_context)
            or not (isolate.signature).in_lane and pgps_internal.is_held_up(v_state, v_context) then
            raise;
        end if;
    end;
    if not exists (select from pgps_internal.signature g where g.signature_id = (isolate.signature).signature_id) then
        -- Its owner has dropped it meanwhile.
        return;
    end if;
    -- Bisect the events first, then the classes: with 100,000 classes, one bad event costs some thirty matches of a
    -- part; class by class took minutes.
    v_events := array(select generate_series(lower(r), upper(r) - 1) from unnest(isolate.ids) r);
    if cardinality(v_events) > 1 then
        perform pgps_internal.isolate(isolate.batch_id, isolate.signature, isolate.ids * h.half, isolate.classes)
        from (values (int8multirange(int8range(null, v_events[cardinality(v_events) / 2], '(]'))),
            (int8multirange(int8range(v_events[cardinality(v_events) / 2], null, '()')))) h(half);
        return;
    end if;
    v_classes := array(select c.class_id from pgps_internal.class c
        where c.signature_id = (isolate.signature).signature_id and c.is_active
            and (isolate.classes is null or c.class_id <@ isolate.classes)
        order by c.class_id);
    if cardinality(v_classes) > 1 then
        perform pgps_internal.isolate(isolate.batch_id, isolate.signature, isolate.ids, h.half)
        from (values (int8range(v_classes[1], v_classes[cardinality(v_classes) / 2], '[]')),
            (int8range(v_classes[cardinality(v_classes) / 2 + 1], v_classes[cardinality(v_classes)], '[]'))) h(half);
    elsif cardinality(v_classes) = 1 then
        perform pgps_internal.note_filter_failure(v_classes[1], v_events[1], isolate.batch_id, v_state, v_error);
    end if;
end
$$;
comment on function pgps_internal.isolate(bigint, pgps_internal.signature, int8multirange, int8range) is
'Matches what can be matched, and finds by bisection each event with each class whose filter raises on it, for the
exception queue. classes: null = all';

create or replace function pgps_internal.try_class(class_id bigint) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_members bigint;
begin
    perform from pgps_internal.class c where c.class_id = try_class.class_id for no key update skip locked;
    if not found then
        return false;
    end if;
    perform from pgps_internal.subscription s join pgps_internal.member m using (subscription_id)
    where m.class_id = try_class.class_id for no key update of s skip locked;
    get diagnostics v_members = row_count;
    return v_members = (select count(*) from pgps_internal.member m where m.class_id = try_class.class_id);
end
$$;
comment on function pgps_internal.try_class(bigint) is
'Locks a class and its subscriptions, to suspend them; false when another session has one of them locked. Waiting for an
open transaction that changes or drops a subscription would hold up everybody';

create or replace function pgps_internal.note_filter_failure(
    class_id bigint, event_id bigint, batch_id bigint, sqlstate text, error text
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class pgps_internal.class;
    v_is_free boolean := pgps_internal.try_class(note_filter_failure.class_id);
begin
    update pgps_internal.class c set failures = c.failures + 1, last_error = note_filter_failure.error
    where c.class_id = (select x.class_id from pgps_internal.class x
        where x.class_id = note_filter_failure.class_id for no key update skip locked);
    select c.* into v_class from pgps_internal.class c where c.class_id = note_filter_failure.class_id;
    perform pgps_internal.keep_events(v_class.type_id, array[note_filter_failure.event_id]);
    insert into pgps_internal.failure (subscription_id, type_id, event_id, step, state, attempts, sqlstate, error)
    select m.subscription_id, m.type_id, note_filter_failure.event_id, 'filter', 'failed', 1,
        note_filter_failure.sqlstate, note_filter_failure.error
    from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)
    where m.class_id = v_class.class_id and s.kind <> 'link'
        and note_filter_failure.batch_id > m.from_batch and not note_filter_failure.event_id <@ m.skip
    on conflict do nothing;
    perform pgps_internal.filter_failed(v_class, note_filter_failure.event_id, note_filter_failure.batch_id);
    if v_is_free and (note_filter_failure.sqlstate in ('42883', '42P01', '42703', '42501', '3F000')
        or v_class.failures >= pgps_internal.setting('filter_failures')::integer) then
        perform pgps_internal.suspend_class(v_class.class_id, note_filter_failure.batch_id - 1,
            format('filter: %s', note_filter_failure.error));
        delete from pgps_internal.delivery d where d.class_id = v_class.class_id
            and d.batch_id = note_filter_failure.batch_id;
        return true;
    end if;
    return false;
end
$$;
comment on function pgps_internal.note_filter_failure(bigint, bigint, bigint, text, text) is
'Puts an event on which a filter raised into the exception queue; true when its subscriptions were suspended, since the
filter is broken or keeps failing';

create or replace function pgps_internal.suspend_class(class_id bigint, after_batch bigint, error text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_local boolean;
begin
    update pgps_internal.subscription s set state = 'suspended', last_error = suspend_class.error
    from pgps_internal.member m
    where m.class_id = suspend_class.class_id and s.subscription_id = m.subscription_id and s.kind <> 'link';
    v_local := found;
    perform pgps_internal.filter_broken(c, suspend_class.after_batch) from pgps_internal.class c
        where c.class_id = suspend_class.class_id;
    perform pgps_internal.set_class_active(suspend_class.class_id, false);
    -- A class that nobody waits for is not matched later: filter_broken has given its members everything.
    update pgps_internal.class c set suspended_batch = suspend_class.after_batch, is_pending = false
    where c.class_id = suspend_class.class_id and (v_local or pgps_internal.is_waited_for(c));
end
$$;
comment on function pgps_internal.suspend_class(bigint, bigint, text) is
'Suspends all subscriptions of a class; the log keeps the events after after_batch, and pgps.resume matches them. What
other rooms do instead: filter_broken in the roster';

create or replace function pgps.blame() returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found bigint := (select m.last_value from pgps_internal.matching_seq m);
    v_mark bigint := v_found & ((1::bigint << 62) - 1);
    v_signature pgps_internal.signature;
    v_names text;
begin
    -- Another dispatcher has set the mark since, or no filter was being matched.
    if v_mark >> 40 <> pg_backend_pid() then
        return null;
    end if;
    select g.* into v_signature from pgps_internal.signature g
    where g.signature_id = v_mark & ((1::bigint << 40) - 1);
    if not found then
        return null;
    end if;
    select string_agg(s.name, ', ' order by s.name) into v_names
    from pgps_internal.class c join pgps_internal.member m using (class_id) join pgps_internal.subscription s
        using (subscription_id)
    where c.signature_id = v_signature.signature_id and c.is_active;
    if pgps_internal.try_lock('pgps_internal.batch', 'share row exclusive') then
        perform pgps_internal.set_cut_apart();
    elsif v_found = v_mark then
        -- Nobody has cut it short, so whoever dispatches now does not know of it, and will come upon the same filter.
        return null;
    end if;
    return v_names;
end
$$;
comment on function pgps.blame() is
'After a dispatch in this session was cancelled: the filter that was being asked is asked in the lane of its role from
now on (pgps.lanes), and a neighbour''s is taken as no filter. Returns the names of its subscriptions; null when none
was being asked. Needs pgps_worker or pgps_admin.';

revoke all on function pgps.blame() from public;
grant execute on function pgps.blame() to pgps_worker, pgps_admin;
