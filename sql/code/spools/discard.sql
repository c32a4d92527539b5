-- Discards: what was processed and matches a pattern is gone when the batch of the call is dispatched (number.sql).
-- Locks: none.
-- Writes: spool_cancelled, spool_gone.

create or replace function pgps_internal.discard_spooled(
    spool pgps_internal.spool, state pgps_internal.spool_state, pattern jsonb, request bigint, ids int8multirange
) returns pgps_internal.spool_state
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgps_internal.spool_state := discard_spooled.state;
    v_count bigint;
    v_bytes bigint;
    v_kept int8multirange;
    -- What this batch prepends later than this request is not there yet.
    v_before text := ' and not (m.id >= $5 and m.id <@ $6)';
begin
    if v_state.replay_pointer is not null and discard_spooled.pattern = '{}' then
        execute 'select count(*), coalesce(sum(m.bytes), 0) '
            || pgps_internal.live_text(discard_spooled.spool, '{}', more => v_before)
        using v_state.spool_id, -9223372036854775808, v_state.replay_pointer, v_state.emptied,
            discard_spooled.request, discard_spooled.ids
        into v_count, v_bytes;
        select coalesce(range_agg(int8range(m.seqn, m.seqn, '[]')), '{}') into v_kept
        from pgps_internal.spool_message m
        where m.spool_id = v_state.spool_id and m.seqn < 0 and m.id >= discard_spooled.request
            and m.id <@ discard_spooled.ids;
        -- Not what lies below: the next prepended messages get those numbers.
        v_state.emptied := v_state.emptied + (int8multirange(int8range(
            v_state.lowest, greatest(v_state.lowest, v_state.replay_pointer + 1))) - v_kept);
        v_state.messages := v_state.messages - v_count;
        v_state.bytes := v_state.bytes - v_bytes;
        v_state.discarded := v_state.discarded + v_count;
    elsif v_state.replay_pointer is not null then
        v_state := pgps_internal.note_gone(spool, v_state, pgps_internal.live_text(spool,
            pgps_internal.planned(spool, v_state, discard_spooled.pattern, null, v_state.replay_pointer),
            more => v_before), v_state.replay_pointer, discard_spooled.request, discard_spooled.ids);
    end if;
    return pgps_internal.note_gone(spool, v_state, pgps_internal.live_text(spool, '{}',
        more => v_before || ' and m.expires <= $7'), 9223372036854775807, discard_spooled.request,
        discard_spooled.ids);
end
$$;
comment on function pgps_internal.discard_spooled(
    pgps_internal.spool, pgps_internal.spool_state, jsonb, bigint, int8multirange
) is
'Discards what lies up to the replay pointer and matches a pattern, and what has expired; returns the new standing';

create or replace function pgps_internal.note_gone(
    spool pgps_internal.spool, state pgps_internal.spool_state, source text, upto bigint, request bigint,
    ids int8multirange
) returns pgps_internal.spool_state
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgps_internal.spool_state := note_gone.state;
    v_count bigint;
    v_bytes bigint;
begin
    execute 'with gone as materialized (select m.slot, m.seqn, m.bytes ' || note_gone.source || '),
        noted as (insert into pgps_internal.spool_gone (slot, spool_id, seqn) select g.slot, $1, g.seqn from gone g)
        select count(*), coalesce(sum(g.bytes), 0) from gone g'
    using v_state.spool_id, -9223372036854775808, note_gone.upto, v_state.emptied, note_gone.request, note_gone.ids,
        pgps_internal.clock()
    into v_count, v_bytes;
    v_state.messages := v_state.messages - v_count;
    v_state.bytes := v_state.bytes - v_bytes;
    v_state.discarded := v_state.discarded + v_count;
    return v_state;
end
$$;
comment on function pgps_internal.note_gone(
    pgps_internal.spool, pgps_internal.spool_state, text, bigint, bigint, int8multirange
) is 'Notes the messages of a source (see pgps_internal.live_text) as discarded; returns the new standing';

create or replace function pgps_internal.note_cancelled(
    spool pgps_internal.spool, state pgps_internal.spool_state, id bigint
) returns pgps_internal.spool_state
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if (pgps_internal.stored(note_cancelled.id)).id is null and (pgps_internal.asked(note_cancelled.id)).spool_id
        is not null
    then
        -- Its transaction is in a later batch, though it was committed before: see note_late_cancelled.
        update pgps_internal.spool_cancelled c set request = 0 where c.id = note_cancelled.id;
        return note_cancelled.state;
    end if;
    delete from pgps_internal.spool_cancelled c where c.id = note_cancelled.id;
    return pgps_internal.note_gone(spool, note_cancelled.state, pgps_internal.live_text(spool, '{}',
        more => ' and m.id = $5'), 9223372036854775807, note_cancelled.id, '{}');
end
$$;
comment on function pgps_internal.note_cancelled(pgps_internal.spool, pgps_internal.spool_state, bigint) is
'Discards a message that was cancelled; returns the new standing';

create or replace function pgps_internal.has_late(spool_id integer) returns boolean
language sql stable
as $$
    select exists (select from pgps_internal.spool_cancelled c
        where c.spool_id = has_late.spool_id and c.request = 0)
$$;
comment on function pgps_internal.has_late(integer) is
'True when a spool waits for messages that were cancelled in an earlier batch: see note_late_cancelled';

create or replace function pgps_internal.note_late_cancelled(
    spool pgps_internal.spool, state pgps_internal.spool_state
) returns pgps_internal.spool_state
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgps_internal.spool_state := note_late_cancelled.state;
    v_id bigint;
begin
    for v_id in select c.id from pgps_internal.spool_cancelled c
        where c.spool_id = v_state.spool_id and c.request = 0 and (pgps_internal.stored(c.id)).id is not null
    loop
        v_state := pgps_internal.note_cancelled(spool, v_state, v_id);
    end loop;
    return v_state;
end
$$;
comment on function pgps_internal.note_late_cancelled(pgps_internal.spool, pgps_internal.spool_state) is
'Discards messages that are stored in a later batch than the one that took note of their cancellation (request 0);
returns the new standing';

create or replace function pgps_internal.do_spool_discard(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool pgps_internal.spool := pgps_internal.find_spool(caller, args ->> 'name', 'replay');
    v_pattern jsonb := pgps_internal.read_pattern(args -> 'pattern');
    v_state pgps_internal.spool_state;
    -- What waits first: the standing, which is read later, has what is dispatched in between.
    v_pointer bigint := pgps_internal.asked_pointer(v_spool.spool_id);
begin
    perform pgps_internal.ask_spool(caller, v_spool, 'd', null, v_pattern), pgps_internal.enter_store();
    v_state := pgps_internal.standing_of_spool(v_spool.spool_id);
    v_pointer := greatest(v_state.replay_pointer, v_pointer);
    return case when v_pointer is null then 0 else pgps_internal.count_live(v_spool, v_state,
        pgps_internal.planned(v_spool, v_state, v_pattern, null, v_pointer), null, v_pointer) end;
end
$$;
comment on function pgps_internal.do_spool_discard(name, jsonb) is 'See pgps.spool_discard';
