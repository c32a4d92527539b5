-- The views behind the three queues of each event type. Each shows what its reader may see. Views, not functions: a
-- function in a view runs with the reader's rights, and only the owner may execute internal functions.
-- Writes: nothing.

create or replace view pgps_internal.progress with (security_barrier) as
select b.previous, b.snapshot, b.upto, coalesce(b.base_hi, 0) as base_hi,
    case when b.upto is null then coalesce(b.snapshot, '1:1:'::pg_snapshot) else b.previous end as before,
    coalesce((select nullif(s.value, '') from pgps_internal.setting s where s.name = 'broker'),
        current_database()::text) as broker
from (select) one left join lateral (select b.* from pgps_internal.batch b order by b.batch_id desc limit 1) b on true;
comment on view pgps_internal.progress is 'How far dispatch has come: the snapshots of the last batch';

create or replace view pgps_internal.undispatched as
select c.type_id, c.xid, c.lo, c.hi, c.published_at
from pgps_internal.progress p
cross join lateral (
    select c.* from pgps_internal.control c where c.xid >= pg_snapshot_xmax(p.before)
    union all
    select c.* from pgps_internal.control c where c.xid in (select pg_snapshot_xip(p.before))
        and c.xid < pg_snapshot_xmax(p.before)
) c
where c.hi > p.base_hi and (p.upto is null or c.xid > p.upto or not pg_visible_in_snapshot(c.xid, p.snapshot))
union all
select c.type_id, c.xid, c.lo, c.hi, c.published_at
from pgps_internal.set_aside s cross join lateral unnest(s.xids) x(xid)
join pgps_internal.control c on c.xid = x.xid and c.type_id = s.type_id
where s.batch_id is null and int8multirange(int8range(c.lo, c.hi, '[]')) && s.ranges;
comment on view pgps_internal.undispatched is 'Statements whose events no batch has yet; see pgps_internal.in_no_batch';

create or replace view pgps_internal.waiting_events as
select w.type_id, sum(w.hi - w.lo + 1)::bigint as events, min(w.published_at) as oldest
from pgps_internal.undispatched w group by w.type_id;
comment on view pgps_internal.waiting_events is
'Events in no batch yet, of all event types at once: asked for each alone, all would be read once for each type.
events: at least their number, more where statements published at the same time and their ranges of ids overlap';

create or replace function pgps._count_waiting(event_type text, reader name) returns bigint
language plpgsql security definer stable
set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_type pgps_internal.event_type;
    v_xids xid8[];
    v_ranges int8multirange;
    v_count bigint;
begin
    select t.* into v_type from pgps_internal.event_type t where t.name = _count_waiting.event_type;
    -- reader is the role that reads the view, but anybody may call this with any name: the session has to be a member
    -- of it.
    if not found or not pgps_internal.may_become(session_user, quote_ident(_count_waiting.reader)::regrole::oid)
        or not (has_table_privilege(_count_waiting.reader, v_type.endpoint, 'select')
            or pg_has_role(_count_waiting.reader, 'pgps_admin', 'usage')
            or has_table_privilege(_count_waiting.reader, v_type.endpoint, 'insert')) then
        return null;
    end if;
    select array_agg(distinct w.xid), range_agg(int8range(w.lo, w.hi, '[]')), sum(w.hi - w.lo + 1)
    into v_xids, v_ranges, v_count
    from pgps_internal.undispatched w where w.type_id = v_type.type_id;
    -- Counting millions would take seconds. The sum is the number, unless statements have published at the same time
    -- and their ranges overlap.
    if v_count > 100000 then
        return v_count;
    end if;
    -- Columns are qualified: a name alone would mean an attribute, if there is one of that name.
    execute format('select count(*) from unnest($1) w(ids)
        cross join lateral (select l.xid from %s l where l.event_id >= lower(w.ids) and l.event_id < upper(w.ids) '
            'offset 0) l
        where l.xid in (select u from unnest($2) u)', v_type.log) using v_ranges, v_xids into v_count;
    return v_count;
end
$$;
comment on function pgps._count_waiting(text, name) is
'How many events wait for dispatch: up to 100,000 counted in the log, since the id ranges of concurrent statements
overlap; beyond, estimated from these ranges. For
pgps.queues and pgps.activity, not for applications; null unless the session may be reader and reader may use the event
type.';
grant execute on function pgps._count_waiting(text, name) to public;

create or replace view pgps_internal.standing as
select s.subscription_id, coalesce(p.acked_batch, -1) as acked_batch, coalesce(p.acked_event, 0) as acked_event,
    coalesce(p.received_batch, -1) as received_batch, coalesce(p.received_event, 0) as received_event,
    -- Competing consumers do not wait for each other: each row holds what one ack settled, and the total is their sum.
    case when s.handler = 'any' and s.callback is null
        then coalesce((select sum(t.acked_total) from pgps_internal.position t
            where t.subscription_id = s.subscription_id), 0)::bigint
        else coalesce(p.acked_total, 0) end as acked_total, p.moved_at
from pgps_internal.subscription s
left join lateral (select p.* from pgps_internal.position p where p.subscription_id = s.subscription_id
    order by p.position_id desc limit 1) p on true;
comment on view pgps_internal.standing is 'The newest position of each subscription; see pgps_internal.position_of';

create or replace view pgps_internal.unfolded as
select d.batch_id, d.class_id, d.type_id, e.event_id
from pgps_internal.delivery d
cross join lateral (
    select unnest(d.event_ids) as event_id
    union all
    select generate_series(lower(r), upper(r) - 1) from unnest(d.ids) r
) e;
comment on view pgps_internal.unfolded is 'Deliveries, a row for each event; see pgps_internal.event_ids';

create or replace function pgps._over_ids(
    subscription_id bigint, type_id integer, acked_batch bigint, acked_event bigint
) returns int8multirange
language plpgsql security definer stable
set search_path = pg_catalog, pg_temp set jit = off
as $$
begin
    if not exists (select from pgps_internal.failure f
        where f.subscription_id = _over_ids.subscription_id and f.type_id = _over_ids.type_id
            and f.state in ('failed', 'settled')) then
        return '{}';
    -- current_user is the owner here, and of functions that read for others.
    elsif not exists (select from pgps_internal.subscription s, pgps_internal.event_type t
            where s.subscription_id = _over_ids.subscription_id and t.type_id = _over_ids.type_id
                and (pg_has_role(session_user, s.owner::oid, 'member')
                    or pg_has_role(session_user, 'pgps_admin', 'member')
                    or pg_has_role(session_user, 'pgps_worker', 'member')
                    or has_table_privilege(session_user, t.endpoint, 'select, insert'))) then
        return '{}';
    end if;
    return coalesce((
        select range_agg(int8range(f.event_id, f.event_id, '[]')) from pgps_internal.failure f
        where f.subscription_id = _over_ids.subscription_id and f.type_id = _over_ids.type_id
            and f.state in ('failed', 'settled')
            -- Older ones are passed already, and there may be many among the exceptions.
            and f.event_id >= (select min(case when b.batch_id > _over_ids.acked_batch then lower(b.ids)
                    else greatest(lower(b.ids), least(_over_ids.acked_event, 9223372036854775806) + 1) end)
                from pgps_internal.batch_type b
                where b.type_id = _over_ids.type_id and b.batch_id >= _over_ids.acked_batch)), '{}');
end
$$;
comment on function pgps._over_ids(bigint, integer, bigint, bigint) is
'The events of a type that are over for a subscription, though its position may not have passed them: exceptions, and
what is settled. For views, not for applications; nothing unless the session may read the subscription, or use the event
type.';
grant execute on function pgps._over_ids(bigint, integer, bigint, bigint) to public;

create or replace view pgps_internal.waiting_member as
select m.subscription_id, m.class_id, m.type_id, m.from_batch, p.acked_batch, p.acked_event, k.skip
from pgps_internal.member m
left join lateral (select p.acked_batch, p.acked_event from pgps_internal.position p
    where p.subscription_id = m.subscription_id order by p.position_id desc limit 1) n on true
cross join lateral (select coalesce(n.acked_batch, -1) as acked_batch, coalesce(n.acked_event, 0) as acked_event) p
-- Mostly nothing has failed, which the size of the table tells. offset 0: found once, though it is named several times.
cross join lateral (select case when pg_relation_size('pgps_internal.failure'::regclass) = 0 then m.skip
    else m.skip + pgps._over_ids(m.subscription_id, m.type_id, p.acked_batch, p.acked_event) end as skip offset 0) k
where not m.takes_batch;
comment on view pgps_internal.waiting_member is
'Members that read by a position, with it and with the events that do not wait for them: those that they skip, those
that are settled, and exceptions';

create or replace view pgps_internal.backlog as
select m.subscription_id, m.type_id, w.depth,
    -- Batch numbers follow the times of the batches: one look-up for each subscription, not one for each delivery.
    (select x.created_at from pgps_internal.batch x where x.batch_id = w.first_batch limit 1) as oldest
from pgps_internal.waiting_member m
cross join lateral (
    select coalesce(sum(d.rest), 0)::bigint as depth, min(d.batch_id) filter (where d.rest > 0) as first_batch
    from (
        select d.batch_id, case when d.batch_id > m.acked_batch and isempty(m.skip) then d.events
            -- Of events that are contiguous the limits are subtracted: there may be a million.
            else (select coalesce(sum(upper(r) - lower(r)), 0)::bigint
                    from unnest(d.ids * int8multirange(int8range(a.event_id, null, '()')) - m.skip) r)
                + (select count(*) from unnest(d.event_ids) e where e > a.event_id and not e <@ m.skip) end as rest
        from pgps_internal.delivery d
        -- After a seek the position is behind the highest number, which no range can begin with.
        cross join lateral (select case when d.batch_id = m.acked_batch
            then least(m.acked_event, 9223372036854775806) else -1 end as event_id) a
        where d.class_id = m.class_id and d.batch_id >= greatest(m.acked_batch, m.from_batch + 1)
        -- offset 0: what is left of a delivery is found once, though it is named twice.
        offset 0
    ) d
) w
union all
select m.subscription_id, m.type_id,
    (select count(*) from pgps_internal.share s where s.subscription_id = m.subscription_id and s.type_id = m.type_id),
    (select min(x.created_at) from pgps_internal.share s join pgps_internal.batch x using (batch_id)
        where s.subscription_id = m.subscription_id and s.type_id = m.type_id)
from pgps_internal.member m where m.takes_batch;
comment on view pgps_internal.backlog is
'Events that wait for a subscription, and since when: from positions and deliveries, not by counting events';

create or replace view pgps_internal.statement with (security_barrier) as
select c.type_id, c.xid, c.lo, c.hi, pg_get_userbyid(c.publisher) as publisher, c.published_at,
    case when c.origin_id is not null
        then (select o.name from pgps_internal.origin o where o.origin_id = c.origin_id) end as origin,
    -- An immediate event is written in a transaction of its own; this is its publisher's.
    coalesce(nullif(c.raiser, '0'), c.xid) as publishers_xid
from pgps_internal.control c join pgps_internal.event_type t using (type_id)
where has_table_privilege(current_user, t.endpoint, 'select');
comment on view pgps_internal.statement is 'The control queue as far as a reader may see it; the in queues join it';

create or replace view pgps_internal.pending with (security_barrier) as
select b.type_id, b.ids
from pgps_internal.event_type t
-- Before the batch that some member has acknowledged last nothing waits for anybody.
cross join lateral (
    select least(
        (select min(coalesce(p.acked_batch, -1)) from pgps_internal.member m
            left join lateral (select p.acked_batch from pgps_internal.position p
                where p.subscription_id = m.subscription_id order by p.position_id desc limit 1) p on true
            where m.type_id = t.type_id and not m.takes_batch),
        (select min(s.batch_id) from pgps_internal.member m join pgps_internal.share s using (subscription_id)
            where m.type_id = t.type_id and m.takes_batch),
        (select min(n.batch_id) from pgps_internal.lane_next n where n.type_id = t.type_id)) as batch_id offset 0
) f
join pgps_internal.batch_type b on b.type_id = t.type_id and b.batch_id >= f.batch_id
where has_table_privilege(current_user, t.endpoint, 'select')
    and (exists (
        -- offset 0: members are asked one after the other, and the first one for whom something waits is the answer.
        select from pgps_internal.member m
        left join lateral (select p.acked_batch, p.acked_event from pgps_internal.position p
            where p.subscription_id = m.subscription_id order by p.position_id desc limit 1) p on true
        where m.type_id = b.type_id and not m.takes_batch and b.batch_id > m.from_batch
            and b.batch_id >= coalesce(p.acked_batch, -1)
            and (b.batch_id > coalesce(p.acked_batch, -1) or upper(b.ids) - 1 > coalesce(p.acked_event, 0))
            and exists (select from pgps_internal.delivery d where d.class_id = m.class_id
                and d.batch_id = b.batch_id offset 0) offset 0)
    or exists (select from pgps_internal.member m join pgps_internal.share s using (subscription_id)
        where m.type_id = b.type_id and m.takes_batch and s.type_id = b.type_id and s.batch_id = b.batch_id offset 0)
    or exists (select from pgps_internal.lane_next n
        where n.type_id = b.type_id and n.batch_id <= b.batch_id offset 0));
comment on view pgps_internal.pending is
'Events in batches that some lane has not matched, or some subscription has not acknowledged completely; the in queues
join it';

create or replace view pgps_internal.queue_audit with (security_barrier) as
select q.type_id, q.kind, q.auditable, q.retention
from pgps_internal.queue q join pgps_internal.event_type t using (type_id)
where has_table_privilege(current_user, t.endpoint, 'select');
comment on view pgps_internal.queue_audit is 'Which queues keep their events; the queue views join it';

create or replace view pgps_internal.outgoing with (security_barrier) as
select d.type_id, e.event_id, s.name as subscription, b.created_at as matched_at,
    coalesce(f.attempts, sh.attempts, case when (d.batch_id, e.event_id) <= (p.received_batch, p.received_event) then 1
        else 0 end) as attempts,
    case
        when f.state = 'settled' then 'delivered'
        when f.state is not null then f.state
        when sh.leased_until > pgps._clock() then 'leased'
        when m.takes_batch and sh.event_id is null or not m.takes_batch
            and (d.batch_id, e.event_id) <= (p.acked_batch, p.acked_event) then
            case when exists (select from pgps_internal.backlog_gap g where g.subscription_id = m.subscription_id
                and g.type_id = d.type_id
                and case when g.ids is not null then e.event_id <@ g.ids
                    else (d.batch_id, e.event_id) > (g.after_batch, g.after_event)
                        and (d.batch_id, e.event_id) <= (g.upto_batch, g.upto_event) end)
                then 'gap' else 'delivered' end
        when (d.batch_id, e.event_id) <= (p.received_batch, p.received_event) then 'received'
        else 'waiting' end as state
from pgps_internal.delivery d
join pgps_internal.event_type t using (type_id)
join pgps_internal.member m on m.class_id = d.class_id and d.batch_id > m.from_batch
join pgps_internal.subscription s using (subscription_id)
join pgps_internal.batch b using (batch_id)
join pgps_internal.standing p using (subscription_id)
-- The text of pgps_internal.unfolded, for this delivery: planned separately, its estimated cost sets off a second of
-- JIT compilation.
cross join lateral (
    select unnest(d.event_ids) as event_id
    union all
    select generate_series(lower(r), upper(r) - 1) from unnest(d.ids) r
) e
left join pgps_internal.failure f on f.subscription_id = m.subscription_id and f.event_id = e.event_id
left join pgps_internal.share sh on sh.subscription_id = m.subscription_id and sh.event_id = e.event_id
    and m.takes_batch
where has_table_privilege(current_user, t.endpoint, 'select') and not e.event_id <@ m.skip
union all
select d.type_id, e.event_id, s.name, d.matched_at, 1, case when exists (select from pgps_internal.backlog_gap g
        where g.subscription_id = m.subscription_id and g.type_id = d.type_id and case when g.ids is not null
            then e.event_id <@ g.ids
            else (d.batch_id, e.event_id) > (g.after_batch, g.after_event)
                and (d.batch_id, e.event_id) <= (g.upto_batch, g.upto_event) end)
        then 'gap' else 'delivered' end
from pgps_internal.delivered d
join pgps_internal.event_type t using (type_id)
join pgps_internal.member m on m.class_id = d.class_id and d.batch_id > m.from_batch
join pgps_internal.subscription s using (subscription_id)
cross join lateral unnest(d.event_ids) e(event_id)
where has_table_privilege(current_user, t.endpoint, 'select') and not e.event_id <@ m.skip
union all
select d.type_id, e.event_id, f.subscription, d.matched_at, 1, 'delivered'
from pgps_internal.former f
join pgps_internal.event_type t using (type_id)
cross join lateral (
    select d.batch_id, d.type_id, d.event_ids, d.ids, b.created_at as matched_at
    from pgps_internal.delivery d join pgps_internal.batch b using (batch_id) where d.class_id = f.class_id
    union all
    select d.batch_id, d.type_id, d.event_ids, null, d.matched_at from pgps_internal.delivered d
    where d.class_id = f.class_id and d.type_id = f.type_id
) d
cross join lateral (
    select unnest(d.event_ids) as event_id
    union all
    select generate_series(lower(r), upper(r) - 1) from unnest(d.ids) r
) e
where has_table_privilege(current_user, t.endpoint, 'select') and d.batch_id > f.from_batch
    and (d.batch_id, e.event_id) <= (f.upto_batch, f.upto_event) and not e.event_id <@ (f.skip + f.missed);
comment on view pgps_internal.outgoing is
'Deliveries unfolded: one row for each event and subscription; the out queues join it';

create or replace view pgps_internal.failed with (security_barrier) as
-- A callback's error may quote its owner's own tables: only the owner and administrators see it.
select f.type_id, f.event_id, s.name as subscription, f.failed_at, f.attempts, f.sqlstate,
    case when pg_has_role(current_user, s.owner::oid, 'usage') or pg_has_role(current_user, 'pgps_admin', 'usage')
        then f.error end as error, f.state
from pgps_internal.failure f
join pgps_internal.subscription s using (subscription_id)
join pgps_internal.event_type t on t.type_id = f.type_id
where has_table_privilege(current_user, t.endpoint, 'select')
    and (f.state = 'failed' or f.step <> 'nack' and f.state <> 'settled')
union all
select d.type_id, d.event_id, d.subscription, d.failed_at, d.attempts, d.sqlstate,
    case when pg_has_role(current_user, 'pgps_admin', 'usage') or exists (select from pgps_internal.subscription s
        where s.name = d.subscription and s.created_at <= d.failed_at
            and pg_has_role(current_user, s.owner::oid, 'usage')) then d.error end, d.state
from pgps_internal.discarded d join pgps_internal.event_type t using (type_id)
where has_table_privilege(current_user, t.endpoint, 'select');
comment on view pgps_internal.failed is
'Failed filters, callbacks and nacks, as far as a reader may see them; the exception queues join it';

grant select on pgps_internal.statement, pgps_internal.progress, pgps_internal.pending, pgps_internal.queue_audit,
    pgps_internal.outgoing, pgps_internal.failed to public;

create or replace function pgps_internal.shown_attributes(endpoint regclass, own text[]) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select coalesce(string_agg(format('l.%I as %I, ', a.name, case
            when a.name <> all (shown_attributes.own) then a.name
            when not exists (select from pgps_internal.attributes_of(shown_attributes.endpoint) b
                where b.name = 'attribute_' || a.name)
                then 'attribute_' || a.name
            else 'attribute_' || a.name || '_' end), ''), '')
        from pgps_internal.attributes_of(shown_attributes.endpoint) a);
end
$$;
comment on function pgps_internal.shown_attributes(regclass, text[]) is
'The attributes of a type as the first columns of a queue; one that is named like a column of the queue itself (own) is
shown as attribute_<name>';
