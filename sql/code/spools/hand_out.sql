-- What a member gets: first the messages of its replay, then the marker that ends it, then what is new. It gets them
-- again until it acknowledges them.
-- Locks: the turn of the member's client, until the transaction ends, when there is something.
-- Writes: nothing.

create or replace function pgps_internal.phase_place(phase "char") returns integer
language sql immutable
as $$ select case phase_place.phase when 'r' then 0 when 'm' then 1 else 2 end $$;
comment on function pgps_internal.phase_place("char") is 'The order of the phases: replay, marker, what is new';

create or replace function pgps_internal.replayed_after(
    spool pgps_internal.spool, state pgps_internal.spool_state, replay_id bigint, after_seqn bigint, upto bigint,
    max_messages integer
) returns pgps_internal.spooled[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_replay pgps_internal.spool_replay;
    v_found pgps_internal.spooled[] := '{}';
    v_more pgps_internal.spooled[];
    v_after bigint := replayed_after.after_seqn;
    v_upto bigint;
    v_window bigint;
    v_live text;
begin
    select r.* into v_replay from pgps_internal.spool_replay r where r.replay_id = replayed_after.replay_id;
    if v_replay.last_seqn <= replayed_after.after_seqn then
        return '{}';
    end if;
    loop
        v_upto := least(v_replay.last_seqn, replayed_after.upto);
        if v_replay.pattern ? 'by' and replayed_after.max_messages is not null then
            -- Of what has the key no more is looked up than a call may return.
            execute pgps_internal.seqns_text(v_replay.pattern) || ' order by k.seqn offset $6 - 1 limit 1'
            using (replayed_after.spool).spool_id, v_after + 1, v_upto,
                pgps_internal.first_slot(replayed_after.spool), pgps_internal.last_slot(replayed_after.spool),
                replayed_after.max_messages
            into v_window;
            v_upto := coalesce(v_window, v_upto);
        end if;
        -- Sorted apart (offset 0), since the order must not decide how messages are looked up.
        v_live := pgps_internal.live_text(v_replay.pattern, ' and (m.expires is null
            or m.expires > pgps_internal.clock())
            and not exists (select from pgps_internal.spool_cancelled c where c.id = m.id)');
        execute 'select array_agg(o.delivery order by o.seqn) from (
            select (''r'', m.seqn, m.entry, m.message, m.keys, m.keywords, m.sender, m.spooler, m.spooled_at, true,
                m.id)::pgps_internal.spooled as delivery, m.seqn ' || case when v_replay.pattern ? 'by'
            then 'from (select m.* ' || v_live || ' offset 0) m' else v_live end || ' order by m.seqn limit $7) o'
        using (replayed_after.spool).spool_id, v_after + 1, v_upto,
            pgps_internal.first_slot(replayed_after.spool), pgps_internal.last_slot(replayed_after.spool),
            (replayed_after.state).emptied, replayed_after.max_messages - cardinality(v_found)
        into v_more;
        v_found := v_found || coalesce(v_more, '{}');
        v_after := v_upto;
        exit when v_upto >= least(v_replay.last_seqn, replayed_after.upto)
            or cardinality(v_found) >= replayed_after.max_messages;
    end loop;
    return v_found;
end
$$;
comment on function pgps_internal.replayed_after(
    pgps_internal.spool, pgps_internal.spool_state, bigint, bigint, bigint, integer
) is 'The next messages of a replay, after one number and up to another';

create or replace function pgps_internal.new_after(
    spool pgps_internal.spool, state pgps_internal.spool_state, mark pgps_internal.spool_mark, after_seqn bigint,
    upto bigint, max_messages integer
) returns pgps_internal.spooled[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found pgps_internal.spooled[];
    v_first integer := pgps_internal.first_slot(new_after.spool);
    v_last integer := pgps_internal.last_slot(new_after.spool);
    v_skip int8multirange := (new_after.mark).skip + (new_after.state).emptied;
begin
    select array_agg(o.delivery order by o.seqn) into v_found
    from (
        select ('n', m.seqn, m.entry, m.message, m.keys, m.keywords, m.sender, m.spooler, m.spooled_at, false,
            m.id)::pgps_internal.spooled as delivery, m.seqn
        from pgps_internal.spool_message m
        where m.spool_id = (new_after.spool).spool_id and m.slot between v_first and v_last
            and m.seqn > new_after.after_seqn and m.seqn <= new_after.upto and not m.seqn <@ v_skip
            -- A checkpoint is not played through. Where nothing can be replayed it is as new as everything.
            and (not m.is_checkpoint or m.seqn <= (new_after.mark).checkpoints_upto)
            and (m.expires is null or m.expires > pgps_internal.clock())
            and not exists (select from pgps_internal.spool_gone g
                where g.slot = m.slot and g.spool_id = m.spool_id and g.seqn = m.seqn offset 0)
            and not exists (select from pgps_internal.spool_cancelled c where c.id = m.id)
        order by m.seqn limit new_after.max_messages
    ) o;
    return coalesce(v_found, '{}');
end
$$;
comment on function pgps_internal.new_after(
    pgps_internal.spool, pgps_internal.spool_state, pgps_internal.spool_mark, bigint, bigint, integer
) is 'The next messages that are new to a member, after one number and up to another';

create or replace function pgps_internal.next_spooled(
    spool pgps_internal.spool, member pgps_internal.spool_member, mark pgps_internal.spool_mark, max_messages integer
) returns pgps_internal.spooled[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgps_internal.spool_state := pgps_internal.standing_of_spool((next_spooled.spool).spool_id);
    v_found pgps_internal.spooled[] := '{}';
    v_place integer := pgps_internal.phase_place((next_spooled.mark).phase);
begin
    if v_place = 0 then
        v_found := pgps_internal.replayed_after(next_spooled.spool, v_state, (next_spooled.mark).replay_id,
            (next_spooled.mark).seqn, 9223372036854775807, next_spooled.max_messages);
    end if;
    if v_place = 0 and cardinality(v_found) < next_spooled.max_messages then
        v_found := v_found || row('m', 0, null, '{"replay": "ended"}', null, null, null, null,
            (select r.replayed_at from pgps_internal.spool_replay r
                where r.replay_id = (next_spooled.mark).replay_id),
            false, (next_spooled.mark).replay_id)::pgps_internal.spooled;
    end if;
    if (next_spooled.spool).play_through and (next_spooled.member).ready
        and cardinality(v_found) < next_spooled.max_messages then
        v_found := v_found || pgps_internal.new_after(next_spooled.spool, v_state, next_spooled.mark,
            case v_place when 2 then (next_spooled.mark).seqn else (next_spooled.mark).start end,
            9223372036854775807, next_spooled.max_messages - cardinality(v_found));
    end if;
    return v_found;
end
$$;
comment on function pgps_internal.next_spooled(
    pgps_internal.spool, pgps_internal.spool_member, pgps_internal.spool_mark, integer
) is 'What a member gets next, at most so many';

create or replace function pgps_internal.receive_spooled(caller name, args jsonb) returns pgps_internal.spooled[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_max integer := coalesce((args ->> 'max_messages')::integer, 100);
    v_member pgps_internal.spool_member := pgps_internal.find_member(caller, args);
    v_spool pgps_internal.spool;
    v_mark pgps_internal.spool_mark;
    v_found pgps_internal.spooled[];
    v_last pgps_internal.spooled;
    v_from bigint;
begin
    if v_max <= 0 then
        raise exception 'invalid max_messages %', v_max using errcode = '22023', hint = 'Give a positive number.';
    end if;
    perform pgps_internal.require_read_committed(), pgps_internal.enter_store();
    -- The first round looks. When there is something, the second looks again with the turn: a cancellation, a replay,
    -- or another call for the same member may have come in between.
    for v_round in 1..2 loop
        select s.* into v_spool from pgps_internal.spool s where s.spool_id = v_member.spool_id;
        select m.* into v_member from pgps_internal.spool_member m where m.member_id = v_member.member_id;
        v_mark := pgps_internal.mark_of(v_member.member_id);
        v_found := pgps_internal.next_spooled(v_spool, v_member, v_mark, v_max);
        exit when cardinality(v_found) = 0 or v_round = 2;
        perform pgps_internal.hold_client(v_member.client_id);
        v_member := pgps_internal.find_member(caller, args);
    end loop;
    if cardinality(v_found) = 0 then
        return v_found;
    end if;
    v_last := v_found[cardinality(v_found)];
    if v_found[1].phase = 'r' and v_found[1].seqn > v_mark.start then
        -- A checkpoint ahead of the replay pointer; the other messages of a replay have been processed before.
        v_mark.had := v_mark.had + int8multirange(int8range(v_found[1].seqn, v_found[1].seqn, '[]'));
    end if;
    if (pgps_internal.phase_place(v_last.phase), v_last.seqn)
        > (pgps_internal.phase_place(v_mark.got_phase), v_mark.got_seqn) then
        if v_last.phase = 'n' then
            v_from := case v_mark.got_phase when 'n' then v_mark.got_seqn
                else greatest(v_mark.start, (pgps_internal.standing_of_spool(v_spool.spool_id)).lowest - 1) end;
            v_mark.had := v_mark.had + (int8multirange(int8range(v_from, v_last.seqn, '(]'))
                - pgps_internal.checkpoints_between(v_spool, v_mark.checkpoints_upto, v_from, v_last.seqn));
        end if;
        v_mark.got_phase := v_last.phase;
        v_mark.got_seqn := v_last.seqn;
        v_mark.got_id := v_last.id;
        perform pgps_internal.write_mark(v_mark);
    end if;
    return v_found;
end
$$;
comment on function pgps_internal.receive_spooled(name, jsonb) is 'See pgps.receive_spooled';

create or replace function pgps_internal.place_of(
    spool pgps_internal.spool, mark pgps_internal.spool_mark, id bigint, out phase "char", out seqn bigint
) returns record
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_message pgps_internal.spool_message;
begin
    if place_of.id is null or place_of.id = (place_of.mark).got_id then
        -- The last that was handed out may have been discarded meanwhile.
        phase := (place_of.mark).got_phase;
        seqn := (place_of.mark).got_seqn;
        return;
    elsif place_of.id = (place_of.mark).replay_id then
        phase := 'm';
        seqn := 0;
        return;
    end if;
    v_message := pgps_internal.stored(place_of.id);
    if v_message.spool_id = (place_of.spool).spool_id then
        seqn := v_message.seqn;
        phase := case when (place_of.mark).replay_id is null or seqn > (place_of.mark).start
            and not exists (select from pgps_internal.spool_replay r
                where r.replay_id = (place_of.mark).replay_id and v_message.seqn <@ r.repeated) then 'n' else 'r' end;
    end if;
end
$$;
comment on function pgps_internal.place_of(pgps_internal.spool, pgps_internal.spool_mark, bigint) is
'Where in what a member gets a delivery is; nulls for one that is not known. id null: the last that was handed out';

create or replace function pgps_internal.checkpoints_between(
    spool pgps_internal.spool, checkpoints_upto bigint, after_seqn bigint, upto bigint
) returns int8multirange
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select coalesce(range_agg(int8range(m.seqn, m.seqn, '[]')), '{}')
        from pgps_internal.spool_message m
        where m.spool_id = (checkpoints_between.spool).spool_id
            and m.slot between pgps_internal.first_slot(checkpoints_between.spool)
                and pgps_internal.last_slot(checkpoints_between.spool)
            and m.seqn > greatest(checkpoints_between.after_seqn, checkpoints_between.checkpoints_upto)
            and m.seqn <= checkpoints_between.upto and m.is_checkpoint);
end
$$;
comment on function pgps_internal.checkpoints_between(pgps_internal.spool, bigint, bigint, bigint) is
'The checkpoints after a number and up to another that are not handed out as new; checkpoints_upto: those are';

create or replace function pgps_internal.ack_spooled(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_member pgps_internal.spool_member := pgps_internal.find_member(caller, args);
    v_spool pgps_internal.spool;
    v_state pgps_internal.spool_state;
    v_mark pgps_internal.spool_mark;
    v_before pgps_internal.spool_mark;
    v_place record;
    v_acked bigint := 0;
begin
    perform pgps_internal.require_read_committed(), pgps_internal.enter_store(),
        pgps_internal.hold_client(v_member.client_id);
    v_member := pgps_internal.find_member(caller, args);
    select s.* into v_spool from pgps_internal.spool s where s.spool_id = v_member.spool_id;
    v_state := pgps_internal.standing_of_spool(v_spool.spool_id);
    v_mark := pgps_internal.mark_of(v_member.member_id);
    v_before := v_mark;
    v_place := pgps_internal.place_of(v_spool, v_mark, (args ->> 'id')::bigint);
    if v_place.phase is null or (pgps_internal.phase_place(v_place.phase), v_place.seqn)
        > (pgps_internal.phase_place(v_mark.got_phase), v_mark.got_seqn) then
        raise exception 'member "%" has received no delivery %', args ->> 'member', args ->> 'id'
        using errcode = '22023', hint = 'Give an id that pgps.receive_spooled returned since the member joined.';
    elsif (pgps_internal.phase_place(v_place.phase), v_place.seqn)
        <= (pgps_internal.phase_place(v_mark.phase), v_mark.seqn) then
        return 0;
    end if;
    if v_mark.phase = 'r' then
        v_acked := cardinality(pgps_internal.replayed_after(v_spool, v_state, v_mark.replay_id, v_mark.seqn,
            case v_place.phase when 'r' then v_place.seqn else 9223372036854775807 end, null));
    end if;
    v_acked := v_acked + (v_mark.phase = 'r' and v_place.phase <> 'r')::integer;
    if v_place.phase = 'n' then
        v_mark.seqn := case v_mark.phase when 'n' then v_mark.seqn else v_mark.start end;
        v_acked := v_acked + cardinality(pgps_internal.new_after(v_spool, v_state, v_mark, v_mark.seqn, v_place.seqn,
            null));
        -- What the replay pointer has passed is never new again.
        v_mark.acked := (v_mark.acked + (int8multirange(int8range(
            greatest(v_mark.seqn, v_state.lowest - 1), v_place.seqn, '(]'))
            - pgps_internal.checkpoints_between(v_spool, v_mark.checkpoints_upto, v_mark.seqn, v_place.seqn)))
            * int8multirange(int8range(coalesce(v_state.replay_pointer, -9223372036854775808), null, '(]'));
        v_mark.had := v_mark.had
            * int8multirange(int8range(coalesce(v_state.replay_pointer, -9223372036854775808), null, '(]'));
    end if;
    v_mark.phase := v_place.phase;
    v_mark.seqn := v_place.seqn;
    perform pgps_internal.write_mark(v_mark);
    return v_acked;
end
$$;
comment on function pgps_internal.ack_spooled(name, jsonb) is 'See pgps.ack_spooled';
