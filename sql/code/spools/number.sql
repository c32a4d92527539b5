-- Numbers: where a batch is cut, the messages of each spool get the next numbers, in the order of commit, and go into
-- the store; then the spool's other requests take effect, in the order of their ids. Called by dispatch for the events
-- of the type pgps_spool (requests.sql), in its transaction: it alone changes the standing of a spool.
-- Locks: access share on the store (see pgps_internal.enter_store).
-- Writes: spool_cancelled, spool_gap, spool_gone, spool_key, spool_message, spool_state.

create or replace function pgps_internal.number_spooled(batch_id bigint, ids int8multirange) returns void
language plpgsql
as $$
declare
    v_state pgps_internal.spool_state;
    v_states pgps_internal.spool_state[];
begin
    perform pgps_internal.enter_store();
    perform pgps_internal.begin_slot(t.logged_slot), pgps_internal.begin_slot(t.unlogged_slot)
    from pgps_internal.spool_store t;
    v_states := pgps_internal.store_spooled(number_spooled.batch_id, number_spooled.ids);
    -- Spools that were asked for more than to keep messages, or that drop their oldest.
    foreach v_state in array coalesce(v_states, '{}') loop
        perform pgps_internal.apply_requests(s, v_state, number_spooled.ids)
        from pgps_internal.spool s where s.spool_id = v_state.spool_id;
    end loop;
end
$$;
comment on function pgps_internal.number_spooled(bigint, int8multirange) is
'Gives the messages of a batch their numbers, and does what else the spools were asked for';

create or replace function pgps_internal.store_spooled(batch_id bigint, ids int8multirange)
returns pgps_internal.spool_state[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_states pgps_internal.spool_state[];
begin
    with asked as materialized (
        select l.event_id, l.spool_id, l.verb, l.entry, l.message, l.keys, l.keywords, l.expires, l.sender, l.spooler,
            l.spooled_at
        from (select lower(r) as lo, upper(r) as hi from unnest(store_spooled.ids) r) r
        cross join lateral (select x.* from pgps_internal.pgps_spool_log x
            where x.event_id >= r.lo and x.event_id < r.hi offset 0) l
    ),
    touched as materialized (
        select t.*, a.is_plain and t.on_limit = 'refuse' as is_plain
        from (select a.spool_id, bool_and(a.verb = 's') as is_plain from asked a group by a.spool_id) a
        join pgps_internal.spool_standing t using (spool_id)
    ),
    numbered as materialized (
        select case when t.persistent then p.logged_slot else p.unlogged_slot end as slot, a.*,
            case a.verb when 'p' then t.lowest - a.place else t.last_seqn + a.place end as seqn,
            pgps_internal.size_of(a.message, a.keys, a.keywords) as bytes
        from (select a.*, row_number() over (partition by a.spool_id, a.verb = 'p' order by a.event_id) as place
            from asked a where a.verb in ('s', 'c', 'p')) a
        join touched t using (spool_id) cross join pgps_internal.spool_store p
    ),
    stored as (
        insert into pgps_internal.spool_message (slot, spool_id, seqn, id, entry, message, keys, keywords, expires,
            sender, spooler, spooled_at, is_checkpoint, bytes)
        select n.slot, n.spool_id, n.seqn, n.event_id, n.entry, n.message, n.keys, n.keywords, n.expires, n.sender,
            n.spooler, n.spooled_at, n.verb <> 's', n.bytes
        from numbered n order by n.spool_id, n.seqn
        returning slot, spool_id, seqn, keys, ctid
    ),
    keyed as (
        insert into pgps_internal.spool_key (slot, spool_id, seqn, name, value, place)
        select n.slot, n.spool_id, n.seqn, k.key, (k.value #>> '{}')::numeric, n.ctid
        from stored n cross join lateral jsonb_each(n.keys) k where n.keys is not null
    ),
    added as (
        select n.spool_id, max(n.seqn) as last_seqn, min(n.seqn) as lowest, count(*) as messages, sum(n.bytes) as bytes
        from numbered n group by n.spool_id
    ),
    standing as materialized (
        select (store_spooled.batch_id, t.spool_id, least(t.lowest, a.lowest), greatest(t.last_seqn, a.last_seqn),
            t.replay_pointer, t.checkpoint_pointer, t.messages + coalesce(a.messages, 0),
            t.bytes + coalesce(a.bytes, 0), t.discarded, t.emptied)::pgps_internal.spool_state as state, t.is_plain,
            pg_notify('pgps_spool_' || t.spool_id, '')::text as told
        from touched t left join added a using (spool_id)
    ),
    stood as (
        insert into pgps_internal.spool_state select (s.state).* from standing s where s.is_plain
    )
    select array_agg(s.state order by (s.state).spool_id) filter (where not s.is_plain) into v_states
    from standing s where s.told = '';
    return v_states;
end
$$;
comment on function pgps_internal.store_spooled(bigint, int8multirange) is
'Gives the messages of a batch their numbers and stores them, and notifies the members of the groups; writes
the standing of spools that were asked for nothing else, and returns that of the others';

create or replace function pgps_internal.apply_requests(
    spool pgps_internal.spool, state pgps_internal.spool_state, ids int8multirange
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgps_internal.spool_state := apply_requests.state;
    v_asked record;
begin
    for v_asked in
        select l.event_id, l.verb, l.value, l.pattern
        from pgps_internal.pgps_spool_log l
        where l.spool_id = (apply_requests.spool).spool_id and l.verb <> 's' and l.event_id <@ apply_requests.ids
        order by l.event_id
    loop
        case v_asked.verb
            when 'r' then v_state.replay_pointer := greatest(v_state.replay_pointer, v_asked.value);
            when 'k' then v_state.checkpoint_pointer := v_asked.value;
            when 'x' then v_state := pgps_internal.note_cancelled(apply_requests.spool, v_state, v_asked.value);
            when 'd' then v_state := pgps_internal.discard_spooled(apply_requests.spool, v_state, v_asked.pattern,
                v_asked.event_id, apply_requests.ids);
            when 'c', 'p' then
                v_state := pgps_internal.discard_spooled(apply_requests.spool, v_state, v_asked.pattern,
                    v_asked.event_id, apply_requests.ids);
                v_state.checkpoint_pointer := (pgps_internal.stored(v_asked.event_id)).seqn;
            when 'y' then perform pgps_internal.settle_replay(apply_requests.spool, v_state, v_asked.value,
                v_asked.event_id, apply_requests.ids);
            else v_state := pgps_internal.apply_retention(apply_requests.spool, v_state);
        end case;
    end loop;
    if (apply_requests.spool).on_limit = 'drop_oldest' then
        v_state := pgps_internal.drop_oldest(apply_requests.spool, v_state);
    end if;
    insert into pgps_internal.spool_state select v_state.*;
end
$$;
comment on function pgps_internal.apply_requests(pgps_internal.spool, pgps_internal.spool_state, int8multirange) is
'Does what a batch asks of a spool besides storing messages, in the order of the ids, and writes its standing';

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
    delete from pgps_internal.spool_cancelled c where c.id = note_cancelled.id;
    return pgps_internal.note_gone(spool, note_cancelled.state, pgps_internal.live_text(spool, '{}',
        more => ' and m.id = $5'), 9223372036854775807, note_cancelled.id, '{}');
end
$$;
comment on function pgps_internal.note_cancelled(pgps_internal.spool, pgps_internal.spool_state, bigint) is
'Discards a message that was cancelled; returns the new standing';

create or replace function pgps_internal.drop_up_to(
    spool pgps_internal.spool, state pgps_internal.spool_state, upto bigint, reason text
) returns pgps_internal.spool_state
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgps_internal.spool_state := drop_up_to.state;
    v_dropped record;
begin
    execute 'select count(*) as messages, coalesce(sum(m.bytes), 0) as bytes, min(m.seqn) as first_seqn, '
        'max(m.seqn) as last_seqn ' || pgps_internal.live_text(drop_up_to.spool, '{}')
    using v_state.spool_id, -9223372036854775808, drop_up_to.upto, v_state.emptied
    into v_dropped;
    if v_dropped.messages > 0 then
        insert into pgps_internal.spool_gap (spool_id, first_seqn, last_seqn, messages, reason)
        values (v_state.spool_id, v_dropped.first_seqn, v_dropped.last_seqn, v_dropped.messages, drop_up_to.reason);
        v_state.emptied := v_state.emptied + int8multirange(int8range(v_dropped.first_seqn, v_dropped.last_seqn, '[]'));
        v_state.messages := v_state.messages - v_dropped.messages;
        v_state.bytes := v_state.bytes - v_dropped.bytes;
        v_state.discarded := v_state.discarded + v_dropped.messages;
    end if;
    return v_state;
end
$$;
comment on function pgps_internal.drop_up_to(pgps_internal.spool, pgps_internal.spool_state, bigint, text) is
'Discards everything up to a number, and notes it as a gap; returns the new standing';

create or replace function pgps_internal.drop_oldest(spool pgps_internal.spool, state pgps_internal.spool_state)
returns pgps_internal.spool_state
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_upto bigint;
    v_messages bigint := (drop_oldest.state).messages - (drop_oldest.spool).max_messages;
    v_bytes bigint := (drop_oldest.state).bytes - (drop_oldest.spool).max_bytes;
begin
    if coalesce(v_messages, 0) <= 0 and coalesce(v_bytes, 0) <= 0 then
        return drop_oldest.state;
    end if;
    execute 'select o.seqn from (select m.seqn, row_number() over (order by m.seqn) as messages, '
        'sum(m.bytes) over (order by m.seqn) as bytes ' || pgps_internal.live_text(drop_oldest.spool, '{}')
        || ') o where o.messages >= $5 and o.bytes >= $6 order by o.seqn limit 1'
    using (drop_oldest.state).spool_id, -9223372036854775808, 9223372036854775807, (drop_oldest.state).emptied,
        coalesce(v_messages, 0), coalesce(v_bytes, 0)
    into v_upto;
    return pgps_internal.drop_up_to(spool, drop_oldest.state, v_upto, 'limit');
end
$$;
comment on function pgps_internal.drop_oldest(pgps_internal.spool, pgps_internal.spool_state) is
'Discards the oldest messages until the spool is within its limits; returns the new standing';

create or replace function pgps_internal.apply_retention(spool pgps_internal.spool, state pgps_internal.spool_state)
returns pgps_internal.spool_state
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_upto bigint;
begin
    if (apply_retention.spool).retention is null then
        return apply_retention.state;
    end if;
    -- Up to the message before the first that is young enough: spooled_at is nearly in the order of the numbers.
    execute 'select m.seqn - 1 ' || pgps_internal.live_text(apply_retention.spool, '{}',
        more => ' and m.spooled_at >= $5 order by m.seqn limit 1')
    using (apply_retention.state).spool_id, -9223372036854775808, 9223372036854775807,
        (apply_retention.state).emptied, pgps_internal.clock() - (apply_retention.spool).retention
    into v_upto;
    return pgps_internal.drop_up_to(spool, apply_retention.state, coalesce(v_upto, 9223372036854775806), 'retention');
end
$$;
comment on function pgps_internal.apply_retention(pgps_internal.spool, pgps_internal.spool_state) is
'Discards messages that are older than the retention of a spool; returns the new standing';
