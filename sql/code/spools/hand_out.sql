-- What a member gets: first the messages of its replay, then the marker that ends it, then what is new. It gets them
-- again until it acknowledges them. Messages go from a cursor, opened here, straight to the caller (decision 43).
-- Locks: the turns of the member's client and of the member, until the transaction ends, when there is something.
-- Writes: nothing.

create or replace function pgps_internal.phase_place(phase "char") returns integer
language sql immutable
as $$ select case phase_place.phase when 'r' then 0 when 'm' then 1 else 2 end $$;
comment on function pgps_internal.phase_place("char") is 'The order of the phases: replay, marker, what is new';

create or replace function pgps_internal.opened_part(phase "char", portal refcursor) returns pgps_internal.spooled_part
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_part pgps_internal.spooled_part := row(opened_part.phase, opened_part.portal, 0, null, null);
    v_last record;
begin
    -- Sorted, or kept by the cursor: read twice, and worked out once.
    move forward all from portal;
    get diagnostics v_part.messages = row_count;
    if v_part.messages > 0 then
        fetch prior from portal into v_last;
        v_part.seqn := v_last.seqn;
        v_part.id := v_last.id;
        move absolute 0 from portal;
    else
        close portal;
    end if;
    return v_part;
end
$$;
comment on function pgps_internal.opened_part("char", refcursor) is
'What a scrollable cursor is about to hand out; pgps.receive_spooled fetches all of it, and closes it';

create or replace function pgps_internal.replay_parts(
    spool pgps_internal.spool, state pgps_internal.spool_state, mark pgps_internal.spool_mark, max_messages integer
) returns pgps_internal.spooled_part[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_replay pgps_internal.spool_replay;
    v_parts pgps_internal.spooled_part[] := '{}';
    v_part pgps_internal.spooled_part;
    v_portal refcursor;
    v_after bigint := (replay_parts.mark).seqn;
    v_left bigint := replay_parts.max_messages;
    v_step bigint := replay_parts.max_messages;
    v_upto bigint;
begin
    select r.* into v_replay from pgps_internal.spool_replay r where r.replay_id = (replay_parts.mark).replay_id;
    while v_after < v_replay.last_seqn and v_left > 0 loop
        v_upto := pgps_internal.window_of(spool, v_replay, v_after, v_step);
        v_portal := null;
        open v_portal scroll for execute 'select m.seqn, m.entry, m.message, m.keys, m.keywords, m.sender::name, '
            'm.spooler::name, m.spooled_at, true, m.id '
            || pgps_internal.live_text(replay_parts.spool, v_replay.pattern, true) || ' order by m.seqn limit $5'
        using (replay_parts.spool).spool_id, v_after + 1, v_upto, (replay_parts.state).emptied, v_left;
        v_part := pgps_internal.opened_part('r', v_portal);
        v_parts := v_parts || v_part;
        v_left := v_left - v_part.messages;
        v_after := v_upto;
        v_step := v_step * 2;
    end loop;
    return v_parts;
end
$$;
comment on function pgps_internal.replay_parts(
    pgps_internal.spool, pgps_internal.spool_state, pgps_internal.spool_mark, integer
) is 'The next messages of the replay that a member is in, at most so many';

create or replace function pgps_internal.window_of(
    spool pgps_internal.spool, replay pgps_internal.spool_replay, after_seqn bigint, max_messages bigint
) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_pattern jsonb := (window_of.replay).pattern;
    v_upto bigint;
begin
    -- Of what has the key, hardly more is looked up than a call may return.
    if (v_pattern ->> 'found')::bigint > window_of.max_messages then
        execute format('select k.seqn from (%s) k order by k.seqn offset $4 - 1 limit 1', pgps_internal.key_text(
            pgps_internal.used_slots(spool), v_pattern ->> 'by', v_pattern -> 'keys' -> (v_pattern ->> 'by'), 'seqn'))
        using (window_of.spool).spool_id, window_of.after_seqn + 1, (window_of.replay).last_seqn, window_of.max_messages
        into v_upto;
    end if;
    return coalesce(v_upto, (window_of.replay).last_seqn);
end
$$;
comment on function pgps_internal.window_of(
    pgps_internal.spool, pgps_internal.spool_replay, bigint, bigint
) is 'Up to which number there are so many messages of a replay, as far as the key tells by which they are looked up';

create or replace function pgps_internal.new_messages(
    spool_id integer, first_slot integer, last_slot integer, mark pgps_internal.spool_mark, emptied int8multirange,
    after_seqn bigint, upto bigint, retention interval
) returns setof pgps_internal.spool_message
language sql stable
as $$
    -- Without SET, so that it is put into the statements that read from it.
    select m.* from pgps_internal.spool_message m
    where m.spool_id = new_messages.spool_id and m.slot between new_messages.first_slot and new_messages.last_slot
        and m.seqn > new_messages.after_seqn and m.seqn <= new_messages.upto
        and not m.seqn <@ (new_messages.mark).skip and not m.seqn <@ new_messages.emptied
        -- A checkpoint is not played through. Where nothing can be replayed it is as new as everything.
        and (not m.is_checkpoint or m.seqn <= (new_messages.mark).checkpoints_upto)
        and (m.expires is null or m.expires > pgps_internal.clock())
        and (new_messages.retention is null or m.spooled_at > pgps_internal.clock() - new_messages.retention)
        and not exists (select from pgps_internal.spool_gone g
            where g.slot = m.slot and g.spool_id = m.spool_id and g.seqn = m.seqn offset 0)
        and not exists (select from pgps_internal.spool_cancelled c where c.id = m.id offset 0)
$$;
comment on function pgps_internal.new_messages(
    integer, integer, integer, pgps_internal.spool_mark, int8multirange, bigint, bigint, interval
) is 'The messages that are new to a member, after one number and up to another';

create or replace function pgps_internal.new_part(
    spool pgps_internal.spool, state pgps_internal.spool_state, mark pgps_internal.spool_mark, max_messages bigint
) returns pgps_internal.spooled_part
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_portal refcursor;
    v_first integer := pgps_internal.first_slot(new_part.spool);
    v_last integer := pgps_internal.last_slot(new_part.spool);
    v_after bigint := case (new_part.mark).phase when 'n' then (new_part.mark).seqn else (new_part.mark).start end;
begin
    open v_portal scroll for
        select m.seqn, m.entry, m.message, m.keys, m.keywords, m.sender::name, m.spooler::name, m.spooled_at, false,
            m.id
        from pgps_internal.new_messages((new_part.spool).spool_id, v_first, v_last, new_part.mark,
            (new_part.state).emptied, v_after, (new_part.state).last_seqn, (new_part.spool).retention) m
        order by m.seqn limit new_part.max_messages;
    return pgps_internal.opened_part('n', v_portal);
end
$$;
comment on function pgps_internal.new_part(
    pgps_internal.spool, pgps_internal.spool_state, pgps_internal.spool_mark, bigint
) is 'The next messages that are new to a member, at most so many';

create or replace function pgps_internal.marker_part(mark pgps_internal.spool_mark)
returns pgps_internal.spooled_part
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_portal refcursor;
begin
    open v_portal scroll for
        select 0::bigint as seqn, null::integer, '{"replay": "ended"}'::jsonb, null::jsonb, null::text[], null::name,
            null::name, r.replayed_at, false, r.replay_id as id
        from pgps_internal.spool_replay r where r.replay_id = (marker_part.mark).replay_id;
    return pgps_internal.opened_part('m', v_portal);
end
$$;
comment on function pgps_internal.marker_part(pgps_internal.spool_mark) is 'The row that ends a replay';

create or replace function pgps_internal.next_parts(
    spool pgps_internal.spool, member pgps_internal.spool_member, mark pgps_internal.spool_mark,
    state pgps_internal.spool_state, max_messages integer
) returns pgps_internal.spooled_part[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_parts pgps_internal.spooled_part[] := '{}';
    v_left bigint := next_parts.max_messages;
begin
    if (next_parts.mark).phase = 'r' then
        v_parts := pgps_internal.replay_parts(spool, state, mark, max_messages);
        v_left := v_left - (select coalesce(sum(p.messages), 0) from unnest(v_parts) p);
        if v_left > 0 then
            v_parts := v_parts || pgps_internal.marker_part(mark);
            -- What is new comes after all replays.
            v_left := case when pgps_internal.next_replay((spool).spool_id, mark) is null then v_left - 1 else 0 end;
        end if;
    end if;
    if (next_parts.spool).play_through and (next_parts.member).ready and v_left > 0 then
        v_parts := v_parts || pgps_internal.new_part(spool, state, mark, v_left);
    end if;
    return array(select row(p.phase, p.portal, p.messages, p.seqn, p.id)::pgps_internal.spooled_part
        from unnest(v_parts) with ordinality p where p.messages > 0 order by p.ordinality);
end
$$;
comment on function pgps_internal.next_parts(
    pgps_internal.spool, pgps_internal.spool_member, pgps_internal.spool_mark, pgps_internal.spool_state, integer
) is 'What a member gets next, at most so many';

create or replace function pgps_internal.may_be_something(
    spool pgps_internal.spool, member pgps_internal.spool_member, mark pgps_internal.spool_mark
) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return case (may_be_something.mark).phase when 'r' then (may_be_something.mark).seqn > -9223372036854775808
        else pgps_internal.next_replay((may_be_something.spool).spool_id, may_be_something.mark) is not null
            or (may_be_something.spool).play_through and (may_be_something.member).ready
            and (pgps_internal.standing_of_spool((may_be_something.spool).spool_id)).last_seqn
                > case (may_be_something.mark).phase when 'n' then (may_be_something.mark).seqn
                    else (may_be_something.mark).start end end;
end
$$;
comment on function pgps_internal.may_be_something(
    pgps_internal.spool, pgps_internal.spool_member, pgps_internal.spool_mark
) is
'False when there is certainly nothing for a member: it is at the end, or its replay waits for dispatch. So whoever only
looks takes no turn';

create or replace function pgps_internal.receive_spooled(caller name, args jsonb) returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_max integer := coalesce((args ->> 'max_messages')::integer, 100);
    v_member pgps_internal.spool_member := pgps_internal.find_member(caller, args);
    v_spool pgps_internal.spool;
    v_state pgps_internal.spool_state;
    v_mark pgps_internal.spool_mark;
    v_parts pgps_internal.spooled_part[];
begin
    if v_max <= 0 then
        raise exception 'invalid max_messages %', v_max using errcode = '22023', hint = 'Give a positive number.';
    end if;
    perform pgps_internal.require_read_committed(), pgps_internal.enter_store();
    -- The first round looks. When there may be something, the second looks again with the turn: a cancellation, a
    -- replay, or another call for the same member may have come in between.
    for v_round in 1..2 loop
        select s.* into v_spool from pgps_internal.spool s where s.spool_id = v_member.spool_id;
        v_mark := pgps_internal.mark_of(v_member.member_id);
        if not pgps_internal.may_be_something(v_spool, v_member, v_mark) then
            return '{}';
        end if;
        exit when v_round = 2;
        perform pgps_internal.hold_client(v_member.client_id), pgps_internal.hold('h', v_member.member_id);
        v_member := pgps_internal.find_member(caller, args);
    end loop;
    if v_mark.phase <> 'r' and pgps_internal.next_replay(v_spool.spool_id, v_mark) is not null then
        v_mark := pgps_internal.resolved(pgps_internal.begun(v_mark, v_mark.member_id,
            pgps_internal.next_replay(v_spool.spool_id, v_mark)));
    end if;
    v_state := pgps_internal.standing_of_spool(v_spool.spool_id);
    v_parts := pgps_internal.next_parts(v_spool, v_member, v_mark, v_state, v_max);
    if v_parts <> '{}' then
        perform pgps_internal.note_handed_out(v_spool, v_state, v_mark, v_parts);
    end if;
    return array(select p.portal from unnest(v_parts) with ordinality p order by p.ordinality);
end
$$;
comment on function pgps_internal.receive_spooled(name, jsonb) is
'See pgps.receive_spooled; returns the names of the cursors that have the messages';

create or replace function pgps_internal.note_handed_out(
    spool pgps_internal.spool, state pgps_internal.spool_state, mark pgps_internal.spool_mark,
    parts pgps_internal.spooled_part[]
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pgps_internal.spool_mark := note_handed_out.mark;
    v_last pgps_internal.spooled_part := note_handed_out.parts[cardinality(note_handed_out.parts)];
    v_from bigint;
begin
    if (pgps_internal.phase_place(v_last.phase), v_last.seqn)
        <= (pgps_internal.phase_place(v_mark.got_phase), v_mark.got_seqn) then
        return;
    end if;
    if v_mark.phase = 'r' then
        -- A checkpoint ahead of the replay pointer; the other messages of a replay have been processed before.
        v_mark.had := v_mark.had + (select r.repeated from pgps_internal.spool_replay r
            where r.replay_id = v_mark.replay_id);
    end if;
    if v_last.phase = 'n' then
        v_from := case v_mark.got_phase when 'n' then v_mark.got_seqn
            else greatest(v_mark.start, (note_handed_out.state).lowest - 1) end;
        v_mark.had := v_mark.had + (int8multirange(int8range(v_from, v_last.seqn, '(]'))
            - pgps_internal.checkpoints_between(spool, v_mark.checkpoints_upto, v_from, v_last.seqn));
    end if;
    v_mark.got_phase := v_last.phase;
    v_mark.got_seqn := v_last.seqn;
    v_mark.got_id := v_last.id;
    v_mark.got_count := (select sum(p.messages) from unnest(note_handed_out.parts) p);
    perform pgps_internal.write_mark(v_mark);
end
$$;
comment on function pgps_internal.note_handed_out(
    pgps_internal.spool, pgps_internal.spool_state, pgps_internal.spool_mark, pgps_internal.spooled_part[]
) is 'Notes up to where a member has been handed messages, and which of the new ones it ever had';
