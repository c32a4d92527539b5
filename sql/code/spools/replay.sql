-- Replay: what lies between the checkpoint pointer and the replay pointer, and matches a pattern, is handed out again.
-- Locks: the turns of the members' clients, in the order of their ids, until the transaction ends.
-- Writes: spool, spool_replay.

create or replace function pgps_internal.replay_to(
    spool pgps_internal.spool, state pgps_internal.spool_state, pattern jsonb, members bigint[]
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgps_internal.spool_state := replay_to.state;
    -- What is prepended later is no part of it.
    v_first bigint := greatest(v_state.checkpoint_pointer, v_state.lowest);
    v_start bigint := coalesce(v_state.replay_pointer, -9223372036854775808);
    -- Below the first when the replay pointer is before everything that is there: nothing is repeated then.
    v_last bigint := case when v_state.replay_pointer is null then v_start
        else greatest(v_state.checkpoint_pointer, v_state.replay_pointer) end;
    v_replay pgps_internal.spool_replay;
    v_upto bigint := case when v_state.replay_pointer is null then v_state.last_seqn end;
begin
    -- A checkpoint that lies ahead of the replay pointer is replayed alone; it is not new afterwards.
    insert into pgps_internal.spool_replay (replay_id, spool_id, first_seqn, last_seqn, pattern, repeated)
    values (nextval('pgps_internal.event_id_seq'), (replay_to.spool).spool_id, v_first, v_last,
        pgps_internal.planned(replay_to.spool, replay_to.pattern),
        case when v_last > v_start and v_first = v_last
            and pgps_internal.count_live(replay_to.spool, v_state, replay_to.pattern, v_first, v_first) > 0
            then int8multirange(int8range(v_first, v_first, '[]')) else '{}' end)
    returning * into v_replay;
    perform pgps_internal.write_mark(row(null, m.member_id, v_replay.replay_id, 'r', v_first - 1, 'r', v_first - 1,
        null, v_start, v_upto, v_replay.repeated + coalesce(k.acked, '{}'), coalesce(k.acked, '{}'),
        coalesce(k.had, '{}'))::pgps_internal.spool_mark)
    from unnest(replay_to.members) m(member_id) left join lateral pgps_internal.mark_of(m.member_id) k on true;
end
$$;
comment on function pgps_internal.replay_to(
    pgps_internal.spool, pgps_internal.spool_state, jsonb, bigint[]
) is 'Begins a replay for members whose turns the caller has';

create or replace function pgps_internal.do_spool_replay(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool pgps_internal.spool := pgps_internal.find_spool(caller, args ->> 'name', 'replay');
    v_pattern jsonb := pgps_internal.read_pattern(args -> 'pattern');
    v_members bigint[];
    v_state pgps_internal.spool_state;
begin
    perform pgps_internal.require_read_committed();
    perform pgps_internal.hold_client(m.client_id) from (select m.client_id from pgps_internal.spool_member m
        where m.spool_id = v_spool.spool_id and pgps_internal.is_present(m) order by m.client_id offset 0) m;
    v_members := array(select m.member_id from pgps_internal.spool_member m
        where m.spool_id = v_spool.spool_id and pgps_internal.is_present(m));
    v_state := pgps_internal.standing_of_spool(v_spool.spool_id);
    if v_members <> '{}' then
        perform pgps_internal.replay_to(v_spool, v_state, v_pattern, v_members);
        perform pg_notify('pgps_spool_' || v_spool.spool_id, '');
    end if;
    return case when v_state.replay_pointer is null then 0
        else pgps_internal.count_replayed(v_spool, v_state, v_pattern) end;
end
$$;
comment on function pgps_internal.do_spool_replay(name, jsonb) is 'See pgps.spool_replay';

create or replace function pgps_internal.count_replayed(
    spool pgps_internal.spool, state pgps_internal.spool_state, pattern jsonb
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    perform pgps_internal.enter_store();
    execute 'select count(*) ' || pgps_internal.live_text(
        pgps_internal.planned(count_replayed.spool, count_replayed.pattern),
        ' and (m.expires is null or m.expires > pgps_internal.clock())
        and not exists (select from pgps_internal.spool_cancelled c where c.id = m.id)')
    using (count_replayed.spool).spool_id, coalesce((count_replayed.state).checkpoint_pointer, -9223372036854775808),
        greatest((count_replayed.state).checkpoint_pointer, (count_replayed.state).replay_pointer),
        pgps_internal.first_slot(count_replayed.spool), pgps_internal.last_slot(count_replayed.spool),
        (count_replayed.state).emptied
    into v_count;
    return v_count;
end
$$;
comment on function pgps_internal.count_replayed(
    pgps_internal.spool, pgps_internal.spool_state, jsonb
) is 'How many messages a replay hands out';

create or replace function pgps_internal.do_spool_play_through(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool pgps_internal.spool := pgps_internal.find_spool(caller, args ->> 'name', 'replay');
begin
    if args ->> 'play' is null then
        raise exception 'play is null' using errcode = '22023', hint = 'Give true or false.';
    end if;
    update pgps_internal.spool s set play_through = (args ->> 'play')::boolean
    where s.spool_id = v_spool.spool_id and s.play_through <> (args ->> 'play')::boolean;
    perform pg_notify('pgps_spool_' || v_spool.spool_id, '');
end
$$;
comment on function pgps_internal.do_spool_play_through(name, jsonb) is 'See pgps.spool_play_through';
