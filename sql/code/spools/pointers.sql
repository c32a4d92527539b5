-- Pointers of a spool: from where it is replayed, its checkpoint, and how many of its messages are live.
-- Locks: none but those of publishing.
-- Writes: nothing.

create or replace function pgps_internal.do_spool_set_replay_pointer(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool pgps_internal.spool := pgps_internal.find_spool(caller, args ->> 'name', 'replay');
    v_state pgps_internal.spool_state := pgps_internal.standing_of_spool(v_spool.spool_id);
    v_pointer bigint := greatest(v_state.replay_pointer, pgps_internal.asked_pointer(v_spool.spool_id));
    v_seqn bigint := (args ->> 'seqn')::bigint;
begin
    if v_seqn is null then
        raise exception 'the replay pointer is null' using errcode = '22023',
            hint = 'Give the number of the last message that was processed, see pgps.spool_getseqn.';
    elsif v_seqn < v_pointer then
        raise exception 'the replay pointer of spool "%" cannot go back from % to %', v_spool.name, v_pointer, v_seqn
        using errcode = '22023', hint = 'It is only set ahead; to see old messages again move the checkpoint pointer.';
    elsif v_seqn > v_state.last_seqn then
        raise exception 'the replay pointer of spool "%" cannot go to %: its last message is %', v_spool.name, v_seqn,
            v_state.last_seqn
        using errcode = '22023', hint = 'Give the number of a message that was dispatched, see pgps.spool_getseqn.';
    end if;
    perform pgps_internal.ask_spool(caller, v_spool, 'r', v_seqn);
end
$$;
comment on function pgps_internal.do_spool_set_replay_pointer(name, jsonb) is 'See pgps.spool_set_replay_pointer';

create or replace function pgps_internal.do_spool_set_checkpoint_pointer(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.ask_spool(caller, pgps_internal.find_spool(caller, args ->> 'name', 'replay'), 'k',
        (args ->> 'seqn')::bigint);
end
$$;
comment on function pgps_internal.do_spool_set_checkpoint_pointer(name, jsonb) is
'See pgps.spool_set_checkpoint_pointer';

create or replace function pgps_internal.do_spool_discard(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool pgps_internal.spool := pgps_internal.find_spool(caller, args ->> 'name', 'replay');
    v_pattern jsonb := pgps_internal.read_pattern(args -> 'pattern');
    v_state pgps_internal.spool_state := pgps_internal.standing_of_spool(v_spool.spool_id);
    v_pointer bigint := greatest(v_state.replay_pointer, pgps_internal.asked_pointer(v_spool.spool_id));
begin
    perform pgps_internal.ask_spool(caller, v_spool, 'd', null, v_pattern);
    return case when v_pointer is null then 0
        else pgps_internal.count_live(v_spool, v_state, v_pattern, null, v_pointer) end;
end
$$;
comment on function pgps_internal.do_spool_discard(name, jsonb) is 'See pgps.spool_discard';

create or replace function pgps_internal.count_live(
    spool pgps_internal.spool, state pgps_internal.spool_state, pattern jsonb, from_seqn bigint, upto bigint
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    perform pgps_internal.enter_store();
    execute 'select count(*) ' || pgps_internal.live_text(pgps_internal.planned(count_live.spool,
        count_live.pattern))
    using (count_live.spool).spool_id, coalesce(count_live.from_seqn, -9223372036854775808), count_live.upto,
        pgps_internal.first_slot(count_live.spool), pgps_internal.last_slot(count_live.spool),
        (count_live.state).emptied
    into v_count;
    return v_count;
end
$$;
comment on function pgps_internal.count_live(
    pgps_internal.spool, pgps_internal.spool_state, jsonb, bigint, bigint
) is 'How many messages of a spool, between two numbers, match a pattern and are not discarded';

create or replace function pgps_internal.first_slot(spool pgps_internal.spool) returns integer
language sql immutable
as $$ select case when (first_slot.spool).persistent then 0 else 8 end $$;
comment on function pgps_internal.first_slot(pgps_internal.spool) is 'The first slot of the store that a spool uses';

create or replace function pgps_internal.last_slot(spool pgps_internal.spool) returns integer
language sql immutable
as $$ select case when (last_slot.spool).persistent then 7 else 11 end $$;
comment on function pgps_internal.last_slot(pgps_internal.spool) is 'The last slot of the store that a spool uses';
