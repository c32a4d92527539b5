-- Views of spools: each shows what the reader may use; messages are shown to those who may replay them.
-- Locks: none.
-- Writes: nothing.

create or replace view pgps_internal.spool_right with (security_barrier) as
select s.spool_id, pg_has_role(current_user, 'pgps_admin', 'usage') as is_admin,
    pgps._uses_role(current_user, s.owner || s.spoolers) as may_spool,
    pgps._uses_role(current_user, s.owner || s.replayers) as may_replay
from pgps_internal.spool s
-- What waits for a network is seen in pgps.networks.
where s.network_id is null;
comment on view pgps_internal.spool_right is 'What the reader may do with each spool';

create or replace view pgps_internal.spool_standing as
select s.spool_id, case when s.persistent then 0 else 8 end as first_slot,
    case when s.persistent then 7 else 11 end as last_slot, coalesce(t.last_seqn, 0) as last_seqn,
    coalesce(t.lowest, 0) as lowest, t.replay_pointer, t.checkpoint_pointer,
    case when k.is_counted then coalesce(t.messages, 0) else 0 end as messages,
    case when k.is_counted then coalesce(t.bytes, 0) else 0 end as bytes,
    coalesce(t.discarded, 0) as discarded, coalesce(t.emptied, '{}') as emptied, s.persistent, s.on_limit,
    k.is_counted
from pgps_internal.spool s
-- What is not persistent was lost, with this note, when the server crashed.
cross join lateral (select case when s.persistent then true else exists (
    select from pgps_internal.spool_counted c where c.spool_id = s.spool_id) end as is_counted) k
left join lateral (select t.* from pgps_internal.spool_state t where t.spool_id = s.spool_id
    order by t.batch_id desc limit 1) t on true;
comment on view pgps_internal.spool_standing is 'The standing of each spool after the last batch';

create or replace view pgps_internal.spool_live as
select m.*, t.replay_pointer, t.checkpoint_pointer
from pgps_internal.spool_standing t
join pgps_internal.spool_message m on m.spool_id = t.spool_id and m.slot between t.first_slot and t.last_slot
where not m.seqn <@ t.emptied
    and not exists (select from pgps_internal.spool_gone g where g.spool_id = m.spool_id and g.seqn = m.seqn)
    and not exists (select from pgps_internal.spool_cancelled c where c.id = m.id);
comment on view pgps_internal.spool_live is 'The messages of all spools that are neither discarded nor cancelled';

create or replace view pgps.spools with (security_barrier) as
select s.name, l.first_seqn, nullif(t.last_seqn, 0) as last_seqn, t.replay_pointer, t.checkpoint_pointer,
    coalesce(l.replayable, 0) as replayable, coalesce(l.fresh, 0) as new, t.discarded, t.bytes,
    coalesce(g.members, 0) as members, coalesce(g.members, 0) > 0 as operational, s.play_through, s.persistent,
    s.max_messages, s.max_bytes, s.retention, s.on_limit, pg_get_userbyid(s.owner) as owner,
    'pgps_spool_' || s.spool_id as channel, s.created_at
from pgps_internal.spool s
join pgps_internal.spool_right r using (spool_id)
join pgps_internal.spool_standing t using (spool_id)
left join lateral (
    select min(m.seqn) as first_seqn,
        count(*) filter (where t.replay_pointer is not null
            and m.seqn between coalesce(t.checkpoint_pointer, m.seqn)
                and greatest(t.checkpoint_pointer, t.replay_pointer)) as replayable,
        -- Not checkpoints: they are not played through.
        count(*) filter (where t.replay_pointer is null or m.seqn > t.replay_pointer and not m.is_checkpoint
            and not coalesce(m.seqn = t.checkpoint_pointer, false)) as fresh
    from pgps_internal.spool_live m where m.spool_id = s.spool_id
) l on true
left join lateral (
    select count(*) as members from pgps_internal.spool_member m
    where m.spool_id = s.spool_id and m.session is not null and pgps._is_present(m.member_id)
) g on true
where r.may_spool or r.may_replay or r.is_admin;
comment on view pgps.spools is
'The spools that the reader may use; pgps_admin sees all. first_seqn: of the messages that are there; last_seqn: the
last number given; replayable: messages from the checkpoint pointer to the replay pointer; new: those beyond it, but for
checkpoints; discarded: how many were so far; members: how many are present; operational: at least one. A member listens
to the channel.';

create or replace view pgps.spooled_messages with (security_barrier) as
select s.name as spool, m.seqn, m.id, m.entry, m.message, m.keys, m.keywords, m.sender::name as sender,
    m.spooler::name as spooler, m.spooled_at, m.expires, coalesce(m.seqn <= m.replay_pointer, false) as replayed
from pgps_internal.spool s
join pgps_internal.spool_right r using (spool_id)
join pgps_internal.spool_live m using (spool_id)
where r.may_replay
order by m.spool_id, m.seqn;
comment on view pgps.spooled_messages is
'The messages of the spools that the reader may replay, in the order of their numbers; replayed: the replay pointer has
passed them';

create or replace view pgps.spool_gaps with (security_barrier) as
select s.name as spool, g.first_seqn, g.last_seqn, g.messages, g.reason, g.noted_at
from pgps_internal.spool_gap g join pgps_internal.spool s using (spool_id)
join pgps_internal.spool_right r using (spool_id)
where r.may_spool or r.may_replay or r.is_admin;
comment on view pgps.spool_gaps is
'Messages that were discarded by no call, but since a spool was full (reason limit) or they were old (retention). Of
more than a hundred gaps of a spool the older ones are put together into one';

create or replace view pgps.group_members with (security_barrier) as
select s.name as group_name, c.name as member, pg_get_userbyid(c.owner) as owner,
    m.session is not null and pgps._is_present(m.member_id) as present,
    m.ready, case k.phase when 'r' then 'replay' when 'm' then 'replayed' else 'new' end as phase,
    case when k.phase <> 'm' then nullif(k.seqn, -9223372036854775808) end as acked_seqn, m.joined_at
from pgps_internal.spool_member m
join pgps_internal.spool s using (spool_id)
join pgps_internal.spool_right r using (spool_id)
join pgps_internal.client c using (client_id)
left join lateral (select k.phase, k.seqn from pgps_internal.spool_mark k where k.member_id = m.member_id
    order by k.mark_id desc limit 1) k on true
where r.may_replay or r.is_admin;
comment on view pgps.group_members is
'The members of the groups whose spools the reader may replay (pgps_admin sees all), also those that have left or
crashed (present is then false), and how far they are. acked_seqn: the last number acknowledged in this phase; null
before the first, as for a member that has replayed and got nothing new yet';

create or replace view pgps.network_contacts with (security_barrier) as
select n.name as network, c.place,
    regexp_replace(regexp_replace(c.conninfo, '(password\s*=\s*)(''(?:[^''\\]|\\.)*''|\S+)', '\1…', 'i'),
        '^(\w+://[^/@:]*):[^/@]*@', '\1:…@') as conninfo,
    case when c.state = 'up' and a.manager is null then 'waiting' else c.state end as state, c.last_error,
    c.hint, c.changed_at,
    a.manager, coalesce(k.upto, 0) as arrived_seqn,
    (select count(*) from pgps_internal.spool_live m
        where m.spool_id = s.spool_id and m.seqn > coalesce(k.upto, 0)) as waiting
from pgps_internal.network n
join pgps_internal.network_contact c using (network_id)
join pgps_internal.spool s using (network_id)
left join lateral (select k.upto from pgps_internal.network_mark k where k.line = c.contact_id
    order by k.mark_id desc limit 1) k on true
cross join lateral (select pgps._manager_of(c.contact_id) as manager) a
where pg_has_role(current_user, 'pgps_admin', 'usage') or pg_has_role(current_user, 'pgps_worker', 'usage');
comment on view pgps.network_contacts is
'The contact points of networks, for pgps_admin and pgps_worker. state: defined, up, waiting (last_error says why);
conninfo: without its
password. manager: the process of this server that serves the connection; arrived_seqn: the number up to which
everything has arrived there; waiting: how many messages have not';

create or replace view pgps.networks with (security_barrier) as
select n.name, array_agg(c.conninfo order by c.place) as contacts, n.username::name as username, n.passfile,
    count(*) filter (where c.state = 'up') as up, case when bool_or(c.state = 'up') then 'up'
        when bool_or(c.state = 'waiting') then 'waiting' else 'defined' end as state,
    coalesce(max(c.waiting), 0) as waiting,
    (array_agg(c.last_error order by c.place) filter (where c.last_error is not null))[1] as last_error,
    (array_agg(c.hint order by c.place) filter (where c.hint is not null))[1] as hint, n.created_at
from pgps_internal.network n join pgps.network_contacts c on c.network = n.name
where pg_has_role(current_user, 'pgps_admin', 'usage') or pg_has_role(current_user, 'pgps_worker', 'usage')
group by n.network_id;
comment on view pgps.networks is
'Networks of other brokers, for pgps_admin and pgps_worker. state: up when a contact point is connected; up: how many
are; waiting: messages that have not arrived at all of them; the rest is that of the first contact point that is down';

create or replace view pgps.network_origins with (security_barrier) as
select o.name, o.network, o.broker_id, coalesce(k.upto, 0) as arrived_seqn, o.gaps, k.marked_at as last_arrival,
    pg_get_userbyid(o.role::oid) as role
from pgps_internal.network_origin o
left join lateral (select k.upto, k.marked_at from pgps_internal.network_mark k where k.line = -o.origin_id
    order by k.mark_id desc limit 1) k on true
where pg_has_role(current_user, 'pgps_admin', 'usage') or pg_has_role(current_user, 'pgps_worker', 'usage');
comment on view pgps.network_origins is
'Brokers of other networks that spool here, and the network as which they know this one. gaps: messages that had arrived
here and are lost, since this broker was put back to an older state; role: which one speaks for the broker, since it was
the first that did; null: none has since roles are remembered';

grant select on pgps.networks, pgps.network_contacts, pgps.network_origins to public;
grant select on pgps.spools, pgps.spooled_messages, pgps.spool_gaps, pgps.group_members to public;
