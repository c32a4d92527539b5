-- Reading messages for members. Each statement here is static: a session plans it once, and a call that takes few
-- messages costs little (decision 51). A pattern is a record of values then; what is asked for seldom is text that is
-- planned each time (find.sql). Statements name the slots between which messages are, and the others are skipped.
-- Locks: none; their callers keep the slots (pgps_internal.enter_store).
-- Writes: nothing.

create or replace function pgps_internal.filter_of(pattern jsonb) returns pgps_internal.spool_filter
language plpgsql stable
as $$
declare
    v_pattern jsonb := filter_of.pattern - '{by,found}'::text[];
    v_keys jsonb := filter_of.pattern -> 'keys';
    v_period jsonb := filter_of.pattern -> 'period';
    v_filter pgps_internal.spool_filter;
begin
    v_filter.is_indexed := filter_of.pattern ? 'by';
    if v_keys is not null then
        v_filter.key := coalesce(filter_of.pattern ->> 'by', (select k from jsonb_object_keys(v_keys) k limit 1));
        v_filter.low := coalesce((v_keys -> v_filter.key ->> 0)::numeric, '-Infinity');
        v_filter.high := coalesce((v_keys -> v_filter.key ->> 1)::numeric, 'Infinity');
        v_filter.more := nullif(v_keys - v_filter.key, '{}');
    end if;
    v_filter.is_empty := v_pattern - 'keys' = '{}' and v_filter.more is null
        and (v_filter.key is null or v_filter.is_indexed);
    if not v_filter.is_empty then
        v_filter.seqns := (v_pattern ->> 'seqn')::int8range;
        v_filter.period := case jsonb_typeof(v_period) when 'string' then 'empty'::tstzrange
            when 'array' then tstzrange((v_period ->> 0)::timestamptz, (v_period ->> 1)::timestamptz, v_period ->> 2)
            end;
        v_filter.sender := v_pattern ->> 'sender';
        v_filter.spooler := v_pattern ->> 'spooler';
        v_filter.keywords := pgps_internal.array_of(v_pattern -> 'keywords', 'keywords');
    end if;
    return v_filter;
end
$$;
comment on function pgps_internal.filter_of(jsonb) is
'A pattern that was read, and perhaps planned, as values; is_empty: nothing is left to compare when messages have been
looked up';

create or replace function pgps_internal.has_keys(keys jsonb, bounds jsonb) returns boolean
language plpgsql immutable
as $$
begin
    return not exists (select from jsonb_each(has_keys.bounds) b
        where not coalesce((has_keys.keys ->> b.key)::numeric between coalesce((b.value ->> 0)::numeric, '-Infinity')
            and coalesce((b.value ->> 1)::numeric, 'Infinity'), false));
end
$$;
comment on function pgps_internal.has_keys(jsonb, jsonb) is
'True when a message has all these keys within their bounds';

create or replace function pgps_internal.is_matched(
    message pgps_internal.spool_message, filter pgps_internal.spool_filter
) returns boolean
language sql stable
as $$
    -- Without SET and without sub-selects, so that it is put into the statements that compare messages.
    select ((filter).key is null or (filter).is_indexed
            or coalesce((message.keys ->> (filter).key)::numeric between (filter).low and (filter).high, false))
        and ((filter).more is null or pgps_internal.has_keys(message.keys, (filter).more))
        and ((filter).seqns is null or message.seqn <@ (filter).seqns)
        and ((filter).period is null or message.spooled_at <@ (filter).period)
        and ((filter).sender is null or message.sender = (filter).sender)
        and ((filter).spooler is null or message.spooler = (filter).spooler)
        and ((filter).keywords is null or coalesce(message.keywords, '{}') = (filter).keywords)
$$;
comment on function pgps_internal.is_matched(pgps_internal.spool_message, pgps_internal.spool_filter) is
'True when a message satisfies a pattern, apart from a key by which it was looked up';

create or replace function pgps_internal.reach_of(spool pgps_internal.spool, state pgps_internal.spool_state)
returns pgps_internal.spool_reach
language plpgsql
as $$
declare
    v_spool_id integer := (reach_of.spool).spool_id;
    v_first smallint := pgps_internal.first_slot(spool);
    v_last smallint := pgps_internal.last_slot(spool);
    v_is_whole boolean := (reach_of.state).emptied = '{}';
begin
    -- Who was cancelled is looked up before what is gone: where a batch is cut, it goes from there to here.
    select min(s.slot), max(s.slot), v_is_whole
        and not exists (select from pgps_internal.spool_cancelled c where c.spool_id = v_spool_id)
    into v_first, v_last, v_is_whole
    from pgps_internal.spool_slot s where s.slot between v_first and v_last and s.begun_in is not null;
    -- Common case: one slot is in use, and no message of it is gone; the size of a table shows this without a query.
    if v_is_whole and (v_first <> v_last
            or pg_relation_size(('pgps_internal.spool_gone_' || v_first)::regclass) > 0) then
        v_is_whole := not exists (select from pgps_internal.spool_gone g
            where g.slot between v_first and v_last and g.spool_id = v_spool_id);
    end if;
    return row(v_spool_id, v_first, v_last, v_is_whole, (reach_of.state).emptied,
        pgps_internal.clock() - (reach_of.spool).retention)::pgps_internal.spool_reach;
end
$$;
comment on function pgps_internal.reach_of(pgps_internal.spool, pgps_internal.spool_state) is
'Where the messages of a spool are, and whether some of them are not to be seen any more';

create or replace function pgps_internal.are_placed(first_slot smallint, last_slot smallint) returns boolean
language plpgsql stable
as $$
declare
    v_where text := pgps_internal.incarnation_of_session();
begin
    return not exists (select from pgps_internal.spool_slot s
        where s.slot between are_placed.first_slot and are_placed.last_slot and s.begun_in
            <> v_where || '/' || pg_relation_filenode(('pgps_internal.spool_message_' || s.slot)::regclass));
end
$$;
comment on function pgps_internal.are_placed(smallint, smallint) is
'True when the places of messages, which their keys know, are valid in all slots from one to another';

create or replace function pgps_internal.keyed(
    reach pgps_internal.spool_reach, filter pgps_internal.spool_filter, after_seqn bigint, upto bigint, most bigint
) returns table (slot smallint, seqn bigint, place tid)
language sql stable
as $$
    -- Without SET, so that it is put into the statements that read from it. The index has the messages with one value
    -- in the order of their numbers: then only the first are read.
    (select k.slot, k.seqn, k.place from pgps_internal.spool_key k
    where (filter).low = (filter).high and k.slot between (reach).first_slot and (reach).last_slot
        and k.spool_id = (reach).spool_id and k.name = (filter).key and k.value = (filter).low
        and k.seqn > keyed.after_seqn and k.seqn <= keyed.upto
    order by k.seqn limit keyed.most)
    union all
    (select k.slot, k.seqn, k.place from pgps_internal.spool_key k
    where (filter).low <> (filter).high and k.slot between (reach).first_slot and (reach).last_slot
        and k.spool_id = (reach).spool_id and k.name = (filter).key and k.value between (filter).low and (filter).high
        and k.seqn > keyed.after_seqn and k.seqn <= keyed.upto
    order by k.seqn limit keyed.most)
$$;
comment on function pgps_internal.keyed(
    pgps_internal.spool_reach, pgps_internal.spool_filter, bigint, bigint, bigint
) is 'The first messages, after one number and up to another, that have the key of a filter within its bounds';

create or replace function pgps_internal.window_of(
    reach pgps_internal.spool_reach, filter pgps_internal.spool_filter, replay pgps_internal.spool_replay,
    after_seqn bigint, upto bigint, most bigint
) returns bigint
language plpgsql stable
as $$
declare
    v_upto bigint;
begin
    if ((window_of.replay).pattern ->> 'found')::bigint > window_of.most then
        select max(k.seqn) into v_upto
        from pgps_internal.keyed(reach, filter, window_of.after_seqn, window_of.upto, window_of.most) k
        having count(*) = window_of.most;
    end if;
    return coalesce(v_upto, window_of.upto);
end
$$;
comment on function pgps_internal.window_of(
    pgps_internal.spool_reach, pgps_internal.spool_filter, pgps_internal.spool_replay, bigint, bigint, bigint
) is
'The number of the last of the first so many messages (most) that have the key by which a replay is looked up; upto when
there are fewer';

create or replace function pgps_internal.opened_part(phase "char", portal refcursor) returns pgps_internal.spooled_part
language plpgsql
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

create or replace function pgps_internal.open_in_order(
    reach pgps_internal.spool_reach, filter pgps_internal.spool_filter, mark pgps_internal.spool_mark,
    is_replay boolean, after_seqn bigint, upto bigint, max_messages bigint
) returns pgps_internal.spooled_part
language plpgsql
as $$
declare
    v_reach pgps_internal.spool_reach := open_in_order.reach;
    v_skip int8multirange := case when is_replay then '{}' else (open_in_order.mark).skip end;
    -- A checkpoint is not played through. Where nothing can be replayed it is as new as everything.
    v_checkpoints_upto bigint := case when is_replay then 9223372036854775807
        else coalesce((open_in_order.mark).checkpoints_upto, -9223372036854775808) end;
    v_compares boolean := is_replay and not (open_in_order.filter).is_empty;
    v_skips boolean := v_skip <> '{}';
    v_portal refcursor;
begin
    open v_portal scroll for
        select m.seqn, m.entry, m.message, m.keys, m.keywords, m.sender::name, m.spooler::name, m.spooled_at,
            open_in_order.is_replay, m.id
        from pgps_internal.spool_message m
        where m.spool_id = v_reach.spool_id and m.slot between v_reach.first_slot and v_reach.last_slot
            and m.seqn > open_in_order.after_seqn and m.seqn <= open_in_order.upto
            and (not m.is_checkpoint or m.seqn <= v_checkpoints_upto)
            and (m.expires is null or m.expires > pgps_internal.clock())
            and (v_reach.oldest is null or m.spooled_at > v_reach.oldest)
            and not (v_skips and m.seqn <@ v_skip)
            and (not v_compares or pgps_internal.is_matched(m, open_in_order.filter))
            and (v_reach.is_whole or not m.seqn <@ v_reach.emptied
                and not exists (select from pgps_internal.spool_gone g
                    where g.slot = m.slot and g.slot between v_reach.first_slot and v_reach.last_slot
                        and g.spool_id = m.spool_id and g.seqn = m.seqn offset 0)
                and not exists (select from pgps_internal.spool_cancelled c where c.id = m.id offset 0))
        order by m.seqn limit open_in_order.max_messages;
    return pgps_internal.opened_part(case when is_replay then 'r' else 'n' end::"char", v_portal);
end
$$;
comment on function pgps_internal.open_in_order(
    pgps_internal.spool_reach, pgps_internal.spool_filter, pgps_internal.spool_mark, boolean, bigint, bigint, bigint
) is 'The next messages of a replay that match, or those that are new to a member: after one number and up to another';

create or replace function pgps_internal.open_by_key(
    reach pgps_internal.spool_reach, filter pgps_internal.spool_filter, after_seqn bigint, upto bigint, most bigint,
    max_messages bigint
) returns pgps_internal.spooled_part
language plpgsql
as $$
declare
    v_reach pgps_internal.spool_reach := open_by_key.reach;
    v_filter pgps_internal.spool_filter := open_by_key.filter;
    v_portal refcursor;
begin
    open v_portal scroll for
        select m.seqn, m.entry, m.message, m.keys, m.keywords, m.sender::name, m.spooler::name, m.spooled_at, true, m.id
        from (
            select k.slot, array_agg(k.place) as places
            from pgps_internal.keyed(v_reach, v_filter, open_by_key.after_seqn, open_by_key.upto, open_by_key.most) k
            group by k.slot
        ) p cross join lateral (
            select m.* from pgps_internal.spool_message m
            where m.slot = p.slot and m.slot between v_reach.first_slot and v_reach.last_slot
                and m.ctid = any (p.places) and m.spool_id = v_reach.spool_id offset 0
        ) m
        where (m.expires is null or m.expires > pgps_internal.clock())
            and (v_reach.oldest is null or m.spooled_at > v_reach.oldest)
            and (v_filter.is_empty or pgps_internal.is_matched(m, v_filter))
            and (v_reach.is_whole or not m.seqn <@ v_reach.emptied
                and not exists (select from pgps_internal.spool_gone g
                    where g.slot = m.slot and g.slot between v_reach.first_slot and v_reach.last_slot
                        and g.spool_id = m.spool_id and g.seqn = m.seqn offset 0)
                and not exists (select from pgps_internal.spool_cancelled c where c.id = m.id offset 0))
        order by m.seqn limit open_by_key.max_messages;
    return pgps_internal.opened_part('r', v_portal);
end
$$;
comment on function pgps_internal.open_by_key(
    pgps_internal.spool_reach, pgps_internal.spool_filter, bigint, bigint, bigint, bigint
) is
'The next messages of a replay by a key, which knows the places of its messages; of the first so many (most) that have
it';

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.open_by_value(
            reach pgps_internal.spool_reach, filter pgps_internal.spool_filter, after_seqn bigint, upto bigint,
            most bigint, max_messages bigint
        ) returns pgps_internal.spooled_part
        language plpgsql
        as $$
        declare
            v_spool_id integer := (open_by_value.reach).spool_id;
            v_oldest timestamptz := (open_by_value.reach).oldest;
            v_key text := (open_by_value.filter).key;
            v_value numeric := (open_by_value.filter).low;
            v_portal refcursor;
        begin
            case (open_by_value.reach).first_slot%s
            end case;
            return pgps_internal.opened_part('r', v_portal);
        end
        $$$f$, (select string_agg(format($b$
                when %1$s then open v_portal scroll for
                    select m.seqn, m.entry, m.message, m.keys, m.keywords, m.sender::name, m.spooler::name,
                        m.spooled_at, true, m.id
                    from pgps_internal.spool_message_%1$s m
                    where m.ctid = any (array(select k.place from pgps_internal.spool_key_%1$s k
                            where k.spool_id = v_spool_id and k.name = v_key and k.value = v_value
                                and k.seqn > open_by_value.after_seqn and k.seqn <= open_by_value.upto
                            order by k.seqn limit open_by_value.most))
                        and m.spool_id = v_spool_id and (m.expires is null or m.expires > pgps_internal.clock())
                        and (v_oldest is null or m.spooled_at > v_oldest)
                    order by m.seqn limit open_by_value.max_messages;$b$, n), '' order by n)
            from generate_series(0, 11) n));
end
$do$;
comment on function pgps_internal.open_by_value(
    pgps_internal.spool_reach, pgps_internal.spool_filter, bigint, bigint, bigint, bigint
) is
'As open_by_key, for the common case: one value of the key and nothing else to compare, one slot, and nothing in it that
was discarded or cancelled. For small portions: setting the statement of open_by_key up takes longer than reading them';

create or replace function pgps_internal.open_by_number(
    reach pgps_internal.spool_reach, filter pgps_internal.spool_filter, after_seqn bigint, upto bigint, most bigint,
    max_messages bigint
) returns pgps_internal.spooled_part
language plpgsql
as $$
declare
    v_reach pgps_internal.spool_reach := open_by_number.reach;
    v_filter pgps_internal.spool_filter := open_by_number.filter;
    v_portal refcursor;
begin
    open v_portal scroll for
        select m.seqn, m.entry, m.message, m.keys, m.keywords, m.sender::name, m.spooler::name, m.spooled_at, true, m.id
        from pgps_internal.keyed(v_reach, v_filter, open_by_number.after_seqn, open_by_number.upto,
            open_by_number.most) k
        cross join lateral (select m.* from pgps_internal.spool_message m
            where m.slot = k.slot and m.slot between v_reach.first_slot and v_reach.last_slot
                and m.spool_id = v_reach.spool_id and m.seqn = k.seqn offset 0) m
        where (m.expires is null or m.expires > pgps_internal.clock())
            and (v_reach.oldest is null or m.spooled_at > v_reach.oldest)
            and (v_filter.is_empty or pgps_internal.is_matched(m, v_filter))
            and (v_reach.is_whole or not m.seqn <@ v_reach.emptied
                and not exists (select from pgps_internal.spool_gone g
                    where g.slot = m.slot and g.slot between v_reach.first_slot and v_reach.last_slot
                        and g.spool_id = m.spool_id and g.seqn = m.seqn offset 0)
                and not exists (select from pgps_internal.spool_cancelled c where c.id = m.id offset 0))
        order by m.seqn limit open_by_number.max_messages;
    return pgps_internal.opened_part('r', v_portal);
end
$$;
comment on function pgps_internal.open_by_number(
    pgps_internal.spool_reach, pgps_internal.spool_filter, bigint, bigint, bigint, bigint
) is 'As open_by_key, where the database was restored or a slot rewritten, so that places are not valid';
