-- Newcomers: global subscriptions that sessions which receive from neighbours may not have seen yet (decision 64).
-- Nobody waits for anybody: whoever subscribes inserts a row; what those receive who have not seen it is judged by the
-- dispatcher, by "since" (rule 5 of the horizon). Its members are hidden until the dispatcher has seen it, since what
-- was dispatched before was not judged for it.
-- Locks: rows of member, which are not waited for.
-- Writes: member, newcomer, to_skip, unsettled.

create or replace function pgps_internal.note_subscription() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from added a where a.scope = 'global') and exists (select from pgps_internal.broker) then
        insert into pgps_internal.newcomer (subscription_id, joined_batch)
        select a.subscription_id, coalesce((pgps_internal.last_batch()).batch_id, 0) from added a
            where a.scope = 'global';
        -- The dispatcher looks into this table alone: while there is a newcomer it is not empty.
        insert into pgps_internal.to_skip (type_id, ids, subscription_ids)
        select 0, '{}', array[a.subscription_id] from added a where a.scope = 'global';
        insert into pgps_internal.unsettled default values;
        perform pg_notify('pgps_link', ''), pgps_internal.wake_dispatcher();
    end if;
    return null;
end
$$;
comment on function pgps_internal.note_subscription() is
'Trigger after new subscriptions: what comes over links is judged for a global one';

create or replace function pgps_internal.note_joined(subscription pgps_internal.subscription) returns void
language plpgsql
as $$
begin
    if (note_joined.subscription).scope = 'global' and exists (select from pgps_internal.broker) then
        insert into pgps_internal.unsettled default values;
        -- Who receives now has not seen that it joins, as when a subscription is new; its members are not hidden, since
        -- nothing has been dispatched in between.
        insert into pgps_internal.newcomer (subscription_id, joined_batch, until, changed_by)
        values ((note_joined.subscription).subscription_id, coalesce((pgps_internal.last_batch()).batch_id, 0), '0',
            pg_current_xact_id())
        on conflict on constraint newcomer_pkey do update
        set until = case when newcomer.until is not null then '0'::xid8 end, is_pushed = false,
            changed_by = pg_current_xact_id();
        insert into pgps_internal.to_skip (type_id, ids, subscription_ids)
        values (0, '{}', array[(note_joined.subscription).subscription_id]);
        perform pg_notify('pgps_link', '');
    end if;
end
$$;
comment on function pgps_internal.note_joined(pgps_internal.subscription) is
'A subscription to a prefix is about to join an event type that it could not join before: its filter is in force nowhere
yet, and the dispatcher, who calls this, judges for it again what comes';

create or replace function pgps_internal.hidden() returns bigint
language sql immutable parallel safe
begin atomic
    select 4611686018427387904;
end;
comment on function pgps_internal.hidden() is
'The batch after which members of a newcomer begin until the dispatcher has seen it: higher than any';

create or replace function pgps_internal.first_from_batch(
    subscription pgps_internal.subscription, last pgps_internal.batch
) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if (first_from_batch.subscription).scope = 'global' then
        -- Once others can see a newcomer, its members are hidden no more: the dispatcher may have shown them already.
        if exists (select from pgps_internal.newcomer n
                where n.subscription_id = (first_from_batch.subscription).subscription_id
                    and n.made_by = pg_current_xact_id()) then
            return pgps_internal.hidden();
        end if;
    end if;
    return coalesce((first_from_batch.last).batch_id, 0);
end
$$;
comment on function pgps_internal.first_from_batch(pgps_internal.subscription, pgps_internal.batch) is
'The batch after which a member begins that is made now: last, or hidden() when this transaction makes its global
subscription';

create or replace function pgps_internal.as_shown(member pgps_internal.member) returns pgps_internal.member
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_member pgps_internal.member := as_shown.member;
begin
    if v_member.from_batch < pgps_internal.hidden() then
        return v_member;
    end if;
    -- The dispatcher may have seen it, and not been able to show it, because this transaction has it locked.
    select case when m.from_batch < pgps_internal.hidden() then m.from_batch else coalesce(n.from_batch, m.from_batch)
        end, m.skip into v_member.from_batch, v_member.skip
    from pgps_internal.member m left join pgps_internal.newcomer n using (subscription_id)
    where m.subscription_id = v_member.subscription_id and m.class_id = v_member.class_id;
    return v_member;
end
$$;
comment on function pgps_internal.as_shown(pgps_internal.member) is
'A member with the batch after which it begins, for whoever is changing it; read after the last batch';

create or replace function pgps_internal.judge(subscription_ids bigint[], parts pgps_internal.part[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Refused events that are published now (attachment -1) come for everybody who is there; what was fetched for
    -- children is skipped by all anyhow.
    insert into pgps_internal.to_skip (type_id, ids, subscription_ids)
    select p.type_id, range_agg(a.ids), array[e.subscription_id]
    from unnest(judge.parts) p
    join pgps_internal.arrival a on a.hi >= lower(p.ranges) and a.lo < upper(p.ranges) and a.ids && p.ranges
        and a.attachment <> -1
    join pgps_internal.early e on e.origin_id = a.origin_id and e.type_id = p.type_id
        and e.subscription_id = any (judge.subscription_ids) and (e.since is null or e.since >= a.upto)
    group by p.type_id, e.subscription_id;
end
$$;
comment on function pgps_internal.judge(bigint[], pgps_internal.part[]) is
'Rule 5 of the horizon for what waits, or was dispatched, for subscriptions that those who received it may not have
seen';

create or replace function pgps_internal.note_seen(subscription_ids bigint[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_own bigint := pg_current_xact_id()::text::bigint;
    v_newest bigint;
begin
    -- A snapshot ends with the last transaction that has ended, and transactions with higher ids may be running. But a
    -- subtransaction that writes has the newest id of all: whoever has a higher one has taken it, and looked at
    -- subscriptions, afterwards.
    begin
        with seen as (
            update pgps_internal.newcomer n set until = '0'
            where n.subscription_id = any (note_seen.subscription_ids) returning n.xmin as id
        )
        select max(s.id::text::bigint) into v_newest from seen s;
    exception when others then
        raise;
    end;
    v_newest := v_own + (v_newest - v_own % 4294967296 + 4294967296) % 4294967296;
    update pgps_internal.newcomer n set until = v_newest::text::xid8
    where n.subscription_id = any (note_seen.subscription_ids);
end
$$;
comment on function pgps_internal.note_seen(bigint[]) is
'Notes up to which transaction id somebody may have received without seeing newcomers that are seen now';

create or replace function pgps_internal.see_newcomers() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_seen bigint[] := array(select n.subscription_id from pgps_internal.newcomer n where n.until is null);
begin
    if v_seen = '{}' then
        return;
    end if;
    -- What was dispatched since it was made: for those that begin in the past, which are not hidden.
    perform pgps_internal.judge(array[n.subscription_id], array(
        select row(b.type_id, null, range_agg(r))::pgps_internal.part
        from pgps_internal.batch_type b, unnest(b.ids) r
        where b.batch_id > n.joined_batch and b.type_id in (select m.type_id from pgps_internal.member m
            where m.subscription_id = n.subscription_id)
        group by b.type_id))
    from pgps_internal.newcomer n
    where n.subscription_id = any (v_seen) and exists (select from pgps_internal.member m
        where m.subscription_id = n.subscription_id and m.from_batch < pgps_internal.hidden());
    perform pgps_internal.note_seen(v_seen);
    perform pg_notify('pgps_lanes', '');
end
$$;
comment on function pgps_internal.see_newcomers() is
'Judges what was dispatched before the dispatcher saw a newcomer, and notes which transactions may not have seen it';

create or replace function pgps_internal.see_pushed() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Of what this transaction changes nobody else knows before its end.
    v_known bigint[] := array(select n.subscription_id from pgps_internal.newcomer n
        where n.until is not null and n.changed_by <> pg_current_xact_id());
    v_pushed bigint[] := array(select n.subscription_id from pgps_internal.newcomer n
        where n.until is not null and not n.is_pushed and not exists (
            select from (
                select m.type_id from pgps_internal.member m where m.subscription_id = n.subscription_id
                union all
                select j.type_id from pgps_internal.joining j where j.subscription_id = n.subscription_id
            ) t
            where not exists (select from pgps_internal.pushed p where p.subscription_id = n.subscription_id
                and p.type_id = t.type_id and p.is_current)));
begin
    if v_known <> '{}' then
        update pgps_internal.newcomer n set changed_by = null where n.subscription_id = any (v_known);
        perform pgps_internal.note_seen(v_known);
    end if;
    if v_pushed <> '{}' then
        update pgps_internal.newcomer n set is_pushed = true, changed_by = pg_current_xact_id()
        where n.subscription_id = any (v_pushed);
        perform pgps_internal.note_seen(v_pushed);
    end if;
end
$$;
comment on function pgps_internal.see_pushed() is
'Notes for which newcomers the filters have been found that neighbours are asked, and which transactions may not have
seen these. A filter of the same text may be in force for long: what was received before somebody knew is judged like
what comes after it, and by the dispatcher alone, or some would be skipped between what is not. Once that is committed,
notes again which transactions may not have seen it: one that looked just before, leaves it to the dispatcher, too';

create or replace function pgps_internal.push_newcomers() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Some at a time: who reclaims has other things locked.
    if exists (select from pgps_internal.newcomer n where n.until is not null and not n.is_pushed)
        and exists (select from pgps_internal.neighbour)
            and pgps_internal.try_lock('pgps_internal.turn_of_routes', 'exclusive') then
        perform pgps_internal.push_filters(500);
    end if;
end
$$;
comment on function pgps_internal.push_newcomers() is
'Finds the filters that neighbours are asked for newcomers, which whoever sends to a neighbour does first: while no link
is up nobody sends, and each dispatch would look through all newcomers since then';

create or replace function pgps_internal.forget_seen() returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    update pgps_internal.newcomer n set until = '0' where n.until is not null
$$;
comment on function pgps_internal.forget_seen() is
'In another life of the database: who received in the one before without seeing newcomers does so no more';

create or replace function pgps_internal.show_newcomers() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_members tid[] := array(select m.ctid from pgps_internal.member m
        join pgps_internal.newcomer n using (subscription_id)
        where n.from_batch is not null and m.from_batch >= pgps_internal.hidden()
        order by m.subscription_id, m.class_id for no key update of m skip locked);
begin
    update pgps_internal.member m set from_batch = n.from_batch
    from unnest(v_members) f(id), pgps_internal.newcomer n
    where m.ctid = f.id and n.subscription_id = m.subscription_id;
end
$$;
comment on function pgps_internal.show_newcomers() is
'Shows newcomers what is theirs, unless somebody is changing them: then the next time';

create or replace function pgps_internal.meet_newcomers() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.see_newcomers(), pgps_internal.show_newcomers(), pgps_internal.apply_skips();
end
$$;
comment on function pgps_internal.meet_newcomers() is
'What the dispatcher does for newcomers, and for what is to be skipped, before classes catch up';

create or replace function pgps_internal.judge_batch(last pgps_internal.batch, parts pgps_internal.part[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_seen bigint[];
begin
    -- The window has been read before: whatever it has that was committed after a newcomer, that is seen here.
    perform pgps_internal.see_newcomers(), pgps_internal.see_pushed();
    update pgps_internal.newcomer n set from_batch = coalesce((judge_batch.last).batch_id, 0)
    where n.until is not null and n.from_batch is null;
    perform pgps_internal.show_newcomers();
    -- What was received by those who may not have seen it is in a batch, or was in another database.
    with over as (
        delete from pgps_internal.newcomer n
        where n.until <= pg_snapshot_xmin(case when (judge_batch.last).upto is null then (judge_batch.last).snapshot
                    else (judge_batch.last).previous end)
            and n.changed_by is null and (n.is_pushed or not exists (select from pgps_internal.neighbour))
            and not exists (select from pgps_internal.member m
                where m.subscription_id = n.subscription_id and m.from_batch >= pgps_internal.hidden())
        returning n.subscription_id
    )
    delete from pgps_internal.to_skip k using over o where k.type_id = 0 and k.subscription_ids[1] = o.subscription_id;
    v_seen := array(select n.subscription_id from pgps_internal.newcomer n where n.until is not null);
    perform pgps_internal.judge(v_seen, judge_batch.parts) where v_seen <> '{}';
end
$$;
comment on function pgps_internal.judge_batch(pgps_internal.batch, pgps_internal.part[]) is
'Shows newcomers, and judges for them what is about to be dispatched; see before_batch';

create or replace function pgps_internal.before_batch(last pgps_internal.batch, parts pgps_internal.part[])
returns boolean
language plpgsql
as $$
declare
    v_is_new boolean;
begin
    -- Mostly the table is empty, which its size tells without a query.
    if pg_relation_size('pgps_internal.to_skip'::regclass) = 0 then
        return false;
    end if;
    -- Or it has been emptied, and not vacuumed since.
    v_is_new := (select bool_or(k.type_id = 0) from pgps_internal.to_skip k);
    if v_is_new is null then
        return false;
    elsif v_is_new then
        perform pgps_internal.judge_batch(before_batch.last, before_batch.parts);
    end if;
    perform pgps_internal.apply_skips();
    return true;
end
$$;
comment on function pgps_internal.before_batch(pgps_internal.batch, pgps_internal.part[]) is
'Before a batch is matched, what came over links is judged for newcomers, and what is to be skipped is noted with the
subscriptions; false: there was nothing. last: the batch before it; parts: what it consists of, read just before';

create or replace function pgps_internal.is_news() returns boolean
language plpgsql
as $$
begin
    -- Mostly the table is empty, which its size tells without a query.
    if pg_relation_size('pgps_internal.unsettled'::regclass) = 0 then
        return false;
    end if;
    return exists (select from pgps_internal.unsettled);
end
$$;
comment on function pgps_internal.is_news() is
'True when subscriptions or event types were made since origins were settled';

create or replace function pgps_internal.origin_of(item jsonb) returns pgps_internal.origin
language plpgsql
as $$
declare
    -- Asked before the origin is read: who settles origins anew takes the news away, in the same transaction.
    v_is_news boolean := pgps_internal.is_news();
    v_origin pgps_internal.origin;
begin
    select o.* into v_origin from pgps_internal.origin o
    where o.broker_id = (origin_of.item ->> 'broker')::uuid and o.epoch = (origin_of.item ->> 'epoch')::integer;
    v_origin.is_settled := v_origin.is_settled and not v_is_news;
    return v_origin;
end
$$;
comment on function pgps_internal.origin_of(jsonb) is
'The origin of an item that is received; settled only while nothing was made since that its settling did not see';

do $$
begin
    if not exists (select from pg_catalog.pg_trigger where tgname = 'pgps_subscription'
        and tgrelid = 'pgps_internal.subscription'::regclass) then
        create trigger pgps_subscription after insert on pgps_internal.subscription referencing new table as added
        for each statement execute function pgps_internal.note_subscription();
    end if;
end
$$;
