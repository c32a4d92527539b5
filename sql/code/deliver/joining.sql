-- Joining: from where on a subscription gets the events of a type. From now, from the beginning, or from an event: what
-- is in the log already is matched once more for it.
-- Locks: catalogue rows; with a start other than now the owner's lane, and a lock against reclaim, until the
-- transaction ends.
-- Writes: delivery, member.

create or replace function pgps_internal.hold_log(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The log of a type that is gone has only a number. To be caught by pgps_internal.attempt.
    if not exists (select from pg_class c where c.oid = (hold_log.event_type).log) then
        raise exception 'pgps_internal.event_type has lost type %', (hold_log.event_type).type_id
        using errcode = '42704', hint = 'Another session has dropped it meanwhile: try again.';
    end if;
    -- Only the table itself: its segments are given back meanwhile.
    execute format('lock table only %s in access share mode', (hold_log.event_type).log);
end
$$;
comment on function pgps_internal.hold_log(pgps_internal.event_type) is
'Has whoever drops an event type wait until the transaction ends, and then see what it has made of it. Errors: 42704,
42P01 it was dropped just now';

create or replace function pgps_internal.keep_past(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.hold_log(keep_past.event_type);
    execute format('lock table %s, pgps_internal.batch, pgps_internal.batch_type, pgps_internal.control in access '
        'share mode', (keep_past.event_type).log);
end
$$;
comment on function pgps_internal.keep_past(pgps_internal.event_type) is
'Keeps what is still there of an event type until the transaction ends: reclaim truncates none of it meanwhile. Errors:
42704, 42P01 it was dropped just now';

create or replace function pgps_internal.waiting_ids(event_type pgps_internal.event_type, last pgps_internal.batch)
returns int8multirange
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xids xid8[];
    v_ranges int8multirange;
    v_ids int8multirange;
begin
    select array_agg(distinct w.xid), range_agg(int8range(w.lo, w.hi, '[]')) into v_xids, v_ranges
    from pgps_internal.waiting(waiting_ids.last, pgps_internal.committed_now()) w
        where w.type_id = (waiting_ids.event_type).type_id;
    if v_xids is not null then
        execute format('select c.ids from pgps_internal.part_ids_%s($1, $2) c', (waiting_ids.event_type).type_id)
            using v_xids, v_ranges into v_ids;
    end if;
    return coalesce(v_ids, '{}') + pgps_internal.ids_aside((waiting_ids.event_type).type_id);
end
$$;
comment on function pgps_internal.waiting_ids(pgps_internal.event_type, pgps_internal.batch) is
'The ids of events of a type that have been committed and are in no batch up to last';

create or replace function pgps_internal.join_type(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type, start text
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_from bigint := 0;
    v_class bigint;
begin
    if not (join_type.subscription).is_pattern then
        perform pgps_internal.hold_log(join_type.event_type);
    end if;
    -- Signatures and classes are shared by the subscriptions of a role, and are changed under its lock.
    perform pgps_internal.hold_owner((join_type.subscription).owner::oid);
    if (join_type.subscription).is_pattern then
        if pgps_internal.has_joined((join_type.subscription).subscription_id, (join_type.event_type).type_id) then
            return;
        end if;
        perform pgps_internal.open_lane((join_type.subscription).owner);
    end if;
    if join_type.start = 'now' then
        -- An assignment, not PERFORM: PL/pgSQL evaluates it without setting up an executor.
        v_class := pgps_internal.join_now(join_type.subscription, join_type.event_type);
        return;
    elsif join_type.start <> 'earliest' then
        if join_type.start !~ '^\s*\d{1,18}\s*$' then
            raise exception 'invalid start "%"', join_type.start using errcode = '22023',
                hint = 'Use now, earliest, or an event id.';
        end if;
        v_from := join_type.start::bigint;
    end if;
    perform pgps_internal.join_past(join_type.subscription, join_type.event_type, v_from);
end
$$;
comment on function pgps_internal.join_type(pgps_internal.subscription, pgps_internal.event_type, text) is
'Makes a subscription a member of the class of its filter on one event type, from now, earliest or an event id on';

create or replace function pgps_internal.start_batch(
    event_type pgps_internal.event_type, event_id bigint, last pgps_internal.batch
) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_next bigint := coalesce((start_batch.last).batch_id, 0) + 1;
    v_batch bigint;
    v_known int8multirange;
    v_is_archived boolean;
begin
    select max(b.batch_id) into v_batch from pgps_internal.batch_type b where start_batch.event_id <@ b.ids;
    if v_batch is not null then
        return v_batch;
    elsif exists (select from pgps_internal.in_no_batch(start_batch.last, pg_current_snapshot()) w
        where start_batch.event_id between w.lo and w.hi) then
        return v_next;
    end if;
    select coalesce(range_agg(r), '{}') into v_known
    from pgps_internal.batch_type b, unnest(b.ids) r where b.type_id = (start_batch.event_type).type_id;
    execute format('select exists (select from pgps_internal.%I a where a.event_id >= $1 and not a.event_id <@ $2)',
        (start_batch.event_type).name || '_audit') using start_batch.event_id, v_known into v_is_archived;
    if v_is_archived then
        return 0;
    end if;
    -- The event is in no batch: it is reclaimed, was rolled back, or is still to be committed. The start is the first
    -- batch with a higher id.
    return coalesce((select min(b.batch_id) from pgps_internal.batch_type b where upper(b.ids) > start_batch.event_id),
        v_next);
end
$$;
comment on function pgps_internal.start_batch(pgps_internal.event_type, bigint, pgps_internal.batch) is
'The batch with which a subscription to a type begins when it is to begin with an event (of any type): that event''s
own, 0 = among the archived ones, or the next';

create or replace function pgps_internal.join_now(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class bigint;
    v_last pgps_internal.batch := pgps_internal.last_batch();
    v_is_shared boolean := (join_now.subscription).handler = 'any' and (join_now.subscription).callback is null;
begin
    v_class := pgps_internal.find_class_of(join_now.subscription, join_now.event_type, false);
    -- Events that are committed but not in a batch yet were published before: they are skipped.
    insert into pgps_internal.member (subscription_id, class_id, type_id, from_batch, skip, takes_batch)
    values ((join_now.subscription).subscription_id, v_class, (join_now.event_type).type_id,
        pgps_internal.first_from_batch(join_now.subscription, v_last),
        pgps_internal.waiting_ids(join_now.event_type, v_last), v_is_shared);
    if v_is_shared then
        perform pgps_internal.add_feature((join_now.event_type).type_id, 'share');
    end if;
    if (join_now.subscription).callback is not null then
        perform pgps_internal.build_callback((join_now.subscription).subscription_id, (join_now.event_type).type_id);
    end if;
    return v_class;
end
$$;
comment on function pgps_internal.join_now(pgps_internal.subscription, pgps_internal.event_type) is
'Makes a subscription a member of the class of its filter on one event type, from now on; the filter is not run';

create or replace function pgps_internal.join_past(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type, from_event bigint
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last pgps_internal.batch;
    v_class bigint;
    v_signature pgps_internal.signature;
    v_skip int8multirange := '{}';
    v_batch bigint := 0;
    v_upto bigint;
begin
    perform pgps_internal.require_read_committed();
    -- The dispatcher goes on meanwhile; the locks only keep reclaim from truncating what is read here, until the
    -- commit.
    perform pgps_internal.keep_past(join_past.event_type);
    v_last := pgps_internal.last_batch();
    v_class := pgps_internal.find_class_of(join_past.subscription, join_past.event_type, true);
    select g.* into v_signature from pgps_internal.class c join pgps_internal.signature g using (signature_id)
        where c.class_id = v_class;
    -- All classes of a subscription are filled up to the same batch: otherwise its position would pass events that
    -- another class has still to catch up with.
    select min(c.suspended_batch) into v_upto from pgps_internal.member m join pgps_internal.class c using (class_id)
    where m.subscription_id = (join_past.subscription).subscription_id and c.is_pending;
    v_upto := coalesce(v_upto, pgps_internal.matched_upto((join_past.subscription).owner, v_signature, v_last));
    if v_signature.in_lane and (join_past.subscription).is_pattern then
        v_upto := pgps_internal.hold_lane((join_past.subscription).owner);
        v_class := pgps_internal.begin_in_lane(v_class, v_upto, v_upto);
    end if;
    -- The start is a place in delivery order, batch first: an event of a lower id may have been committed, and
    -- delivered, later.
    if join_past.from_event > 0 then
        v_batch := pgps_internal.start_batch(join_past.event_type, join_past.from_event, v_last);
        v_skip := coalesce((select range_agg(r) from pgps_internal.batch_type b,
            unnest(b.ids * int8multirange(int8range(null, join_past.from_event))) r
            where b.batch_id = v_batch and b.type_id = (join_past.event_type).type_id), '{}');
    end if;
    perform pgps_internal.restore_audited(join_past.event_type, v_batch, join_past.from_event);
    insert into pgps_internal.member (subscription_id, class_id, type_id, from_batch, skip, takes_batch)
    values ((join_past.subscription).subscription_id, v_class, (join_past.event_type).type_id, v_batch - 1, v_skip,
        (join_past.subscription).handler = 'any' and (join_past.subscription).callback is null);
    perform pgps_internal.add_feature((join_past.event_type).type_id, 'share')
    where (join_past.subscription).handler = 'any' and (join_past.subscription).callback is null;
    perform pgps_internal.replay(v_class, join_past.event_type, join_past.from_event, v_batch - 1, v_upto);
    if v_signature.in_lane is not true then
        perform pgps_internal.make_pending(v_class, v_upto);
    end if;
    if (join_past.subscription).callback is not null then
        perform pgps_internal.build_callback((join_past.subscription).subscription_id, (join_past.event_type).type_id);
    end if;
end
$$;
comment on function pgps_internal.join_past(pgps_internal.subscription, pgps_internal.event_type, bigint) is
'Makes a subscription a member of a class of its own, with what is still there from an event id on (0: everything)';

create or replace function pgps_internal.matched_upto(
    owner regrole, signature pgps_internal.signature, last pgps_internal.batch
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if (matched_upto.signature).in_lane is not true then
        -- The next dispatch catches up from here.
        return coalesce((matched_upto.last).batch_id, 0);
    end if;
    return greatest(pgps_internal.hold_lane(matched_upto.owner), (matched_upto.signature).from_batch);
end
$$;
comment on function pgps_internal.matched_upto(regrole, pgps_internal.signature, pgps_internal.batch) is
'The batch up to which a class that is filled now has to be filled: the last one or, in a lane, the one that the lane
has reached; the lane is held there until the transaction ends';

create or replace function pgps_internal.own_class(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type, at_least bigint,
    last pgps_internal.batch, out class_id bigint, out in_lane boolean, out upto bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_owner regrole := (own_class.subscription).owner;
    v_signature pgps_internal.signature;
    v_reached bigint;
begin
    perform pgps_internal.keep_past(own_class.event_type);
    -- Signatures and classes are shared by the subscriptions of a role, and are changed under its lock.
    perform pgps_internal.hold_owner(v_owner::oid);
    class_id := pgps_internal.find_class_of(own_class.subscription, own_class.event_type, true);
    select g.* into v_signature from pgps_internal.class c join pgps_internal.signature g using (signature_id)
        where c.class_id = own_class.class_id;
    in_lane := v_signature.in_lane;
    upto := pgps_internal.matched_upto(v_owner, v_signature, own_class.last);
    if in_lane then
        v_reached := pgps_internal.hold_lane(v_owner);
        upto := greatest(case when (own_class.subscription).is_pattern then v_reached else upto end,
            own_class.at_least);
        class_id := pgps_internal.begin_in_lane(class_id, v_reached, upto);
    end if;
end
$$;
comment on function pgps_internal.own_class(pgps_internal.subscription, pgps_internal.event_type, bigint,
    pgps_internal.batch) is
'A new class of a subscription on an event type, and the batch up to which it has to be filled: the last one or, in a
lane, where that is, but at_least (null = no matter). The lane, and what the class is filled from, are held until the
transaction ends';

drop function if exists
    pgps_internal.match_past(bigint, pgps_internal.event_type, bigint, bigint, bigint);
create or replace function pgps_internal.match_past(
    class_id bigint, event_type pgps_internal.event_type, from_event bigint, after_batch bigint, upto bigint,
    only_ids int8multirange = null
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class pgps_internal.class;
    v_signature pgps_internal.signature;
    v_batch record;
    v_ids int8multirange;
begin
    select c.* into v_class from pgps_internal.class c where c.class_id = match_past.class_id;
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = v_class.signature_id;
    for v_batch in
        select b.batch_id, case when b.batch_id = match_past.after_batch + 1
            then b.ids * int8multirange(int8range(match_past.from_event, null))
            else b.ids end as ids
        from pgps_internal.batch_type b
        where b.type_id = (match_past.event_type).type_id and b.batch_id > match_past.after_batch
            and b.batch_id <= match_past.upto and not isempty(b.ids)
        order by b.batch_id
    loop
        v_ids := pgps_internal.visible(match_past.event_type, v_class.owner,
            coalesce(v_batch.ids * match_past.only_ids, v_batch.ids));
        if isempty(v_ids) then
            continue;
        elsif v_signature.signature_id is not null then
            perform pgps_internal.match_signature(v_batch.batch_id, v_signature, v_ids,
                int8range(v_class.class_id, v_class.class_id, '[]'));
        else
            -- Only events that are still in the log: a delivery without events would hold up its subscriptions and
            -- reclaim for ever. As ranges, like those of dispatch.
            execute format('insert into pgps_internal.delivery (batch_id, class_id, type_id, events, ids)
                select $1, $2, $3, sum(i.upto - i.since + 1), range_agg(int8range(i.since, i.upto, ''[]'')) from (
                    select min(e.event_id) as since, max(e.event_id) as upto from (
                        select l.event_id, l.event_id - row_number() over (order by l.event_id) as island from %s l
                        where l.event_id between lower($4) and upper($4) - 1 and l.event_id <@ $4) e
                    group by e.island) i
                having count(*) > 0', (match_past.event_type).log)
            using v_batch.batch_id, v_class.class_id, v_class.type_id, v_ids;
        end if;
    end loop;
end
$$;
comment on function pgps_internal.match_past(bigint, pgps_internal.event_type, bigint, bigint, bigint, int8multirange)
is
'Matches, for a class that is new or was suspended, what is still there after a batch and up to another; of the first of
these batches only from an event id on. only_ids: these events only, null = all. Shares nothing out: see replay';

create or replace function pgps_internal.replay(
    class_id bigint, event_type pgps_internal.event_type, from_event bigint, after_batch bigint, upto bigint
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.match_past(replay.class_id, replay.event_type, replay.from_event, replay.after_batch,
            replay.upto),
        pgps_internal.share_past(replay.class_id, replay.after_batch, replay.upto, false);
end
$$;
comment on function pgps_internal.replay(bigint, pgps_internal.event_type, bigint, bigint, bigint) is
'As match_past, and shares out what was matched';

create or replace function pgps_internal.match_pattern_subscriptions(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_subscription pgps_internal.subscription;
begin
    perform pgps_internal.note_unmet('pgps_internal.subscription', 'pgps_internal.registration');
    select t.* into v_type from pgps_internal.event_type t where t.type_id = match_pattern_subscriptions.type_id;
    for v_subscription in
        select s.* from pgps_internal.subscription s
        where s.is_pattern and pgps._covers(s.event_type, v_type.name)
            and not exists (select from pgps_internal.member m where m.subscription_id = s.subscription_id
                and m.type_id = v_type.type_id)
            and exists (select from pg_roles r where r.oid = s.owner)
    loop
        -- A filter is planned and asked only in its owner's lane. A subscription that an open transaction is dropping
        -- is skipped and not waited for. The owner's definitions need no lock, since nobody else knows the type yet.
        perform from pgps_internal.subscription s
            where s.subscription_id = v_subscription.subscription_id for key share skip locked;
        if found and v_subscription.filter is null then
            perform pgps_internal.join_now(v_subscription, v_type);
        else
            perform pgps_internal.expect_type(v_subscription, v_type);
        end if;
    end loop;
end
$$;
comment on function pgps_internal.match_pattern_subscriptions(integer) is
'Joins the subscriptions to a prefix to a new event type';
