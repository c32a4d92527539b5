-- Views of clients: each shows what belongs to the reader's own clients (confirm_events: the event types that the
-- reader may see), and all to pgps_admin.
-- Writes: nothing.

create or replace view pgps_internal.occurrences_waiting with (security_barrier) as
select r.client_id, coalesce(sum(b.depth), 0)::bigint as events
from pgps_internal.registration r join pgps_internal.backlog b using (subscription_id)
group by r.client_id;
comment on view pgps_internal.occurrences_waiting is 'How many events wait for a client';

create or replace view pgps.clients with (security_barrier) as
select c.name, pg_get_userbyid(c.owner) as owner,
    c.holder is not null and pgps._is_alive(c.holder) as connected,
    c.session, c.pid, c.address, c.connected_at, c.disconnected, s.last_sent_request,
    k.received as last_received_request,
    k.committed as last_committed_request,
    coalesce(e.last_received_event, f.last_committed_event) as last_received_event, f.last_committed_event,
    coalesce((select w.events from pgps_internal.occurrences_waiting w where w.client_id = c.client_id),
        0) as pending_events,
    (select count(*) from pgps_internal.reply p where p.client_id = c.client_id
        and p.request_id > coalesce(k.committed, 0)) as pending_replies,
    (select count(*) from pgps_internal.request q where q.client_id = c.client_id and q.request is not null
        and q.request_id > coalesce(
        (select p.request_id from pgps_internal.reply p where p.client_id = c.client_id
            order by p.request_id desc limit 1), 0)) as pending_requests,
    (select t.bytes from pgps_internal.client_checkpoint t where t.client_id = c.client_id and t.kind = 'reply'
        order by t.checkpoint_id desc limit 1)
        as reply_checkpoint_bytes,
    (select t.bytes from pgps_internal.client_checkpoint t where t.client_id = c.client_id and t.kind = 'event'
        order by t.checkpoint_id desc limit 1)
        as event_checkpoint_bytes,
    'pgps_client_' || c.client_id as channel, c.created_at
from pgps_internal.client c
left join lateral (select r.request_id as last_sent_request from pgps_internal.request r where r.client_id = c.client_id
    order by r.request_id desc limit 1) s on true
left join lateral (select m.received, m.committed from pgps_internal.reply_mark m where m.client_id = c.client_id
    order by m.mark_id desc limit 1) k on true
left join lateral (select m.first_event as last_received_event from pgps_internal.registration r
    cross join lateral (select n.mark_id, n.first_event, n.completed from pgps_internal.client_mark n
        where n.registration_id = r.registration_id order by n.mark_id desc limit 1) m
    where r.client_id = c.client_id and not m.completed order by m.mark_id desc limit 1) e on true
left join lateral (select m.first_event as last_committed_event from pgps_internal.client_mark m
    where m.client_id = c.client_id and m.completed
    order by m.mark_id desc limit 1) f on true
where pg_has_role(current_user, c.owner::oid, 'usage') or pg_has_role(current_user, 'pgps_admin', 'usage');
comment on view pgps.clients is
'The reader''s clients, all of them for pgps_admin: where they stand, what waits for them, and from which address the
newest session came. connected: its backend is alive; disconnected: it ended with pgps.disconnect_client.';

create or replace view pgps.registrations with (security_barrier) as
select c.name as client, r.event_name, r.mode, r.style, r.state, r.reason, s.name as subscription,
    case when r.mode = 'queued' then array['pgps_' || r.subscription_id]
        else array(select 'pgps_direct_' || t.type_id from pgps_internal.registration_type t
            join pgps_internal.event_type e using (type_id)
            where t.registration_id = r.registration_id and has_table_privilege(c.owner::oid, e.endpoint::oid, 'select')
                order by 1) end as channels,
    r.attempts, r.due_at as next_attempt_at, r.registered_at, r.registration_id as registration,
    e.first_event as last_received_event, f.first_event as last_committed_event
from pgps_internal.registration r
join pgps_internal.client c using (client_id)
left join pgps_internal.subscription s using (subscription_id)
left join lateral (select m.first_event from pgps_internal.client_mark m where m.registration_id = r.registration_id
    order by m.mark_id desc limit 1) e on true
left join lateral (select m.first_event from pgps_internal.client_mark m where m.registration_id = r.registration_id
    and m.completed
    order by m.mark_id desc limit 1) f on true
where pg_has_role(current_user, c.owner::oid, 'usage') or pg_has_role(current_user, 'pgps_admin', 'usage');
comment on view pgps.registrations is
'What the reader''s clients are registered for, all registrations for pgps_admin. state: valid, or invalid with a reason
(a direct client that was not reached); attempts: how often pushing direct events has failed since the client was last
reached; channels: what to LISTEN to; last_received_event, last_committed_event: of a queued one, the occurrence
that was received last and the one that was completed last.';

create or replace view pgps.requests with (security_barrier) as
select c.name as client, r.request_id, pg_get_userbyid(r.role) as role, r.sent_at,
    coalesce(p.status, 'waiting') as state,
    (select count(*) from pgps_internal.request_attempt a where a.request_no = r.request_no
        and a.holder <> '') as attempts, p.replied_at, p.row_count, p.sqlstate, p.error
from pgps_internal.request r
join pgps_internal.client c using (client_id)
left join pgps_internal.reply p on p.request_no = r.request_no
where r.request is not null and (pg_has_role(current_user, c.owner::oid, 'usage')
    or pg_has_role(current_user, 'pgps_admin', 'usage'));
comment on view pgps.requests is
'Requests of the reader''s clients that are still kept, all of them for pgps_admin: waiting, done or failed. Their text
is not shown.';

create or replace view pgps.confirm_events with (security_barrier) as
select f.name as confirming, o.name as original, pg_get_userbyid(k.owner) as owner,
    (select count(*) from pgps_internal.confirm_open x where x.link_id = k.link_id) as open, k.last_error, k.created_at
from pgps_internal.confirm_link k
join pgps_internal.event_type f on f.type_id = k.confirming
join pgps_internal.event_type o on o.type_id = k.original
where pg_has_role(current_user, 'pgps_admin', 'usage') or has_table_privilege(f.endpoint::oid, 'select')
    and has_table_privilege(o.endpoint::oid, 'select');
comment on view pgps.confirm_events is
'Which event type confirms which, for readers who may see both. open: transactions that have raised immediate events and
have not ended, or whose end has not been noticed yet.';

grant select on pgps.clients, pgps.registrations, pgps.requests, pgps.confirm_events to public;
