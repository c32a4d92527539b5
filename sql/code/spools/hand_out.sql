-- What a member gets: first the messages of its replay, then the marker that ends it, then what is new. It gets them
-- again until it acknowledges them. Messages go from a cursor, opened here, straight to the caller (decision 43).
-- Locks: the turns of the member's client and of the member, until the transaction ends, when there is something.
-- Writes: nothing.

create or replace function pgps_internal.may_be_something(
    member pgps_internal.spool_member, mark pgps_internal.spool_mark
) returns boolean
language plpgsql stable
as $$
declare
    v_spool_id integer := (may_be_something.member).spool_id;
begin
    if (may_be_something.mark).phase = 'r' then
        return (may_be_something.mark).seqn > -9223372036854775808;
    end if;
    return pgps_internal.next_replay(v_spool_id, may_be_something.mark) is not null
        or (may_be_something.member).ready
            and (select s.play_through from pgps_internal.spool s where s.spool_id = v_spool_id)
            and (pgps_internal.standing_of_spool(v_spool_id)).last_seqn
                > case (may_be_something.mark).phase when 'n' then (may_be_something.mark).seqn
                    else (may_be_something.mark).start end;
end
$$;
comment on function pgps_internal.may_be_something(pgps_internal.spool_member, pgps_internal.spool_mark) is
'False when there is certainly nothing for a member: it is at the end, or its replay waits for dispatch. So whoever only
looks takes no turn';

create or replace function pgps_internal.has_all(mark pgps_internal.spool_mark) returns boolean
language plpgsql immutable
as $$
begin
    return ((has_all.mark).phase, (has_all.mark).seqn) = ((has_all.mark).got_phase, (has_all.mark).got_seqn);
end
$$;
comment on function pgps_internal.has_all(pgps_internal.spool_mark) is
'True when a member has acknowledged all that it was handed';

create or replace function pgps_internal.is_to_get_nothing(
    member pgps_internal.spool_member, mark pgps_internal.spool_mark
) returns boolean
language plpgsql
as $$
begin
    if pgps_internal.may_be_something(is_to_get_nothing.member, is_to_get_nothing.mark) then
        return false;
    end if;
    -- What an earlier call returned, and this one does not, is not to be acknowledged with what this one returns.
    return pgps_internal.has_all(is_to_get_nothing.mark)
        or (is_to_get_nothing.mark).got_count < 0 and (is_to_get_nothing.mark).got_id is null;
end
$$;
comment on function pgps_internal.is_to_get_nothing(pgps_internal.spool_member, pgps_internal.spool_mark) is
'True when there is certainly nothing for a member, and its mark says so already';

create or replace function pgps_internal.spool_in_turn(member pgps_internal.spool_member, args jsonb)
returns pgps_internal.spool
language plpgsql
as $$
declare
    v_spool pgps_internal.spool;
begin
    select s.* into v_spool
    from pgps_internal.spool_member m join pgps_internal.client c using (client_id)
    join pgps_internal.spool s using (spool_id)
    where m.member_id = (spool_in_turn.member).member_id and m.session = (spool_in_turn.member).session
        and c.session = m.session;
    if not found then
        raise exception 'member "%" has left while the call waited for its turn', args ->> 'member'
        using errcode = '08003',
            hint = 'Another program has taken the name over, or left the group. Connect and join again.';
    end if;
    return v_spool;
end
$$;
comment on function pgps_internal.spool_in_turn(pgps_internal.spool_member, jsonb) is
'The spool of a member whose turn was waited for; 08003 when its session has ended meanwhile, or it has left';

create or replace function pgps_internal.replayed_in_turn(caller name, member pgps_internal.spool_member, args jsonb)
returns pgps_internal.spool
language plpgsql
as $$
declare
    v_spool pgps_internal.spool := pgps_internal.spool_in_turn(member, args);
begin
    -- The right may have been taken while the turn was waited for.
    if not pgps_internal.spool_allows(caller, v_spool, 'replay') then
        return pgps_internal.find_spool(caller, args ->> 'name', 'replay');
    end if;
    return v_spool;
end
$$;
comment on function pgps_internal.replayed_in_turn(name, pgps_internal.spool_member, jsonb) is
'As pgps_internal.spool_in_turn; 42501 when the right to replay was taken meanwhile';

create or replace function pgps_internal.receive_spooled(caller name, args jsonb) returns text[]
language plpgsql
as $$
declare
    v_max integer := coalesce((args ->> 'max_messages')::integer, 100);
    v_member pgps_internal.spool_member := pgps_internal.find_member(caller, args);
    v_spool pgps_internal.spool;
    v_state pgps_internal.spool_state;
    v_mark pgps_internal.spool_mark;
    v_parts pgps_internal.spooled_part[] := '{}';
    v_part pgps_internal.spooled_part;
    v_portals text[] := '{}';
begin
    if v_max <= 0 then
        raise exception 'invalid max_messages %', v_max using errcode = '22023', hint = 'Give a positive number.';
    end if;
    perform pgps_internal.require_read_committed(), pgps_internal.enter_store();
    -- First it only looks. When there may be something it looks again with the turn: a cancellation, a replay, or
    -- another call for the same member may have come in between.
    v_mark := pgps_internal.mark_of(v_member.member_id);
    if pgps_internal.is_to_get_nothing(v_member, v_mark) then
        return '{}';
    end if;
    perform pgps_internal.hold_client(v_member.client_id), pgps_internal.hold('h', v_member.member_id);
    v_spool := pgps_internal.replayed_in_turn(caller, v_member, args);
    select m.* into v_member from pgps_internal.spool_member m where m.member_id = v_member.member_id;
    -- Marks are numbered in the turn of their member: where none is newer than the one that was read it still holds.
    if v_mark.mark_id is distinct from pg_sequence_last_value('pgps_internal.spool_mark_id_seq'::regclass) then
        v_mark := pgps_internal.mark_of(v_member.member_id);
    end if;
    if not pgps_internal.may_be_something(v_member, v_mark) then
        perform pgps_internal.note_handed_out(v_spool, v_state, v_mark, v_parts);
        return '{}';
    end if;
    if v_mark.phase <> 'r' and pgps_internal.next_replay(v_spool.spool_id, v_mark) is not null then
        v_mark := pgps_internal.resolved(pgps_internal.begun(v_mark, v_mark.member_id,
            pgps_internal.next_replay(v_spool.spool_id, v_mark)));
    end if;
    v_state := pgps_internal.standing_of_spool(v_spool.spool_id);
    v_parts := pgps_internal.parts_that_fit(v_spool, v_member, v_mark, v_state, v_max);
    perform pgps_internal.note_handed_out(v_spool, v_state, v_mark, v_parts);
    foreach v_part in array v_parts loop
        v_portals := v_portals || v_part.portal;
    end loop;
    return v_portals;
end
$$;
comment on function pgps_internal.receive_spooled(name, jsonb) is
'See pgps.receive_spooled; returns the names of the cursors that have the messages';

create or replace function pgps_internal.note_handed_out(
    spool pgps_internal.spool, state pgps_internal.spool_state, mark pgps_internal.spool_mark,
    parts pgps_internal.spooled_part[]
) returns void
language plpgsql
as $$
declare
    v_mark pgps_internal.spool_mark := note_handed_out.mark;
    v_last pgps_internal.spooled_part := note_handed_out.parts[cardinality(note_handed_out.parts)];
    v_from bigint;
begin
    if v_last is null and pgps_internal.has_all(v_mark) then
        return;
    elsif v_last is null or (pgps_internal.phase_place(v_last.phase), v_last.seqn)
        <= (pgps_internal.phase_place(v_mark.got_phase), v_mark.got_seqn) then
        -- The member gets the same messages again, or fewer of them: some may have been discarded since.
        v_mark.got_id := v_last.id;
        v_mark.got_count := case (v_last.phase, v_last.seqn) = (v_mark.got_phase, v_mark.got_seqn) when true
            then pgps_internal.count_of(note_handed_out.parts)
            else - greatest(pgps_internal.count_of(note_handed_out.parts), 1) end;
        if (v_mark.got_id, v_mark.got_count) is distinct from
            ((note_handed_out.mark).got_id, (note_handed_out.mark).got_count) then
            perform pgps_internal.write_mark(v_mark);
        end if;
        return;
    end if;
    if v_mark.phase = 'r' then
        -- A checkpoint ahead of the replay pointer, and what was put at the front; the other messages of a replay have
        -- been processed before.
        v_mark.had := v_mark.had + (select r.repeated + case v_mark.got_phase when 'r' then
                int8multirange(int8range(v_mark.got_seqn, greatest(v_mark.got_seqn,
                    case v_last.phase when 'r' then v_last.seqn else r.last_seqn end), '(]'))
                * int8multirange(int8range(null, 0)) else '{}' end
            from pgps_internal.spool_replay r where r.replay_id = v_mark.replay_id);
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
    v_mark.got_count := pgps_internal.count_of(note_handed_out.parts);
    perform pgps_internal.write_mark(v_mark);
end
$$;
comment on function pgps_internal.note_handed_out(
    pgps_internal.spool, pgps_internal.spool_state, pgps_internal.spool_mark, pgps_internal.spooled_part[]
) is 'Notes up to where a member has been handed messages, and which of the new ones it ever had. Where the newest call
returned less than one before it (parts; empty: nothing), got_count is negative, and got_id its last delivery, or null';
