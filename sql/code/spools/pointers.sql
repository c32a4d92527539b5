-- Pointers of a spool: up to where it was processed, and from where it is replayed.
-- Locks: none but those of publishing.
-- Writes: nothing.

create or replace function pgps_internal.do_spool_set_replay_pointer(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool pgps_internal.spool := pgps_internal.find_spool(caller, args ->> 'name', 'replay');
    -- What waits first: the standing, which is read later, has what is dispatched in between.
    v_pointer bigint := pgps_internal.asked_pointer(v_spool.spool_id);
    v_state pgps_internal.spool_state := pgps_internal.standing_of_spool(v_spool.spool_id);
    v_seqn bigint := (args ->> 'seqn')::bigint;
begin
    v_pointer := greatest(v_state.replay_pointer, v_pointer);
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
