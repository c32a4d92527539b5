-- What people see of services, conversations and units of work: each its own, administrators everything. Functions in a
-- view run with the rights of its reader, so only such as anybody may call stand here.
-- Writes: nothing.

create or replace view pgps.services with (security_barrier) as
select s.class, s.server, s.service,
    coalesce(s.store, b.values ->> 'uow_store') as store,
    coalesce(s.lifetime, (b.values ->> 'uow_lifetime')::interval) as lifetime,
    coalesce(s.status_lifetime, (b.values ->> 'uow_status_lifetime')::integer) as status_lifetime,
    coalesce(s.max_uows, (b.values ->> 'uow_max_active')::integer) as max_uows,
    coalesce(s.max_messages_in_uow, (b.values ->> 'uow_max_messages')::integer) as max_messages_in_uow,
    coalesce(s.max_message_bytes, (b.values ->> 'uow_max_message_bytes')::integer) as max_message_bytes,
    coalesce(s.deferred, (b.values ->> 'uow_deferred')::boolean) as deferred,
    -- As pgps_internal.queue_of(service_id).
    'pgps_uow_' || 2 * s.service_id::bigint as channel, r.can_send, r.can_serve,
    (select count(*) from pgps_internal.serving v
        where v.service_id = s.service_id and pgps._session_lives(v.session_id)) as servers,
    coalesce(d.depth, 0) as depth, d.oldest, coalesce(d.attempts, 0) as attempts, s.created_at,
    s.broker, coalesce(d.held, 0) as held
from pgps_internal.service s
cross join (select jsonb_object_agg(t.name, t.value) as values from pgps_internal.setting t
    where t.name like 'uow\_%') b
cross join lateral (
    select coalesce(bool_or(g.privilege = 'send'), false) or a.is_admin as can_send,
        coalesce(bool_or(g.privilege = 'serve'), false) or a.is_admin as can_serve
    from (select pg_has_role(current_user, 'pgps_admin', 'usage') as is_admin) a
    left join pgps_internal.service_right g on g.service_id = s.service_id
        and (g.role::oid = 0 or pg_has_role(current_user, g.role::oid, 'usage'))
    group by a.is_admin
) r
left join lateral (select count(*) as depth, min(u.committed_at) as oldest, max(u.attempts) as attempts,
        count(*) filter (where u.status = 'DELIVERED') as held
    from pgps_internal.unit_standing u
    where u.service_id = s.service_id and u.to_server and u.status in ('ACCEPTED', 'DELIVERED')) d on true
where r.can_send or r.can_serve;
comment on view pgps.services is
'Services that the reader may send to or serve, with the attributes that hold; servers: sessions registered; depth:
units that wait for a server or that one holds (held: how many of them), oldest: the first SYNCPOINT of these, attempts:
how often one of them was given back at most; channel: LISTEN to it to be woken; broker: where it is served, null:
here';

create or replace view pgps.conversations with (security_barrier) as
select 'C' || upper(to_hex(c.conversation_no)) as conversation, s.class, s.server, s.service,
    coalesce(t.ended, 'open') as conversation_state, case when c.is_uow then 'uow' else 'msg' end as kind,
    pg_get_userbyid(p.role::oid) as client, p.token as client_token,
    case when v.role is not null then pg_get_userbyid(v.role::oid) end as bound_to, v.token as bound_to_token,
    coalesce(d.depth, 0) as depth, d.oldest, coalesce(d.attempts, 0) as attempts,
    'pgps_uow_' || 2 * c.client_id + 1 as client_channel,
    'pgps_uow_' || coalesce(2 * t.server_id + 1, 2 * c.service_id::bigint) as server_channel,
    c.began_at, coalesce(t.first_commit_at, (select k.committed_at from pgps_internal.unit_commit k
        where k.conversation_no = c.conversation_no and k.to_server and k.entry_no = k.commit_no
        order by k.commit_no limit 1)) as committed_at, c.broker, coalesce(d.held, 0) as held
from pgps_internal.conversation c
join pgps_internal.service s using (service_id)
left join lateral (select t.* from pgps_internal.conversation_state t where t.conversation_no = c.conversation_no
    order by t.version desc limit 1) t on true
left join pgps_internal.participant p on p.participant_id = c.client_id
left join pgps_internal.participant v on v.participant_id = t.server_id
left join lateral (
    select count(*) filter (where u.is_active) as depth, min(u.committed_at) filter (where u.is_active) as oldest,
        max(u.attempts) filter (where u.is_active) as attempts,
        count(*) filter (where u.status = 'DELIVERED') as held, bool_or(u.is_known) as is_known
    from pgps_internal.unit_commit k join pgps_internal.unit_standing u using (unit_no)
    where k.conversation_no = c.conversation_no and k.entry_no = k.commit_no
) d on true
cross join pgps._this_life() l
where (t.ended is null or d.is_known) and c.life_id >= l.emptied_id
    and (pg_has_role(current_user, 'pgps_admin', 'usage')
        or p.role = quote_ident(current_user)::regrole or v.role = quote_ident(current_user)::regrole);
comment on view pgps.conversations is
'Conversations of the reader, as their client or as the server that they are bound to; administrators see all. depth:
units that wait or that their receiver holds (held: how many of them), both ways; client_channel, server_channel: LISTEN
to them to be woken; broker: where the other party is, null: here';

create or replace view pgps.units_of_work with (security_barrier) as
select 'U' || upper(to_hex(u.unit_no)) as uow_id, 'C' || upper(to_hex(u.conversation_no)) as conversation,
    u.status, u.user_status, s.class, s.server, s.service,
    case when u.to_server then 'server' else 'client' end as sent_to,
    pg_get_userbyid(p.role::oid) as sender, p.token as sender_token,
    case when r.role is not null then pg_get_userbyid(r.role::oid) end as receiver, r.token as receiver_token,
    case when u.is_persistent then 'broker' else 'no' end as store, u.committed_at, u.attempts,
    u.began_at, u.ends_at as lifetime_ends,
    case when not u.is_active then u.over_at + u.status_for end as status_ends,
    (select count(*) from pgps_internal.message_of_unit m where m.unit_no = u.unit_no) as messages
from pgps_internal.unit_standing u
join (select service_id, class, server, service from pgps_internal.service
    union all
    select service_id, class, server, service from pgps_internal.service_dropped) s using (service_id)
left join pgps_internal.participant p on p.participant_id = u.sender_id
left join pgps_internal.participant r on r.participant_id = u.receiver_id
where u.is_uow and u.is_known
    and (pg_has_role(current_user, 'pgps_admin', 'usage')
        or p.role = quote_ident(current_user)::regrole or r.role = quote_ident(current_user)::regrole);
comment on view pgps.units_of_work is
'Units of work that the reader has sent, or has received; administrators see all. status is what it is now, whether or
not anybody has noted it; those that are over are shown while their status is kept, until status_ends. A unit for which
SYNCPOINT was called after the snapshot of the statement (REPEATABLE READ: of the transaction) is shown as it stood
there, though its session or its lifetime is over now';

grant select on pgps.services, pgps.conversations, pgps.units_of_work to public;
