-- Composite events of event types that somebody alters or drops in a transaction that stays open: they stay where they
-- are until it ends, and all others are detected (decision 74).
-- Locks: access share on the logs of event types, which are not waited for; the rows of composite events.
-- Writes: composite.

create or replace function pgps_internal.free_composites(composite_ids bigint[]) returns bigint[]
language plpgsql
as $$
declare
    v_free bigint[] := array(
        select w.composite_id from (select distinct unnest(free_composites.composite_ids)) w(composite_id)
        where not exists (select from pgps_internal.composite_leaf l join pgps_internal.event_type t using (type_id)
            where l.composite_id = w.composite_id and not pgps_internal.try_lock(t.log, 'access share')));
begin
    update pgps_internal.composite c set is_held = not c.is_held
    where c.composite_id = any (free_composites.composite_ids) and c.is_held = (c.composite_id = any (v_free));
    return v_free;
end
$$;
comment on function pgps_internal.free_composites(bigint[]) is
'Which of these composite events read no event type that somebody is changing or dropping, and notes which do (is_held).
The logs of their event types are locked for reading until the transaction ends';

create or replace function pgps_internal.free_shares(composite_ids bigint[], shares integer[])
returns table (composite_id bigint, share integer)
language plpgsql
as $$
declare
    v_free bigint[] := pgps_internal.free_composites(free_shares.composite_ids);
begin
    return query select w.composite_id, w.share
        from unnest(free_shares.composite_ids, free_shares.shares) w(composite_id, share)
        where w.composite_id = any (v_free);
end
$$;
comment on function pgps_internal.free_shares(bigint[], integer[]) is
'Shares whose composite events can be detected, when some of them could not: see pgps_internal.free_composites';

drop function if exists pgps_internal.take_free(bigint[], integer[], bigint[], boolean[], timestamptz);
create or replace function pgps_internal.take_free(
    composite_ids bigint[], shares integer[], uptos bigint[], are_last boolean[], now timestamptz, pace text
) returns boolean
language plpgsql
as $$
declare
    v_ids bigint[] := pgps_internal.free_composites(take_free.composite_ids);
    v_free integer[] := array(
        select w.place from unnest(take_free.composite_ids) with ordinality w(composite_id, place)
        where w.composite_id = any (v_ids) order by w.place);
    v_place integer;
    v_more boolean := false;
begin
    if cardinality(v_free) between 1 and cardinality(take_free.composite_ids) - 1 then
        return pgps_internal.try_steps(array(select take_free.composite_ids[p] from unnest(v_free) p),
            array(select take_free.shares[p] from unnest(v_free) p),
            array(select take_free.uptos[p] from unnest(v_free) p),
            array(select take_free.are_last[p] from unnest(v_free) p), take_free.now, take_free.pace);
    end if;
    -- It was another lock, or one alone waits for it: whoever does is left out.
    foreach v_place in array case when cardinality(take_free.composite_ids) > 1 then v_free else '{}' end loop
        v_more := pgps_internal.try_steps(take_free.composite_ids[v_place:v_place], take_free.shares[v_place:v_place],
            take_free.uptos[v_place:v_place], take_free.are_last[v_place:v_place], take_free.now, take_free.pace)
            or v_more;
    end loop;
    return v_more;
end
$$;
comment on function pgps_internal.take_free(bigint[], integer[], bigint[], boolean[], timestamptz, text) is
'As take_less, when a step has waited too long for a lock: composite events whose event types somebody is changing or
dropping in a transaction that is open stay where they are, until it ends, and are not suspended';
