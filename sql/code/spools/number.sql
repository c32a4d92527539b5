-- Numbers: where a batch is cut, the messages of each spool get the next numbers, in the order of commit, and go into
-- the store; then the spool's other requests take effect, in the order of their ids. Called by dispatch for the events
-- of the type pgps_spool (requests.sql), in its transaction: it alone changes the standing of a spool.
-- Locks: access share on the store (see pgps_internal.enter_store).
-- Writes: spool_counted, spool_key, spool_message, spool_state.

create or replace function pgps_internal.number_spooled(batch_id bigint, ids int8multirange) returns void
language plpgsql
as $$
declare
    v_store pgps_internal.spool_store;
    v_state pgps_internal.spool_state;
    v_states pgps_internal.spool_state[];
begin
    perform pgps_internal.enter_store();
    -- Read once: reclaim may say meanwhile that other slots are written next, which are not begun.
    select t.* into v_store from pgps_internal.spool_store t;
    perform pgps_internal.begin_slot(v_store.logged_slot), pgps_internal.begin_slot(v_store.unlogged_slot);
    v_states := pgps_internal.store_spooled(number_spooled.batch_id, number_spooled.ids, v_store);
    -- Spools that were asked for more than to keep messages, that drop their oldest, or whose messages were cancelled.
    foreach v_state in array coalesce(v_states, '{}') loop
        perform pgps_internal.apply_requests(s, v_state, number_spooled.ids)
        from pgps_internal.spool s where s.spool_id = v_state.spool_id;
    end loop;
end
$$;
comment on function pgps_internal.number_spooled(bigint, int8multirange) is
'Gives the messages of a batch their numbers, and does what else the spools were asked for';

drop function if exists pgps_internal.store_spooled(bigint, int8multirange);
create or replace function pgps_internal.store_spooled(
    batch_id bigint, ids int8multirange, store pgps_internal.spool_store
) returns pgps_internal.spool_state[]
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
        select t.*, a.is_plain and t.on_limit = 'refuse' and not pgps_internal.has_late(t.spool_id) as is_plain
        from (select a.spool_id, bool_and(a.verb = 's') as is_plain from asked a group by a.spool_id) a
        join pgps_internal.spool_standing t using (spool_id)
    ),
    numbered as materialized (
        select case when t.persistent then (store).logged_slot else (store).unlogged_slot end as slot, a.*,
            case a.verb when 'p' then t.lowest - a.place else t.last_seqn + a.place end as seqn,
            pgps_internal.size_of(a.message, a.keys, a.keywords) as bytes
        from (select a.*, row_number() over (partition by a.spool_id, a.verb = 'p' order by a.event_id) as place
            from asked a where a.verb in ('s', 'c', 'p')) a join touched t using (spool_id)
    ),
    counted as (insert into pgps_internal.spool_counted select t.spool_id from touched t where not t.is_counted),
    stored as (
        insert into pgps_internal.spool_message (slot, spool_id, seqn, id, entry, message, keys, keywords, expires,
            sender, spooler, spooled_at, is_checkpoint, bytes)
        select n.slot, n.spool_id, n.seqn, n.event_id, n.entry, n.message, n.keys, n.keywords, n.expires, n.sender,
            n.spooler, n.spooled_at, n.verb <> 's', n.bytes
        from numbered n order by n.spool_id, n.seqn returning slot, spool_id, seqn, keys, ctid
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
comment on function pgps_internal.store_spooled(bigint, int8multirange, pgps_internal.spool_store) is
'Gives the messages of a batch their numbers and stores them in the slots that are written (store), and notifies the
members of the groups; writes the standing of spools that were asked for nothing else, and returns that of the others';

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
            -- Who took a checkpoint back before it was dispatched keeps what it would have discarded, and the pointer.
            and not (l.verb in ('c', 'p')
                and exists (select from pgps_internal.spool_cancelled c where c.id = l.event_id))
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
    v_state := pgps_internal.note_late_cancelled(spool, v_state);
    if (apply_requests.spool).on_limit = 'drop_oldest' then
        v_state := pgps_internal.drop_oldest(apply_requests.spool, v_state);
    end if;
    insert into pgps_internal.spool_state select v_state.*;
end
$$;
comment on function pgps_internal.apply_requests(pgps_internal.spool, pgps_internal.spool_state, int8multirange) is
'Does what a batch asks of a spool besides storing messages, in the order of the ids, and writes its standing';
