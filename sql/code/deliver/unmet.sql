-- Subscriptions and registrations for a prefix, and event types of it, that are made in transactions which are open at
-- the same time: neither sees the other. Nobody waits. Each inserts its row, which locks the table, and only then looks
-- whether another transaction has the other table locked; so one of the two notices at least, and leaves a note. While
-- the transactions that it names are open, the dispatcher looks before each window which of the two have not met
-- (decision 92).
-- The same for a subscription to a prefix that gets another filter or owner while a type of it is made: what was joined
-- as it was before is joined anew, before anything of it is dispatched (decision 129).
-- Locks: none that is waited for.
-- Writes: joining, late_type, member, unmet.

create or replace function pgps_internal.note_unmet(variadic relations regclass[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_holders text[];
begin
    v_holders := array(
        select distinct k.virtualtransaction from pg_locks k
        where k.locktype = 'relation' and k.relation = any (note_unmet.relations::oid[])
            and k.database = (select d.oid from pg_database d where d.datname = current_database())
            and k.mode = 'RowExclusiveLock' and k.granted and k.pid is distinct from pg_backend_pid());
    -- An old snapshot does not even see what was committed before.
    if v_holders <> '{}' or current_setting('transaction_isolation') <> 'read committed' then
        insert into pgps_internal.unmet (holders) values (v_holders);
    end if;
end
$$;
comment on function pgps_internal.note_unmet(regclass[]) is
'Notes, after its own row has been inserted and before it looks for others, that open transactions may have made
something in these tables that this one does not see';

create or replace function pgps_internal.unmet_notes(out places bigint[], out over bigint[]) returns record
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A prepared transaction goes by another name than before; while there is one, it may be any of them.
    select coalesce(array_agg(u.place), '{}'), coalesce(array_agg(u.place) filter (where not exists (
        select from pg_locks k
        where k.locktype = 'virtualxid' and k.virtualtransaction = any (u.holders)
            or k.locktype = 'transactionid' and k.pid is null and u.holders <> '{}')), '{}')
    into unmet_notes.places, unmet_notes.over
    from pgps_internal.unmet u;
end
$$;
comment on function pgps_internal.unmet_notes() is
'The notes that there are, and those whose transactions are over: what these have made is seen by the next statement';

create or replace function pgps_internal.joins_late(subscription_id bigint, type_id integer, from_batch bigint,
    last pgps_internal.batch) returns void
language sql
as $$
    insert into pgps_internal.late_type (subscription_id, type_id, seen, after_batch)
    values (joins_late.subscription_id, joins_late.type_id, '1:1:',
        case when exists (select from pgps_internal.batch_type b where b.type_id = joins_late.type_id
            and b.batch_id > joins_late.from_batch and b.batch_id <= (joins_late.last).batch_id)
            then joins_late.from_batch end)
$$;
comment on function pgps_internal.joins_late(bigint, integer, bigint, pgps_internal.batch) is
'Notes that a subscription to a prefix joins an event type with all that came after a batch';

create or replace function pgps_internal.misfits(subscription_id bigint) returns setof pgps_internal.member
language sql stable
begin atomic
    select m.* from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)
    join pgps_internal.class c on c.class_id = m.class_id
    where s.is_pattern and s.kind <> 'link' and c.signature_id is null
        and (s.filter is not null or c.owner <> s.owner)
        and s.subscription_id = coalesce(misfits.subscription_id, s.subscription_id);
end;
comment on function pgps_internal.misfits(bigint) is
'Members of subscriptions to a prefix (of one; null = all) that were without a filter, or had another owner, when the
type was made';

create or replace function pgps_internal.left_joining(subscription_id bigint) returns setof pgps_internal.joining
language sql stable
begin atomic
    select j.* from pgps_internal.joining j join pgps_internal.subscription s using (subscription_id)
    where s.filter is null and j.failures = 0 and (s.handler <> 'any' or s.callback is not null)
        and s.subscription_id = coalesce(left_joining.subscription_id, s.subscription_id);
end;
comment on function pgps_internal.left_joining(bigint) is
'Event types that a subscription to a prefix (null = any) is to join in its lane, though it has no filter any more: the
lane may let it do so after the dispatcher has dispatched events of the type';

create or replace function pgps_internal.unmet_types(subscription pgps_internal.subscription, tried text[])
returns setof integer
language sql stable
begin atomic
    select t.type_id from pgps_internal.event_type t
    where (unmet_types.subscription).is_pattern and pgps._covers((unmet_types.subscription).event_type, t.name)
        and concat_ws(' ', (unmet_types.subscription).subscription_id, t.type_id) <> all (unmet_types.tried)
        and not exists (select from pgps_internal.member m
            where m.subscription_id = (unmet_types.subscription).subscription_id and m.type_id = t.type_id)
        and not exists (select from pgps_internal.joining j
            where j.subscription_id = (unmet_types.subscription).subscription_id and j.type_id = t.type_id)
        and not exists (select from pgps_internal.late_type l
            where l.subscription_id = (unmet_types.subscription).subscription_id and l.type_id = t.type_id);
end;
comment on function pgps_internal.unmet_types(pgps_internal.subscription, text[]) is
'Event types of its prefix that a subscription has not joined and is not to join. tried: pairs of a subscription and a
type that have met already';

create or replace function pgps_internal.is_unmet(subscription_id bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tried text[];
begin
    -- One class has still to catch up, and another one has not.
    if exists (select from pgps_internal.class c where c.is_pending)
        and (select count(distinct c.is_active) from pgps_internal.member m join pgps_internal.class c using (class_id)
            where m.subscription_id = is_unmet.subscription_id and (c.is_active or c.is_pending)) > 1 then
        return true;
    elsif pg_relation_size('pgps_internal.unmet'::regclass) = 0
            or not exists (select from pgps_internal.unmet) then
        return false;
    end if;
    v_tried := array(select unnest(u.tried) from pgps_internal.unmet u);
    return exists (select from pgps_internal.misfits(is_unmet.subscription_id))
        or exists (select from pgps_internal.left_joining(is_unmet.subscription_id))
        or exists (select from pgps_internal.subscription s
            cross join lateral pgps_internal.unmet_types(s, v_tried) t
            where s.subscription_id = is_unmet.subscription_id);
end
$$;
comment on function pgps_internal.is_unmet(bigint) is
'True when a subscription to a prefix has still to meet an event type that was made while it was made or changed:
whoever read on would pass events of that type, or of the others. The dispatcher, which is woken when that is committed,
has them meet (join_unmet)';

create or replace function pgps_internal.rejoins_at(member pgps_internal.member, last pgps_internal.batch)
returns bigint
language sql immutable
begin atomic
    -- What has been shared out to competing consumers is not shared out again.
    select case when (rejoins_at.member).takes_batch then (rejoins_at.last).batch_id
        else least((rejoins_at.member).from_batch, (rejoins_at.last).batch_id) end;
end;
comment on function pgps_internal.rejoins_at(pgps_internal.member, pgps_internal.batch) is
'The batch after which a subscription gets the events of a type that it joins anew. last: the one before the next';

create or replace function pgps_internal.rejoin_changed(last pgps_internal.batch) returns void
language plpgsql
as $$
declare
    v_left pgps_internal.joining[];
    v_misfit pgps_internal.member[];
begin
    v_left := array(select j from pgps_internal.left_joining(null) x
        join pgps_internal.joining j on j.subscription_id = x.subscription_id and j.type_id = x.type_id
        for update of j skip locked);
    v_misfit := array(select m from pgps_internal.misfits(null) x
        join pgps_internal.member m on m.subscription_id = x.subscription_id and m.class_id = x.class_id
        for update of m skip locked);
    if v_left = '{}' and v_misfit = '{}' then
        return;
    end if;
    delete from pgps_internal.joining j using unnest(v_left) x
        where j.subscription_id = x.subscription_id and j.type_id = x.type_id;
    delete from pgps_internal.member m using unnest(v_misfit) x
        where m.subscription_id = x.subscription_id and m.class_id = x.class_id;
    perform pgps_internal.joins_late(x.subscription_id, x.type_id, x.from_batch, rejoin_changed.last)
        from unnest(v_left) x;
    perform case when s.filter is null
            then pgps_internal.joins_late(x.subscription_id, x.type_id,
                pgps_internal.rejoins_at(x, rejoin_changed.last), rejoin_changed.last)
            else pgps_internal.open_lane(s.owner) end
    from unnest(v_misfit) x join pgps_internal.subscription s using (subscription_id);
    insert into pgps_internal.joining (subscription_id, type_id, from_batch, skip)
    select x.subscription_id, x.type_id, pgps_internal.rejoins_at(x, rejoin_changed.last), x.skip
    from unnest(v_misfit) x join pgps_internal.subscription s using (subscription_id) where s.filter is not null
    on conflict do nothing;
    perform pgps_internal.drop_unused_classes(array(select x.class_id from unnest(v_misfit) x)),
        pgps_internal.wake_consumers(array(select x.subscription_id from unnest(v_left) x
            union select x.subscription_id from unnest(v_misfit) x)),
        pg_notify('pgps_lanes', '');
end
$$;
comment on function pgps_internal.rejoin_changed(pgps_internal.batch) is
'Has subscriptions to a prefix join event types anew that were made while their filter or owner was changed. last: the
batch before';

create or replace function pgps_internal.join_unmet(last pgps_internal.batch) returns void
language plpgsql
as $$
declare
    v_notes record;
    v_tried text[];
    v_met bigint[];
    v_all_met boolean;
begin
    -- Mostly the table is empty, which its size tells without a query.
    if pg_relation_size('pgps_internal.unmet'::regclass) = 0 then
        return;
    end if;
    v_notes := pgps_internal.unmet_notes();
    if v_notes.places = '{}' then
        return;
    end if;
    perform pgps_internal.rejoin_changed(join_unmet.last);
    v_tried := array(select unnest(u.tried) from pgps_internal.unmet u where u.place = any (v_notes.places));
    -- Nothing of the type was published before the subscription was made, which did not see it. So it gets all that its
    -- position has not passed, also what was dispatched before both were seen.
    with unmet as (
        insert into pgps_internal.late_type (subscription_id, type_id, seen, after_batch)
        select s.subscription_id, t.type_id, '1:1:', case when exists (select from pgps_internal.batch_type b
            where b.type_id = t.type_id and b.batch_id > p.received_batch and b.batch_id <= (join_unmet.last).batch_id)
            then greatest(p.received_batch, 0) end
        from pgps_internal.subscription s
        cross join lateral pgps_internal.unmet_types(s, v_tried) t(type_id)
        cross join lateral pgps_internal.position_of(s.subscription_id) p
        returning subscription_id, concat_ws(' ', subscription_id, type_id) as pair
    )
    select array_agg(u.pair), array_agg(u.subscription_id) into v_tried, v_met from unmet u;
    perform pgps_internal.wake_consumers(v_met);
    v_all_met := pgps_internal.meet_rooms();
    if v_all_met then
        delete from pgps_internal.unmet u where u.place = any (v_notes.over);
    end if;
    if v_tried is not null then
        update pgps_internal.unmet u set tried = u.tried || v_tried where u.place = any (v_notes.places);
    end if;
end
$$;
comment on function pgps_internal.join_unmet(pgps_internal.batch) is
'Before a window is dispatched: has subscriptions and registrations for a prefix, and event types, that did not see each
other meet. last: the batch before';
