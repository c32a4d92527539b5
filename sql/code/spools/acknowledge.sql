-- What a member has received it acknowledges, up to one of its deliveries.
-- Locks: the turn of the member's client, until the transaction ends.
-- Writes: nothing.

create or replace function pgps_internal.may_be_gone(id bigint) returns boolean
language plpgsql stable
as $$
begin
    return may_be_gone.id > 0 and may_be_gone.id <= coalesce(pg_sequence_last_value('pgps_internal.event_id_seq'), 0)
        and (pgps_internal.asked(may_be_gone.id)).spool_id is null;
end
$$;
comment on function pgps_internal.may_be_gone(bigint) is
'True for the id of a request that is not in the store, if it may have been there: it was given, and does not wait for
dispatch';

drop function if exists pgps_internal.place_of(pgps_internal.spool, pgps_internal.spool_mark, bigint);
create or replace function pgps_internal.place_of(
    spool pgps_internal.spool, mark pgps_internal.spool_mark, id bigint, out phase "char", out seqn bigint,
    out is_gone boolean
) returns record
language plpgsql
as $$
declare
    -- Where the newest call has returned less than one before it, got_id is the last that it has returned.
    v_id bigint := coalesce(place_of.id, case when (place_of.mark).got_count < 0 then (place_of.mark).got_id end);
    v_message pgps_internal.spool_message;
begin
    if (place_of.mark).got_count >= 0 and (v_id is null or v_id = (place_of.mark).got_id) then
        -- The last that was handed out may have been discarded meanwhile.
        phase := (place_of.mark).got_phase;
        seqn := (place_of.mark).got_seqn;
        return;
    elsif v_id is null then
        phase := (place_of.mark).phase;
        seqn := (place_of.mark).seqn;
        return;
    elsif v_id = (place_of.mark).replay_id then
        phase := 'm';
        seqn := 0;
        return;
    end if;
    if v_id < 0 then
        -- The part of a gap that lies in a replay (see gap_part).
        select 'r', least(g.last_seqn, r.last_seqn) into phase, seqn
        from pgps_internal.spool_gap g, pgps_internal.spool_replay r
        where r.replay_id = (place_of.mark).replay_id
            and g.gap_id = case when v_id > -9223372036854775808 then - v_id end
            and g.spool_id = (place_of.spool).spool_id and g.first_seqn <= r.last_seqn and g.last_seqn >= r.first_seqn;
        return;
    end if;
    v_message := pgps_internal.stored(v_id);
    if v_message.id is null then
        select g.spool_id, g.last_seqn into v_message.spool_id, v_message.seqn
        from pgps_internal.spool_gap g where g.gap_id = v_id;
        is_gone := not found and pgps_internal.may_be_gone(v_id);
    end if;
    if v_message.spool_id = (place_of.spool).spool_id then
        seqn := v_message.seqn;
        phase := case when (place_of.mark).replay_id is null or seqn > (place_of.mark).start
            and not exists (select from pgps_internal.spool_replay r
                where r.replay_id = (place_of.mark).replay_id and v_message.seqn <@ r.repeated) then 'n' else 'r' end;
    end if;
end
$$;
comment on function pgps_internal.place_of(pgps_internal.spool, pgps_internal.spool_mark, bigint) is
'Where in what a member gets a delivery is; nulls for one that is not known. id null: the last that the newest
call handed out. is_gone: it may have been acknowledged and discarded, and its space was given back';

create or replace function pgps_internal.unacknowledged_of(spool_id integer) returns int8multirange
language plpgsql
as $$
begin
    return (select coalesce(range_agg(int8range(u.after, u.upto, '(]')), '{}')
        from pgps_internal.spool_member m
        cross join lateral pgps_internal.mark_of(m.member_id) k
        left join pgps_internal.spool_replay r on k.phase = 'r' and r.replay_id = k.replay_id
        cross join lateral (
            select k.seqn as after, case k.got_phase when 'r' then k.got_seqn else r.last_seqn end as upto
            where k.phase = 'r'
            union all
            select case k.phase when 'n' then k.seqn else k.start end, k.got_seqn where k.got_phase = 'n') u
        where m.spool_id = unacknowledged_of.spool_id and u.after < u.upto);
end
$$;
comment on function pgps_internal.unacknowledged_of(integer) is
'The numbers of what members of a group have received and not acknowledged';

create or replace function pgps_internal.checkpoints_between(
    spool pgps_internal.spool, checkpoints_upto bigint, after_seqn bigint, upto bigint
) returns int8multirange
language plpgsql stable
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

create or replace function pgps_internal.count_handed_out(
    spool pgps_internal.spool, state pgps_internal.spool_state, mark pgps_internal.spool_mark, phase "char",
    seqn bigint
) returns bigint
language plpgsql
as $$
declare
    v_mark pgps_internal.spool_mark := count_handed_out.mark;
    v_replay pgps_internal.spool_replay;
    v_reach pgps_internal.spool_reach;
    v_upto bigint;
    v_after bigint;
    v_count bigint := 0;
begin
    if v_mark.got_count >= 0
            and (count_handed_out.phase, count_handed_out.seqn) = (v_mark.got_phase, v_mark.got_seqn) then
        return v_mark.got_count;
    end if;
    v_reach := pgps_internal.reach_of(spool, state);
    if v_mark.phase = 'r' then
        select r.* into v_replay from pgps_internal.spool_replay r where r.replay_id = v_mark.replay_id;
        v_upto := case count_handed_out.phase when 'r' then count_handed_out.seqn else v_replay.last_seqn end;
        v_count := (count_handed_out.phase <> 'r')::integer + pgps_internal.count_live(spool, state,
                v_replay.pattern - '{by,found}'::text[], v_mark.seqn + 1, v_upto, true)
            + ((pgps_internal.gap_of(v_reach, '{}', v_mark.seqn, v_upto)).gap_id is not null)::integer;
    end if;
    if count_handed_out.phase = 'n' then
        v_after := case v_mark.phase when 'n' then v_mark.seqn else v_mark.start end;
        v_count := v_count + (select count(*) from pgps_internal.new_messages(v_reach.spool_id, v_reach.first_slot,
                v_reach.last_slot, v_mark, v_reach.emptied, v_after, count_handed_out.seqn, (spool).retention))
            + ((pgps_internal.gap_of(v_reach, v_mark.skip, v_after, count_handed_out.seqn)).gap_id
                is not null)::integer;
    end if;
    return v_count;
end
$$;
comment on function pgps_internal.count_handed_out(
    pgps_internal.spool, pgps_internal.spool_state, pgps_internal.spool_mark, "char", bigint
) is 'How many deliveries there are between what a member has acknowledged and another place';

create or replace function pgps_internal.ack_spooled(caller name, args jsonb) returns bigint
language plpgsql
as $$
declare
    v_member pgps_internal.spool_member := pgps_internal.find_member(caller, args);
    v_spool pgps_internal.spool;
    v_state pgps_internal.spool_state;
    v_mark pgps_internal.spool_mark;
    v_place record;
    v_acked bigint;
begin
    perform pgps_internal.require_read_committed(), pgps_internal.enter_store(),
        pgps_internal.hold_client(v_member.client_id);
    v_spool := pgps_internal.replayed_in_turn(caller, v_member, args);
    v_mark := pgps_internal.mark_of(v_member.member_id);
    v_place := pgps_internal.place_of(v_spool, v_mark, (args ->> 'id')::bigint);
    if v_place.phase = 'n' and v_mark.phase = 'r' and v_place.seqn <@ v_mark.had
        and v_mark.got_phase = 'r' then
        -- It was received before the replay began, and comes again after it.
        return 0;
    end if;
    if v_place.is_gone then
        return 0;  -- It was acknowledged before: what is not, is kept (see slot_text).
    elsif v_place.phase is null or (pgps_internal.phase_place(v_place.phase), v_place.seqn)
        > (pgps_internal.phase_place(v_mark.got_phase), v_mark.got_seqn) then
        raise exception 'member "%" has received no delivery %', args ->> 'member', args ->> 'id'
        using errcode = '22023', hint = 'Give an id that pgps.receive_spooled returned since the member joined.';
    elsif (pgps_internal.phase_place(v_place.phase), v_place.seqn)
        <= (pgps_internal.phase_place(v_mark.phase), v_mark.seqn) then
        return 0;
    end if;
    if v_place.phase = 'n' or v_mark.got_count < 0
            or (v_place.phase, v_place.seqn) <> (v_mark.got_phase, v_mark.got_seqn) then
        v_state := pgps_internal.standing_of_spool(v_spool.spool_id);
    end if;
    v_acked := pgps_internal.count_handed_out(v_spool, v_state, v_mark, v_place.phase, v_place.seqn);
    if v_mark.phase = 'r' then
        -- A checkpoint ahead of the replay pointer, which was replayed alone, is never new again (see resolved).
        v_mark.acked := v_mark.acked + v_mark.skip;
    end if;
    if v_place.phase = 'n' then
        v_mark.seqn := case v_mark.phase when 'n' then v_mark.seqn else v_mark.start end;
        -- What the replay pointer has passed is forgotten (see begun); what was prepended is not, for it is no range.
        v_mark.acked := (v_mark.acked + (int8multirange(int8range(
            greatest(v_mark.seqn, v_state.lowest - 1), v_place.seqn, '(]'))
            - pgps_internal.checkpoints_between(v_spool, v_mark.checkpoints_upto, v_mark.seqn, v_place.seqn)))
            * (int8multirange(int8range(coalesce(v_state.replay_pointer, -9223372036854775808), null, '(]'))
                + int8multirange(int8range(null, 0)));
        v_mark.had := v_mark.had * (int8multirange(int8range(
                least(coalesce(v_state.replay_pointer, -9223372036854775808), v_place.seqn), null, '(]'))
            + int8multirange(int8range(null, 0)));
    end if;
    v_mark.phase := v_place.phase;
    v_mark.seqn := v_place.seqn;
    v_mark.got_count := greatest(v_mark.got_count - v_acked, least(v_mark.got_count, 0));
    perform pgps_internal.write_mark(v_mark);
    return v_acked;
end
$$;
comment on function pgps_internal.ack_spooled(name, jsonb) is 'See pgps.ack_spooled';
