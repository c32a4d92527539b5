-- Receiving: which message comes next, of a conversation that is named or of the queues of services. Who has received
-- the first message of a unit of work holds it (hold.sql).
-- Locks: the turn of the session, the unit; by id it waits for them, else what is locked is passed over.
-- Writes: nothing.

create or replace function pgps_internal.receive_by_id(caller name, speaker pgps_internal.speaker, args jsonb)
returns pgps.received_message
language plpgsql
as $$
declare
    v_conversation pgps_internal.conversation := pgps_internal.find_conversation(args ->> 'conversation',
        receive_by_id.speaker);
    v_no bigint := v_conversation.conversation_no;
    v_standing pgps_internal.unit_standing;
    v_to_server boolean;
    v_count integer;
begin
    v_to_server := not pgps_internal.sends_as_client(receive_by_id.caller, receive_by_id.speaker, v_conversation);
    if args ->> 'option' <> 'any' and v_conversation.is_uow <> (args ->> 'option' = 'sync') then
        return null;
    end if;
    perform pgps_internal.refuse_lapsed(pgps_internal.lapsed_in_hand((receive_by_id.speaker).held, v_no, false));
    v_standing := pgps_internal.next_unit(v_no, v_to_server, receive_by_id.speaker);
    if v_standing.unit_no is null or not pgps_internal.lock_unit(v_standing.unit_no) then
        return null;
    elsif not pgps_internal.stands_as(v_standing, receive_by_id.speaker)
        -- The unit before it may have bound the conversation to another server meanwhile.
        or v_to_server and (pgps_internal.state_of(v_no)).server_id <> (receive_by_id.speaker).participant_id then
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
        select max(m.number) into v_count from pgps_internal.message_of_unit m where m.unit_no = v_standing.unit_no;
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
    v_has_right boolean := pgps_internal.has_service_right(sends_as_client.caller,
        (sends_as_client.conversation).service_id, 'serve');
    v_may_serve boolean := coalesce(v_state.server_id = v_me, exists (select from pgps_internal.serving s
        where s.session_id = (sends_as_client.speaker).session_id
            and s.service_id = (sends_as_client.conversation).service_id)) and v_has_right
        -- What it holds it may receive to its end.
        or coalesce(v_state.server_id = v_me, true) and (sends_as_client.speaker).held <> '{}'
            and exists (select from pgps_internal.unit u
                where u.unit_no = any ((sends_as_client.speaker).held) and u.conversation_no = v_no and u.to_server);
begin
    if (sends_as_client.conversation).client_id = v_me then
        -- Client and server may be the same participant: what waits for the client comes first.
        return not (v_may_serve
            and (pgps_internal.next_unit(v_no, false, sends_as_client.speaker)).unit_no is null
            and (pgps_internal.next_unit(v_no, true, sends_as_client.speaker)).unit_no is not null);
    elsif v_may_serve then
        return false;
    elsif v_state.server_id = v_me then
        perform pgps_internal.require_service_right(sends_as_client.caller, s, 'serve') from pgps_internal.service s
        where s.service_id = (sends_as_client.conversation).service_id;
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

create or replace function pgps_internal.may_serve_unit(speaker pgps_internal.speaker, unit_no bigint)
returns boolean
language plpgsql volatile
as $$
begin
    return (select pgps_internal.has_service_right(pg_get_userbyid((may_serve_unit.speaker).role::oid), u.service_id,
        'serve') from pgps_internal.unit u where u.unit_no = may_serve_unit.unit_no);
end
$$;
comment on function pgps_internal.may_serve_unit(pgps_internal.speaker, bigint) is
'True when the speaker has the right to serve the service that a unit was sent to';

create or replace function pgps_internal.receive_next(
    speaker pgps_internal.speaker, queues bigint[], chosen integer[], option text, user_status text
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
            v_entry := pgps_internal.first_waiting(receive_next.speaker, receive_next.queues[1], receive_next.option,
                receive_next.chosen, v_passed);
        else
            v_entry := pgps_internal.first_of_queues(receive_next.speaker, receive_next.queues, receive_next.option,
                receive_next.chosen, v_passed);
        end if;
        exit when v_entry.entry_no is null;
        -- The right to serve may have been taken back since the conversation was bound.
        if v_entry.to_server and v_entry.queue_id % 2 = 1
            and not pgps_internal.may_serve_unit(receive_next.speaker, v_entry.unit_no) then
            v_passed := v_passed || v_entry.conversation_no;
            continue;
        end if;
        if receive_next.user_status is null then
            v_row := pgps_internal.give_first(receive_next.speaker, v_entry);
            if v_row.uow_id is not null then
                return v_row;
            end if;
        end if;
        -- Looked at again, now that it is locked.
        v_standing := pgps_internal.how_stands(v_entry.unit_no, receive_next.speaker);
        exit when v_standing.status = 'ACCEPTED' and not v_standing.is_held_back
            and (v_standing.is_uow or pgps_internal.try_conversation(v_entry.conversation_no))
            -- The unit before it may have bound the conversation while the queue was read.
            and (v_entry.queue_id % 2 = 1
                or (pgps_internal.state_of(v_entry.conversation_no)).server_id is null);
        v_passed := v_passed || v_entry.conversation_no;
    end loop;
    if v_entry.entry_no is null then
        return null;
    end if;
    return pgps_internal.hand_out(receive_next.speaker, v_standing, receive_next.user_status);
end
$$;
comment on function pgps_internal.receive_next(pgps_internal.speaker, bigint[], integer[], text, text) is
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
    perform pgps_internal.refuse_lapsed(pgps_internal.lapsed_in_hand((receive_more.speaker).held, null, true));
    select s.* into v_standing
    from unnest((receive_more.speaker).held) with ordinality h(unit_no, place)
    join pgps_internal.unit_standing s using (unit_no)
    where s.status = 'DELIVERED' and s.receiver_session = (receive_more.speaker).session_id
        and coalesce(s.service_id = any (receive_more.chosen), true)
        and s.messages_given < (select max(m.number) from pgps_internal.message_of_unit m where m.unit_no = s.unit_no)
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
    v_args jsonb := args;
    v_which text;
    v_speaker pgps_internal.speaker;
    v_services record;
    v_row pgps.received_message;
begin
    v_which := lower(coalesce(args ->> 'conversation', 'any'));
    if args ->> 'option' not in ('sync', 'msg', 'any') or args ->> 'option' is null then
        v_args := args || jsonb_build_object('option', lower(coalesce(args ->> 'option', 'any')));
        if v_args ->> 'option' not in ('sync', 'msg', 'any') then
            raise exception 'unknown option "%" of receive_message', args ->> 'option' using errcode = '22023',
                hint = 'Give sync, msg or any.';
        end if;
    end if;
    if args ->> 'user_status' is not null then
        perform pgps_internal.check_user_status(args ->> 'user_status');
    end if;
    if v_which not in ('new', 'old', 'any') then
        return pgps_internal.receive_by_id(caller, pgps_internal.speak_with_hand(caller, args), v_args);
    end if;
    v_speaker := case v_which when 'new' then pgps_internal.speak(caller, args)
        else pgps_internal.speak_with_hand(caller, args) end;
    v_services := pgps_internal.services_to_receive(caller, v_speaker, v_args);
    if v_which <> 'new' then
        v_row := pgps_internal.receive_more(v_speaker, v_services.chosen, v_args);
        if v_row.status is null then
            v_row := pgps_internal.receive_next(v_speaker, array[pgps_internal.queue_of(v_speaker.participant_id)],
                v_services.chosen, v_args ->> 'option', args ->> 'user_status');
        end if;
    end if;
    if v_row.status is null and v_which <> 'old' then
        v_row := pgps_internal.receive_next(v_speaker,
            array(select pgps_internal.queue_of(n) from unnest(v_services.served) n), null, v_args ->> 'option',
            args ->> 'user_status');
    end if;
    return v_row;
end
$$;
comment on function pgps_internal.receive_message(name, jsonb) is 'See pgps.receive_message';
