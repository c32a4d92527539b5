-- Subscriptions to a prefix that have joined an event type for which it does not stand: one of pgps itself, before such
-- types were left out. They leave it when the code is applied (rebuild.sql).
-- Locks: the turns of these subscriptions and of their owners, until the transaction ends.
-- Writes: backlog_gap, failure, joining, late_type, member, share, subscription, unshared.

create or replace function pgps_internal.leave_types(members pgps_internal.member[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgps_internal.share s using unnest(leave_types.members) m
    where s.subscription_id = m.subscription_id and s.type_id = m.type_id;
    delete from pgps_internal.unshared u using unnest(leave_types.members) m
    where u.subscription_id = m.subscription_id and u.class_id = m.class_id;
    delete from pgps_internal.failure f using unnest(leave_types.members) m
    where f.subscription_id = m.subscription_id and f.type_id = m.type_id;
    delete from pgps_internal.backlog_gap g using unnest(leave_types.members) m
    where g.subscription_id = m.subscription_id and g.type_id = m.type_id;
    perform pgps_internal.drop_piece('function', 'pgps_internal.' || p.proname)
    from unnest(leave_types.members) m
    join pg_proc p on p.proname = format('callback_%s_%s', m.subscription_id, m.type_id)
    where p.pronamespace = 'pgps_internal'::regnamespace;
    perform pgps_internal.drop_unused_classes(array(select m.class_id from unnest(leave_types.members) m));
end
$$;
comment on function pgps_internal.leave_types(pgps_internal.member[]) is
'Forgets what is kept for subscriptions on event types that they have left, whose rows these were';

create or replace function pgps_internal.leave_uncovered() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids bigint[] := array(
        select s.subscription_id from pgps_internal.subscription s join pgps_internal.member m using (subscription_id)
        join pgps_internal.event_type t using (type_id)
        where s.is_pattern and s.kind <> 'link' and not pgps._covers(s.event_type, t.name));
    v_members pgps_internal.member[];
begin
    delete from pgps_internal.joining j using pgps_internal.subscription s, pgps_internal.event_type t
    where s.subscription_id = j.subscription_id and t.type_id = j.type_id and s.is_pattern and s.kind <> 'link'
        and not pgps._covers(s.event_type, t.name);
    delete from pgps_internal.late_type l using pgps_internal.subscription s, pgps_internal.event_type t
    where s.subscription_id = l.subscription_id and t.type_id = l.type_id and s.is_pattern
        and not pgps._covers(s.event_type, t.name);
    update pgps_internal.subscription s set last_error = null
    where s.is_pattern and s.last_error like 'event type "pgps\_%' and not starts_with(s.event_type, 'pgps_');
    if v_ids = '{}' then
        return;
    end if;
    perform pgps_internal.hold_subscriptions(v_ids);
    perform pgps_internal.hold_owner(o.owner) from (select distinct s.owner::oid as owner
        from pgps_internal.subscription s where s.subscription_id = any (v_ids) order by 1) o;
    with gone as (
        delete from pgps_internal.member m using pgps_internal.subscription s, pgps_internal.event_type t
        where m.subscription_id = any (v_ids) and s.subscription_id = m.subscription_id and t.type_id = m.type_id
            and not pgps._covers(s.event_type, t.name)
        returning m
    )
    select array_agg(g.m) into v_members from gone g;
    perform pgps_internal.leave_types(v_members);
end
$$;
comment on function pgps_internal.leave_uncovered() is
'Has subscriptions to a prefix leave the event types for which it does not stand; nothing of these is left for them';
