-- Before a lane goes on: subscriptions that join it, and classes that have to catch up with it (decision 24).
-- Locks: the turn of the owner's definitions, which is not waited for; the row of the lane is held by the caller.
-- Writes: class, joining, member, subscription.

create or replace function pgps_internal.expect_type(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.open_lane((expect_type.subscription).owner);
    insert into pgps_internal.joining (subscription_id, type_id, from_batch, skip)
    select (expect_type.subscription).subscription_id, (expect_type.event_type).type_id,
        coalesce((pgps_internal.last_batch()).batch_id, 0),
        pgps_internal.waiting_ids(expect_type.event_type, pgps_internal.last_batch())
    on conflict do nothing;
    perform pg_notify('pgps_lanes', '');
end
$$;
comment on function pgps_internal.expect_type(pgps_internal.subscription, pgps_internal.event_type) is
'Has a pattern subscription get the events of a type from now on: its lane does the rest, with its owner''s rights and
time';

create or replace function pgps_internal.join_in_lane(joining pgps_internal.joining, upto bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription;
    v_type pgps_internal.event_type;
    v_signature pgps_internal.signature;
    v_class bigint;
    v_new boolean;
    v_skip int8multirange;
    v_upto bigint;
    v_is_shared boolean;
begin
    -- More may have been added to what it skips since the row was read.
    delete from pgps_internal.joining j
    where j.subscription_id = (join_in_lane.joining).subscription_id and j.type_id = (join_in_lane.joining).type_id
    returning j.skip into v_skip;
    select s.* into v_subscription from pgps_internal.subscription s
        where s.subscription_id = (join_in_lane.joining).subscription_id;
    v_is_shared := v_subscription.handler = 'any' and v_subscription.callback is null;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (join_in_lane.joining).type_id;
    -- One that joins late gets a class of its own: the shared class of this filter has been matched meanwhile.
    v_class := pgps_internal.find_class_of(v_subscription, v_type, (join_in_lane.joining).failures <> 0);
    v_new := not exists (select from pgps_internal.member m where m.class_id = v_class);
    select g.* into v_signature from pgps_internal.class c join pgps_internal.signature g using (signature_id)
        where c.class_id = v_class;
    if v_is_shared and not v_new and v_signature.in_lane is not true then
        -- What the dispatcher has matched for this class meanwhile, it has shared out to those who were members.
        v_class := pgps_internal.find_class_of(v_subscription, v_type, true);
        v_new := true;
    end if;
    insert into pgps_internal.member (subscription_id, class_id, type_id, from_batch, skip, takes_batch)
    values (v_subscription.subscription_id, v_class, v_type.type_id, (join_in_lane.joining).from_batch,
        coalesce(v_skip, (join_in_lane.joining).skip), v_is_shared)
    on conflict do nothing;
    perform pgps_internal.add_feature(v_type.type_id, 'share') where v_is_shared;
    if v_subscription.callback is not null then
        perform pgps_internal.build_callback(v_subscription.subscription_id, v_type.type_id);
    end if;
    if v_signature.in_lane then
        -- Matching no events raises if the filter is not valid for this type.
        perform pgps_internal.match_signature(0, v_signature, '{}', int8range(v_class, v_class, '[]'));
        if v_new then
            v_upto := greatest(join_in_lane.upto, v_signature.from_batch);
            perform pgps_internal.match_past(v_class, v_type, 0, (join_in_lane.joining).from_batch, v_upto),
                pgps_internal.share_past(v_class, (join_in_lane.joining).from_batch, v_upto, true);
        end if;
    elsif v_new then
        perform pgps_internal.make_pending(v_class, (join_in_lane.joining).from_batch);
    end if;
    -- The subscription was suspended because it could not join.
    update pgps_internal.subscription s set state = 'active', last_error = null
    where s.subscription_id = v_subscription.subscription_id and s.state = 'suspended'
        and (join_in_lane.joining).failures < 0;
end
$$;
comment on function pgps_internal.join_in_lane(pgps_internal.joining, bigint) is
'Makes a pattern subscription a member of the class of its filter on one event type; errors of the filter are raised.
upto: the position of its lane';

create or replace function pgps_internal.try_joining(joining pgps_internal.joining, upto bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state text;
    v_error text;
    v_context text;
begin
    perform pgps_internal.join_in_lane(try_joining.joining, try_joining.upto);
exception when others or assert_failure or query_canceled then
    get stacked diagnostics v_state = returned_sqlstate, v_error = message_text, v_context = pg_exception_context;
    if pgps_internal.is_cancelled(v_state, v_context) then
        raise;
    end if;
    delete from pgps_internal.joining j
    where j.subscription_id = (try_joining.joining).subscription_id and j.type_id = (try_joining.joining).type_id;
    update pgps_internal.subscription s set last_error = format('event type "%s": %s', t.name, v_error)
    from pgps_internal.event_type t
    where s.subscription_id = (try_joining.joining).subscription_id and t.type_id = (try_joining.joining).type_id
        -- The owner may not even know the type.
        and has_table_privilege(s.owner::oid, t.endpoint, 'select');
end
$$;
comment on function pgps_internal.try_joining(pgps_internal.joining, bigint) is
'As join_in_lane; a filter that is not valid for the type leaves the subscription as it is, with a note in last_error if
its owner may see the type';

create or replace function pgps_internal.make_pending(class_id bigint, after_batch bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.set_class_active(make_pending.class_id, false);
    update pgps_internal.class c set is_pending = true, suspended_batch = make_pending.after_batch
        where c.class_id = make_pending.class_id;
    if exists (select from pgps_internal.class c join pgps_internal.signature g using (signature_id)
            where c.class_id = make_pending.class_id and g.in_lane) then
        perform pg_notify('pgps_lanes', '');
    else
        perform pgps_internal.wake_dispatcher();
    end if;
end
$$;
comment on function pgps_internal.make_pending(bigint, bigint) is
'Takes a class out of matching until the dispatcher or its lane has matched it with what came after a batch';

drop function if exists pgps_internal.catch_up(pgps_internal.class, bigint);
create or replace function pgps_internal.catch_up(
    class pgps_internal.class, upto bigint, is_last boolean = true
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_state text;
    v_error text;
    v_context text;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (catch_up.class).type_id;
    begin
        perform pgps_internal.set_class_active((catch_up.class).class_id, true);
        update pgps_internal.class c set is_pending = false where c.class_id = (catch_up.class).class_id;
        perform pgps_internal.match_past((catch_up.class).class_id, v_type, 0, (catch_up.class).suspended_batch,
                catch_up.upto),
            pgps_internal.share_past((catch_up.class).class_id, (catch_up.class).suspended_batch, catch_up.upto, true);
        if not catch_up.is_last then
            perform pgps_internal.make_pending((catch_up.class).class_id, catch_up.upto);
            return true;
        end if;
    exception when others or assert_failure or query_canceled then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text, v_context = pg_exception_context;
        if pgps_internal.is_cancelled(v_state, v_context) then
            raise;
        elsif pgps_internal.is_held_up(v_state, v_context) and not exists (select from pgps_internal.signature g
                where g.signature_id = (catch_up.class).signature_id and g.in_lane) then
            return false;
        end if;
        perform pgps_internal.suspend_class((catch_up.class).class_id, (catch_up.class).suspended_batch,
            format('filter: %s', v_error));
        return true;
    end;
    -- A subscription that another session has locked is not waited for; it has to be resumed once more.
    update pgps_internal.subscription s set state = 'active', last_error = null
    where s.subscription_id in (
        select t.subscription_id from pgps_internal.subscription t join pgps_internal.member m using (subscription_id)
        where m.class_id = (catch_up.class).class_id and t.state = 'suspended'
            and not exists (select from pgps_internal.member o join pgps_internal.class c using (class_id)
                where o.subscription_id = t.subscription_id and not c.is_active)
        for no key update of t skip locked);
    perform pgps_internal.wake_members(array[(catch_up.class).class_id]);
    return true;
end
$$;
comment on function pgps_internal.catch_up(pgps_internal.class, bigint, boolean) is
'Matches a pending class up to a batch and takes it into matching, or keeps it pending unless is_last; when its filter
raises, its subscriptions are suspended (again). False: it stays pending, since the dispatcher waited too long for a
lock';

create or replace function pgps_internal.catch_up_in_lane(class pgps_internal.class, upto bigint) returns void
language plpgsql
as $$
declare
    -- The time limit of a lane is for one batch, so no more is done at once. Its subscriptions remain suspended until
    -- it is through, so no position passes what is still to come.
    v_part bigint := (
        select min(x.batch_id) from (
            select b.batch_id, sum(b.events) over (order by b.batch_id) as events
            from pgps_internal.batch_type b
            where b.type_id = (catch_up_in_lane.class).type_id and b.events > 0
                and b.batch_id > (catch_up_in_lane.class).suspended_batch and b.batch_id < catch_up_in_lane.upto) x
        where x.events >= pgps_internal.setting('max_batch_events')::bigint);
begin
    perform pgps_internal.catch_up(catch_up_in_lane.class, coalesce(v_part, catch_up_in_lane.upto), v_part is null);
end
$$;
comment on function pgps_internal.catch_up_in_lane(pgps_internal.class, bigint) is
'As catch_up, in a lane: about as many events at once as a batch may have';

create or replace function pgps_internal.pending_classes() returns bigint[]
language plpgsql
as $$
declare
    v_free pgps_internal.class[];
begin
    -- A newcomer has to wait: the dispatcher has not yet judged for it what came over links. Nobody is waited for who
    -- changes a class, or alters or drops an event type, in a transaction that is open.
    v_free := array(
        select c from pgps_internal.class c left join pgps_internal.signature g using (signature_id)
        where c.is_pending and g.in_lane is not true
            and not exists (select from pgps_internal.unasked u where u.signature_id = g.signature_id)
            and not exists (select from pgps_internal.member m join pgps_internal.newcomer n using (subscription_id)
                where m.class_id = c.class_id and n.until is null)
        order by c.class_id for update of c skip locked);
    return array(
        select c.class_id
        from unnest(v_free) c
        join (select t.type_id, pgps_internal.try_lock(t.log, 'access share') as is_free
            from pgps_internal.event_type t where t.type_id in (select u.type_id from unnest(v_free) u) offset 0) l
            using (type_id)
        where l.is_free order by c.class_id);
end
$$;
comment on function pgps_internal.pending_classes() is
'The pending classes of the dispatcher that can catch up now, locked';

create or replace function pgps_internal.bound_classes(class_id bigint) returns bigint[]
language sql stable
as $$
    with recursive bound(class_id) as (
        select bound_classes.class_id
        union
        select c.class_id from bound b
        join pgps_internal.member m on m.class_id = b.class_id
        join pgps_internal.member n on n.subscription_id = m.subscription_id and n.class_id <> m.class_id
        join pgps_internal.class c on c.class_id = n.class_id and c.is_pending
    )
    select array_agg(b.class_id order by b.class_id) from bound b
$$;
comment on function pgps_internal.bound_classes(bigint) is
'A pending class, and those that are pending, too, and have a subscription in common with it, or with one of these: the
position of a subscription must not pass events that another class of it has still to catch up with';

create or replace function pgps_internal.catch_up_all() returns void
language plpgsql
as $$
declare
    v_upto bigint := coalesce((pgps_internal.last_batch()).batch_id, 0);
    v_free bigint[] := pgps_internal.pending_classes();
    v_done bigint[] := '{}';
    v_bound bigint[];
    v_class bigint;
begin
    -- Most have nothing in common with another one, however many there are.
    select array_agg(f.class_id order by f.class_id) into v_bound from unnest(v_free) f(class_id)
    where exists (select from pgps_internal.member m join pgps_internal.member n using (subscription_id)
        join pgps_internal.class c on c.class_id = n.class_id and c.is_pending
        where m.class_id = f.class_id and n.class_id <> m.class_id);
    perform pgps_internal.catch_up_in_time(c, v_upto) from (select c from pgps_internal.class c
        where c.class_id in (select unnest(v_free)) and c.class_id not in (select unnest(v_bound))
        order by c.class_id offset 0) x(c);
    foreach v_class in array coalesce(v_bound, '{}') loop
        continue when v_class = any (v_done);
        v_bound := pgps_internal.bound_classes(v_class);
        v_done := v_done || v_bound;
        continue when not v_bound <@ v_free;
        begin
            -- All of them, or none.
            if not (select bool_and(pgps_internal.catch_up_in_time(x.c, v_upto)) from (select c
                from pgps_internal.class c where c.class_id = any (v_bound) order by c.class_id) x) then
                raise exception 'held up' using errcode = 'PS001';
            end if;
        exception when sqlstate 'PS001' then
            null;
        end;
    end loop;
end
$$;
comment on function pgps_internal.catch_up_all() is
'Has the dispatcher''s pending classes catch up, before it cuts a batch. Where one is held up by somebody, those that
have a subscription in common with it stay pending, too';

create or replace function pgps_internal.try_owner(owner regrole) returns boolean
language plpgsql
as $$
begin
    perform from pgps_internal.turn t where t.kind = 'o' and t.id = try_owner.owner::oid::bigint for update skip locked;
    if not found and exists (select from pgps_internal.turn t where t.kind = 'o'
        and t.id = try_owner.owner::oid::bigint) then
        return false;
    elsif not found then
        perform pgps_internal.hold_owner(try_owner.owner::oid);
    end if;
    return true;
end
$$;
comment on function pgps_internal.try_owner(regrole) is
'Locks a role''s definitions until the transaction ends; false when another session has them locked';

create or replace function pgps_internal.prepare_lane(lane pgps_internal.lane, upto bigint) returns boolean
language plpgsql
as $$
declare
    v_joining pgps_internal.joining;
    v_class pgps_internal.class;
begin
    if pgps_internal.has_unseen((prepare_lane.lane).owner) then
        return false;
    end if;
    for v_joining in
        select j.* from pgps_internal.joining j join pgps_internal.subscription s using (subscription_id)
        where s.owner = (prepare_lane.lane).owner and j.failures < 3 order by j.from_batch, j.type_id, j.subscription_id
    loop
        -- The owner is changing subscriptions in an open transaction; the lane waits, since no batch may be matched
        -- ahead of what joins.
        if not pgps_internal.try_owner((prepare_lane.lane).owner) then
            return false;
        end if;
        perform pgps_internal.try_joining(v_joining, prepare_lane.upto);
        if (prepare_lane.lane).is_slow then
            -- One at a time, so that it is known which one takes long.
            return true;
        end if;
    end loop;
    v_class := null;
    for v_class in
        select c.* from pgps_internal.class c join pgps_internal.signature g using (signature_id)
        where c.is_pending and g.in_lane and c.owner = (prepare_lane.lane).owner
            order by c.class_id for update of c skip locked
    loop
        perform pgps_internal.catch_up_in_lane(v_class, greatest(prepare_lane.upto,
            (select g.from_batch from pgps_internal.signature g where g.signature_id = v_class.signature_id)));
        if (prepare_lane.lane).is_slow then
            return true;
        end if;
    end loop;
    return pgps_internal.ask_again((prepare_lane.lane).owner, (prepare_lane.lane).is_slow)
        or v_joining.type_id is not null or v_class.class_id is not null;
end
$$;
comment on function pgps_internal.prepare_lane(pgps_internal.lane, bigint) is
'Does what comes before a lane goes on: joins new event types of pattern subscriptions, and has classes catch up. False
when there was nothing to do, or an open transaction of its owner prevents it';
