-- Lanes: each matches the filters of one role that may read more than the event, beside the dispatcher and with a
-- position of its own. A slow or stuck filter delays its owner and nobody else (decision 24). A lane writes ordinary
-- deliveries, batch by batch; how is in match_lanes.sql.
-- Locks: the row of the lane, while it is matched; sessions divide the lanes among themselves with SKIP LOCKED.
-- Writes: lane.

create or replace function pgps_internal.open_lane(owner regrole) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.lane (owner, from_batch)
    select open_lane.owner, coalesce((pgps_internal.last_batch()).batch_id, 0)
    where not exists (select from pgps_internal.lane l where l.owner = open_lane.owner)
    on conflict do nothing;
end
$$;
comment on function pgps_internal.open_lane(regrole) is 'Gives a role a lane if it has none, at the last batch';

create or replace function pgps_internal.lane_position(lane_id bigint) returns bigint
language plpgsql volatile
as $$
declare
    v_batch bigint;
    v_newest bigint := pg_sequence_last_value('pgps_internal.lane_step_seq'::regclass);
begin
    -- A lane in use has its newest step in the newest segment: looking there alone sets up one scan instead of four.
    select s.batch_id into v_batch from pgps_internal.lane_step s
    where s.lane_id = lane_position.lane_id
        and pgps_internal.lane_step_segment(s.step_id) = pgps_internal.lane_step_segment(v_newest)
        and s.step_id >= pgps_internal.lane_step_segment_start(v_newest)
    order by s.step_id desc limit 1;
    if not found then
        v_batch := (select p.batch_id from pgps_internal.lane_place p where p.lane_id = lane_position.lane_id);
    end if;
    return v_batch;
end
$$;
comment on function pgps_internal.lane_position(bigint) is 'The batch up to which a lane has matched';

create or replace view pgps_internal.lane_place as
select l.lane_id, l.owner, coalesce((select s.batch_id from pgps_internal.lane_step s where s.lane_id = l.lane_id
    order by s.step_id desc limit 1),
    l.from_batch) as batch_id
from pgps_internal.lane l where exists (select from pg_catalog.pg_roles r where r.oid = l.owner);
comment on view pgps_internal.lane_place is
'The batch up to which each lane has matched; see pgps_internal.lane_position';

create or replace view pgps_internal.lane_type as
select g.owner, g.type_id, min(g.from_batch) as from_batch, count(*) as signatures
from pgps_internal.signature g where g.in_lane group by g.owner, g.type_id;
comment on view pgps_internal.lane_type is
'Event types that have filters in a lane, and the batch after which the oldest of these filters begins';

create or replace view pgps_internal.lane_next as
select p.lane_id, p.owner, t.type_id, p.batch_id as position, t.signatures, n.batch_id
from pgps_internal.lane_place p
join pgps_internal.lane_type t using (owner)
cross join lateral (select b.batch_id from pgps_internal.batch_type b
    where b.type_id = t.type_id and b.batch_id > greatest(p.batch_id, t.from_batch) and b.events > 0
        order by b.batch_id limit 1) n;
comment on view pgps_internal.lane_next is
'For each lane that is behind, and each event type, the first batch that it has not matched';

-- ---------------------------------------------------------------------------------------------------------------------
-- What a lane has to do
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.lanes_with_work(seen bigint, is_slow boolean) returns bigint[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The newest batch of each type is looked up first: where none has come since, no lane need be looked at.
    return array(
        with type as materialized (
            select t.type_id, n.batch_id
                from (select distinct g.type_id from pgps_internal.signature g where g.in_lane) t
            cross join lateral (select b.batch_id from pgps_internal.batch_type b
                where b.type_id = t.type_id and b.events > 0 order by b.batch_id desc limit 1) n
            where n.batch_id > lanes_with_work.seen
        ),
        wanted as materialized (
            select g.owner, max(n.batch_id) as newest from type n
            join pgps_internal.signature g on g.type_id = n.type_id and g.in_lane
            where n.batch_id > g.from_batch group by g.owner
        ),
        behind as (
            select l.lane_id, l.owner from wanted w join pgps_internal.lane l using (owner)
            where l.is_slow = coalesce(lanes_with_work.is_slow, l.is_slow) and w.newest > coalesce(
                (select s.batch_id from pgps_internal.lane_step s where s.lane_id = l.lane_id
                    order by s.step_id desc limit 1), l.from_batch)
            union
            select l.lane_id, l.owner from pgps_internal.lane l
            where (exists (select from pgps_internal.joining)
                or exists (select from pgps_internal.class c where c.is_pending)
                    or exists (select from pgps_internal.asked_again))
                and l.is_slow = coalesce(lanes_with_work.is_slow, l.is_slow) and pgps_internal.has_guests(l.owner)
        )
        -- Who has waited longest for his turn comes first: the call may end before it has come to all of them. Not who
        -- is furthest behind: that would be the one who takes long, each time, and nobody else before he has caught up.
        -- Lanes of roles that are gone are no places.
        select b.lane_id from behind b join pgps_internal.lane_place p using (lane_id)
        order by (select s.step_id from pgps_internal.lane_step s where s.lane_id = b.lane_id
            order by s.step_id desc limit 1) nulls first, b.lane_id);
end
$$;
comment on function pgps_internal.lanes_with_work(bigint, boolean) is
'Lanes that have something to match, of types that had events after batch seen, or that have to join or to catch up;
is_slow: null = slow or not';

create or replace function pgps_internal.has_guests(owner regrole) returns boolean
language sql stable
as $$
    select exists (select from pgps_internal.joining j join pgps_internal.subscription s using (subscription_id)
            where s.owner = has_guests.owner and j.failures < 3)
        or exists (select from pgps_internal.class c join pgps_internal.signature g using (signature_id)
            where c.is_pending and g.in_lane and c.owner = has_guests.owner)
        or exists (select from pgps_internal.asked_again a where a.owner = has_guests.owner)
$$;
comment on function pgps_internal.has_guests(regrole) is
'True while subscriptions of a role have to join a type, to catch up or to be asked again before its lane goes on';

create or replace function pgps_internal.has_unseen(owner regrole) returns boolean
language plpgsql stable
as $$
begin
    -- Common case: the table is empty, and its size shows this without a query.
    if pg_relation_size('pgps_internal.newcomer'::regclass) = 0 then
        return false;
    end if;
    return exists (select from pgps_internal.newcomer n join pgps_internal.subscription s using (subscription_id)
        where n.until is null and s.owner = has_unseen.owner);
end
$$;
comment on function pgps_internal.has_unseen(regrole) is
'True while a role has global subscriptions that the dispatcher has not seen: it judges what came over links for them
before their owner''s lane goes on';

create or replace function pgps_internal.lane_rows(lane pgps_internal.lane, after_batch bigint, most integer)
returns pgps_internal.batch_type[]
language plpgsql stable
as $$
begin
    return array(
        select r from (
            select b as r, b.batch_id from pgps_internal.lane_type t
            cross join lateral (select b.* from pgps_internal.batch_type b
                where b.type_id = t.type_id and b.batch_id > greatest(lane_rows.after_batch, t.from_batch)
                    and b.events > 0
                order by b.batch_id limit lane_rows.most) b
            where t.owner = (lane_rows.lane).owner
            order by b.batch_id fetch first lane_rows.most rows with ties) x
        order by x.batch_id, (x.r).type_id);
end
$$;
comment on function pgps_internal.lane_rows(pgps_internal.lane, bigint, integer) is
'The next batches of a lane, with a row for each of its event types: about so many rows (most), whole batches only';
