-- How many large messages go into one answer of pgps.receive_spooled: a client has all of it in memory at once, as for
-- events (decision 88). Which messages an answer has, and in which order, only its cursors know; they are read for
-- their sizes where a spool has more than one answer may have.
-- Locks: none; their callers keep the slots (pgps_internal.enter_store).
-- Writes: nothing.

create or replace function pgps_internal.are_toasted(reach pgps_internal.spool_reach) returns boolean
language sql stable
as $$
    select coalesce(sum(pg_relation_size(c.reltoastrelid)), 0) > 1000000
    from generate_series((are_toasted.reach).first_slot::integer, (are_toasted.reach).last_slot::integer) n(slot)
    join pg_class c on c.oid = ('pgps_internal.spool_message_' || n.slot)::regclass
$$;
comment on function pgps_internal.are_toasted(pgps_internal.spool_reach) is
'True when there may be large messages in the slots of a spool: more than a little is stored out of line';

create or replace function pgps_internal.bytes_of_message(
    reach pgps_internal.spool_reach, seqn bigint, message jsonb, keywords text[]
) returns bigint
language plpgsql stable
as $$
begin
    -- Nothing is read from where it is stored out of line.
    if pg_column_size(bytes_of_message.message) < 100000 and pg_column_compression(bytes_of_message.message) is null
        and coalesce(pg_column_size(bytes_of_message.keywords), 0) < 2000 then
        return 2 * pg_column_size(bytes_of_message.message);
    end if;
    return coalesce((select m.bytes from pgps_internal.spool_message m
        where m.spool_id = (bytes_of_message.reach).spool_id and m.seqn = bytes_of_message.seqn
            and m.slot between (bytes_of_message.reach).first_slot and (bytes_of_message.reach).last_slot), 0);
end
$$;
comment on function pgps_internal.bytes_of_message(pgps_internal.spool_reach, bigint, jsonb, text[]) is
'How large a message is, about, or as its spool counts it when it is not small; 0 for a row that tells of a gap';

create or replace function pgps_internal.messages_that_fit(
    reach pgps_internal.spool_reach, parts pgps_internal.spooled_part[]
) returns bigint
language plpgsql
as $$
declare
    v_part pgps_internal.spooled_part;
    v_portal refcursor;
    v_row record;
    v_bytes bigint := 0;
    v_fit bigint := 0;
begin
    foreach v_part in array messages_that_fit.parts loop
        v_portal := v_part.portal;
        loop
            fetch v_portal into v_row;
            exit when not found;
            v_bytes := v_bytes + pgps_internal.bytes_of_message(reach, v_row.seqn, v_row.message, v_row.keywords);
            if v_bytes > pgps_internal.most_bytes() and v_fit > 0 then
                return v_fit;
            end if;
            v_fit := v_fit + 1;
        end loop;
        move absolute 0 from v_portal;
    end loop;
    return v_fit;
end
$$;
comment on function pgps_internal.messages_that_fit(pgps_internal.spool_reach, pgps_internal.spooled_part[]) is
'How many of the messages that are about to be handed out, from the first on, go into one answer: at least one. Where
that is all of them the cursors are where they were';

create or replace function pgps_internal.parts_that_fit(
    spool pgps_internal.spool, member pgps_internal.spool_member, mark pgps_internal.spool_mark,
    state pgps_internal.spool_state, max_messages integer
) returns pgps_internal.spooled_part[]
language plpgsql
as $$
declare
    v_parts pgps_internal.spooled_part[] := pgps_internal.next_parts(spool, member, mark, state, max_messages);
    v_part pgps_internal.spooled_part;
    v_portal refcursor;
    v_reach pgps_internal.spool_reach;
    v_fit bigint;
begin
    -- Common case: all of the spool goes into one answer, and there is nothing to ask.
    if (parts_that_fit.state).bytes <= pgps_internal.most_bytes() or pgps_internal.count_of(v_parts) <= 1 then
        return v_parts;
    end if;
    v_reach := pgps_internal.reach_of(spool, state);
    if not pgps_internal.are_toasted(v_reach) then
        return v_parts;
    end if;
    v_fit := pgps_internal.messages_that_fit(v_reach, v_parts);
    if v_fit < pgps_internal.count_of(v_parts) then
        foreach v_part in array v_parts loop
            v_portal := v_part.portal;
            close v_portal;
        end loop;
        v_parts := pgps_internal.next_parts(spool, member, mark, state, v_fit::integer);
    end if;
    return v_parts;
end
$$;
comment on function pgps_internal.parts_that_fit(
    pgps_internal.spool, pgps_internal.spool_member, pgps_internal.spool_mark, pgps_internal.spool_state, integer
) is 'What a member gets next, at most so many messages, and 128 MB of them or one message';
