-- Which subscriptions are asked about together.
-- Locks: none.
-- Writes: nothing.

create or replace view pgps.classes with (security_barrier) as
select s.name as subscription, t.name as event_type, c.class_id,
    (select count(*) from pgps_internal.member x where x.class_id = c.class_id) as subscriptions,
    case when g.in_lane then 'lane' when g.signature_id is not null then 'dispatch' end as asked_in, g.signature_id,
    g.shape,
    case when g.signature_id is not null then
        (select count(*) from pgps_internal.class x where x.signature_id = g.signature_id and x.is_active) end
        as classes
from pgps_internal.subscription s
join pgps_internal.member m using (subscription_id)
join pgps_internal.class c using (class_id)
join pgps_internal.event_type t on t.type_id = m.type_id
left join pgps_internal.signature g using (signature_id)
where not s.is_hidden and (pg_has_role(current_user, s.owner::oid, 'usage')
    or pg_has_role(current_user, 'pgps_admin', 'usage'));
comment on view pgps.classes is
'The class of each of the reader''s subscriptions, all for pgps_admin; of one to a prefix a row for each event type.
subscriptions: how many share the class, composite events with such a leaf among them, since their role and predicate
are the same: the predicate is asked once for all of them. shape, signature_id, classes: the predicate without its
constants, and how many classes are asked by its query together. asked_in: dispatch, or lane (pgps.lanes) when the
predicate may read more than the event or has held up the dispatcher (dispatch_filter_timeout), or the role has more
shapes (dispatch_filters) or competing consumers (dispatch_shares) for the event type than are asked there. The last
four are null without a filter';

grant select on pgps.classes to public;
