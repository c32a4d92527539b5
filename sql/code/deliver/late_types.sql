-- Event types of a prefix that its owner may not see yet, or that a new subscription to it cannot join at once, since
-- somebody is changing or dropping them in a transaction that is open. Who subscribes does not wait for him: it is
-- noted, and the dispatcher lets the subscription join before it dispatches anything of the type (decision 88). Nor
-- does anybody who changes a type wait for a subscriber who may not see it, which locks only what he may see.
-- Locks: access share on logs, and rows of subscriptions, which are not waited for.
-- Writes: broken_type, joining, late_type, member.

create or replace function pgps_internal.note_late(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type, start text
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if note_late.start <> 'now' then
        raise exception '%', pgps_internal.held_text((note_late.event_type).name) using errcode = '55P03',
            hint = 'Subscribe when that transaction has ended, or with start => ''now''.';
    end if;
    -- What is committed until now was published before the subscription.
    insert into pgps_internal.late_type (subscription_id, type_id, seen)
    values ((note_late.subscription).subscription_id, (note_late.event_type).type_id, pgps_internal.committed_now());
end
$$;
comment on function pgps_internal.note_late(pgps_internal.subscription, pgps_internal.event_type, text) is
'Notes that a subscription to a prefix joins an event type later, and gets what commits from now on. Errors: 55P03 it is
to begin earlier than now.';

create or replace function pgps_internal.has_joined(subscription_id bigint, type_id integer) returns boolean
language sql stable
begin atomic
    select exists (select from pgps_internal.member m
        where m.subscription_id = has_joined.subscription_id and m.type_id = has_joined.type_id);
end;
comment on function pgps_internal.has_joined(bigint, integer) is
'True when a subscription gets the events of a type. Asked once more under the turn of its owner: several may have it
join, the lane, the dispatcher, and who moves it';

create or replace function pgps_internal.note_unseen(subscription pgps_internal.subscription) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.late_type (subscription_id, type_id, seen)
    select (note_unseen.subscription).subscription_id, t.type_id, pgps_internal.committed_now()
    from pgps_internal.event_type t
    where pgps._covers((note_unseen.subscription).event_type, t.name)
        -- Null: the type is gone.
        and not coalesce(has_table_privilege((note_unseen.subscription).owner::oid, t.endpoint, 'select'), false)
        and not pgps_internal.has_joined((note_unseen.subscription).subscription_id, t.type_id)
        and not exists (select from pgps_internal.late_type l
            where l.subscription_id = (note_unseen.subscription).subscription_id and l.type_id = t.type_id);
end
$$;
comment on function pgps_internal.note_unseen(pgps_internal.subscription) is
'Notes that a subscription to a prefix joins the event types that its owner may not see, and gets what commits from now
on when he may see it then: of what was there before he would get nothing anyhow';

drop function if exists pgps_internal.join_unseen_types(pgps_internal.subscription);
create or replace function pgps_internal.join_unseen_types(subscription pgps_internal.subscription, start text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_state text;
    v_schema text;
    v_error text;
    v_context text;
begin
    -- A later GRANT cannot be noticed. So a subscription to a prefix joins all types of it, also those that its owner
    -- may not see yet: rights are checked when an event is matched, and when it is handed out. But not here, where they
    -- would be locked until a transaction ends with which those who have them have nothing to do.
    perform pgps_internal.note_unseen(join_unseen_types.subscription);
    for v_type in
        select t.* from pgps_internal.event_type t
        where pgps._covers((join_unseen_types.subscription).event_type, t.name)
            and not pgps_internal.has_joined((join_unseen_types.subscription).subscription_id, t.type_id)
            and not exists (select from pgps_internal.late_type l
                where l.subscription_id = (join_unseen_types.subscription).subscription_id and l.type_id = t.type_id)
    loop
        -- One that its owner may see has come just now.
        if not pgps_internal.try_lock(v_type.log, 'access share') then
            perform pgps_internal.note_late(join_unseen_types.subscription, v_type, join_unseen_types.start);
            continue;
        end if;
        begin
            perform pgps_internal.join_type(join_unseen_types.subscription, v_type, join_unseen_types.start);
        exception when others or assert_failure or query_canceled then
            -- The filter does not fit the type. No error: the owner may not even know the type, and gets nothing of it.
            get stacked diagnostics v_state = returned_sqlstate, v_schema = schema_name, v_error = message_text,
            v_context = pg_exception_context;
            if pgps_internal.is_passing(v_state, v_context, v_schema, v_error) then
                raise;
            end if;
        end;
    end loop;
end
$$;
comment on function pgps_internal.join_unseen_types(pgps_internal.subscription, text) is
'Notes the event types of a new subscription to a prefix that its owner may not see yet, and those that somebody is
changing or dropping; joins it to those that have come just now';

create or replace function pgps_internal.published_before(
    event_type pgps_internal.event_type, seen pg_snapshot, last pgps_internal.batch
) returns int8multirange
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xids xid8[];
    v_ranges int8multirange;
    v_ids int8multirange;
begin
    select array_agg(distinct w.xid), range_agg(int8range(w.lo, w.hi, '[]')) into v_xids, v_ranges
    from pgps_internal.in_no_batch(published_before.last, pgps_internal.committed_now()) w
    where w.type_id = (published_before.event_type).type_id and pg_visible_in_snapshot(w.xid, published_before.seen);
    if v_xids is not null then
        execute format('select c.ids from pgps_internal.part_ids_%s($1, $2) c', (published_before.event_type).type_id)
            using v_xids, v_ranges into v_ids;
    end if;
    return coalesce(v_ids, '{}');
end
$$;
comment on function pgps_internal.published_before(pgps_internal.event_type, pg_snapshot, pgps_internal.batch) is
'The ids of events of a type that a snapshot sees and that are in no batch up to last';

create or replace function pgps_internal.join_late(
    late pgps_internal.late_type, subscription pgps_internal.subscription, event_type pgps_internal.event_type,
    last pgps_internal.batch
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class bigint;
    v_from bigint := coalesce((join_late.late).after_batch, (join_late.last).batch_id, 0);
    v_skip int8multirange := pgps_internal.published_before(join_late.event_type, (join_late.late).seen,
        join_late.last);
    v_subscription pgps_internal.subscription;
    v_is_locked boolean;
    v_is_shared boolean := (join_late.subscription).handler = 'any' and (join_late.subscription).callback is null;
begin
    if pgps_internal.has_joined((join_late.late).subscription_id, (join_late.late).type_id) then
        return;
    end if;
    perform pgps_internal.note_joined(join_late.subscription);
    -- As it is now: somebody may have changed it since it was looked up, or be about to.
    select s.* into v_subscription from pgps_internal.subscription s
        where s.subscription_id = (join_late.late).subscription_id for no key update skip locked;
    v_is_locked := not found;
    if v_is_locked then
        perform pgps_internal.note_unmet('pgps_internal.subscription');
        v_subscription := join_late.subscription;
    end if;
    if v_is_locked or v_subscription.filter is not null
            or pgps_internal.shares_many(v_subscription, (join_late.event_type).type_id) then
        perform pgps_internal.open_lane(v_subscription.owner);
        insert into pgps_internal.joining (subscription_id, type_id, from_batch, skip)
        values ((join_late.late).subscription_id, (join_late.late).type_id, v_from, v_skip) on conflict do nothing;
        perform pg_notify('pgps_lanes', '');
        return;
    end if;
    -- A class of its own: the owner's definitions, under whose lock classes are shared, may be locked by the owner.
    v_class := pgps_internal.find_class(join_late.event_type, v_subscription.owner, null, null, '{}', true,
        false);
    insert into pgps_internal.member (subscription_id, class_id, type_id, from_batch, skip, takes_batch)
    values ((join_late.late).subscription_id, v_class, (join_late.late).type_id, v_from, v_skip, v_is_shared);
    if (join_late.late).after_batch is not null then
        perform pgps_internal.make_pending(v_class, v_from);
        perform pgps_internal.catch_up(c, (join_late.last).batch_id) from pgps_internal.class c
            where c.class_id = v_class;
    end if;
    perform pgps_internal.add_feature((join_late.late).type_id, 'share') where v_is_shared;
    if v_subscription.callback is not null then
        perform pgps_internal.build_callback((join_late.late).subscription_id, (join_late.late).type_id);
    end if;
end
$$;
comment on function pgps_internal.join_late(pgps_internal.late_type, pgps_internal.subscription,
    pgps_internal.event_type, pgps_internal.batch) is
'Makes a subscription to a prefix a member of an event type that is free now, or leaves it to the lane of its owner when
there is a filter; from the batch after last on, without what was published before it was made';

create or replace function pgps_internal.join_late_types(last pgps_internal.batch, parts pgps_internal.part[])
returns void
language plpgsql
as $$
declare
    v_late record;
begin
    perform pgps_internal.join_unmet(join_late_types.last);
    if pg_relation_size('pgps_internal.late_type'::regclass) = 0 then
        return;
    end if;
    for v_late in
        select l as late, t as event_type, s as subscription, t.type_id is null or s.subscription_id is null
            or s.owner::text = s.owner::oid::text as is_over
        from pgps_internal.late_type l
        left join pgps_internal.event_type t using (type_id)
        left join pgps_internal.subscription s using (subscription_id)
        order by l.place for update of l skip locked
    loop
        if not v_late.is_over then
            if not pgps_internal.try_lock((v_late.event_type).log, 'access share') then
                perform pgps_internal.keep_locked(v_late.event_type, join_late_types.parts);
                continue;
            end if;
            perform pgps_internal.join_late(v_late.late, v_late.subscription, v_late.event_type, join_late_types.last);
        end if;
        delete from pgps_internal.late_type l where l.place = (v_late.late).place;
    end loop;
end
$$;
comment on function pgps_internal.join_late_types(pgps_internal.batch, pgps_internal.part[]) is
'Before a window is dispatched (parts), and before what was set aside is: lets subscriptions to a prefix join the event
types that they could not join before. Types that still cannot be joined are set aside';

create or replace function pgps_internal.keep_locked(
    event_type pgps_internal.event_type, parts pgps_internal.part[]
) returns void
language plpgsql
as $$
begin
    -- It may be free in a moment: nothing of it may be dispatched before the subscription has joined it.
    update pgps_internal.broken_type b set is_mended = false
    where b.type_id = (keep_locked.event_type).type_id and b.is_mended;
    if exists (select from unnest(keep_locked.parts) p where p.type_id = (keep_locked.event_type).type_id)
        and not exists (select from pgps_internal.broken_type b
            where b.type_id = (keep_locked.event_type).type_id) then
        perform pgps_internal.note_broken(keep_locked.event_type, '55P03',
            'it is being changed or dropped in a transaction that is open');
    end if;
end
$$;
comment on function pgps_internal.keep_locked(pgps_internal.event_type, pgps_internal.part[]) is
'Sets an event type aside that somebody has locked, if the window has events of it; what is set aside of it stays
there';

create or replace function pgps_internal.join_at_once(
    joining pgps_internal.joining, subscription pgps_internal.subscription, last pgps_internal.batch
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_class bigint;
    v_in_lane boolean;
    v_from bigint := (join_at_once.joining).from_batch;
    v_upto bigint;
    v_is_shared boolean := (join_at_once.subscription).handler = 'any'
        and (join_at_once.subscription).callback is null;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (join_at_once.joining).type_id;
    select o.* into v_class, v_in_lane, v_upto
    from pgps_internal.own_class(join_at_once.subscription, v_type, v_from, join_at_once.last) o;
    insert into pgps_internal.member (subscription_id, class_id, type_id, from_batch, skip, takes_batch)
    values ((join_at_once.subscription).subscription_id, v_class, v_type.type_id, v_from, (join_at_once.joining).skip,
        v_is_shared);
    perform pgps_internal.add_feature(v_type.type_id, 'share') where v_is_shared;
    if (join_at_once.subscription).callback is not null then
        perform pgps_internal.build_callback((join_at_once.subscription).subscription_id, v_type.type_id);
    end if;
    perform pgps_internal.replay(v_class, v_type, 0, v_from, v_upto);
    if v_in_lane is not true then
        perform pgps_internal.make_pending(v_class, v_upto);
    end if;
end
$$;
comment on function pgps_internal.join_at_once(pgps_internal.joining, pgps_internal.subscription,
    pgps_internal.batch) is
'Has a pattern subscription join an event type, with what is dispatched since the type was made, up to where its
other classes are';

create or replace function pgps_internal.join_rest(
    subscription pgps_internal.subscription, last pgps_internal.batch
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_joining pgps_internal.joining;
    v_state text;
    v_schema text;
    v_error text;
    v_context text;
begin
    for v_joining in
        delete from pgps_internal.joining j
        where j.subscription_id = (join_rest.subscription).subscription_id and j.failures < 3 returning j.*
    loop
        begin
            perform pgps_internal.join_at_once(v_joining, join_rest.subscription, join_rest.last);
        exception when others or assert_failure or query_canceled then
            get stacked diagnostics v_state = returned_sqlstate, v_schema = schema_name, v_error = message_text,
                v_context = pg_exception_context;
            if pgps_internal.is_passing(v_state, v_context, v_schema, v_error) then
                raise;
            end if;
            perform pgps_internal.note_unjoined(v_joining, v_error);
        end;
    end loop;
end
$$;
comment on function pgps_internal.join_rest(pgps_internal.subscription, pgps_internal.batch) is
'After a pattern subscription got another filter or owner: has it join the event types that its lane has not let it join
yet, since where it is asked now others may be further, and its position would pass their events';
