-- Changing subscriptions: pause, resume, seek, unsubscribe.
-- Locks: catalogue rows; unsubscribe and seek the logs of the event types, access share; seek, and resume of a
-- suspended filter, hold the owner's lane, and keep reclaim away, until the transaction ends.
-- Writes: backlog_gap, backlog_limit, class, const, failure, joining, late_type, member, share, subscription, unshared.

create or replace function pgps_internal.drop_unused_classes(class_ids bigint[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_gone pgps_internal.class[];
    v_table record;
begin
    with gone as (
        delete from pgps_internal.class c
        where c.class_id = any (drop_unused_classes.class_ids)
            and not exists (select from pgps_internal.member m where m.class_id = c.class_id)
            -- A neighbour's filter is heard before its member is made (pgps_internal.begin_filters).
            and not exists (select from pgps_internal.wanted w where w.class_id = c.class_id)
        returning c as class
    )
    select array_agg(g.class) into v_gone from gone g;
    for v_table in
        select x.signature_id, array_agg(x.class_id) as classes
        from unnest(v_gone) x join pgps_internal.signature g using (signature_id) where g.has_table
        group by x.signature_id
    loop
        execute format('delete from pgps_internal.const_%s where pgps_class = any ($1)', v_table.signature_id)
            using v_table.classes;
    end loop;
    perform pgps_internal.drop_signature(s.signature_id)
    from (select distinct x.signature_id from unnest(v_gone) x where x.signature_id is not null) s
    where not exists (select from pgps_internal.class c where c.signature_id = s.signature_id);
    -- A role that owns the function could not be dropped.
    perform pgps_internal.drop_piece('function', f::text)
    from (select distinct x.type_id, x.owner from unnest(v_gone) x) t
    cross join lateral pgps_internal.visible_function(t.type_id, t.owner) f
    where f is not null
        and not exists (select from pgps_internal.class c where c.type_id = t.type_id and c.owner = t.owner);
end
$$;
comment on function pgps_internal.drop_unused_classes(bigint[]) is
'Drops those of some classes that no subscription is in and no neighbour wants, and the code that only they needed';

create or replace function pgps_internal.stay_in_types_of(subscription_id bigint) returns void
language sql
as $$
    select pgps_internal.stay_in(array(select m.type_id from pgps_internal.member m
        where m.subscription_id = stay_in_types_of.subscription_id))
$$;
comment on function pgps_internal.stay_in_types_of(bigint) is
'As stay_in, for the event types of a subscription';

create or replace function pgps_internal.drop_subscription(subscription_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_classes bigint[];
begin
    perform pgps_internal.stay_in_types_of(drop_subscription.subscription_id);
    -- Before its members: by this row sessions that receive over links see that they need not wait for them.
    perform from pgps_internal.subscription s where s.subscription_id = drop_subscription.subscription_id for update;
    perform pgps_internal.hold_owner(s.owner::oid), pgps_internal.retire(s, true) from pgps_internal.subscription s
    where s.subscription_id = drop_subscription.subscription_id;
    perform pgps_internal.drop_piece('function', 'pgps_internal.' || p.proname) from pg_proc p
    where p.pronamespace = 'pgps_internal'::regnamespace
        and p.proname ~ format('^(callback|coupled)_%s_\d+$', drop_subscription.subscription_id);
    with gone as (delete from pgps_internal.member m where m.subscription_id = drop_subscription.subscription_id
        returning m.class_id)
    select array_agg(g.class_id) into v_classes from gone g;
    delete from pgps_internal.joining j where j.subscription_id = drop_subscription.subscription_id;
    delete from pgps_internal.share h where h.subscription_id = drop_subscription.subscription_id;
    delete from pgps_internal.failure f where f.subscription_id = drop_subscription.subscription_id;
    delete from pgps_internal.subscription s where s.subscription_id = drop_subscription.subscription_id;
    perform pgps_internal.drop_unused_classes(v_classes);
end
$$;
comment on function pgps_internal.drop_subscription(bigint) is
'Drops a subscription, and its classes when no other subscription is in them';

create or replace function pgps_internal.do_unsubscribe(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_administered(caller, args ->> 'name');
begin
    perform from pgps_internal.subscription s where s.subscription_id = v_subscription.subscription_id for update;
    perform pgps_internal.require_subscription(v_subscription),
        pgps_internal.drop_subscription(v_subscription.subscription_id);
end
$$;
comment on function pgps_internal.do_unsubscribe(name, jsonb) is 'See pgps.unsubscribe';

create or replace function pgps.unsubscribe(name text) returns void
language sql
begin atomic
    select pgps._call('unsubscribe', jsonb_build_object('name', unsubscribe.name));
end;
comment on function pgps.unsubscribe(text) is
'Ends a subscription; what it has not received is not kept for it. Needs to own it, or pgps_admin. Errors: 42704,
42501.';

create or replace function pgps_internal.make_active(subscription pgps_internal.subscription, is_own boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := make_active.subscription;
    v_waits boolean;
begin
    -- The limit of what waits rests until the consumer has caught up.
    update pgps_internal.backlog_limit l set is_resting = true
    where l.subscription_id = v_subscription.subscription_id and v_subscription.state = 'suspended'
        and l.on_backlog = 'suspend';
    v_waits := not pgps_internal.resume_classes(v_subscription, make_active.is_own);
    update pgps_internal.joining j set failures = -1 where j.subscription_id = v_subscription.subscription_id
        and j.failures >= 3;
    v_waits := v_waits or found;
    -- Also one that was paused while it was suspended: it does not read on before its classes have caught up.
    if v_waits and v_subscription.state <> 'active' then
        update pgps_internal.subscription s set state = 'suspended', last_error = pgps_internal.catching_up_text()
            where s.subscription_id = v_subscription.subscription_id;
        perform pg_notify('pgps_lanes', '');
        return;
    end if;
    update pgps_internal.subscription s set state = 'active', last_error = null
        where s.subscription_id = v_subscription.subscription_id;
    perform pgps_internal.wake_consumers(array[v_subscription.subscription_id]);
end
$$;
comment on function pgps_internal.make_active(pgps_internal.subscription, boolean) is
'Lets a subscription go on that is paused or suspended. is_own: the caller acts for its owner, see resume_class';

create or replace function pgps_internal.do_set_state(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_administered(caller, args ->> 'name');
begin
    if args ->> 'state' = 'active' then
        perform pgps_internal.make_active(v_subscription, pgps_internal.acts_for(caller, v_subscription.owner));
    else
        -- What is paused does not go on by itself.
        update pgps_internal.subscription s
        set state = args ->> 'state', last_error = nullif(s.last_error, pgps_internal.catching_up_text())
            where s.subscription_id = v_subscription.subscription_id;
    end if;
    perform pgps_internal.require_subscription(v_subscription);
end
$$;
comment on function pgps_internal.do_set_state(name, jsonb) is 'See pgps.pause and pgps.resume';

create or replace function pgps_internal.resume_classes(subscription pgps_internal.subscription, is_own boolean)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state text;
    v_message text;
    v_detail text;
begin
    -- If the caller acts for the owner, the filter is asked now and its error is raised here; otherwise the owner's
    -- lane asks it later.
    return (select coalesce(bool_and(pgps_internal.resume_class(c, t, resume_classes.is_own)), true)
        from pgps_internal.member m join pgps_internal.class c using (class_id)
            join pgps_internal.event_type t on t.type_id = c.type_id
        where m.subscription_id = (resume_classes.subscription).subscription_id and not c.is_active);
exception when syntax_error_or_access_rule_violation or data_exception or invalid_schema_name then
    get stacked diagnostics v_state = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail;
    raise exception using errcode = v_state, message = format('the filter of subscription "%s" still fails: %s',
            (resume_classes.subscription).name, v_message), detail = v_detail,
        hint = format('Mend what it names, or give it another one: select pgps.alter_subscription(%L, filter => ''…'')',
            quote_ident((resume_classes.subscription).name));
end
$$;
comment on function pgps_internal.resume_classes(pgps_internal.subscription, boolean) is
'Takes the suspended classes of a subscription into matching again; see resume_class. Returns false when it has to wait
for that';

create or replace function pgps_internal.resume_class(
    class pgps_internal.class, event_type pgps_internal.event_type, is_own boolean
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class pgps_internal.class;
    v_signature pgps_internal.signature;
    v_upto bigint;
    v_at_once boolean := pgps_internal.is_matched_at_once(resume_class.class);
begin
    perform pgps_internal.require_read_committed();
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = (resume_class.class).signature_id;
    if v_at_once then
        -- No batch may be cut between matching the past and activating the class.
        lock table only pgps_internal.batch in share row exclusive mode;
    end if;
    v_upto := pgps_internal.matched_upto((resume_class.class).owner, v_signature, pgps_internal.last_batch());
    select c.* into v_class from pgps_internal.class c where c.class_id = (resume_class.class).class_id for update;
    if v_class.is_active or v_class.is_pending then
        return v_class.is_active;
    elsif not v_at_once and (not resume_class.is_own or v_signature.in_lane is not true
        and exists (select from pgps_internal.member m
            join pgps_internal.subscription s using (subscription_id) where m.class_id = v_class.class_id
                and s.is_pattern)) then
        -- Left to the dispatcher or the lane: a filter that is not the caller's to run, and a subscription to a prefix,
        -- of whose classes none may fall behind the others while it is read.
        perform pgps_internal.make_pending(v_class.class_id, coalesce(v_class.suspended_batch, v_upto));
        return false;
    end if;
    perform pgps_internal.keep_past(resume_class.event_type);
    perform pgps_internal.set_class_active(v_class.class_id, true);
    perform pgps_internal.replay(v_class.class_id, resume_class.event_type, 0,
        coalesce(v_class.suspended_batch, v_upto), v_upto);
    if v_signature.in_lane is not true and not v_at_once then
        perform pgps_internal.make_pending(v_class.class_id, v_upto);
    end if;
    return true;
end
$$;
comment on function pgps_internal.resume_class(pgps_internal.class, pgps_internal.event_type, boolean) is
'Takes a suspended class into matching again. is_own: matches what came meanwhile now and raises when its filter still
does; otherwise the dispatcher or its lane does so later. Returns false when its subscriptions have to wait for that.';

create or replace function pgps.pause(name text) returns void
language sql
begin atomic
    select pgps._call('set_state', jsonb_build_object('name', pause.name, 'state', 'paused'));
end;
comment on function pgps.pause(text) is
'Stops delivery to a subscription; its events are matched and wait. A rule that runs in the publisher''s transaction
(coupling deferred or immediate) is left out meanwhile: what is published then is never checked. Needs to own it, or
pgps_admin. Errors: 42704, 42501.';

create or replace function pgps.resume(name text) returns void
language sql
begin atomic
    select pgps._call('set_state', jsonb_build_object('name', resume.name, 'state', 'active'));
end;
comment on function pgps.resume(text) is
'Goes on with a paused or suspended subscription, from where it stood. If its filter had been suspended, what came
meanwhile is matched now, and this raises what the filter raises if it is not mended; for somebody else''s subscription
in the lane of its owner, and it remains suspended until then. A max_backlog counts again once no more than that waits.
Needs to own it, or pgps_admin. Errors: 42704, 42501.';

drop function if exists pgps_internal.kept_alone(bigint);
create or replace function pgps_internal.kept_alone(subscription_id bigint, start text) returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_ids bigint[];
    v_found bigint[] := '{}';
begin
    for v_type in
        select t.* from pgps_internal.event_type t where t.type_id in (select f.type_id from pgps_internal.failure f
            where f.subscription_id = kept_alone.subscription_id and f.state in ('retrying', 'leased'))
    loop
        execute format('select array_agg(f.event_id) from pgps_internal.failure f
            where f.subscription_id = $1 and f.type_id = $2 and f.state in (''retrying'', ''leased'')
                and not (exists (select from %s l where l.event_id = f.event_id) and exists (
                    select from pgps_internal.batch_type b where b.type_id = $2 and b.ids @> f.event_id))', v_type.log)
            using kept_alone.subscription_id, v_type.type_id into v_ids;
        v_found := v_found || coalesce(v_ids, '{}');
    end loop;
    return array(select k from unnest(v_found) k
        where case when kept_alone.start ~ '^\s*\d{1,18}\s*$' then k >= kept_alone.start::bigint
            else kept_alone.start = 'earliest' end);
end
$$;
comment on function pgps_internal.kept_alone(bigint, text) is
'Events that a subscription is to get again, from a start on, and that are kept aside, but in the log no more';

create or replace function pgps_internal.do_seek(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_subscription(caller, args ->> 'name');
    v_types integer[];
    v_classes bigint[];
    v_kept bigint[] := '{}';
    v_is_unmet boolean;
    v_position pgps_internal.position;
begin
    perform pgps_internal.require_read_committed();
    if args ->> 'start' is null then
        raise exception 'the start is null' using errcode = '22023', hint = 'Use now, earliest, or an event id.';
    end if;
    -- The turn of the role, too, before anything is read: the lane may be letting it join an event type.
    perform pgps_internal.hold_subscription(v_subscription.subscription_id, v_subscription.name),
        pgps_internal.require_subscription(v_subscription), pgps_internal.hold_owner(v_subscription.owner::oid),
        pgps_internal.stay_in_types_of(v_subscription.subscription_id);
    -- Reading the position also keeps reclaim from the positions until this is committed.
    v_position := pgps_internal.position_of(v_subscription.subscription_id);
    perform pgps_internal.retire(v_subscription, false);
    if v_subscription.is_pattern then
        -- An event type of it may be made meanwhile: whoever makes it sees by this lock that both have still to meet.
        lock table pgps_internal.subscription in row exclusive mode;
        perform pgps_internal.note_unmet('pgps_internal.event_type');
    end if;
    with gone as (delete from pgps_internal.member m where m.subscription_id = v_subscription.subscription_id
        returning m.class_id, m.type_id)
    select array_agg(distinct g.type_id), array_agg(g.class_id) into v_types, v_classes from gone g;
    -- What has come back from the exception queue may be older than the log.
    v_kept := pgps_internal.kept_alone(v_subscription.subscription_id, args ->> 'start');
    delete from pgps_internal.share s where s.subscription_id = v_subscription.subscription_id
        and s.event_id <> all (v_kept);
    delete from pgps_internal.unshared u where u.subscription_id = v_subscription.subscription_id;
    delete from pgps_internal.failure f where f.subscription_id = v_subscription.subscription_id
        and f.state <> 'failed' and f.event_id <> all (v_kept);
    -- Gaps are forgotten: events that were passed over come again, as far as the broker has them.
    delete from pgps_internal.backlog_gap g where g.subscription_id = v_subscription.subscription_id
        and args ->> 'start' <> 'now';
    perform pgps_internal.move(v_subscription.subscription_id, -1, 0, -1, 0,
        case when v_subscription.handler = 'any' and v_subscription.callback is null then 0
            else v_position.acked_total end);
    perform pgps_internal.close_stream(v_subscription.subscription_id);
    perform pgps_internal.join_type(v_subscription, t, args ->> 'start') from pgps_internal.event_type t
        where t.type_id = any (v_types);
    -- Types that its lane, or the dispatcher, has not let it join yet.
    delete from pgps_internal.joining j where j.subscription_id = v_subscription.subscription_id;
    v_is_unmet := found;
    delete from pgps_internal.late_type l where l.subscription_id = v_subscription.subscription_id;
    if v_is_unmet or found then perform pgps_internal.join_unseen_types(v_subscription, args ->> 'start'); end if;
    perform pgps_internal.drop_unused_classes(v_classes);
    -- What was too much does not wait any more, or is wanted again.
    if v_subscription.state = 'suspended' and v_subscription.last_error like 'backlog: %' then
        perform pgps_internal.make_active(v_subscription, true);
    end if;
    perform pgps_internal.wake_consumers(array[v_subscription.subscription_id]);
end
$$;
comment on function pgps_internal.do_seek(name, jsonb) is 'See pgps.seek';

create or replace function pgps.seek(name text, start text) returns void
language sql
begin atomic
    select pgps._call('seek', jsonb_build_object('name', seek.name, 'start', seek.start));
end;
comment on function pgps.seek(text, text) is
'Moves a subscription: now, earliest, or an event id. now: as with pgps.subscribe, what commits from now on; what was
committed before is skipped, whether dispatched or not, and what a transaction that is open now commits later comes. An
event id: that event and what comes after it in delivery order, which is the order of the batches in which transactions
were committed, then of ids; nothing that is not yet delivered is skipped. What the broker still has from there on comes
again. Needs to own it. Errors: 42704, 42501, 22023.';

create or replace function pgps_internal.subscription_of(event_type pgps_internal.event_type) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select format('subscription "%s" wants its events', s.name)
        from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)
        where m.type_id = (subscription_of.event_type).type_id and not s.is_pattern limit 1);
end
$$;
comment on function pgps_internal.subscription_of(pgps_internal.event_type) is
'A subscription that is to this event type alone, as a reason not to drop it; null when there is none';

create or replace function pgps_internal.drop_subscriptions_of(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.drop_subscription(s.subscription_id)
    from (select distinct m.subscription_id from pgps_internal.member m
        where m.type_id = (drop_subscriptions_of.event_type).type_id) m
    join pgps_internal.subscription s using (subscription_id)
    where not s.is_pattern;
end
$$;
comment on function pgps_internal.drop_subscriptions_of(pgps_internal.event_type) is
'Drops the subscriptions to an event type alone';

grant execute on function pgps.unsubscribe(text), pgps.pause(text), pgps.resume(text), pgps.seek(text, text) to public;
