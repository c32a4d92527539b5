-- Reclaim of one ledger: its segments are truncated when what must outlive them has been written again, behind all that
-- is there. Where the newest row of its kind counts, whoever writes one has read the ledger, or locked it, before in
-- the same transaction: so nobody has one that is not seen here, and older then.
-- Locks: access exclusive on one segment, NOWAIT.
-- Writes: by name: segments of ledgers.

create or replace function pgps_internal.require_top(segment regclass, key text, top bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_top bigint;
begin
    execute format('select max(%I) from %s', require_top.key, require_top.segment) into v_top;
    if v_top <> require_top.top then
        raise exception 'what was carried over came into % itself', require_top.segment
        using errcode = '55P03', hint = 'Call pgps.reclaim() again later.';
    end if;
end
$$;
comment on function pgps_internal.require_top(regclass, text, bigint) is
'Raises 55P03 when what was carried over from a locked segment has got numbers that are of this segment again';

create or replace function pgps_internal.reclaim_ledger(ledger text, low bigint, newest bigint) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_key text;
    v_size bigint;
    v_slot integer;
    v_segment regclass;
    v_top bigint;
    v_reclaimed bigint := 0;
begin
    select l.key, l.size into strict v_key, v_size from pgps_internal.ledgers() l
        where l.ledger = reclaim_ledger.ledger;
    for v_slot in 0..3 loop
        v_segment := format('pgps_internal.%I', reclaim_ledger.ledger || '_' || v_slot);
        continue when v_slot = (reclaim_ledger.newest / v_size) % 4 or pg_relation_size(v_segment) = 0;
        execute format('select max(%I) from %s', v_key, v_segment) into v_top;
        continue when v_top > reclaim_ledger.low;
        begin
            continue when not pgps_internal.try_lock(v_segment);
            execute format('select max(%I) from %s', v_key, v_segment) into v_top;
            continue when v_top > reclaim_ledger.low;
            perform pgps_internal.carry_over(reclaim_ledger.ledger, v_segment, reclaim_ledger.newest);
            perform pgps_internal.require_top(v_segment, v_key, v_top);
            execute format('truncate only %s', v_segment);
            v_reclaimed := v_reclaimed + 1;
        exception when lock_not_available then
            null;
        end;
    end loop;
    return v_reclaimed;
end
$$;
comment on function pgps_internal.reclaim_ledger(text, bigint, bigint) is
'Truncates the segments of a ledger (see pgps_internal.ledgers) whose rows are all at or below low, and that newest is
not in; what must outlive them is carried over first. A segment of which something can not be carried over yet is left
for the next time';
