-- Space: what is left of a slot of the store that is mostly discarded is copied into the slot that is written, and the
-- slot is truncated. No message is deleted by itself, so an old snapshot keeps no dead rows. Beside it the ledgers of
-- spools and members, whose newest rows are carried over.
-- Locks: access exclusive on the list of the slots and on one slot, for which it waits a tenth of a second at most:
-- members look all the time. Where gaps are put together, the turns of the members, for which it waits as long.
-- Writes: spool_cancelled, spool_gap, spool_gone, spool_key, spool_mark, spool_message, spool_replay, spool_slot,
-- spool_state, spool_store, turn.

create or replace function pgps_internal.carry_over_spools(ledger text, segment regclass, newest bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if carry_over_spools.ledger = 'spool_state' then
        execute format('insert into pgps_internal.spool_state (batch_id, spool_id, lowest, last_seqn, replay_pointer,
                checkpoint_pointer, messages, bytes, discarded, emptied)
            select %s, o.spool_id, o.lowest, o.last_seqn, o.replay_pointer, o.checkpoint_pointer, o.messages, o.bytes,
                o.discarded, o.emptied
            from %s o join pgps_internal.spool s using (spool_id)
            where not exists (select from pgps_internal.spool_state n
                where n.spool_id = o.spool_id and n.batch_id > o.batch_id)',
            carry_over_spools.newest, carry_over_spools.segment);
    else
        execute format('insert into pgps_internal.spool_mark (member_id, replay_id, phase, seqn, got_phase, got_seqn,
                got_id, got_count, start, checkpoints_upto, skip, acked, had, seen)
            select o.member_id, o.replay_id, o.phase, o.seqn, o.got_phase, o.got_seqn, o.got_id, o.got_count, o.start,
                o.checkpoints_upto, o.skip, o.acked, o.had, o.seen
            from %s o
            where (exists (select from pgps_internal.spool_member m where m.member_id = o.member_id)
                    or exists (select from pgps_internal.spool s where s.spool_id = - o.member_id))
                and not exists (select from pgps_internal.spool_mark n
                    where n.member_id = o.member_id and n.mark_id > o.mark_id)
            order by o.mark_id', carry_over_spools.segment);
    end if;
end
$$;
comment on function pgps_internal.carry_over_spools(text, regclass, bigint) is
'Before a segment of the ledgers of spools is truncated: writes the newest row of each spool, or member, again,
also what is remembered of members that are none any more (see pgps_internal.remember_had)';

create or replace function pgps_internal.reclaim_spools(newest bigint) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark bigint := coalesce(pg_sequence_last_value('pgps_internal.spool_mark_id_seq'), 0);
    v_reclaimed bigint;
begin
    if not exists (select from pgps_internal.spool)
        and (select t.dropped = t.looked_at from pgps_internal.spool_store t) then
        return 0;
    end if;
    v_reclaimed := pgps_internal.reclaim_ledger('spool_state', reclaim_spools.newest, reclaim_spools.newest);
    if v_mark >= pgps_internal.segment_size('spool_mark') then
        v_reclaimed := v_reclaimed + pgps_internal.reclaim_ledger('spool_mark', v_mark, v_mark);
    end if;
    v_mark := coalesce(pg_sequence_last_value('pgps_internal.network_mark_id_seq'), 0);
    if v_mark >= pgps_internal.segment_size('network_mark') then
        v_reclaimed := v_reclaimed + pgps_internal.reclaim_ledger('network_mark', v_mark, v_mark);
    end if;
    perform pgps_internal.ask_retention(s) from pgps_internal.spool s where s.retention is not null;
    return v_reclaimed + pgps_internal.reclaim_store();
end
$$;
comment on function pgps_internal.reclaim_spools(bigint) is
'Truncates what nobody needs of the store and of the ledgers of spools; returns how many segments';

create or replace function pgps_internal.ask_retention(spool pgps_internal.spool) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if pgps_internal.old_range(spool, pgps_internal.standing_of_spool((ask_retention.spool).spool_id)) is not null then
        perform pgps_internal.ask_spool(current_user, ask_retention.spool, 'l');
    end if;
end
$$;
comment on function pgps_internal.ask_retention(pgps_internal.spool) is
'Asks the dispatcher to apply the retention of a spool that has messages which are older than that';

create or replace function pgps_internal.try_store() returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Whoever drops a spool has this row until the transaction ends. Reclaim has segments locked that everybody reads.
    perform from pgps_internal.spool_store for update skip locked;
    return found;
end
$$;
comment on function pgps_internal.try_store() is
'Locks the row about the store of spools; false when another transaction has it: reclaim never waits for it';

create or replace function pgps_internal.reclaim_store() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_store pgps_internal.spool_store;
    v_live bigint;
    v_discarded bigint;
    v_slot integer;
    v_slots integer[];
    v_reclaimed bigint := 0;
begin
    select * into v_store from pgps_internal.spool_store;
    select coalesce(sum(t.messages), 0), coalesce(sum(t.discarded), 0) + v_store.dropped into v_live, v_discarded
    from pgps_internal.spool s cross join lateral pgps_internal.standing_of_spool(s.spool_id) t;
    perform pgps_internal.change_slots(v_store);
    -- Looking costs a scan: so much must have been discarded since the last time that it is worth it.
    if v_discarded - v_store.looked_at <= 0 or v_discarded - v_store.looked_at < v_live / 4
        or not pgps_internal.try_store() then
        return 0;
    end if;
    v_slots := pgps_internal.poor_slots();
    foreach v_slot in array v_slots loop
        v_reclaimed := v_reclaimed + pgps_internal.compact_slot(v_slot);
    end loop;
    if v_reclaimed = cardinality(v_slots) then
        update pgps_internal.spool_store t set looked_at = v_discarded;
    end if;
    return v_reclaimed;
end
$$;
comment on function pgps_internal.reclaim_store() is
'Copies what is left of the slots of the store that are mostly discarded, and truncates them; returns how many';

create or replace function pgps_internal.free_slot(kind_of integer) returns integer
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_current integer[] := (select array[t.logged_slot, t.unlogged_slot] from pgps_internal.spool_store t);
begin
    return (select n from generate_series(case when free_slot.kind_of < 8 then 0 else 8 end,
            case when free_slot.kind_of < 8 then 7 else 11 end) n
        where n <> all (v_current)
        order by pg_relation_size(format('pgps_internal.spool_message_%s', n)), n limit 1);
end
$$;
comment on function pgps_internal.free_slot(integer) is
'The emptiest slot of the kind (logged or not) of another one, which is not written at present';

create or replace function pgps_internal.write_slot_next(slot integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if write_slot_next.slot < 8 then
        update pgps_internal.spool_store t set logged_slot = write_slot_next.slot;
    else
        update pgps_internal.spool_store t set unlogged_slot = write_slot_next.slot;
    end if;
end
$$;
comment on function pgps_internal.write_slot_next(integer) is 'Makes a slot the one that is written, of its kind';

create or replace function pgps_internal.change_slots(store pgps_internal.spool_store) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot integer;
    v_free integer;
begin
    foreach v_slot in array array[(change_slots.store).logged_slot, (change_slots.store).unlogged_slot] loop
        continue when pg_relation_size(format('pgps_internal.spool_message_%s', v_slot)) < 67108864;
        v_free := pgps_internal.free_slot(v_slot);
        if pg_relation_size(format('pgps_internal.spool_message_%s', v_free)) = 0 and pgps_internal.try_store() then
            perform pgps_internal.write_slot_next(v_free);
        end if;
    end loop;
end
$$;
comment on function pgps_internal.change_slots(pgps_internal.spool_store) is
'Begins an empty slot when the one that is written has 64 MB';

create or replace function pgps_internal.slot_text(slot integer) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    -- What a member has received it may acknowledge although it was discarded since: its number, and so what was before
    -- it, is found by its id.
    select format('with standing as materialized (select s.spool_id, t.emptied,
            pgps_internal.unacknowledged_of(s.spool_id) as unacknowledged
        from pgps_internal.spool s cross join lateral pgps_internal.standing_of_spool(s.spool_id) t),
        kept as (
            select m.*, m.seqn <@ t.emptied as is_emptied, g.is_gone
            from pgps_internal.spool_message_%1$s m join standing t using (spool_id)
            cross join lateral (select exists (select from pgps_internal.spool_gone_%1$s g
                where g.spool_id = m.spool_id and g.seqn = m.seqn) as is_gone) g
            where not (g.is_gone or m.seqn <@ t.emptied) or m.seqn <@ t.unacknowledged)', slot_text.slot)
$$;
comment on function pgps_internal.slot_text(integer) is
'The text of a WITH clause whose last query, kept, has what is to be kept of a slot: messages that are not discarded,
and those that a member may acknowledge yet, of which the number is enough (is_emptied, is_gone)';

create or replace function pgps_internal.poor_slots() returns integer[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot integer;
    v_slots integer[] := '{}';
    v_is_poor boolean;
begin
    for v_slot in 0..11 loop
        continue when pg_relation_size(format('pgps_internal.spool_message_%s', v_slot)) = 0;
        execute format('%s select a.n > 0 and 2 * k.n <= a.n
            from (select count(*) as n from pgps_internal.spool_message_%s) a, (select count(*) as n from kept) k',
            pgps_internal.slot_text(v_slot), v_slot)
        into v_is_poor;
        if v_is_poor then
            v_slots := v_slots || v_slot;
        end if;
    end loop;
    return v_slots;
end
$$;
comment on function pgps_internal.poor_slots() is 'The slots of the store of which at least half is discarded';

create or replace function pgps_internal.lock_slot(slot integer) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp set lock_timeout = '100ms'
as $$
begin
    lock table pgps_internal.spool_slot in access exclusive mode;
    execute format('lock table only pgps_internal.spool_message_%1$s, only pgps_internal.spool_key_%1$s, '
        'only pgps_internal.spool_gone_%1$s in access exclusive mode', lock_slot.slot);
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end
$$;
comment on function pgps_internal.lock_slot(integer) is
'Locks a slot that is to be copied; false when others use it for longer than a tenth of a second';

create or replace function pgps_internal.compact_slot(slot integer) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_into integer;
begin
    if not pgps_internal.lock_slot(compact_slot.slot) then
        return 0;
    end if;
    select case when compact_slot.slot < 8 then t.logged_slot else t.unlogged_slot end into v_into
    from pgps_internal.spool_store t;
    if v_into = compact_slot.slot then
        v_into := pgps_internal.free_slot(compact_slot.slot);
        perform pgps_internal.write_slot_next(v_into);
    end if;
    perform pgps_internal.begin_slot(v_into);
    execute format('%3$s,
        noted as (
            insert into pgps_internal.spool_gone_%2$s (slot, spool_id, seqn)
            select %2$s, k.spool_id, k.seqn from kept k where k.is_gone),
        copied as (
            insert into pgps_internal.spool_message_%2$s (slot, spool_id, seqn, id, entry, message, keys, keywords,
                expires, sender, spooler, spooled_at, is_checkpoint, bytes)
            select %2$s, k.spool_id, k.seqn, k.id, k.entry,
                case when k.is_gone or k.is_emptied then ''null'' else k.message end, k.keys, k.keywords, k.expires,
                k.sender, k.spooler, k.spooled_at, k.is_checkpoint, k.bytes
            from kept k order by k.spool_id, k.seqn
            returning spool_id, seqn, ctid)
        insert into pgps_internal.spool_key_%2$s (slot, spool_id, seqn, name, value, place)
        select %2$s, k.spool_id, k.seqn, k.name, k.value, c.ctid
        from pgps_internal.spool_key_%1$s k join copied c using (spool_id, seqn)',
        compact_slot.slot, v_into, pgps_internal.slot_text(compact_slot.slot));
    execute format('truncate only pgps_internal.spool_message_%1$s, only pgps_internal.spool_key_%1$s, '
        'only pgps_internal.spool_gone_%1$s', compact_slot.slot);
    update pgps_internal.spool_slot s set begun_in = null where s.slot = compact_slot.slot;
    return 1;
end
$$;
comment on function pgps_internal.compact_slot(integer) is
'Copies what is to be kept of a slot into the one that is written, and truncates it; returns 1, or 0 when it is in
use';

create or replace function pgps_internal.sweep_replays() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgps_internal.spool_replay r
    where r.replayed_at < pgps_internal.clock() - interval '1 minute'
        and not exists (select from pgps_internal.spool_member m
            cross join lateral pgps_internal.mark_of(m.member_id) k
            where m.spool_id = r.spool_id and (k.replay_id = r.replay_id or m.session is not null
                and m.member_id = any (r.members) and k.seen < r.replay_id));
end
$$;
comment on function pgps_internal.sweep_replays() is 'Deletes replays in which no member is, or will be';

create or replace function pgps_internal.sweep_dropped() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgps_internal.spool_gap g
    where not exists (select from pgps_internal.spool s where s.spool_id = g.spool_id);
    delete from pgps_internal.spool_cancelled c
    where not exists (select from pgps_internal.spool s where s.spool_id = c.spool_id);
    delete from pgps_internal.spool_replay r
    where not exists (select from pgps_internal.spool s where s.spool_id = r.spool_id);
    delete from pgps_internal.turn t where t.ctid in (select t.ctid from pgps_internal.turn t
        where t.kind = 'q' and not exists (select from pgps_internal.spool s where s.spool_id = t.id)
        for update skip locked);
end
$$;
comment on function pgps_internal.sweep_dropped() is
'Deletes what is left of spools that were dropped, which the dispatcher writes: see sql/schema/0053_counted.sql';

create or replace function pgps_internal.sweep_gaps() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Fifty more than are put together, so that a spool that drops with every batch is not visited each time.
    perform pgps_internal.merge_gaps(g.spool_id, g.reason)
    from (select g.spool_id, g.reason from pgps_internal.spool_gap g
        group by g.spool_id, g.reason having count(*) > 100) g;
end
$$;
comment on function pgps_internal.sweep_gaps() is
'Puts the older gaps of spools together that have many; each message that was dropped is still told of';

create or replace function pgps_internal.merge_gaps(spool_id integer, reason text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set lock_timeout = '100ms'
as $$
declare
    v_members bigint[] := array(select m.member_id from pgps_internal.spool_member m
        where m.spool_id = merge_gaps.spool_id and merge_gaps.reason = 'limit' order by m.member_id);
    v_below bigint;
begin
    -- Nobody receives meanwhile: the id of a gap that a member has received must stay until it has acknowledged it.
    insert into pgps_internal.turn (kind, id) select 'h', m from unnest(v_members) m on conflict do nothing;
    perform from pgps_internal.turn t where t.kind = 'h' and t.id = any (v_members) order by t.id for update;
    select min(case k.phase when 'n' then k.seqn else -9223372036854775808 end) into v_below
    from unnest(v_members) m cross join lateral pgps_internal.mark_of(m) k where k.got_count <> 0;
    with older as (
        delete from pgps_internal.spool_gap g
        using (select g.gap_id from pgps_internal.spool_gap g
            where g.spool_id = merge_gaps.spool_id and g.reason = merge_gaps.reason
                and g.last_seqn <= coalesce(v_below, g.last_seqn)
            order by g.gap_id desc offset 50) o
        where g.gap_id = o.gap_id
        returning g.*
    )
    insert into pgps_internal.spool_gap (gap_id, spool_id, first_seqn, last_seqn, messages, reason, noted_at)
    select max(o.gap_id), merge_gaps.spool_id, min(o.first_seqn), max(o.last_seqn), sum(o.messages),
        merge_gaps.reason, max(o.noted_at)
    from older o having count(*) > 0;
exception when lock_not_available or deadlock_detected then
    -- Members are at work: the next time.
    null;
end
$$;
comment on function pgps_internal.merge_gaps(integer, text) is
'Makes one gap of all gaps of a spool, for one reason, but the newest fifty, and those that a member has received and
not acknowledged';
