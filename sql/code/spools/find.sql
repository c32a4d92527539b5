-- How messages are found in the store. What matches a pattern is read from the index of one of its keys, if few
-- messages have that key, and otherwise in the order of the numbers. A key knows the place of its message (ctid), so
-- that a message costs no search of its own. Queries name only those slots that hold something, since each slot is
-- planned.
-- Locks: none; their callers keep the slots (pgps_internal.enter_store), and read the standing before they ask here.
-- Writes: spool_slot.

create or replace function pgps_internal.first_slot(spool pgps_internal.spool) returns integer
language sql immutable
as $$ select case when (first_slot.spool).persistent then 0 else 8 end $$;
comment on function pgps_internal.first_slot(pgps_internal.spool) is 'The first slot of the store that a spool uses';

create or replace function pgps_internal.last_slot(spool pgps_internal.spool) returns integer
language sql immutable
as $$ select case when (last_slot.spool).persistent then 7 else 11 end $$;
comment on function pgps_internal.last_slot(pgps_internal.spool) is 'The last slot of the store that a spool uses';

create or replace function pgps_internal.used_slots(spool pgps_internal.spool) returns integer[]
language plpgsql stable
as $$
begin
    return coalesce((select array_agg(s.slot::integer order by s.slot) from pgps_internal.spool_slot s
        where s.slot between pgps_internal.first_slot(used_slots.spool) and pgps_internal.last_slot(used_slots.spool)
            and s.begun_in is not null), '{}');
end
$$;
comment on function pgps_internal.used_slots(pgps_internal.spool) is
'The slots in which messages of a spool may be, up to the last number of a standing that was read before';

create or replace function pgps_internal.file_of_slot(slot integer) returns text
language plpgsql stable
as $$
begin
    return pgps_internal.incarnation_of_session() || '/'
        || pg_relation_filenode(('pgps_internal.spool_message_' || file_of_slot.slot)::regclass);
end
$$;
comment on function pgps_internal.file_of_slot(integer) is
'In which file of which database the messages of a slot are; another one after it was rewritten or restored';

create or replace function pgps_internal.begin_slot(slot integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgps_internal.spool_slot s set begun_in = pgps_internal.file_of_slot(begin_slot.slot)
    where s.slot = begin_slot.slot and s.begun_in is null;
end
$$;
comment on function pgps_internal.begin_slot(integer) is 'Called before messages are put into a slot';

create or replace function pgps_internal.placed_slots(slots integer[]) returns integer[]
language plpgsql stable
as $$
begin
    return coalesce((select array_agg(s.slot::integer) from pgps_internal.spool_slot s
        where s.slot = any (placed_slots.slots) and s.begun_in = pgps_internal.file_of_slot(s.slot)), '{}');
end
$$;
comment on function pgps_internal.placed_slots(integer[]) is
'Those of some slots in which the places of messages, which their keys know, are valid';

create or replace function pgps_internal.bounds_text(value text, bounds jsonb) returns text
language sql immutable
as $$
    select case when bounds ->> 0 = bounds ->> 1 then format(' and %s = %L', bounds_text.value, bounds ->> 0)
        else concat(case when bounds ->> 0 is not null then format(' and %s >= %L', value, bounds ->> 0) end,
            case when bounds ->> 1 is not null then format(' and %s <= %L', value, bounds ->> 1) end) end
$$;
comment on function pgps_internal.bounds_text(text, jsonb) is
'The text of conditions, each beginning with " and", for a numeric expression and its bounds';

create or replace function pgps_internal.key_text(slots integer[], name text, bounds jsonb, what text) returns text
language plpgsql immutable
as $$
declare
    v_slot integer;
    v_texts text[] := '{}';
begin
    foreach v_slot in array key_text.slots loop
        v_texts := v_texts || format('select k.%s from pgps_internal.spool_key_%s k where k.spool_id = $1 '
            'and k.name = %L%s and k.seqn between $2 and $3', key_text.what, v_slot, key_text.name,
            pgps_internal.bounds_text('k.value', key_text.bounds));
    end loop;
    return array_to_string(v_texts, ' union all ');
end
$$;
comment on function pgps_internal.key_text(integer[], text, jsonb, text) is
'The text of a query for a column (seqn or place) of the messages of spool $1, with numbers from $2 to $3, in some
slots, one at least, that have a key within bounds';

create or replace function pgps_internal.planned(
    spool pgps_internal.spool, state pgps_internal.spool_state, pattern jsonb, from_seqn bigint, upto bigint
) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_key record;
    v_slots integer[] := pgps_internal.used_slots(planned.spool);
    v_few bigint := greatest(1000, (planned.state).messages / 20);
    v_found bigint;
    v_pattern jsonb := planned.pattern;
begin
    for v_key in select k.key, k.value from jsonb_each(coalesce(planned.pattern -> 'keys', '{}')) k
        where v_slots <> '{}'
    loop
        execute format('select count(*) from (%s limit $4) k',
            pgps_internal.key_text(v_slots, v_key.key, v_key.value, 'seqn'))
        using (planned.spool).spool_id, coalesce(planned.from_seqn, -9223372036854775808), planned.upto, v_few + 1
        into v_found;
        if v_found <= least(v_few, (v_pattern ->> 'found')::bigint) then
            v_pattern := v_pattern || jsonb_build_object('by', v_key.key, 'found', v_found);
        end if;
    end loop;
    return v_pattern;
end
$$;
comment on function pgps_internal.planned(
    pgps_internal.spool, pgps_internal.spool_state, jsonb, bigint, bigint
) is
'A pattern with two marks: by, the key by which its messages, from one number to another, are to be looked up, and how
many were found that have it. Without them all messages are read in order, and compared: when many match, that is less
work';

create or replace function pgps_internal.live_text(
    spool pgps_internal.spool, pattern jsonb, is_for_members boolean = false, more text = ''
) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_by text := live_text.pattern ->> 'by';
    v_slots integer[] := pgps_internal.used_slots(live_text.spool);
    v_placed integer[];
    v_slot integer;
    v_texts text[] := '{}';
    v_from text;
    v_is_cancelling boolean;
    v_has_gone boolean;
begin
    if v_slots = '{}' then
        v_from := 'from pgps_internal.spool_message_0 m where false';
    elsif v_by is null then
        v_from := format('from pgps_internal.%s m where m.spool_id = $1 and m.seqn between $2 and $3',
            case cardinality(v_slots) when 1 then 'spool_message_' || v_slots[1] else 'spool_message' end)
            || case when cardinality(v_slots) > 1
                then format(' and m.slot in (%s)', array_to_string(v_slots, ', ')) else '' end;
    else
        v_placed := pgps_internal.placed_slots(v_slots);
        foreach v_slot in array v_slots loop
            v_texts := v_texts || format(case when v_slot = any (v_placed) then 'select m.* from '
                'pgps_internal.spool_message_%1$s m where m.ctid = any (array(%2$s)) and m.spool_id = $1'
                else 'select m.* from unnest(array(%2$s)) o(seqn) join pgps_internal.spool_message_%1$s m '
                'on m.seqn = o.seqn and m.spool_id = $1' end, v_slot, pgps_internal.key_text(array[v_slot], v_by,
                live_text.pattern -> 'keys' -> v_by, case when v_slot = any (v_placed) then 'place' else 'seqn' end));
        end loop;
        v_from := format('from (%s) m where true', array_to_string(v_texts, ' union all '));
    end if;
    -- Both in one statement: a message that was cancelled is in one of these tables before dispatch, and then in the
    -- other.
    select exists (select from pgps_internal.spool_cancelled c where c.spool_id = (live_text.spool).spool_id),
        exists (select from pgps_internal.spool_gone g
            where g.spool_id = (live_text.spool).spool_id and g.slot = any (v_slots))
    into v_is_cancelling, v_has_gone;
    return v_from || ' and not m.seqn <@ $4'
        -- What is gone is noted beside the message. Each is looked up (offset 0): joined, all notes would be compared.
        || case when v_has_gone or v_is_cancelling then ' and not exists (select from pgps_internal.spool_gone g'
            ' where g.slot = m.slot and g.spool_id = m.spool_id and g.seqn = m.seqn offset 0)' else '' end
        || case when live_text.is_for_members then ' and (m.expires is null or m.expires > pgps_internal.clock())'
            || case when (live_text.spool).retention is not null
                then format(' and m.spooled_at > pgps_internal.clock() - %L::interval', (live_text.spool).retention)
                else '' end || case when v_is_cancelling
                then ' and not exists (select from pgps_internal.spool_cancelled c where c.id = m.id offset 0)'
                else '' end
            else '' end
        || pgps_internal.pattern_text(live_text.pattern) || live_text.more;
end
$$;
comment on function pgps_internal.live_text(pgps_internal.spool, jsonb, boolean, text) is
'The text of FROM and WHERE for the messages m of spool $1, with numbers from $2 to $3, that are not discarded ($4: what
was, as ranges) and match a pattern (see pgps_internal.planned); is_for_members: nor expired, older than its
retention, or cancelled; more:
further conditions';

create or replace function pgps_internal.count_live(
    spool pgps_internal.spool, state pgps_internal.spool_state, pattern jsonb, from_seqn bigint, upto bigint,
    is_for_members boolean = false
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
    v_from bigint := coalesce(count_live.from_seqn, -9223372036854775808);
begin
    if v_from > count_live.upto then
        return 0;
    elsif pgps_internal.is_found_exactly(count_live.spool, count_live.pattern, is_for_members)
        -- A checkpoint pointer may be the highest number there is, after which no range can end.
        and not (count_live.state).emptied && int8range(v_from, count_live.upto, '[)')
        and not (count_live.state).emptied @> count_live.upto then
        return (count_live.pattern ->> 'found')::bigint;
    end if;
    execute 'select count(*) ' || pgps_internal.live_text(count_live.spool, count_live.pattern,
        count_live.is_for_members)
    using (count_live.spool).spool_id, v_from, count_live.upto, (count_live.state).emptied
    into v_count;
    return v_count;
end
$$;
comment on function pgps_internal.count_live(
    pgps_internal.spool, pgps_internal.spool_state, jsonb, bigint, bigint, boolean
) is
'How many messages of a spool, between two numbers, match a pattern, planned for these numbers or not planned, and are
not discarded; is_for_members: nor expired, nor cancelled. The caller keeps the slots';

create or replace function pgps_internal.is_found_exactly(
    spool pgps_internal.spool, pattern jsonb, is_for_members boolean
) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce(pattern ? 'found' and pattern - '{by,found,keys}'::text[] = '{}'
        and (select count(*) = 1 from jsonb_object_keys(pattern -> 'keys'))
        and not exists (select from pgps_internal.spool_cancelled c where c.spool_id = (spool).spool_id)
        and not exists (select from pgps_internal.spool_gone g where g.spool_id = (spool).spool_id)
        and not (is_for_members and (spool).retention is not null)
        and not (is_for_members and exists (select from pgps_internal.spool_message m
            where m.spool_id = (spool).spool_id and m.expires is not null)), false);
end
$$;
comment on function pgps_internal.is_found_exactly(pgps_internal.spool, jsonb, boolean) is
'True when everything that was found by the key of a planned pattern matches, and is there';
