-- What a member gets is made of parts, each a cursor: those of its replay, the marker, what is new, and gaps before any
-- of them.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.phase_place(phase "char") returns integer
language sql immutable
as $$ select case phase_place.phase when 'r' then 0 when 'm' then 1 else 2 end $$;
comment on function pgps_internal.phase_place("char") is 'The order of the phases: replay, marker, what is new';

create or replace function pgps_internal.replay_parts(
    reach pgps_internal.spool_reach, replay pgps_internal.spool_replay, after_seqn bigint, upto bigint,
    max_messages bigint
) returns pgps_internal.spooled_part[]
language plpgsql
as $$
declare
    v_filter pgps_internal.spool_filter := pgps_internal.filter_of((replay_parts.replay).pattern);
    v_parts pgps_internal.spooled_part[] := '{}';
    v_part pgps_internal.spooled_part;
    v_is_placed boolean;
    v_is_value boolean;
    v_after bigint := replay_parts.after_seqn;
    v_left bigint := replay_parts.max_messages;
    v_step bigint := replay_parts.max_messages;
begin
    if v_filter.is_indexed then
        v_is_placed := pgps_internal.are_placed((reach).first_slot, (reach).last_slot);
        v_is_value := v_filter.is_empty and v_filter.low = v_filter.high and (reach).is_whole
            and (reach).first_slot = (reach).last_slot;
    end if;
    while v_after < replay_parts.upto and v_left > 0 loop
        if v_is_placed is null then
            v_part := pgps_internal.open_in_order(reach, v_filter, null, true, v_after, replay_parts.upto, v_left);
        elsif v_is_placed and v_is_value then
            v_part := pgps_internal.open_by_value(reach, v_filter, v_after, replay_parts.upto, v_step, v_left);
        elsif v_is_placed then
            v_part := pgps_internal.open_by_key(reach, v_filter, v_after, replay_parts.upto, v_step, v_left);
        else
            v_part := pgps_internal.open_by_number(reach, v_filter, v_after, replay_parts.upto, v_step, v_left);
        end if;
        if v_part.messages > 0 then
            v_parts := v_parts || v_part;
            v_left := v_left - v_part.messages;
        end if;
        exit when v_is_placed is null or v_left = 0;
        -- Fewer than wanted: this was all, or of what was looked up some did not match.
        v_after := pgps_internal.window_of(reach, v_filter, replay, v_after, replay_parts.upto, v_step);
        v_step := v_step * 2;
    end loop;
    return v_parts;
end
$$;
comment on function pgps_internal.replay_parts(
    pgps_internal.spool_reach, pgps_internal.spool_replay, bigint, bigint, bigint
) is 'The next messages of a replay, after one number and up to another, at most so many';

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

create or replace function pgps_internal.gap_of(
    reach pgps_internal.spool_reach, skip int8multirange, after_seqn bigint, upto bigint
) returns pgps_internal.spool_gap
language plpgsql stable
as $$
declare
    v_gap pgps_internal.spool_gap;
begin
    -- The oldest are dropped, so nothing lies between the gaps but what is gone: to a member they are one. A gap that
    -- is newer than the standing (its last message was there) is told the next time, and its messages are handed out:
    -- otherwise they would come before it, and a small portion would end with it, so that nobody were told of the
    -- older ones. Not even the part of it that was gone before: acknowledged is all of a gap, also what is handed out.
    if not (gap_of.reach).is_whole then
        -- The id is that of the gap with which the told one ends, so that who acknowledges it has all of it.
        select (array_agg(g.gap_id order by g.last_seqn desc))[1], min(lower(t.told)), max(upper(t.told)) - 1,
            max(g.noted_at)
        into v_gap.gap_id, v_gap.first_seqn, v_gap.last_seqn, v_gap.noted_at
        from pgps_internal.spool_gap g
        cross join lateral (select (int8multirange(int8range(g.first_seqn, g.last_seqn, '[]')
            * int8range(gap_of.after_seqn, null, '()') * int8range(null, gap_of.upto, '(]')) - gap_of.skip)
            * (gap_of.reach).emptied as told) t
        where g.spool_id = (gap_of.reach).spool_id and g.reason = 'limit' and g.last_seqn > gap_of.after_seqn
            and g.first_seqn <= gap_of.upto and g.last_seqn <@ (gap_of.reach).emptied and not isempty(t.told);
    end if;
    return v_gap;
end
$$;
comment on function pgps_internal.gap_of(pgps_internal.spool_reach, int8multirange, bigint, bigint) is
'What a full spool has dropped of the messages after one number and up to another, those in skip aside, as one gap; null
when there is none';

create or replace function pgps_internal.gap_part(phase "char", gap pgps_internal.spool_gap)
returns pgps_internal.spooled_part
language plpgsql
as $$
declare
    v_portal refcursor;
begin
    open v_portal scroll for
        select (gap_part.gap).last_seqn as seqn, null::integer, jsonb_build_object('gap',
                jsonb_build_array((gap_part.gap).first_seqn, (gap_part.gap).last_seqn)) as message, null::jsonb,
            null::text[] as keywords, null::name, null::name, (gap_part.gap).noted_at, gap_part.phase = 'r',
            case gap_part.phase when 'r' then - (gap_part.gap).gap_id else (gap_part.gap).gap_id end as id;
    return pgps_internal.opened_part(gap_part.phase, v_portal);
end
$$;
comment on function pgps_internal.gap_part("char", pgps_internal.spool_gap) is
'The row that tells a member which messages a full spool has dropped. A gap that begins in a replay and goes on beyond
it is told in two parts: the id of the first is negative';

create or replace function pgps_internal.marker_part(mark pgps_internal.spool_mark)
returns pgps_internal.spooled_part
language plpgsql
as $$
declare
    v_portal refcursor;
begin
    open v_portal scroll for
        select 0::bigint as seqn, null::integer, '{"replay": "ended"}'::jsonb as message, null::jsonb,
            null::text[] as keywords, null::name, null::name, r.replayed_at, false, r.replay_id as id
        from pgps_internal.spool_replay r where r.replay_id = (marker_part.mark).replay_id;
    return pgps_internal.opened_part('m', v_portal);
end
$$;
comment on function pgps_internal.marker_part(pgps_internal.spool_mark) is 'The row that ends a replay';

create or replace function pgps_internal.parts_between(
    reach pgps_internal.spool_reach, replay pgps_internal.spool_replay, mark pgps_internal.spool_mark,
    after_seqn bigint, upto bigint, max_messages bigint
) returns pgps_internal.spooled_part[]
language plpgsql
as $$
declare
    v_part pgps_internal.spooled_part;
begin
    if (parts_between.replay).replay_id is not null then
        return pgps_internal.replay_parts(reach, replay, after_seqn, upto, max_messages);
    end if;
    v_part := pgps_internal.open_in_order(reach, null, mark, false, after_seqn, upto, max_messages);
    return case when v_part.messages > 0 then array[v_part] else '{}' end;
end
$$;
comment on function pgps_internal.parts_between(
    pgps_internal.spool_reach, pgps_internal.spool_replay, pgps_internal.spool_mark, bigint, bigint, bigint
) is 'The next messages after one number and up to another: of a replay, or without one what is new';

create or replace function pgps_internal.count_of(parts pgps_internal.spooled_part[]) returns bigint
language plpgsql immutable
as $$
declare
    v_part pgps_internal.spooled_part;
    v_count bigint := 0;
begin
    foreach v_part in array count_of.parts loop
        v_count := v_count + v_part.messages;
    end loop;
    return v_count;
end
$$;
comment on function pgps_internal.count_of(pgps_internal.spooled_part[]) is 'How many messages parts have together';

create or replace function pgps_internal.parts_with_gap(
    reach pgps_internal.spool_reach, replay pgps_internal.spool_replay, mark pgps_internal.spool_mark,
    after_seqn bigint, upto bigint, max_messages bigint
) returns pgps_internal.spooled_part[]
language plpgsql
as $$
declare
    v_is_replay boolean := (parts_with_gap.replay).replay_id is not null;
    v_gap pgps_internal.spool_gap := pgps_internal.gap_of(reach,
        case when v_is_replay then '{}' else (parts_with_gap.mark).skip end, after_seqn, upto);
    v_parts pgps_internal.spooled_part[];
    v_left bigint;
begin
    if v_gap.gap_id is null then
        return pgps_internal.parts_between(reach, replay, mark, after_seqn, upto, max_messages);
    end if;
    -- Before a gap there is at most a checkpoint that was prepended.
    v_parts := pgps_internal.parts_between(reach, replay, mark, after_seqn, v_gap.last_seqn - 1, max_messages);
    v_left := max_messages - pgps_internal.count_of(v_parts);
    if v_left > 0 then
        v_parts := v_parts || pgps_internal.gap_part(case when v_is_replay then 'r' else 'n' end::"char", v_gap);
    end if;
    if v_left > 1 then
        v_parts := v_parts
            || pgps_internal.parts_between(reach, replay, mark, v_gap.last_seqn, upto, v_left - 1);
    end if;
    return v_parts;
end
$$;
comment on function pgps_internal.parts_with_gap(
    pgps_internal.spool_reach, pgps_internal.spool_replay, pgps_internal.spool_mark, bigint, bigint, bigint
) is 'As parts_between, with the row that tells of what a full spool has dropped';

create or replace function pgps_internal.next_parts(
    spool pgps_internal.spool, member pgps_internal.spool_member, mark pgps_internal.spool_mark,
    state pgps_internal.spool_state, max_messages integer
) returns pgps_internal.spooled_part[]
language plpgsql
as $$
declare
    v_reach pgps_internal.spool_reach := pgps_internal.reach_of(spool, state);
    v_replay pgps_internal.spool_replay;
    v_parts pgps_internal.spooled_part[] := '{}';
    v_left bigint := next_parts.max_messages;
begin
    if (next_parts.mark).phase = 'r' then
        select r.* into v_replay from pgps_internal.spool_replay r
        where r.replay_id = (next_parts.mark).replay_id;
        v_parts := pgps_internal.parts_with_gap(v_reach, v_replay, mark, (next_parts.mark).seqn, v_replay.last_seqn,
            v_left);
        v_left := v_left - pgps_internal.count_of(v_parts);
        if v_left > 0 then
            v_parts := v_parts || pgps_internal.marker_part(mark);
            -- What is new comes after all replays.
            v_left := case when pgps_internal.next_replay((spool).spool_id, mark) is null then v_left - 1 else 0 end;
        end if;
    end if;
    if (next_parts.spool).play_through and (next_parts.member).ready and v_left > 0 then
        v_parts := v_parts || pgps_internal.parts_with_gap(v_reach, null, mark, case (next_parts.mark).phase
            when 'n' then (next_parts.mark).seqn else (next_parts.mark).start end, (next_parts.state).last_seqn,
            v_left);
    end if;
    return v_parts;
end
$$;
comment on function pgps_internal.next_parts(
    pgps_internal.spool, pgps_internal.spool_member, pgps_internal.spool_mark, pgps_internal.spool_state, integer
) is 'What a member gets next, at most so many';
