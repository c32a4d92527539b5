-- What an administrator sees of links and of the network behind them, beside pgps.links. Locks: none.
-- Writes: nothing.

create or replace view pgps.link_details with (security_barrier) as
select coalesce(l.name, n.name) as name, n.name as neighbour, pg_get_userbyid(coalesce(l.role, n.role))::text as role,
    r.rolsuper as role_is_superuser,
    coalesce(l.conninfo ~* '(^|[\s?&])(ssl)?password\s*=' or l.conninfo ~* '^postgres(ql)?://[^/@]*:[^/@]+@',
        false) as has_password,
    s.connected_since, o.sent, p.received_event as confirmed, a.received, d.differences,
    array(select concat_ws(': ', t.name, f.filter) from pgps_internal.told k
        join pgps_internal.link_filter f using (key) join pgps_internal.event_type t using (type_id)
        where k.neighbour_id = n.neighbour_id and k.kind = 'sub' order by 1) as sent_filters,
    array(select concat_ws(': ', t.name, f.filter) from pgps_internal.wanted w
        join pgps_internal.link_filter f using (key) join pgps_internal.event_type t using (type_id)
        where w.neighbour_id = n.neighbour_id and w.gone_batch is null order by 1) as received_filters
from pgps_internal.link l
full join pgps_internal.neighbour n using (link_id)
left join pg_roles r on r.oid = coalesce(l.role, n.role)
cross join lateral (select min(s.since) as connected_since from pgps._link_sessions(current_user) s
    where s.neighbour_id = n.neighbour_id) s
cross join lateral (select max(o.lseq) as sent from pgps_internal.shipment o where o.neighbour_id = n.neighbour_id) o
left join pgps_internal.standing p on p.subscription_id = n.subscription_id
cross join lateral (select max(a.lseq) as received from pgps_internal.arrival a where a.neighbour_id = n.neighbour_id) a
cross join lateral (select jsonb_object_agg(f.name, f.difference order by f.name) as differences
    from pgps_internal.foreign_type f
    where f.neighbour_id = n.neighbour_id and f.difference is not null) d
where pg_has_role(current_user, 'pgps_admin', 'usage') or pg_has_role(current_user, 'pgps_worker', 'usage');
comment on view pgps.link_details is
'More of each link in pgps.links, for pgps_admin and pgps_worker: whether a password stands in its connection string,
whether the role whose rights the neighbour has here is a superuser; the numbers sent, confirmed and received; event
types that differ from the neighbour''s, and in what; the filters it was sent and those it has sent, each behind its
event type, which alone stands for every event';
grant select on pgps.link_details to public;

create or replace view pgps.routes with (security_barrier) as
select p.broker as origin, b.broker_id, b.epoch, true as is_self, null::text as neighbour, array[p.broker] as path,
    0 as cost, null::boolean as is_parent,
    array(select t.name from pgps_internal.event_type t
        where exists (select from pgps_internal.advertisement a join pg_roles r on r.oid = a.role::oid
            where a.type_id = t.type_id)
            order by t.name) as event_types,
    '{}'::text[] as filters_in_force
from pgps_internal.progress p
left join pgps_internal.broker b on true
where pg_has_role(current_user, 'pgps_admin', 'usage') or pg_has_role(current_user, 'pgps_worker', 'usage')
union all
select o.name, o.broker_id, o.epoch, false, n.name, array(
        select coalesce((select x.name from pgps_internal.neighbour x where x.broker_id = h.broker_id),
            (select x.name from pgps_internal.origin x where x.broker_id = h.broker_id and x.name <> '?'
                order by x.epoch desc limit 1), h.broker_id::text)
        from unnest(f.path) with ordinality h(broker_id, place) order by h.place),
    f.cost, coalesce(o.parent = f.neighbour_id, false), f.types,
    array(select concat_ws(': ', t.name, x.filter) from pgps_internal.activation a
        join pgps_internal.link_filter x using (key) join pgps_internal.event_type t using (type_id)
        where a.origin_id = f.origin_id and o.parent = f.neighbour_id order by 1)
from pgps_internal.offer f
join pgps_internal.origin o using (origin_id)
join pgps_internal.neighbour n using (neighbour_id)
where pg_has_role(current_user, 'pgps_admin', 'usage') or pg_has_role(current_user, 'pgps_worker', 'usage');
comment on view pgps.routes is
'The network as far as this broker knows it, for pgps_admin and pgps_worker: itself, and each origin by each neighbour
that offers it. path: the brokers from that neighbour to the origin (an id where the name is not known); is_parent: the
events come this way; event_types: what it advertises; filters_in_force: those of this broker and of brokers behind it
that have been in force there without a break, each behind its event type';
grant select on pgps.routes to public;
