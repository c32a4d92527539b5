-- Before a lane goes on: subscriptions that join it, and classes that have to catch up with it (decision 24).
-- Locks: the turn of the owner's definitions, which is not waited for; the row of the lane is held by the caller.
-- Writes: joining, member, subscription.

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

create or replace function pgps_internal.last_without(type_id integer, after_batch bigint, upto bigint) returns bigint
language sql stable
as $$
    select case when exists (select from pgps_internal.batch_type b where b.type_id = last_without.type_id
            and b.batch_id > last_without.after_batch and b.batch_id <= last_without.upto and b.events > 0)
        then last_without.after_batch else greatest(last_without.after_batch, last_without.upto) end
$$;
comment on function pgps_internal.last_without(integer, bigint, bigint) is
'A batch up to which there is nothing of a type after another: upto, or that one itself';

create or replace function pgps_internal.find_joining(
    joining pgps_internal.joining, subscription pgps_internal.subscription, event_type pgps_internal.event_type,
    upto bigint, out class_id bigint, out is_new boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signature pgps_internal.signature;
    v_from bigint := (find_joining.joining).from_batch;
    v_is_shared boolean := (find_joining.subscription).handler = 'any'
        and (find_joining.subscription).callback is null;
begin
    -- One that joins late gets a class of its own: the shared class of this filter has been matched meanwhile.
    class_id := pgps_internal.find_class_of(find_joining.subscription, find_joining.event_type,
        (find_joining.joining).failures <> 0);
    is_new := not exists (select from pgps_internal.member m where m.class_id = find_joining.class_id);
    select g.* into v_signature from pgps_internal.class c join pgps_internal.signature g using (signature_id)
        where c.class_id = find_joining.class_id;
    if not is_new and (v_signature.in_lane is not true
                and (v_is_shared or v_from < coalesce((pgps_internal.last_batch()).batch_id, 0))
            or v_signature.in_lane and v_signature.from_batch > v_from) then
        -- What the dispatcher has matched for this class meanwhile, it has shared out to those who were members, and
        -- the class may be younger than what is missing; what came before its form of filter was there, the lane does
        -- not ask it about.
        class_id := pgps_internal.find_class_of(find_joining.subscription, find_joining.event_type, true);
        is_new := true;
    end if;
    if is_new and v_signature.in_lane then
        class_id := pgps_internal.begin_in_lane(class_id, find_joining.upto, greatest(find_joining.upto, v_from));
    end if;
end
$$;
comment on function pgps_internal.find_joining(pgps_internal.joining, pgps_internal.subscription,
    pgps_internal.event_type, bigint) is
'The class of a pattern subscription that joins an event type, and whether nobody else has it. upto: the position of its
lane';

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
    v_joining pgps_internal.joining := join_in_lane.joining;
    v_is_shared boolean;
begin
    -- More may have been added to what it skips since the row was read.
    delete from pgps_internal.joining j
    where j.subscription_id = (join_in_lane.joining).subscription_id and j.type_id = (join_in_lane.joining).type_id
    returning j.skip into v_skip;
    if not found
            or pgps_internal.has_joined((join_in_lane.joining).subscription_id, (join_in_lane.joining).type_id) then
        -- The dispatcher has it join, or somebody who has changed the subscription.
        return;
    end if;
    select s.* into v_subscription from pgps_internal.subscription s
        where s.subscription_id = (join_in_lane.joining).subscription_id;
    v_is_shared := v_subscription.handler = 'any' and v_subscription.callback is null;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (join_in_lane.joining).type_id;
    -- A type that was made in a transaction that was open for long has no events in the batches of that time.
    v_joining.from_batch := pgps_internal.last_without(v_type.type_id, v_joining.from_batch, join_in_lane.upto);
    select f.* into v_class, v_new
    from pgps_internal.find_joining(v_joining, v_subscription, v_type, join_in_lane.upto) f;
    select g.* into v_signature from pgps_internal.class c join pgps_internal.signature g using (signature_id)
        where c.class_id = v_class;
    insert into pgps_internal.member (subscription_id, class_id, type_id, from_batch, skip, takes_batch)
    values (v_subscription.subscription_id, v_class, v_type.type_id, v_joining.from_batch,
        v_skip, v_is_shared)
    on conflict do nothing;
    perform pgps_internal.add_feature(v_type.type_id, 'share') where v_is_shared;
    if v_subscription.callback is not null then
        perform pgps_internal.build_callback(v_subscription.subscription_id, v_type.type_id);
    end if;
    if v_signature.in_lane then
        -- Matching no events raises if the filter is not valid for this type.
        perform pgps_internal.match_signature(0, v_signature, '{}', int8range(v_class, v_class, '[]'));
    end if;
    if v_new and (v_signature.in_lane is not true or v_joining.from_batch < join_in_lane.upto) then
        -- Until the lane has caught up, in parts, nobody reads past that.
        perform pgps_internal.make_pending(v_class, v_joining.from_batch);
        update pgps_internal.subscription s set state = 'suspended',
            last_error = pgps_internal.catching_up_text()
        where s.subscription_id = v_subscription.subscription_id and s.state = 'active' and v_signature.in_lane;
        return;
    end if;
    update pgps_internal.subscription s set state = 'active', last_error = null
    where s.subscription_id = v_subscription.subscription_id and s.state = 'suspended'
        and (join_in_lane.joining).failures < 0;
end
$$;
comment on function pgps_internal.join_in_lane(pgps_internal.joining, bigint) is
'Makes a pattern subscription a member of the class of its filter on one event type; errors of the filter are raised.
upto: the position of its lane';

create or replace function pgps_internal.note_unjoined(joining pgps_internal.joining, error text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgps_internal.joining j
    where j.subscription_id = (note_unjoined.joining).subscription_id
        and j.type_id = (note_unjoined.joining).type_id;
    update pgps_internal.subscription s set last_error = format('event type "%s": %s', t.name, note_unjoined.error)
    from pgps_internal.event_type t
    where s.subscription_id = (note_unjoined.joining).subscription_id and t.type_id = (note_unjoined.joining).type_id
        -- The owner may not even know the type.
        and has_table_privilege(s.owner::oid, t.endpoint, 'select');
end
$$;
comment on function pgps_internal.note_unjoined(pgps_internal.joining, text) is
'Leaves a pattern subscription without an event type for which its filter is not valid, with a note in last_error if its
owner may see the type';

create or replace function pgps_internal.try_joining(joining pgps_internal.joining, upto bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state text;
    v_schema text;
    v_error text;
    v_context text;
begin
    perform pgps_internal.join_in_lane(try_joining.joining, try_joining.upto);
exception when others or assert_failure or query_canceled then
    get stacked diagnostics v_state = returned_sqlstate, v_schema = schema_name, v_error = message_text,
        v_context = pg_exception_context;
    if pgps_internal.is_passing(v_state, v_context, v_schema, v_error) then
        raise;
    end if;
    perform pgps_internal.note_unjoined(try_joining.joining, v_error);
end
$$;
comment on function pgps_internal.try_joining(pgps_internal.joining, bigint) is
'As join_in_lane; a filter that is not valid for the type leaves the subscription as it is, with a note in last_error if
its owner may see the type';

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
        perform pgps_internal.catch_up_in_lane(prepare_lane.lane, v_class, greatest(prepare_lane.upto,
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
