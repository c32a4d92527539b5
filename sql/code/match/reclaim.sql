-- What matching needs kept: batches that lanes have not matched yet, and those that suspended filters will catch up
-- with. Locks: see log/reclaim.sql.
-- Writes: lane_step.

create or replace function pgps_internal.low_of_classes(type_id integer) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select min(c.suspended_batch) from pgps_internal.class c
        where not c.is_active and (low_of_classes.type_id is null or c.type_id = low_of_classes.type_id));
end
$$;
comment on function pgps_internal.low_of_classes(integer) is
'The batch up to which every suspended filter (of a type; null = any) was matched; null when none is suspended';

create or replace function pgps_internal.low_of_lanes(type_id integer) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return least(
        (select min(n.batch_id) - 1 from pgps_internal.lane_next n where low_of_lanes.type_id is null
            or n.type_id = low_of_lanes.type_id),
        (select min(j.from_batch) from pgps_internal.joining j where low_of_lanes.type_id is null
            or j.type_id = low_of_lanes.type_id));
end
$$;
comment on function pgps_internal.low_of_lanes(integer) is
'The batch up to which every lane has matched, and every subscription that has to join has done so (of a type; null =
any); null when nothing is left to do';

create or replace function pgps_internal.reclaim_lanes() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_newest bigint := coalesce(pg_sequence_last_value('pgps_internal.lane_step_seq'), 0);
begin
    return pgps_internal.reclaim_ledger('lane_step', v_newest, v_newest);
end
$$;
comment on function pgps_internal.reclaim_lanes() is
'Truncates old segments of the steps of lanes; the newest step of each lane is carried over';

create or replace function pgps_internal.carry_over_lanes(segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.lane_step (lane_id, batch_id)
        select distinct on (o.lane_id) o.lane_id, o.batch_id from %1$s o join pgps_internal.lane l using (lane_id)
        where not exists (select from pgps_internal.lane_step n
            where n.lane_id = o.lane_id and n.step_id > o.step_id and n.tableoid <> %2$s::oid)
        order by o.lane_id, o.step_id desc', carry_over_lanes.segment, carry_over_lanes.segment::oid);
end
$$;
comment on function pgps_internal.carry_over_lanes(regclass) is
'Before a segment of the steps of lanes is truncated: writes the newest step of each lane again';
