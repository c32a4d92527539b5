-- Limits of a spool: when it is full or its messages are too old, the oldest ones go, and a gap stands for them.
-- Locks: none.
-- Writes: spool_gap.

create or replace function pgps_internal.check_limits(args jsonb) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_limit record;
begin
    for v_limit in select l.key, l.value #>> '{}' as value from jsonb_each(args) l
        where l.key in ('max_messages', 'max_bytes') and jsonb_typeof(l.value) <> 'null'
    loop
        if v_limit.value::numeric < 1 then
            raise exception 'invalid % %', v_limit.key, v_limit.value using errcode = '22023',
                hint = 'Give a positive number, or null.';
        end if;
    end loop;
    perform pgps_internal.check_age((args ->> 'retention')::interval, 'retention');
    if (args ->> 'retention')::interval <= '0' then
        raise exception 'invalid retention %', args ->> 'retention' using errcode = '22023',
            hint = 'Give a positive interval, or null.';
    elsif args ->> 'on_limit' not in ('refuse', 'drop_oldest') then
        raise exception 'invalid on_limit "%"', args ->> 'on_limit' using errcode = '22023',
            hint = 'Use refuse or drop_oldest.';
    end if;
end
$$;
comment on function pgps_internal.check_limits(jsonb) is 'Raises 22023 unless the limits of a spool make sense';

create or replace function pgps_internal.waiting_in(spool_id integer, out messages bigint, out bytes bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type integer := pgps_internal.spool_type();
begin
    messages := 0;
    bytes := 0;
    if v_type is null then
        return;
    end if;
    -- By the control queue, not by the ids: a transaction that began before the last batch may have lower ones. Its own
    -- rows are asked for apart, for a snapshot does not tell of the transaction that takes it.
    select count(*), coalesce(sum(a.size), 0) into messages, bytes
    from (select distinct l.event_id, pgps_internal.size_of(l.message, l.keys, l.keywords) as size
        from (select n.xid, n.lo, n.hi
                from pgps_internal.in_no_batch(pgps_internal.last_batch(), pg_current_snapshot()) n
                where n.type_id = v_type
            union select c.xid, c.lo, c.hi from pgps_internal.control c
                where c.xid = pg_current_xact_id_if_assigned() and c.type_id = v_type) w
        join pgps_internal.pgps_spool_log l on l.event_id between w.lo and w.hi and l.xid = w.xid
        where l.spool_id = waiting_in.spool_id and l.verb in ('s', 'c', 'p')) a;
end
$$;
comment on function pgps_internal.waiting_in(integer) is
'How many messages of a spool, of how many bytes, are not dispatched yet, as far as the caller can see: those of its own
transaction, too';

drop function if exists pgps_internal.drop_up_to(pgps_internal.spool, pgps_internal.spool_state, bigint, text);
create or replace function pgps_internal.drop_up_to(
    spool pgps_internal.spool, state pgps_internal.spool_state, from_seqn bigint, upto bigint, reason text
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
    using v_state.spool_id, drop_up_to.from_seqn, drop_up_to.upto, v_state.emptied
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
comment on function pgps_internal.drop_up_to(
    pgps_internal.spool, pgps_internal.spool_state, bigint, bigint, text
) is 'Discards everything from one number to another, and notes it as a gap; returns the new standing';

create or replace function pgps_internal.drop_oldest(spool pgps_internal.spool, state pgps_internal.spool_state)
returns pgps_internal.spool_state
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_from bigint := 1;
    v_upto bigint;
    v_messages bigint := coalesce((drop_oldest.state).messages - (drop_oldest.spool).max_messages, 0);
    v_bytes bigint := coalesce((drop_oldest.state).bytes - (drop_oldest.spool).max_bytes, 0);
begin
    if v_messages <= 0 and v_bytes <= 0 then
        return drop_oldest.state;
    end if;
    -- As many as are too many, as if nothing lay at the front: no more of these go.
    execute 'select o.seqn from (select m.seqn, row_number() over (order by m.seqn) as messages, '
        'sum(m.bytes) over (order by m.seqn) as bytes ' || pgps_internal.live_text(drop_oldest.spool, '{}')
        || ') o where o.messages >= $5 and o.bytes >= $6 order by o.seqn limit 1'
    using (drop_oldest.state).spool_id, 1, 9223372036854775807, (drop_oldest.state).emptied, v_messages, v_bytes
    into v_upto;
    if (drop_oldest.state).lowest < 0 then
        -- What was put at the front is newer the further it lies there. So what goes lies together, on both sides of 0.
        -- Ids say what is older, as far as numbers do not: a transaction may get its numbers late.
        execute 'select min(o.seqn), max(o.seqn) from (
            select t.seqn, sum(t.bytes) over before as bytes, count(*) over before as messages from (
                select m.seqn, m.bytes, max(m.id) over (partition by m.seqn > 0 order by abs(m.seqn)) as age '
            || pgps_internal.live_text(drop_oldest.spool, '{}') || ') t
            window before as (order by t.age, abs(t.seqn) rows between unbounded preceding and 1 preceding)) o
            where o.messages < $5 or coalesce(o.bytes, 0) < $6'
        using (drop_oldest.state).spool_id, -9223372036854775808, coalesce(v_upto, 9223372036854775807),
            (drop_oldest.state).emptied, v_messages, v_bytes
        into v_from, v_upto;
    end if;
    return pgps_internal.drop_up_to(spool, drop_oldest.state, v_from, v_upto, 'limit');
end
$$;
comment on function pgps_internal.drop_oldest(pgps_internal.spool, pgps_internal.spool_state) is
'Discards the oldest messages until the spool is within its limits; returns the new standing';

create or replace function pgps_internal.old_range(spool pgps_internal.spool, state pgps_internal.spool_state)
returns int8range
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgps_internal.clock();
    v_before timestamptz := v_now - (old_range.spool).retention;
    v_live text := pgps_internal.live_text(spool, '{}');
    v_old text := v_live || ' and m.spooled_at < $5 order by m.seqn ';
    v_young text := v_live || ' and m.spooled_at between $5 and $6 order by m.seqn ';
    v_from bigint;
    v_upto bigint;
begin
    -- Up to the last before the first that is young: spooled_at is nearly in the order of the numbers. What is of the
    -- future, by the clock of another broker, or was spooled before this one was set back, is passed over.
    execute 'select m.seqn - 1 ' || v_young || 'limit 1'
    using (spool).spool_id, 1, 9223372036854775807, (state).emptied, v_before, v_now into v_upto;
    execute 'select m.seqn ' || v_old || 'desc limit 1'
    using (spool).spool_id, 1, coalesce(v_upto, 9223372036854775807), (state).emptied, v_before into v_upto;
    if (state).lowest < 0 then
        -- What was put at the front is younger the further it lies there.
        execute 'select m.seqn + 1 ' || v_young || 'desc limit 1'
        using (spool).spool_id, -9223372036854775808, -1, (state).emptied, v_before, v_now into v_from;
        execute 'select m.seqn ' || v_old || 'limit 1'
        using (spool).spool_id, coalesce(v_from, -9223372036854775808), -1, (state).emptied, v_before into v_from;
    end if;
    return case when coalesce(v_from, v_upto) is not null
        then int8range(coalesce(v_from, 1), coalesce(v_upto, -1), '[]') end;
end
$$;
comment on function pgps_internal.old_range(pgps_internal.spool, pgps_internal.spool_state) is
'The numbers of the messages that are older than the retention of a spool, on both sides of 0 up to the first that is
not; null when there are none';

create or replace function pgps_internal.apply_retention(spool pgps_internal.spool, state pgps_internal.spool_state)
returns pgps_internal.spool_state
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_old int8range;
begin
    if (apply_retention.spool).retention is null then
        return apply_retention.state;
    end if;
    v_old := pgps_internal.old_range(spool, state);
    if v_old is null then
        return apply_retention.state;
    end if;
    return pgps_internal.drop_up_to(spool, apply_retention.state, lower(v_old), upper(v_old) - 1, 'retention');
end
$$;
comment on function pgps_internal.apply_retention(pgps_internal.spool, pgps_internal.spool_state) is
'Discards messages that are older than the retention of a spool; returns the new standing';
