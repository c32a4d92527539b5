-- How a form of filter comes from the dispatcher into the lane of its role (held_up.sql, decision 108), and what holds
-- while somebody has it locked. Links, which go by what the dispatcher has matched, get every event of the type from
-- then on; a composite event goes by what the lane has matched, as with a predicate over a table.
-- Locks: rows of signatures, lanes, classes and subscriptions, for which the dispatcher waits 20 ms at most, and in a
-- sweep the dispatcher's lock, which is not waited for.
-- Writes: signature, subscription, unasked.

create or replace function pgps_internal.is_bound(signature_id bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from pgps_internal.class c join pgps_internal.member m using (class_id)
        join pgps_internal.subscription s using (subscription_id)
        where c.signature_id = is_bound.signature_id and s.kind = 'link');
end
$$;
comment on function pgps_internal.is_bound(bigint) is
'True for a form of filter of a link, which goes by what the dispatcher has matched: it is moved for its own fault
alone';

create or replace function pgps_internal.suspend_bound(signature_id bigint, after_batch bigint, error text)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_active bigint;
    v_free bigint[];
begin
    select count(*) filter (where c.is_active) into v_active from pgps_internal.class c
    where c.signature_id = suspend_bound.signature_id having bool_or(pgps_internal.is_waited_for(c));
    if not found then
        return false;
    end if;
    v_free := pgps_internal.free_classes(suspend_bound.signature_id);
    if cardinality(v_free) < v_active then
        raise exception 'a class is locked' using errcode = '55P03';
    end if;
    perform pgps_internal.suspend_class(f.class_id, suspend_bound.after_batch, suspend_bound.error)
    from unnest(v_free) f(class_id);
    return true;
end
$$;
comment on function pgps_internal.suspend_bound(bigint, bigint, text) is
'Suspends a form of filter that a neighbour has sent whom a policy has blocked: what it gets when that is mended, the
dispatcher must have matched. False for all others. Errors: 55P03.';

create or replace function pgps_internal.move_to_lane(
    signature pgps_internal.signature, asked_upto bigint, after_batch bigint, error text
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (move_to_lane.signature).signature_id;
begin
    if pgps_internal.suspend_bound(v_id, move_to_lane.asked_upto, 'filter: ' || move_to_lane.error) then
        return;
    end if;
    -- What a neighbour alone has sent, nobody asks any more.
    perform pgps_internal.filter_broken(c, move_to_lane.asked_upto), pgps_internal.set_class_active(c.class_id, false)
    from pgps_internal.class c
    where c.signature_id = v_id and c.is_active and exists (select from pgps_internal.member m
        where m.class_id = c.class_id) and not exists (select from pgps_internal.member m
        join pgps_internal.subscription s using (subscription_id) where m.class_id = c.class_id and s.kind <> 'link');
    perform pgps_internal.filter_broken(c, move_to_lane.asked_upto) from pgps_internal.class c
    where c.signature_id = v_id and c.is_active;
    perform pgps_internal.open_lane((move_to_lane.signature).owner);
    perform pgps_internal.add_feature((move_to_lane.signature).type_id, 'lane');
    update pgps_internal.signature g set in_lane = true, from_batch = move_to_lane.after_batch
    where g.signature_id = v_id;
    -- The lane may be ahead of batches that nobody has asked it about.
    perform pgps_internal.make_pending(c.class_id, move_to_lane.asked_upto) from pgps_internal.class c
    where c.signature_id = v_id and c.is_active and move_to_lane.asked_upto < move_to_lane.after_batch;
    update pgps_internal.subscription s
    set last_error = format('filter: %s; it is asked in the lane of its role now', move_to_lane.error)
    where s.subscription_id in (select t.subscription_id from pgps_internal.subscription t
        join pgps_internal.member m using (subscription_id) join pgps_internal.class c using (class_id)
        where c.signature_id = v_id and t.state = 'active' and t.kind <> 'link' for no key update of t skip locked);
    perform pg_notify('pgps_lanes', '');
end
$$;
comment on function pgps_internal.move_to_lane(pgps_internal.signature, bigint, bigint, text) is
'Has a form of filter asked in the lane of its role after a batch, and about what came after asked_upto, up to which the
dispatcher has asked it; neighbours get every event after that. Errors: 55P03 somebody has something of it locked.';

create or replace function pgps_internal.put_into_lane(
    signature pgps_internal.signature, after_batch bigint, error text
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set lock_timeout = '20ms'
as $$
begin
    perform pgps_internal.move_to_lane(put_into_lane.signature, put_into_lane.after_batch, put_into_lane.after_batch,
        put_into_lane.error);
exception when lock_not_available then
    insert into pgps_internal.unasked (signature_id, from_batch)
    values ((put_into_lane.signature).signature_id, put_into_lane.after_batch)
    on conflict do nothing;
end
$$;
comment on function pgps_internal.put_into_lane(pgps_internal.signature, bigint, text) is
'Has the dispatcher ask a form of filter no more after a batch: its role''s lane does. A form that somebody has locked
is noted, for settle_apart; until then links and composite events with it go no further than that batch';

create or replace function pgps_internal.is_free(signature_id bigint) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return cardinality(pgps_internal.free_classes(is_free.signature_id)) = (select count(*) from pgps_internal.class c
        where c.signature_id = is_free.signature_id and c.is_active);
end
$$;
comment on function pgps_internal.is_free(bigint) is
'True when nobody is changing or dropping a class of a form of filter, or a subscription of one; all are locked';

create or replace view pgps_internal.to_be_settled as
select g as signature from pgps_internal.signature g join pgps_internal.held_up h on h.owner = g.owner::oid
where not g.in_lane and h.offences > 1 and h.apart_until > pgps_internal.clock()
    and g.owner::text <> g.owner::oid::text and not pgps_internal.is_bound(g.signature_id)
    and not exists (select from pgps_internal.unasked u where u.signature_id = g.signature_id);
comment on view pgps_internal.to_be_settled is
'Forms of filters that the dispatcher still asks of roles that have held it up again and again';

create or replace function pgps_internal.settle_apart() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_unasked pgps_internal.unasked;
    v_free bigint[] := array(select u.signature_id from (select u.signature_id from pgps_internal.unasked u
        offset 0) u where pgps_internal.is_free(u.signature_id));
begin
    -- The lock is held until all that is reclaimed is committed, so only where there is something to do.
    if v_free = '{}' and not exists (select from pgps_internal.to_be_settled)
            or not pgps_internal.try_lock('pgps_internal.batch', 'share row exclusive') then
        return;
    end if;
    perform pgps_internal.put_into_lane(t.signature, coalesce((pgps_internal.last_batch()).batch_id, 0),
        'another one has held up the dispatcher')
    from pgps_internal.to_be_settled t where pgps_internal.hold_type((t.signature).type_id);
    for v_unasked in
        select u.* from pgps_internal.unasked u where u.signature_id = any (v_free) order by u.place
    loop
        perform pgps_internal.settle(v_unasked);
    end loop;
end
$$;
comment on function pgps_internal.settle_apart() is
'Puts forms of filters that somebody had locked into the lane of their role, and all of a role that has held up the
dispatcher again and again; unless a dispatch is running';

create or replace function pgps_internal.settle(unasked pgps_internal.unasked) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set lock_timeout = '20ms'
as $$
begin
    if exists (select from pgps_internal.signature g where g.signature_id = (settle.unasked).signature_id
            and not pgps_internal.hold_type(g.type_id)) then
        return;
    end if;
    perform pgps_internal.move_to_lane(g, (settle.unasked).from_batch,
        coalesce((pgps_internal.last_batch()).batch_id, 0), 'has held up the dispatcher')
    from pgps_internal.signature g where g.signature_id = (settle.unasked).signature_id;
    delete from pgps_internal.unasked u where u.signature_id = (settle.unasked).signature_id;
exception when lock_not_available then
    return;
end
$$;
comment on function pgps_internal.settle(pgps_internal.unasked) is
'Puts a form of filter into the lane of its role, which catches up with what came since it was asked last; nothing when
somebody still has it, or its event type, locked';

create or replace function pgps_internal.low_of_unasked(type_id integer) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select min(u.from_batch) from pgps_internal.unasked u join pgps_internal.signature g using (signature_id)
        where low_of_unasked.type_id is null or g.type_id = low_of_unasked.type_id);
end
$$;
comment on function pgps_internal.low_of_unasked(integer) is
'The batch up to which every filter was asked that neither the dispatcher nor a lane asks now (of a type; null = any);
null when there is none';

create or replace function pgps_internal.asked_for(subscription_id bigint, batch_id bigint) returns bigint
language plpgsql
as $$
begin
    -- Mostly there never was such a form, which the sequence tells (decision 70).
    if pg_sequence_last_value('pgps_internal.unasked_place_seq'::regclass) is null then
        return asked_for.batch_id;
    end if;
    return least(asked_for.batch_id, (select min(u.from_batch) from pgps_internal.unasked u
        join pgps_internal.class c using (signature_id) join pgps_internal.member m using (class_id)
        where m.subscription_id = asked_for.subscription_id));
end
$$;
comment on function pgps_internal.asked_for(bigint, bigint) is
'Up to which batch, at most this one, the dispatcher has asked all filters of a link';
