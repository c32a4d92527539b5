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

create or replace function pgps_internal.rejoin_changed(last pgps_internal.batch) returns void
language plpgsql
as $$
declare
    v_left pgps_internal.joining[];
    v_misfit pgps_internal.member[];
begin
    -- Its lane lets join who has a filter, and may do so after the dispatcher has dispatched events of the type.
    v_left := array(select j from pgps_internal.joining j join pgps_internal.subscription s using (subscription_id)
        where s.filter is null and j.failures = 0 and (s.handler <> 'any' or s.callback is not null)
        for update of j skip locked);
    -- It was without a filter, or had another owner, when the type was made.
    v_misfit := array(select m from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)
        join pgps_internal.class c on c.class_id = m.class_id
        where s.is_pattern and s.kind <> 'link' and c.signature_id is null
            and (s.filter is not null or c.owner <> s.owner)
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
            then pgps_internal.joins_late(x.subscription_id, x.type_id, least(x.from_batch,
                (rejoin_changed.last).batch_id), rejoin_changed.last)
            else pgps_internal.open_lane(s.owner) end
    from unnest(v_misfit) x join pgps_internal.subscription s using (subscription_id);
    insert into pgps_internal.joining (subscription_id, type_id, from_batch, skip)
    select x.subscription_id, x.type_id, least(x.from_batch, (rejoin_changed.last).batch_id), x.skip
    from unnest(v_misfit) x join pgps_internal.subscription s using (subscription_id) where s.filter is not null
    on conflict do nothing;
    perform pgps_internal.drop_unused_classes(array(select x.class_id from unnest(v_misfit) x)),
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
        join pgps_internal.event_type t on s.is_pattern and pgps._covers(s.event_type, t.name)
        cross join lateral pgps_internal.position_of(s.subscription_id) p
        where concat_ws(' ', s.subscription_id, t.type_id) <> all (v_tried)
            and not exists (select from pgps_internal.member m
                where m.subscription_id = s.subscription_id and m.type_id = t.type_id)
            and not exists (select from pgps_internal.joining j
                where j.subscription_id = s.subscription_id and j.type_id = t.type_id)
            and not exists (select from pgps_internal.late_type l
                where l.subscription_id = s.subscription_id and l.type_id = t.type_id)
        returning concat_ws(' ', subscription_id, type_id) as pair
    )
    select array_agg(u.pair) into v_tried from unmet u;
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
