-- Receiving: a unit of work is held by who has received its first message, until SYNCPOINT or the end of the session.
-- Locks: the turn of the session, the unit; by id it waits for them, else what is locked is passed over. A message that
-- belongs to no unit of work is over when it is received: its conversation is locked, too.
-- Writes: unit_state.

create or replace function pgps_internal.try_conversation(conversation_no bigint) returns boolean
language plpgsql
as $$
begin
    perform from pgps_internal.conversation c where c.conversation_no = try_conversation.conversation_no
    for update skip locked;
    return found;
end
$$;
comment on function pgps_internal.try_conversation(bigint) is
'Locks a conversation until the transaction ends; false when it is locked by somebody else';

create or replace function pgps_internal.lock_unit(unit_no bigint) returns boolean
language plpgsql
as $$
declare
    v_unit pgps_internal.unit;
begin
    select u.* into v_unit from pgps_internal.unit u where u.unit_no = lock_unit.unit_no for update;
    if v_unit.is_uow is false then
        perform pgps_internal.lock_conversations(array[v_unit.conversation_no]);
    end if;
    return v_unit.unit_no is not null;
end
$$;
comment on function pgps_internal.lock_unit(bigint) is
'Locks a unit until the transaction ends and, since a message that belongs to none is over when it is received, the
conversation of that; false when there is none';

create or replace function pgps_internal.note_unit(
    unit_no bigint, status text, receiver_id bigint, session_id bigint, attempts integer, messages_given integer
) returns void
language plpgsql
as $$
begin
    insert into pgps_internal.unit_state (at_no, unit_no, version, status, receiver_id, session_id, attempts,
        messages_given, noted_at)
    select nextval('pgps_internal.uow_no_seq'), note_unit.unit_no, 1 + coalesce(max(s.version), 0), note_unit.status,
        note_unit.receiver_id, note_unit.session_id, note_unit.attempts, note_unit.messages_given,
        pgps_internal.clock()
    from pgps_internal.unit_state s where s.unit_no = note_unit.unit_no;
end
$$;
comment on function pgps_internal.note_unit(bigint, text, bigint, bigint, integer, integer) is
'Writes the next version of the state of a unit; the caller has locked it';

create or replace function pgps_internal.note_unit(
    standing pgps_internal.unit_standing, status text, receiver_id bigint, session_id bigint, messages_given integer
) returns void
language plpgsql
as $$
begin
    insert into pgps_internal.unit_state (at_no, unit_no, version, status, receiver_id, session_id, attempts,
        messages_given, noted_at)
    values (nextval('pgps_internal.uow_no_seq'), note_unit.standing.unit_no, note_unit.standing.version + 1,
        note_unit.status, note_unit.receiver_id, note_unit.session_id, note_unit.standing.attempts,
        note_unit.messages_given, pgps_internal.clock());
end
$$;
comment on function pgps_internal.note_unit(pgps_internal.unit_standing, text, bigint, bigint, integer) is
'As note_unit for the number of a unit, when it is known how it stands, and it was locked before that was looked at';

create or replace function pgps_internal.complete_unit(
    standing pgps_internal.unit_standing, state pgps_internal.conversation_state, server_id bigint
) returns pgps_internal.conversation_state
language plpgsql
as $$
declare
    v_state pgps_internal.conversation_state := complete_unit.state;
    v_binds boolean := v_state.server_id is null and complete_unit.standing.to_server
        and complete_unit.server_id is not null;
begin
    if complete_unit.standing.to_server then
        v_state.server_id := coalesce(v_state.server_id, complete_unit.server_id);
        v_state.done_by_server := complete_unit.standing.commit_no;
    else
        v_state.done_by_client := complete_unit.standing.commit_no;
    end if;
    v_state := pgps_internal.note_conversation(v_state);
    if v_binds then
        perform pgps_internal.move_entries(v_state);
    end if;
    return v_state;
end
$$;
comment on function pgps_internal.complete_unit(pgps_internal.unit_standing, pgps_internal.conversation_state,
    bigint) is
'Notes that the receiver is through with a unit, and binds its conversation to the server that has committed the first
one; server_id null: binds it to nobody. The caller has locked the conversation. Returns its state';

create or replace function pgps_internal.hand_out(
    speaker pgps_internal.speaker, standing pgps_internal.unit_standing, user_status text
) returns pgps.received_message
language plpgsql
as $$
declare
    v_standing pgps_internal.unit_standing := hand_out.standing;
    v_number integer := 1 + case when v_standing.status = 'DELIVERED' then v_standing.messages_given else 0 end;
    v_status text := case when v_standing.is_uow then 'DELIVERED' else 'PROCESSED' end;
    v_state pgps_internal.conversation_state := pgps_internal.state_of(v_standing.conversation_no);
    v_row pgps.received_message;
    v_message record;
begin
    perform pgps_internal.note_unit(v_standing, v_status, (hand_out.speaker).participant_id,
        (hand_out.speaker).session_id, v_number);
    if hand_out.user_status is not null then
        perform pgps_internal.note_user_status(v_standing.unit_no, hand_out.user_status);
        v_standing.user_status := hand_out.user_status;
    end if;
    if v_standing.their_no is not null and (v_standing.status = 'ACCEPTED' or hand_out.user_status is not null) then
        perform pgps_internal.tell_status(v_standing.unit_no, v_status, v_standing.attempts, hand_out.user_status),
            pgps_internal.note_relay_session(v_standing, (hand_out.speaker).session_id);
    end if;
    if not v_standing.is_uow then
        v_state := pgps_internal.complete_unit(v_standing, v_state, (hand_out.speaker).participant_id);
    elsif v_standing.status = 'ACCEPTED' then
        perform pgps_internal.put_in_hand(pgps_internal.with_hand(hand_out.speaker), held => array[v_standing.unit_no]);
    end if;
    select m.message, (select max(n.number) from pgps_internal.unit_message n where n.unit_no = v_standing.unit_no)
        as count, case when p.role is not null then pg_get_userbyid(p.role::oid) end as sender, p.token
    into v_message
    from pgps_internal.unit_message m
    left join pgps_internal.participant p on p.participant_id = v_standing.sender_id
    where m.unit_no = v_standing.unit_no and m.number = v_number;
    v_row := pgps_internal.row_from(v_standing, v_state, case when not v_standing.is_uow then 'RECV_NONE'
        when v_message.count = 1 then 'RECV_ONLY' when v_number = 1 then 'RECV_FIRST'
        when v_number = v_message.count then 'RECV_LAST' else 'RECV_MIDDLE' end);
    v_row.message := v_message.message;
    v_row.number := v_number;
    v_row.sender := v_message.sender;
    v_row.sender_token := v_message.token;
    return v_row;
end
$$;
comment on function pgps_internal.hand_out(pgps_internal.speaker, pgps_internal.unit_standing, text) is
'Gives the next message of a unit to a session that has locked it; the first one makes it DELIVERED';

create or replace function pgps_internal.receive_by_id(caller name, speaker pgps_internal.speaker, args jsonb)
returns pgps.received_message
language plpgsql
as $$
declare
    v_conversation pgps_internal.conversation := pgps_internal.find_conversation(args ->> 'conversation',
        receive_by_id.speaker);
    v_me bigint := (receive_by_id.speaker).participant_id;
    v_no bigint := v_conversation.conversation_no;
    v_standing pgps_internal.unit_standing;
    v_to_server boolean;
    v_count integer;
    v_first record;
begin
    if v_conversation.client_id = v_me and v_conversation.is_uow and v_conversation.broker is null
        and args ->> 'option' <> 'msg' and args ->> 'user_status' is null then
        v_first := pgps_internal.first_answer(receive_by_id.speaker, v_conversation);
        -- Who serves as well may be the server of its own conversation.
        if (v_first.answer).uow_id is not null or v_first.is_none
            and not exists (select from pgps_internal.serving s
                where s.session_id = (receive_by_id.speaker).session_id)
            and not exists (select from pgps_internal.conversation_state t
                where t.conversation_no = v_no and t.server_id = v_me) then
            return v_first.answer;
        end if;
    end if;
    v_to_server := not pgps_internal.sends_as_client(receive_by_id.caller, receive_by_id.speaker, v_conversation);
    if args ->> 'option' <> 'any' and v_conversation.is_uow <> (args ->> 'option' = 'sync') then
        return null;
    end if;
    v_standing := pgps_internal.next_unit(v_no, v_to_server, receive_by_id.speaker);
    if v_standing.unit_no is null or not pgps_internal.lock_unit(v_standing.unit_no) then
        return null;
    elsif not pgps_internal.stands_as(v_standing) then
        return pgps_internal.receive_by_id(receive_by_id.caller, receive_by_id.speaker, args);
    end if;
    if v_standing.is_held_back then
        return null;
    elsif v_standing.status = 'DELIVERED' then
        if v_standing.receiver_session <> (receive_by_id.speaker).session_id then
            raise exception 'conversation "%" is somebody else''s: another session holds its unit of work "U%"',
                args ->> 'conversation', upper(to_hex(v_standing.unit_no))
            using errcode = '42501', hint = 'It can be received again when that session has backed it out or ended.';
        end if;
        select max(m.number) into v_count from pgps_internal.unit_message m where m.unit_no = v_standing.unit_no;
        if v_standing.messages_given >= v_count then
            return pgps_internal.row_from(v_standing, pgps_internal.state_of(v_no), v_standing.status, '00740301');
        end if;
    end if;
    return pgps_internal.hand_out(receive_by_id.speaker, v_standing, args ->> 'user_status');
end
$$;
comment on function pgps_internal.receive_by_id(name, pgps_internal.speaker, jsonb) is
'The next message of one conversation; a row with code 00740301 when its unit of work has been received to its end';

create or replace function pgps_internal.sends_as_client(
    caller name, speaker pgps_internal.speaker, conversation pgps_internal.conversation
) returns boolean
language plpgsql volatile
as $$
declare
    v_me bigint := (sends_as_client.speaker).participant_id;
    v_no bigint := (sends_as_client.conversation).conversation_no;
    v_state pgps_internal.conversation_state := pgps_internal.state_of(v_no);
    v_may_serve boolean := exists (select from pgps_internal.serving s
        where s.session_id = (sends_as_client.speaker).session_id
            and s.service_id = (sends_as_client.conversation).service_id)
        and pgps_internal.has_service_right(sends_as_client.caller, (sends_as_client.conversation).service_id, 'serve');
begin
    if (sends_as_client.conversation).client_id = v_me then
        -- Client and server may be the same participant: what waits for the client comes first.
        return not (coalesce(v_state.server_id = v_me, v_may_serve)
            and (pgps_internal.next_unit(v_no, false, sends_as_client.speaker)).unit_no is null
            and (pgps_internal.next_unit(v_no, true, sends_as_client.speaker)).unit_no is not null);
    elsif coalesce(v_state.server_id = v_me, v_may_serve) then
        return false;
    end if;
    raise exception 'conversation "C%" is somebody else''s', upper(to_hex(v_no))
    using errcode = '42501', hint = case when v_state.server_id is null
        then 'Register for its service to receive it: select pgps.register_service(class, server, service).'
        else 'It is bound to the server that has committed its first unit of work: log on with that token.' end;
end
$$;
comment on function pgps_internal.sends_as_client(name, pgps_internal.speaker, pgps_internal.conversation) is
'True when the speaker is the client of a conversation, false when it is, or may become, its server; 42501 otherwise';

create or replace function pgps_internal.services_to_receive(caller name, speaker pgps_internal.speaker, args jsonb,
    out chosen integer[], out served integer[]) returns record
language plpgsql volatile
as $$
begin
    if coalesce(args ->> 'class', args ->> 'server', args ->> 'service') is not null then
        chosen := array(select s.service_id from pgps_internal.service s
            where s.class = coalesce(pgps_internal.fold_part(args ->> 'class'), s.class)
                and s.server = coalesce(pgps_internal.fold_part(args ->> 'server'), s.server)
                and s.service = coalesce(pgps_internal.fold_part(args ->> 'service'), s.service));
        if chosen = '{}' then
            raise exception 'service "%/%/%" does not exist', coalesce(args ->> 'class', '*'),
                coalesce(args ->> 'server', '*'), coalesce(args ->> 'service', '*')
            using errcode = '42704', hint = 'See pgps.services; what is null stands for all.';
        end if;
    end if;
    served := array(select s.service_id from pgps_internal.serving s
        where s.session_id = (services_to_receive.speaker).session_id and coalesce(s.service_id = any (chosen), true)
            and pgps_internal.has_service_right(services_to_receive.caller, s.service_id, 'serve'));
    if served = '{}' and lower(args ->> 'conversation') = 'new'
        and not exists (select from pgps_internal.serving s
            where s.session_id = (services_to_receive.speaker).session_id
                and coalesce(s.service_id = any (chosen), true)) then
        raise exception 'this session is not registered for %', case when chosen is null then 'any service'
            else format('service "%s/%s/%s"', coalesce(args ->> 'class', '*'), coalesce(args ->> 'server', '*'),
                coalesce(args ->> 'service', '*')) end
        using errcode = '55000', hint = 'First: select pgps.register_service(class, server, service).';
    end if;
end
$$;
comment on function pgps_internal.services_to_receive(name, pgps_internal.speaker, jsonb) is
'The services that a call names (chosen, null: all) and those among them that the session serves and may serve';

create or replace function pgps_internal.receive_next(
    speaker pgps_internal.speaker, queues bigint[], chosen integer[], args jsonb
) returns pgps.received_message
language plpgsql
as $$
declare
    v_entry pgps_internal.unit_commit;
    v_passed bigint[] := '{}';
    v_standing pgps_internal.unit_standing;
    v_row pgps.received_message;
begin
    loop
        if cardinality(receive_next.queues) = 1 then
            v_entry := pgps_internal.first_waiting(receive_next.speaker, receive_next.queues[1], args ->> 'option',
                receive_next.chosen, v_passed);
        else
            v_entry := pgps_internal.first_of_queues(receive_next.speaker, receive_next.queues, args ->> 'option',
                receive_next.chosen, v_passed);
        end if;
        exit when v_entry.entry_no is null;
        if args ->> 'user_status' is null then
            v_row := pgps_internal.hand_out_first(receive_next.speaker, v_entry.unit_no,
                v_entry.conversation_no);
            if v_row.uow_id is not null then
                return v_row;
            end if;
        end if;
        -- Looked at again, now that it is locked.
        v_standing := pgps_internal.how_stands(v_entry.unit_no, receive_next.speaker);
        exit when v_standing.status = 'ACCEPTED' and not v_standing.is_held_back
            and (v_standing.is_uow or pgps_internal.try_conversation(v_entry.conversation_no));
        v_passed := v_passed || v_entry.conversation_no;
    end loop;
    if v_entry.entry_no is null then
        return null;
    end if;
    return pgps_internal.hand_out(receive_next.speaker, v_standing, args ->> 'user_status');
end
$$;
comment on function pgps_internal.receive_next(pgps_internal.speaker, bigint[], integer[], jsonb) is
'The first message of the next unit in some queues; null when nothing waits that nobody else is about to receive';

create or replace function pgps_internal.first_of_queues(
    speaker pgps_internal.speaker, queues bigint[], option text, chosen integer[], passed bigint[]
) returns pgps_internal.unit_commit
language plpgsql
as $$
declare
    v_entry pgps_internal.unit_commit;
    v_passed bigint[] := first_of_queues.passed;
begin
    loop
        select (p.entry).* into v_entry
        from unnest(first_of_queues.queues) q
        cross join lateral pgps_internal.peek_queue(first_of_queues.speaker, q, first_of_queues.option,
            first_of_queues.chosen, v_passed) p
        where (p.entry).entry_no is not null order by (p.entry).entry_no limit 1;
        exit when not found;
        perform from pgps_internal.unit u where u.unit_no = v_entry.unit_no for update skip locked;
        if found then
            return v_entry;
        end if;
        v_passed := v_passed || v_entry.conversation_no;
    end loop;
    return null;
end
$$;
comment on function pgps_internal.first_of_queues(pgps_internal.speaker, bigint[], text, integer[], bigint[]) is
'As first_waiting, for several queues: the first entry of them all';

create or replace function pgps_internal.receive_more(speaker pgps_internal.speaker, chosen integer[], args jsonb)
returns pgps.received_message
language plpgsql
as $$
declare
    v_standing pgps_internal.unit_standing;
begin
    if args ->> 'option' = 'msg' or (receive_more.speaker).held = '{}' then
        return null;
    end if;
    select s.* into v_standing
    from unnest((receive_more.speaker).held) with ordinality h(unit_no, place)
    join pgps_internal.unit_standing s using (unit_no)
    where s.status = 'DELIVERED' and s.receiver_session = (receive_more.speaker).session_id
        and coalesce(s.service_id = any (receive_more.chosen), true)
        and s.messages_given < (select max(m.number) from pgps_internal.unit_message m where m.unit_no = s.unit_no)
    order by h.place limit 1;
    if not found then
        return null;
    end if;
    perform pgps_internal.lock_unit(v_standing.unit_no);
    return pgps_internal.hand_out(receive_more.speaker, v_standing, args ->> 'user_status');
end
$$;
comment on function pgps_internal.receive_more(pgps_internal.speaker, integer[], jsonb) is
'The next message of the units that a session holds; null when it has received all of them to their ends';

create or replace function pgps_internal.receive_message(caller name, args jsonb) returns pgps.received_message
language plpgsql
as $$
declare
    v_args jsonb := args || jsonb_build_object('option', lower(coalesce(args ->> 'option', 'any')),
        'conversation', coalesce(args ->> 'conversation', 'any'));
    v_which text := lower(v_args ->> 'conversation');
    v_speaker pgps_internal.speaker;
    v_services record;
    v_row pgps.received_message;
begin
    if v_args ->> 'option' not in ('sync', 'msg', 'any') then
        raise exception 'unknown option "%" of receive_message', args ->> 'option' using errcode = '22023',
            hint = 'Give sync, msg or any.';
    end if;
    perform pgps_internal.check_user_status(args ->> 'user_status');
    v_speaker := pgps_internal.speak(caller, args);
    if v_which not in ('new', 'old', 'any') then
        return pgps_internal.receive_by_id(caller, v_speaker, v_args);
    end if;
    v_services := pgps_internal.services_to_receive(caller, v_speaker, v_args);
    if v_which <> 'new' then
        v_speaker := pgps_internal.with_hand(v_speaker);
        v_row := pgps_internal.receive_more(v_speaker, v_services.chosen, v_args);
        if v_row.status is null then
            v_row := pgps_internal.receive_next(v_speaker, array[pgps_internal.queue_of(v_speaker.participant_id)],
                v_services.chosen, v_args);
        end if;
    end if;
    if v_row.status is null and v_which <> 'old' then
        v_row := pgps_internal.receive_next(v_speaker,
            array(select pgps_internal.queue_of(n) from unnest(v_services.served) n), null, v_args);
    end if;
    return v_row;
end
$$;
comment on function pgps_internal.receive_message(name, jsonb) is 'See pgps.receive_message';
