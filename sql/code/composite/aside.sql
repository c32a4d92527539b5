-- Composite events of event types that are set aside (dispatch/set_aside.sql): they go up to the batch before the first
-- one that something was taken out of, and stand there until that is dispatched; then they take it where it would have
-- been. So no timer fires before an event that waits, no source is idle of which something waits, and a transaction is
-- whole (decision 104).
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.were_set_aside() returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Common case: the table was never used, which its sequence tells, or is empty, which its size tells.
    return case when pg_sequence_last_value('pgps_internal.broken_type_place_seq'::regclass) is not null
            and pg_relation_size('pgps_internal.set_aside'::regclass) > 0
        then exists (select from pgps_internal.set_aside) else false end;
end
$$;
comment on function pgps_internal.were_set_aside() is
'True when something of an event type is set aside, or was, and not everybody is past it';

create or replace function pgps_internal.aside_upto(composite_id bigint, reached bigint, upto bigint) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- What is dispatched, but not matched by a lane yet, waits too.
    return (select min(s.held_batch) - 1
        from pgps_internal.set_aside s
        where s.type_id in (select l.type_id from pgps_internal.composite_leaf l
                where l.composite_id = aside_upto.composite_id)
            and (s.batch_id is null or s.batch_id > aside_upto.upto and s.held_batch > aside_upto.reached));
end
$$;
comment on function pgps_internal.aside_upto(bigint, bigint, bigint) is
'Up to which batch a composite event may go that would go up to upto, where something of its event types waits that was
set aside; null when nothing does';

create or replace function pgps_internal.came_late(composite_ids bigint[], reached bigint[], uptos bigint[])
returns json
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_reached bigint := (select min(r) from unnest(came_late.reached) r);
    v_upto bigint := (select max(u) from unnest(came_late.uptos) u);
begin
    -- What is taken in its place in this step, and what has been before and comes now.
    return (select json_object_agg(t.type_id, t.pairs) from (
        select s.type_id, json_agg(distinct jsonb_build_array(s.batch_id, s.held_batch)) as pairs
        from pgps_internal.set_aside s
        where s.type_id in (select l.type_id from pgps_internal.composite_leaf l
                where l.composite_id = any (came_late.composite_ids))
            and s.batch_id is not null
            and (s.held_batch > v_reached and s.held_batch <= v_upto or s.batch_id > v_reached and s.batch_id <= v_upto)
        group by s.type_id) t);
end
$$;
comment on function pgps_internal.came_late(bigint[], bigint[], bigint[]) is
'For each event type of these composite events the batches that have what was set aside, each with the batch that it had
been taken out of; reached, uptos: after which batch they go up to which';
