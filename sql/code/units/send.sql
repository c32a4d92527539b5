-- Sending: conversations begin with it, and units of work (commit.sql).
-- Locks: the turn of the session; the conversation, when what is sent is committed with it.
-- Writes: nothing.

create or replace function pgps_internal.direction_of(
    speaker pgps_internal.speaker, conversation pgps_internal.conversation, state pgps_internal.conversation_state
) returns boolean
language plpgsql volatile
as $$
declare
    v_me bigint := (direction_of.speaker).participant_id;
    v_state pgps_internal.conversation_state := direction_of.state;
    v_holds boolean := (direction_of.speaker).held <> '{}' and exists (select from pgps_internal.unit u
        where u.unit_no = any ((direction_of.speaker).held)
            and u.conversation_no = (direction_of.conversation).conversation_no and u.to_server
            and u.ends_at > pgps_internal.clock());
    v_lapsed pgps_internal.unit_standing;
begin
    -- Who holds a unit of it answers, also where client and server are the same participant.
    if v_holds or v_state.server_id = v_me and (direction_of.conversation).client_id <> v_me then
        return false;
    elsif (direction_of.conversation).client_id = v_me then
        return true;
    end if;
    -- Of what was in its hand it hears that instead, also again: there is nothing else to send here.
    select s.* into v_lapsed from pgps_internal.unit_standing s
    where s.unit_no = any ((direction_of.speaker).held) and s.status = 'TIMEOUT'
        and s.conversation_no = (direction_of.conversation).conversation_no order by s.unit_no desc limit 1;
    perform pgps_internal.refuse_lapsed(v_lapsed);
    raise exception 'conversation "C%" is somebody else''s', upper(to_hex((direction_of.conversation).conversation_no))
    using errcode = '42501', hint = case when v_state.server_id is null
        then 'A server has it once it has received its first unit of work, until it backs it out.'
        else 'It is bound to the server that has committed its first unit of work: log on with that token.' end;
end
$$;
comment on function pgps_internal.direction_of(pgps_internal.speaker, pgps_internal.conversation,
    pgps_internal.conversation_state) is
'Which way the speaker sends in a conversation: true: to the server. 42501 when it is neither client nor server of it,
55000 when it was its server for a unit that has timed out.';

create or replace function pgps_internal.conversation_to_send_in(
    caller name, speaker pgps_internal.speaker, args jsonb, is_uow boolean, out conversation pgps_internal.conversation,
    out service pgps_internal.service, out to_server boolean, out is_new boolean,
    out state pgps_internal.conversation_state
) returns record
language plpgsql
as $$
declare
    v_parts text[] := string_to_array(args ->> 'to_service', '/');
begin
    is_new := lower(coalesce(args ->> 'conversation', 'new')) = 'new';
    if is_new then
        if cardinality(v_parts) is distinct from 3 then
            raise exception 'invalid service "%"', args ->> 'to_service' using errcode = '22023',
                hint = 'Give to_service => ''class/server/service'', or the id of a conversation.';
        end if;
        service := pgps_internal.find_service(v_parts[1], v_parts[2], v_parts[3]);
        perform pgps_internal.require_service_right(caller, service, 'send');
        if service.broker is not null then
            perform pgps_internal.require_awaited(service);
        elsif not coalesce(service.deferred, pgps_internal.setting('uow_deferred')::boolean)
            and not pgps_internal.is_served(service.service_id) then
            raise exception 'service "%" is not registered, and not deferred', pgps_internal.service_name(service)
            using errcode = '55000', hint = 'Start a server of it, or let it be sent to meanwhile: '
                || format('select pgps.alter_service(%L, %L, %L, deferred => true).', v_parts[1], v_parts[2],
                v_parts[3]);
        end if;
        conversation := pgps_internal.begin_conversation(speaker, service, is_uow);
        to_server := true;
        state := (0, conversation.conversation_no, 0, null, 0, 0, null, null, null);
        return;
    end if;
    conversation := pgps_internal.find_conversation(args ->> 'conversation', speaker);
    select s.* into service from pgps_internal.service s where s.service_id = conversation.service_id;
    if args ->> 'to_service' is not null and array(select pgps_internal.fold_part(p) from unnest(v_parts) p)
        <> array[service.class, service.server, service.service] then
        raise exception 'conversation "%" is with service "%", not "%"', args ->> 'conversation',
            pgps_internal.service_name(service), args ->> 'to_service'
        using errcode = '22023', hint = 'Leave to_service out, or begin a conversation => ''new''.';
    end if;
    state := pgps_internal.state_of(conversation.conversation_no);
    to_server := pgps_internal.direction_of(speaker, conversation, state);
    perform pgps_internal.require_service_right(caller, service, case when to_server then 'send' else 'serve' end);
    if state.ended is not null then
        raise exception 'conversation "%" has ended (%)', args ->> 'conversation', state.ended using errcode = '55000',
            hint = 'Begin another one: conversation => ''new''.';
    elsif conversation.is_uow <> is_uow then
        raise exception 'conversation "%" has %', args ->> 'conversation', case when conversation.is_uow
            then 'units of work: option "msg" is not allowed in it'
            else 'messages that belong to no unit of work: options "sync" and "commit" are not allowed in it' end
        using errcode = '55000', hint = 'A conversation has one kind or the other, as its first message was sent.';
    end if;
end
$$;
comment on function pgps_internal.conversation_to_send_in(name, pgps_internal.speaker, jsonb, boolean) is
'The conversation that a call sends in, a new one or the one named, with its service; to_server: which way. Errors: see
pgps.send_message.';

create or replace function pgps_internal.unit_being_sent(
    speaker pgps_internal.speaker, conversation pgps_internal.conversation, to_server boolean
) returns pgps_internal.unit_standing
language plpgsql volatile
as $$
declare
    v_unit bigint;
    v_standing pgps_internal.unit_standing;
begin
    if (unit_being_sent.speaker).sent = '{}' then
        return null;
    end if;
    select u.unit_no into v_unit from pgps_internal.unit u
    where u.unit_no = any ((unit_being_sent.speaker).sent)
        and u.conversation_no = (unit_being_sent.conversation).conversation_no
        and u.to_server = unit_being_sent.to_server
        and not exists (select from pgps_internal.unit_told t where t.unit_no = u.unit_no)
    order by u.unit_no desc limit 1;
    if v_unit is null then
        return null;
    end if;
    v_standing := pgps_internal.how_stands(v_unit, unit_being_sent.speaker);
    if v_standing.status <> 'RECEIVED' then
        perform pgps_internal.note_told(v_unit, v_standing.status);
        raise exception 'unit of work "U%" is in status %', upper(to_hex(v_unit)), v_standing.status
        using errcode = '55000', hint = 'Messages are added to one in status RECEIVED; send again to begin another.';
    end if;
    return v_standing;
end
$$;
comment on function pgps_internal.unit_being_sent(pgps_internal.speaker, pgps_internal.conversation, boolean) is
'The unit to which a session adds messages in a conversation; null: it has begun none. Raises 55000, once, when that one
has timed out.';

create or replace function pgps_internal.send_message(caller name, args jsonb, message bytea)
returns pgps.received_message
language plpgsql
as $$
declare
    v_option text := lower(args ->> 'option');
    v_speaker pgps_internal.speaker;
    v_place record;
    v_unit bigint;
    v_is_first boolean;
    v_standing pgps_internal.unit_standing;
    v_state pgps_internal.conversation_state;
begin
    perform pgps_internal.check_message(args ->> 'option', send_message.message);
    -- A conversation and its only message: nothing stays in hand.
    v_speaker := case when v_option <> 'sync' and lower(coalesce(args ->> 'conversation', 'new')) = 'new'
        then pgps_internal.speak(caller, args, true) else pgps_internal.speak_with_hand(caller, args) end;
    v_place := pgps_internal.conversation_to_send_in(caller, v_speaker, args, v_option <> 'msg');
    perform pgps_internal.unit_limit((v_place.service).max_message_bytes, 'uow_max_message_bytes', v_place.service,
        'max_message_bytes', octet_length(send_message.message), 'bytes in a message');
    if v_option <> 'msg' and not v_place.is_new then
        v_standing := pgps_internal.unit_being_sent(v_speaker, v_place.conversation, v_place.to_server);
    end if;
    v_is_first := v_standing.unit_no is null;
    if v_is_first then
        v_standing := pgps_internal.begin_unit(v_speaker, v_place.service, v_place.conversation, v_place.to_server,
            args, send_message.message);
    else
        perform from pgps_internal.unit u where u.unit_no = v_standing.unit_no for update;
        perform pgps_internal.note_user_status(v_standing.unit_no, args ->> 'user_status');
        v_standing.user_status := coalesce(args ->> 'user_status', v_standing.user_status);
        perform pgps_internal.add_message(v_standing.unit_no, v_place.service, send_message.message);
    end if;
    v_unit := v_standing.unit_no;
    v_state := v_place.state;
    if v_option = 'sync' then
        if v_is_first then
            perform pgps_internal.put_in_hand(v_speaker, sent => array[v_unit]);
        end if;
        return pgps_internal.row_from(v_standing, v_state, 'RECEIVED', null, v_place.service);
    end if;
    if not v_place.is_new then
        v_state := pgps_internal.lock_and_require_open((v_place.conversation).conversation_no);
    end if;
    v_standing.committed_at := pgps_internal.commit_unit(v_standing, v_place.conversation, v_state);
    if not v_is_first then
        perform pgps_internal.put_in_hand(v_speaker, gone => array[v_unit]);
    end if;
    v_state.first_commit_at := case when v_place.is_new then v_standing.committed_at else v_state.first_commit_at end;
    return pgps_internal.row_from(v_standing, v_state, 'ACCEPTED', null, v_place.service);
end
$$;
comment on function pgps_internal.send_message(name, jsonb, bytea) is 'See pgps.send_message';

create or replace function pgps_internal.check_message(option text, message bytea) returns void
language plpgsql immutable
as $$
begin
    if lower(check_message.option) not in ('sync', 'commit', 'msg') or check_message.option is null then
        raise exception 'unknown option "%" of send_message', check_message.option using errcode = '22023',
            hint = 'Give sync, commit or msg.';
    elsif check_message.message is null then
        raise exception 'the message is null' using errcode = '22023', hint = 'Give bytes, which may be none: ''''.';
    end if;
end
$$;
comment on function pgps_internal.check_message(text, bytea) is
'Raises 22023 unless there is a message, and it may be sent with an option';

create or replace function pgps_internal.lock_and_require_open(conversation_no bigint)
returns pgps_internal.conversation_state
language plpgsql
as $$
declare
    v_state pgps_internal.conversation_state;
begin
    perform pgps_internal.lock_conversations(array[lock_and_require_open.conversation_no]);
    v_state := pgps_internal.state_of(lock_and_require_open.conversation_no);
    perform pgps_internal.require_not_ended(v_state);
    return v_state;
end
$$;
comment on function pgps_internal.lock_and_require_open(bigint) is
'Locks a conversation until the transaction ends; 55000 when it has ended';

create or replace function pgps_internal.require_not_ended(state pgps_internal.conversation_state) returns void
language plpgsql immutable
as $$
begin
    if (require_not_ended.state).ended is not null then
        raise exception 'conversation "C%" has ended (%)', upper(to_hex((require_not_ended.state).conversation_no)),
            (require_not_ended.state).ended
        using errcode = '55000', hint = 'Back the unit of work out, and begin another conversation.';
    end if;
end
$$;
comment on function pgps_internal.require_not_ended(pgps_internal.conversation_state) is
'Raises 55000 when a conversation has ended';
