-- The ledgers of composite events: segments are truncated when what still counts in them has been written again.
-- Locks: see log/reclaim.sql.
-- Writes: composite_key, composite_late, composite_open, composite_step.

create or replace function pgps_internal.reclaim_composites() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_newest bigint := coalesce(pg_sequence_last_value('pgps_internal.composite_row_seq'), 0);
begin
    -- The events of a statement, which a rule has marked, may lie in the next segment.
    perform pgps_internal.reclaim_beside_logs('rule_moment', 1),
        pgps_internal.reclaim_ledger('coupling_mark', m.newest, m.newest)
    from (select coalesce(pg_sequence_last_value('pgps_internal.coupling_row_seq'), 0) as newest) m;
    if v_newest < 262144 or not pgps_internal.try_lock('pgps_internal.turn_of_detection', 'exclusive') then
        return 0;
    end if;
    -- Open occurrences first: which of them count is told by the keys and the steps.
    return pgps_internal.reclaim_ledger('composite_open', v_newest, v_newest)
        + pgps_internal.reclaim_ledger('composite_key', v_newest, v_newest)
        + pgps_internal.reclaim_ledger('composite_step', v_newest, v_newest);
end
$$;
comment on function pgps_internal.reclaim_composites() is
'Truncates old segments of the ledgers of composite events; returns how many';

create or replace function pgps_internal.carry_over_steps(segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.composite_step (composite_id, share, state_id, batch_id, ordering, heard,
            idle_at, open, keys, detected, late, given_up, stepped_at)
        select s.composite_id, s.share, s.state_id, s.batch_id, s.ordering, s.heard, s.idle_at, s.open, s.keys,
            s.detected, s.late, s.given_up, s.stepped_at
        from pgps_internal.step_now s
        where exists (select from %s o where o.row_id = s.row_id)', carry_over_steps.segment);
end
$$;
comment on function pgps_internal.carry_over_steps(regclass) is
'Before a segment of steps is truncated: writes the last step of each share again';

create or replace function pgps_internal.carry_over_keys(segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A key of which nothing is left is written again while an older row of it is there, which would count otherwise.
    execute format('insert into pgps_internal.composite_key (state_id, key, born, version, serial, clock, ticked, due,
            live)
        select o.state_id, o.key, o.born, o.version, o.serial, o.clock, o.ticked, o.due, o.live
        from %1$s o
        where exists (select from pgps_internal.composite c where c.state_id = o.state_id)
            and not exists (select from pgps_internal.composite_key n
                where n.state_id = o.state_id and n.key = o.key and n.row_id > o.row_id)
            and (o.version > 0 or exists (select from pgps_internal.composite_key n
                where n.state_id = o.state_id and n.key = o.key and n.tableoid <> %2$s::oid))',
        carry_over_keys.segment, carry_over_keys.segment::oid);
end
$$;
comment on function pgps_internal.carry_over_keys(regclass) is
'Before a segment of keys is truncated: writes the newest row of each key again';

create or replace function pgps_internal.carry_over_open(segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.composite_open (state_id, key, node, slot, serial, start_at, data)
        select o.state_id, o.key, o.node, o.slot, o.serial, o.start_at, o.data
        from %s x join pgps_internal.open_now o using (row_id)',
        carry_over_open.segment);
end
$$;
comment on function pgps_internal.carry_over_open(regclass) is
'Before a segment of open occurrences is truncated: writes those that count again';

create or replace function pgps_internal.sweep_composites() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgps_internal.composite_late l where l.noted_at < pgps_internal.clock() - interval '7 days';
end
$$;
comment on function pgps_internal.sweep_composites() is 'Deletes notes of late events after a week';
