-- Sending: conversations begin with it, and units of work.
-- Locks: the turn of the session; the conversation, when what is sent is committed with it.
-- Writes: conversation, unit, unit_commit, unit_message, unit_note.

create or replace function pgps_internal.note_user_status(unit_no bigint, user_status text) returns void
language plpgsql
as $$
begin
    if note_user_status.user_status is null then
        return;
    end if;
    perform pgps_internal.check_user_status(note_user_status.user_status);
    insert into pgps_internal.unit_note (at_no, unit_no, version, user_status)
    select nextval('pgps_internal.uow_no_seq'), note_user_status.unit_no, 1 + coalesce(max(n.version), 0),
        note_user_status.user_status
    from pgps_internal.unit_note n where n.unit_no = note_user_status.unit_no;
end
$$;
comment on function pgps_internal.note_user_status(bigint, text) is
'Writes the user status of a unit; null: it stays as it is. Errors: 54000.';

create or replace function pgps_internal.begin_conversation(
    speaker pgps_internal.speaker, service pgps_internal.service, is_uow boolean
) returns pgps_internal.conversation
language plpgsql
as $$
declare
    v_no bigint := nextval('pgps_internal.uow_no_seq');
    v_conversation pgps_internal.conversation;
begin
    insert into pgps_internal.conversation (at_no, conversation_no, service_id, client_id, is_uow, life_id, began_at,
        broker)
    values (v_no, v_no, (begin_conversation.service).service_id, (begin_conversation.speaker).participant_id,
        begin_conversation.is_uow, (begin_conversation.speaker).life_id, pgps_internal.clock(),
        (begin_conversation.service).broker)
    returning * into v_conversation;
    return v_conversation;
end
$$;
comment on function pgps_internal.begin_conversation(pgps_internal.speaker, pgps_internal.service, boolean) is
'A new conversation of a client with a service';

create or replace function pgps_internal.begin_unit(
    speaker pgps_internal.speaker, service pgps_internal.service, conversation pgps_internal.conversation,
    to_server boolean, args jsonb
) returns pgps_internal.unit_standing
language plpgsql
as $$
declare
    v_standing pgps_internal.unit_standing;
    v_no bigint := nextval('pgps_internal.uow_no_seq');
    v_options record;
    v_now timestamptz := pgps_internal.clock();
begin
    v_options := pgps_internal.options_of(begin_unit.speaker, begin_unit.service, args);
    if begin_unit.conversation.is_uow then
        perform pgps_internal.check_active(begin_unit.service, v_now + v_options.lifetime,
            lower(args ->> 'option') = 'commit');
    end if;
    insert into pgps_internal.unit (at_no, unit_no, conversation_no, service_id, to_server, is_uow, sender_id,
        session_id, life_id, is_persistent, status_for, began_at, ends_at, user_status, is_relayed)
    values (v_no, v_no, begin_unit.conversation.conversation_no, begin_unit.service.service_id, begin_unit.to_server,
        begin_unit.conversation.is_uow, (begin_unit.speaker).participant_id, (begin_unit.speaker).session_id,
        (begin_unit.speaker).life_id, v_options.is_persistent, v_options.status_for, v_now, v_now + v_options.lifetime,
        args ->> 'user_status', pgps_internal.queue_for(begin_unit.to_server, begin_unit.conversation, null) = 0);
    v_standing.unit_no := v_no;
    v_standing.conversation_no := begin_unit.conversation.conversation_no;
    v_standing.service_id := begin_unit.service.service_id;
    v_standing.to_server := begin_unit.to_server;
    v_standing.is_uow := begin_unit.conversation.is_uow;
    v_standing.sender_id := (begin_unit.speaker).participant_id;
    v_standing.is_persistent := v_options.is_persistent;
    v_standing.ends_at := v_now + v_options.lifetime;
    v_standing.attempts := 0;
    v_standing.user_status := args ->> 'user_status';
    return v_standing;
end
$$;
comment on function pgps_internal.begin_unit(pgps_internal.speaker, pgps_internal.service, pgps_internal.conversation,
    boolean, jsonb) is
'A new unit of work, or message that belongs to none, in a conversation, and how it stands. Errors: those of options_of
and check_active.';

create or replace function pgps_internal.queue_for(
    to_server boolean, conversation pgps_internal.conversation, state pgps_internal.conversation_state
) returns bigint
language plpgsql immutable
as $$
begin
    -- Nobody reads queue 0: who receives it is at another broker.
    return case
        when (queue_for.conversation).broker is not null
            and ((queue_for.conversation).their_no is null) = queue_for.to_server then 0
        when not queue_for.to_server then pgps_internal.queue_of((queue_for.conversation).client_id)
        when (queue_for.state).server_id is not null then pgps_internal.queue_of((queue_for.state).server_id)
        else pgps_internal.queue_of((queue_for.conversation).service_id) end;
end
$$;
comment on function pgps_internal.queue_for(boolean, pgps_internal.conversation, pgps_internal.conversation_state) is
'The queue of what is sent that way in a conversation: of its client, of the server that it is bound to, of its
service';

create or replace function pgps_internal.commit_unit(
    standing pgps_internal.unit_standing, conversation pgps_internal.conversation,
    state pgps_internal.conversation_state
) returns timestamptz
language plpgsql
as $$
declare
    v_queue bigint := pgps_internal.queue_for(commit_unit.standing.to_server, commit_unit.conversation,
        commit_unit.state);
    v_xid xid8 := pg_current_xact_id();
    v_now timestamptz := pgps_internal.clock();
    -- The transaction has an id before it takes a number: see pgps_internal.advance_queue.
    v_no bigint := nextval('pgps_internal.uow_no_seq');
begin
    insert into pgps_internal.unit_commit (at_no, queue_id, entry_no, conversation_no, unit_no, to_server, commit_no,
        committed_at, xid)
    values (v_no, v_queue, v_no, commit_unit.standing.conversation_no, commit_unit.standing.unit_no,
        commit_unit.standing.to_server, v_no, v_now, v_xid);
    if v_queue = 0 then
        perform pgps_internal.relay_unit(u, commit_unit.conversation) from pgps_internal.unit u
        where u.unit_no = commit_unit.standing.unit_no;
    else
        perform pgps_internal.wake_queue(v_queue);
    end if;
    return v_now;
end
$$;
comment on function pgps_internal.commit_unit(pgps_internal.unit_standing, pgps_internal.conversation,
    pgps_internal.conversation_state) is
'The sender''s SYNCPOINT: queues a unit for its service or, in a conversation that is bound, for who has it; returns
when. The caller has locked the conversation.';

create or replace function pgps_internal.wake_queue(queue_id bigint) returns void
language sql
as $$ select pg_notify('pgps_uow_' || wake_queue.queue_id, '') $$;
comment on function pgps_internal.wake_queue(bigint) is
'Wakes who listens for what comes into a queue of units of work';

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
begin
    -- Who holds a unit of it answers, also where client and server are the same participant.
    if v_holds or v_state.server_id = v_me and (direction_of.conversation).client_id <> v_me then
        return false;
    elsif (direction_of.conversation).client_id = v_me then
        return true;
    end if;
    raise exception 'conversation "C%" is somebody else''s', upper(to_hex((direction_of.conversation).conversation_no))
    using errcode = '42501', hint = case when v_state.server_id is null
        then 'A server has it once it has received its first unit of work, until it backs it out.'
        else 'It is bound to the server that has committed its first unit of work: log on with that token.' end;
end
$$;
comment on function pgps_internal.direction_of(pgps_internal.speaker, pgps_internal.conversation,
    pgps_internal.conversation_state) is
'Which way the speaker sends in a conversation: true: to the server. 42501 when it is neither client nor server of it.';

create or replace function pgps_internal.add_message(unit_no bigint, service pgps_internal.service, message bytea,
    is_first boolean) returns integer
language plpgsql
as $$
declare
    v_number integer := 1;
begin
    if not add_message.is_first then
        v_number := 1 + (select max(m.number) from pgps_internal.unit_message m
            where m.unit_no = add_message.unit_no);
    end if;
    perform pgps_internal.unit_limit((add_message.service).max_messages_in_uow, 'uow_max_messages',
        add_message.service, 'max_messages_in_uow', v_number, 'messages in a unit of work');
    insert into pgps_internal.unit_message (at_no, unit_no, number, message)
    values (nextval('pgps_internal.uow_no_seq'), add_message.unit_no, v_number, add_message.message);
    return v_number;
end
$$;
comment on function pgps_internal.add_message(bigint, pgps_internal.service, bytea, boolean) is
'Adds a message to a unit; returns its number. Errors: 54000.';

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
    v_sent bigint[] := (pgps_internal.hand_of((unit_being_sent.speaker).session_id)).sent;
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
    -- A conversation and its only message, so that nothing stays in hand.
    v_is_whole boolean;
    v_row pgps.received_message;
begin
    if v_option not in ('sync', 'commit', 'msg') or v_option is null then
        raise exception 'unknown option "%" of send_message', args ->> 'option' using errcode = '22023',
            hint = 'Give sync, commit or msg.';
    elsif send_message.message is null then
        raise exception 'the message is null' using errcode = '22004', hint = 'Give bytes, which may be none: ''''.';
    end if;
    v_is_whole := v_option <> 'sync' and lower(coalesce(args ->> 'conversation', 'new')) = 'new';
    v_speaker := pgps_internal.speak(caller, args, v_is_whole);
    if not v_is_whole then
        v_speaker := pgps_internal.with_hand(v_speaker);
    end if;
    v_row := pgps_internal.send_simply(caller, v_speaker, args, send_message.message);
    if v_row.uow_id is null then
        v_row := pgps_internal.send_anyhow(caller, v_speaker, args, send_message.message);
    end if;
    return v_row;
end
$$;
comment on function pgps_internal.send_message(name, jsonb, bytea) is 'See pgps.send_message';

create or replace function pgps_internal.send_anyhow(
    caller name, speaker pgps_internal.speaker, args jsonb, message bytea
) returns pgps.received_message
language plpgsql
as $$
declare
    v_option text := lower(args ->> 'option');
    v_speaker pgps_internal.speaker := send_anyhow.speaker;
    v_place record;
    v_unit bigint;
    v_is_first boolean;
    v_standing pgps_internal.unit_standing;
    v_state pgps_internal.conversation_state;
begin
    v_place := pgps_internal.conversation_to_send_in(caller, v_speaker, args, v_option <> 'msg');
    perform pgps_internal.unit_limit((v_place.service).max_message_bytes, 'uow_max_message_bytes', v_place.service,
        'max_message_bytes', octet_length(send_anyhow.message), 'bytes in a message');
    if v_option <> 'msg' and not v_place.is_new then
        v_standing := pgps_internal.unit_being_sent(v_speaker, v_place.conversation, v_place.to_server);
    end if;
    v_is_first := v_standing.unit_no is null;
    if v_is_first then
        v_standing := pgps_internal.begin_unit(v_speaker, v_place.service, v_place.conversation, v_place.to_server,
            args);
    else
        perform from pgps_internal.unit u where u.unit_no = v_standing.unit_no for update;
        perform pgps_internal.note_user_status(v_standing.unit_no, args ->> 'user_status');
        v_standing.user_status := coalesce(args ->> 'user_status', v_standing.user_status);
    end if;
    v_unit := v_standing.unit_no;
    perform pgps_internal.add_message(v_unit, v_place.service, send_anyhow.message, v_is_first);
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
comment on function pgps_internal.send_anyhow(name, pgps_internal.speaker, jsonb, bytea) is
'Sends a message; see pgps.send_message';

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
