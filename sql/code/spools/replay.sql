-- Replay: what lies between the checkpoint pointer and the replay pointer, and matches a pattern, is handed out again.
-- A replay is a pattern and two numbers, and a member in it is at a number: nothing is written for a message. It begins
-- at once, unless the spool was asked for something before that is not dispatched yet: then it begins when that is.
-- Below it: how the two pointers are moved.
-- Locks: the turn of asking for a replay of a spool, until the transaction ends.
-- Writes: spool, spool_replay.

create or replace function pgps_internal.replay_of(
    spool pgps_internal.spool, state pgps_internal.spool_state, pattern jsonb
) returns pgps_internal.spool_replay
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgps_internal.spool_state := replay_of.state;
    v_replay pgps_internal.spool_replay;
begin
    -- What is prepended later is no part of it, nor new afterwards.
    v_replay.first_seqn := greatest(v_state.checkpoint_pointer, v_state.lowest);
    v_replay.start := coalesce(v_state.replay_pointer, v_state.lowest - 1);
    -- Below the first when the replay pointer is before everything that is there: nothing is repeated then.
    -- Not above what is there: a number that does not exist yet will be that of a message which is new.
    v_replay.last_seqn := case when v_state.replay_pointer is null then v_replay.start
        else least(greatest(v_state.checkpoint_pointer, v_state.replay_pointer), v_state.last_seqn) end;
    v_replay.checkpoints_upto := case when v_state.replay_pointer is null then v_state.last_seqn end;
    v_replay.pattern := pgps_internal.planned(replay_of.spool, v_state, replay_of.pattern, v_replay.first_seqn,
        v_replay.last_seqn);
    -- A checkpoint that lies ahead of the replay pointer is replayed alone; it is not new afterwards.
    v_replay.repeated := case when v_replay.last_seqn > v_replay.start and v_replay.first_seqn = v_replay.last_seqn
        and pgps_internal.count_live(replay_of.spool, v_state, v_replay.pattern, v_replay.first_seqn,
            v_replay.last_seqn) > 0
        then int8multirange(int8range(v_replay.first_seqn, v_replay.first_seqn, '[]')) else '{}' end;
    return v_replay;
end
$$;
comment on function pgps_internal.replay_of(pgps_internal.spool, pgps_internal.spool_state, jsonb) is
'What a replay with a pattern repeats, at a standing; the caller keeps the slots';

drop function if exists pgps_internal.begin_replay(
    name, pgps_internal.spool, pgps_internal.spool_state, jsonb, bigint[], bigint
);
create or replace function pgps_internal.begin_replay(
    caller name, spool pgps_internal.spool, pattern jsonb, members bigint[], joining bigint = null
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := nextval('pgps_internal.event_id_seq');
    v_state pgps_internal.spool_state;
    v_replay pgps_internal.spool_replay;
begin
    -- In this order: when nothing waits any more the standing, which is read later, has it. A replay that waits is
    -- waited for, too: a member begins its replays in their order, and none before one that it will have begun.
    if not exists (select from pgps_internal.asked_of((begin_replay.spool).spool_id)) then
        v_state := pgps_internal.standing_of_spool((begin_replay.spool).spool_id);
        v_replay := pgps_internal.replay_of(spool, v_state, pattern);
    end if;
    if begin_replay.members <> '{}' then
        insert into pgps_internal.spool_replay (replay_id, spool_id, members, pattern, first_seqn, last_seqn, start,
            checkpoints_upto, repeated)
        values (v_id, (begin_replay.spool).spool_id, begin_replay.members,
            coalesce(v_replay.pattern, begin_replay.pattern), v_replay.first_seqn, v_replay.last_seqn, v_replay.start,
            v_replay.checkpoints_upto, v_replay.repeated);
        perform pgps_internal.ask_spool(caller, spool, 'y', v_id) where v_replay.first_seqn is null;
    end if;
    if begin_replay.joining is not null then
        perform pgps_internal.write_mark(pgps_internal.begun(pgps_internal.mark_of(joining), joining, v_id));
    end if;
    return case when v_replay.first_seqn is null then pgps_internal.expected_of(spool, pattern)
        else pgps_internal.count_live(spool, v_state, v_replay.pattern, v_replay.first_seqn, v_replay.last_seqn, true)
        end;
end
$$;
comment on function pgps_internal.begin_replay(name, pgps_internal.spool, jsonb, bigint[], bigint) is
'Gives members a replay, and returns how many messages it repeats; what the spool was asked for before takes effect
first, at dispatch. joining: a member, whose turn the caller has, that begins with it at once. The caller keeps the
slots';

create or replace function pgps_internal.begun(mark pgps_internal.spool_mark, member_id bigint, replay_id bigint)
returns pgps_internal.spool_mark
language plpgsql stable
as $$
declare
    v_lowest bigint := -9223372036854775808;
    v_acked int8multirange := coalesce((begun.mark).acked, '{}');
    v_spool pgps_internal.spool;
    v_after bigint;
    v_upto bigint;
begin
    if (begun.mark).phase = 'n' then
        -- An acknowledgement forgets what the replay pointer has passed; but the replay may have been asked for when
        -- the pointer was not so far, and what lies between is not new again.
        select greatest((begun.mark).start, r.start, 0), least((begun.mark).seqn, t.replay_pointer)
        into v_after, v_upto
        from pgps_internal.spool_replay r, pgps_internal.standing_of_spool(r.spool_id) t
        where r.replay_id = begun.replay_id and r.start is not null and t.replay_pointer is not null;
        if v_after < v_upto then
            select s.* into v_spool from pgps_internal.spool s join pgps_internal.spool_member m using (spool_id)
            where m.member_id = begun.member_id;
            v_acked := v_acked + (int8multirange(int8range(v_after, v_upto, '(]'))
                - pgps_internal.checkpoints_between(v_spool, (begun.mark).checkpoints_upto, v_after, v_upto));
        end if;
    end if;
    -- Where it begins is in the replay: see pgps_internal.mark_of.
    return row(null, begun.member_id, begun.replay_id, 'r', v_lowest, 'r', v_lowest, null, 0, v_lowest, null, '{}',
        v_acked, coalesce((begun.mark).had, '{}'), begun.replay_id)::pgps_internal.spool_mark;
end
$$;
comment on function pgps_internal.begun(pgps_internal.spool_mark, bigint, bigint) is
'Where a member is when it begins a replay; mark: where it was, null when it is new';

create or replace function pgps_internal.next_replay(spool_id integer, mark pgps_internal.spool_mark) returns bigint
language plpgsql stable
as $$
begin
    -- Not one behind another that waits for dispatch: that would count as seen.
    return (select case when r.first_seqn is not null then r.replay_id end from pgps_internal.spool_replay r
        where r.spool_id = next_replay.spool_id and r.replay_id > (next_replay.mark).seen
            and (next_replay.mark).member_id = any (r.members)
        order by r.replay_id limit 1);
end
$$;
comment on function pgps_internal.next_replay(integer, pgps_internal.spool_mark) is
'The replay that a member has to begin when it is through with the one it is in; null when there is none';

drop function if exists pgps_internal.expected_of(pgps_internal.spool, pgps_internal.spool_state, jsonb);
create or replace function pgps_internal.expected_of(spool pgps_internal.spool, pattern jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_pointer bigint := pgps_internal.asked_pointer((expected_of.spool).spool_id);
    v_state pgps_internal.spool_state;
    v_moved pgps_internal.spool_request;
    v_is_moved boolean;
    v_replay pgps_internal.spool_replay;
    v_found bigint := 0;
begin
    select a.* into v_moved from pgps_internal.asked_of((expected_of.spool).spool_id) a
    where a.verb in ('k', 'c', 'p') order by a.id desc limit 1;
    v_is_moved := found;
    -- Afterwards: it has what was dispatched in between.
    v_state := pgps_internal.standing_of_spool((expected_of.spool).spool_id);
    v_state.replay_pointer := greatest(v_state.replay_pointer, v_pointer);
    if v_moved.verb = 'k' then
        v_state.checkpoint_pointer := v_moved.value;
    elsif v_is_moved and v_state.replay_pointer is not null then
        -- The checkpoint has no number yet.
        execute 'select count(*) from (select $2 as seqn, l.keys, l.keywords, l.sender, l.spooler, l.spooled_at
            from pgps_internal.pgps_spool_log l where l.event_id = $1) m where true'
            || pgps_internal.pattern_text(expected_of.pattern)
        using v_moved.id, case v_moved.verb when 'p' then v_state.lowest - 1 else v_state.last_seqn + 1 end
        into v_found;
        v_state.checkpoint_pointer := null;
    end if;
    if v_moved.verb = 'c' or v_moved.verb = 'p' and v_moved.pattern = '{}' or v_state.replay_pointer is null then
        return v_found;
    end if;
    v_replay := pgps_internal.replay_of(spool, v_state, pattern);
    return v_found
        + pgps_internal.count_live(spool, v_state, v_replay.pattern, v_replay.first_seqn, v_replay.last_seqn, true);
end
$$;
comment on function pgps_internal.expected_of(pgps_internal.spool, jsonb) is
'How many messages a replay will repeat when what the spool was asked for has taken effect, discards by a pattern
aside';

create or replace function pgps_internal.settle_replay(
    spool pgps_internal.spool, state pgps_internal.spool_state, replay_id bigint, request bigint, ids int8multirange
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgps_internal.spool_state := settle_replay.state;
    v_replay pgps_internal.spool_replay;
begin
    -- Without what this batch spools later than this request.
    select v_state.last_seqn - count(*) filter (where l.verb <> 'p'),
        v_state.lowest + count(*) filter (where l.verb = 'p')
    into v_state.last_seqn, v_state.lowest
    from pgps_internal.pgps_spool_log l
    where l.spool_id = v_state.spool_id and l.verb in ('s', 'c', 'p') and l.event_id > settle_replay.request
        and l.event_id <@ settle_replay.ids;
    select (pgps_internal.replay_of(spool, v_state, r.pattern)).* into v_replay
    from pgps_internal.spool_replay r where r.replay_id = settle_replay.replay_id;
    update pgps_internal.spool_replay r
    set pattern = v_replay.pattern, first_seqn = v_replay.first_seqn, last_seqn = v_replay.last_seqn,
        start = v_replay.start, checkpoints_upto = v_replay.checkpoints_upto, repeated = v_replay.repeated
    where r.replay_id = settle_replay.replay_id and v_replay.first_seqn is not null;
end
$$;
comment on function pgps_internal.settle_replay(
    pgps_internal.spool, pgps_internal.spool_state, bigint, bigint, int8multirange
) is
'Lets a replay begin that has waited for dispatch, at a standing';

create or replace function pgps_internal.do_spool_replay(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_spool pgps_internal.spool := pgps_internal.find_spool(caller, args ->> 'name', 'replay');
    v_pattern jsonb := pgps_internal.read_pattern(args -> 'pattern');
    v_turn integer := v_spool.spool_id;
    v_members bigint[];
begin
    perform pgps_internal.require_read_committed();
    loop
        -- In turn, so that no replay becomes visible after one with a higher id. Members are not waited for.
        perform pgps_internal.hold('y', v_turn);
        -- The right may have been taken meanwhile, and the spool dropped and made again.
        v_spool := pgps_internal.find_spool(caller, args ->> 'name', 'replay');
        exit when v_spool.spool_id = v_turn;
        v_turn := v_spool.spool_id;
    end loop;
    -- Who is present is asked as of now, not as of the first time that this transaction has asked.
    perform pg_stat_clear_snapshot();
    v_members := array(select m.member_id from pgps_internal.spool_member m
        where m.spool_id = v_spool.spool_id and pgps_internal.is_present(m));
    perform pgps_internal.enter_store();
    if v_members <> '{}' then
        perform pg_notify('pgps_spool_' || v_spool.spool_id, '');
    end if;
    return pgps_internal.begin_replay(caller, v_spool, v_pattern, v_members);
end
$$;
comment on function pgps_internal.do_spool_replay(name, jsonb) is 'See pgps.spool_replay';

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
