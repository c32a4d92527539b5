-- Sending: conversations begin with it, and units of work.
-- Locks: the turn of the session; the conversation, when what is sent is committed with it.
-- Writes: conversation, unit, unit_commit, unit_count, unit_message, unit_note.

create or replace function pgps_internal.unit_limit(own integer, name text, service pgps_internal.service,
    attribute text, value bigint, what text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_limit bigint := coalesce(unit_limit.own, pgps_internal.setting(unit_limit.name)::bigint);
begin
    if unit_limit.value > v_limit then
        raise exception 'service "%" takes at most % %: % is %', pgps_internal.service_name(unit_limit.service),
            v_limit, unit_limit.what,
            case when unit_limit.own is null then 'setting ' || unit_limit.name else unit_limit.attribute end, v_limit
        using errcode = '54000', hint = format('An administrator changes it with pgps.alter_service(%L, %L, %L, %s '
            '=> …).', (unit_limit.service).class, (unit_limit.service).server, (unit_limit.service).service,
            unit_limit.attribute);
    end if;
end
$$;
comment on function pgps_internal.unit_limit(integer, text, pgps_internal.service, text, bigint, text) is
'Raises 54000 when a value is above the limit of a service (own) or, where that is null, of the broker (name)';

create or replace function pgps_internal.check_active(service pgps_internal.service) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_broker bigint := pgps_internal.setting('uow_max_active')::bigint;
    v_own bigint := (check_active.service).max_uows;
    v_last bigint := coalesce(pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass), 0);
    v_at bigint;
    v_active bigint;
begin
    if v_own is not null then
        -- Newest first, and no more than the limit are counted.
        perform pgps_internal.unit_limit((check_active.service).max_uows, 'uow_max_active', check_active.service,
            'max_uows', 1 + count(*), 'active units of work')
        from (select from pgps_internal.unit_standing u
            where u.service_id = (check_active.service).service_id and u.is_uow and u.is_active limit v_own) a;
    end if;
    -- All of them are counted only when there may be too many: each takes three numbers, so that there are not more
    -- than were counted last, and a third of the numbers since then.
    select c.at_no, c.active into v_at, v_active from pgps_internal.unit_count c order by c.at_no desc limit 1;
    if not found then
        v_at := coalesce((select min(u.unit_no) from pgps_internal.unit u), v_last);
        v_active := 0;
    end if;
    if v_active + (v_last - v_at) / 3 + 1 >= v_broker then
        select count(*) into v_active
        from (select from pgps_internal.unit_standing u where u.is_uow and u.is_active limit v_broker) a;
        perform pgps_internal.unit_limit(null, 'uow_max_active', check_active.service, 'max_uows', 1 + v_active,
            'active units of work');
        insert into pgps_internal.unit_count (at_no, active) values (v_last, v_active);
    end if;
end
$$;
comment on function pgps_internal.check_active(pgps_internal.service) is
'Raises 54000 when a service, or the broker, has as many active units of work as it may';

create or replace function pgps_internal.check_user_status(user_status text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if octet_length(check_user_status.user_status) > 32 then
        raise exception 'user status "%" has % bytes', left(check_user_status.user_status, 40),
            octet_length(check_user_status.user_status)
        using errcode = '54000', hint = 'A user status has at most 32 bytes.';
    end if;
end
$$;
comment on function pgps_internal.check_user_status(text) is 'Raises 54000 when a user status is longer than 32 bytes';

create or replace function pgps_internal.note_user_status(unit_no bigint, user_status text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
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
set search_path = pg_catalog, pg_temp
as $$
declare
    v_no bigint := nextval('pgps_internal.uow_no_seq');
    v_conversation pgps_internal.conversation;
begin
    insert into pgps_internal.conversation (at_no, conversation_no, service_id, client_id, is_uow, life_id, began_at)
    values (v_no, v_no, (begin_conversation.service).service_id, (begin_conversation.speaker).participant_id,
        begin_conversation.is_uow, (begin_conversation.speaker).life_id, pgps_internal.clock())
    returning * into v_conversation;
    return v_conversation;
end
$$;
comment on function pgps_internal.begin_conversation(pgps_internal.speaker, pgps_internal.service, boolean) is
'A new conversation of a client with a service';

create or replace function pgps_internal.begin_unit(
    speaker pgps_internal.speaker, service pgps_internal.service, conversation pgps_internal.conversation,
    to_server boolean, args jsonb
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_no bigint := nextval('pgps_internal.uow_no_seq');
    v_store text := lower(args ->> 'store');
    v_lifetime interval := (args ->> 'lifetime')::interval;
    v_times integer := coalesce((args ->> 'status_lifetime')::integer, 0);
    v_now timestamptz := pgps_internal.clock();
begin
    perform pgps_internal.check_lifetime(v_lifetime), pgps_internal.check_user_status(args ->> 'user_status');
    if v_store not in ('off', 'broker', 'no') or v_store is null then
        raise exception 'unknown store "%"', args ->> 'store' using errcode = '22023',
            hint = 'Give off (as the service says), broker or no.';
    elsif v_times not between 0 and 255 then
        raise exception 'invalid status_lifetime %', v_times using errcode = '22023',
            hint = 'Give 1 to 254 times the lifetime, 0 for what the service says, or 255 for none.';
    end if;
    v_store := case v_store when 'off' then coalesce(begin_unit.service.store, pgps_internal.setting('uow_store'))
        else v_store end;
    v_lifetime := coalesce(v_lifetime, begin_unit.service.lifetime, pgps_internal.setting('uow_lifetime')::interval);
    v_times := case v_times when 255 then 0
        when 0 then coalesce(begin_unit.service.status_lifetime,
            pgps_internal.setting('uow_status_lifetime')::integer)
        else v_times end;
    if v_store = 'broker' and pgps_internal.setting('uow_persistent_store') = 'no' then
        raise exception 'this broker has no persistent store' using errcode = '55000',
            hint = 'Send with store => ''no'', or as an administrator: select pgps.configure(''uow_persistent_store'', '
                '''hot'').';
    elsif v_store = 'broker' and (begin_unit.speaker).token is null then
        raise exception 'persistent units of work need a token' using errcode = '55000',
            hint = 'Log on with one, select pgps.logon(''token''), or send with store => ''no''.';
    end if;
    if begin_unit.conversation.is_uow then
        perform pgps_internal.check_active(begin_unit.service);
    end if;
    insert into pgps_internal.unit (at_no, unit_no, conversation_no, service_id, to_server, is_uow, sender_id,
        session_id, life_id, is_persistent, status_for, began_at, ends_at, user_status)
    values (v_no, v_no, begin_unit.conversation.conversation_no, begin_unit.service.service_id, begin_unit.to_server,
        begin_unit.conversation.is_uow, (begin_unit.speaker).participant_id, (begin_unit.speaker).session_id,
        (begin_unit.speaker).life_id, v_store = 'broker', nullif(v_times, 0) * v_lifetime, v_now, v_now + v_lifetime,
        args ->> 'user_status');
    return v_no;
end
$$;
comment on function pgps_internal.begin_unit(pgps_internal.speaker, pgps_internal.service, pgps_internal.conversation,
    boolean, jsonb) is
'A new unit of work, or message that belongs to none, in a conversation: the options of the call, then those of the
service, then those of the broker count. Errors: 22023, 54000, 55000.';

create or replace function pgps_internal.commit_unit(unit_no bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_unit pgps_internal.unit;
    v_xid xid8 := pg_current_xact_id();
    v_no bigint;
    v_queue bigint;
    v_client bigint;
begin
    select u.* into v_unit from pgps_internal.unit u where u.unit_no = commit_unit.unit_no;
    select c.client_id into v_client from pgps_internal.conversation c
    where c.conversation_no = v_unit.conversation_no;
    v_queue := case when v_unit.to_server
        then coalesce(pgps_internal.queue_of((pgps_internal.state_of(v_unit.conversation_no)).server_id),
            pgps_internal.queue_of(v_unit.service_id))
        else pgps_internal.queue_of(v_client) end;
    -- The transaction has an id before it takes a number: see pgps_internal.advance_queue.
    v_no := nextval('pgps_internal.uow_no_seq');
    insert into pgps_internal.unit_commit (at_no, queue_id, entry_no, conversation_no, unit_no, to_server, commit_no,
        committed_at, xid)
    values (v_no, v_queue, v_no, v_unit.conversation_no, v_unit.unit_no, v_unit.to_server, v_no, pgps_internal.clock(),
        v_xid);
    perform pgps_internal.wake_queue(v_queue);
end
$$;
comment on function pgps_internal.commit_unit(bigint) is
'The sender''s SYNCPOINT: queues a unit for its service or, in a conversation that is bound, for who has it. The caller
has locked the conversation.';

create or replace function pgps_internal.wake_queue(queue_id bigint) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$ select pg_notify('pgps_uow_' || wake_queue.queue_id, '') $$;
comment on function pgps_internal.wake_queue(bigint) is
'Wakes who listens for what comes into a queue of units of work';

create or replace function pgps_internal.direction_of(
    speaker pgps_internal.speaker, conversation pgps_internal.conversation, action text
) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_me bigint := (direction_of.speaker).participant_id;
    v_state pgps_internal.conversation_state := pgps_internal.state_of((direction_of.conversation).conversation_no);
    v_holds boolean := exists (select from unnest((pgps_internal.hand_of((direction_of.speaker).session_id)).held) n
        join pgps_internal.unit_standing u on u.unit_no = n
        where u.conversation_no = (direction_of.conversation).conversation_no and u.to_server
            and u.status = 'DELIVERED');
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
comment on function pgps_internal.direction_of(pgps_internal.speaker, pgps_internal.conversation, text) is
'Which way the speaker sends in a conversation: true: to the server. 42501 when it is neither client nor server of it.';

create or replace function pgps_internal.add_message(unit_no bigint, service pgps_internal.service, message bytea)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number integer;
begin
    v_number := 1 + coalesce((select max(m.number) from pgps_internal.unit_message m
        where m.unit_no = add_message.unit_no), 0);
    perform pgps_internal.unit_limit((add_message.service).max_messages_in_uow, 'uow_max_messages',
        add_message.service, 'max_messages_in_uow', v_number, 'messages in a unit of work');
    insert into pgps_internal.unit_message (at_no, unit_no, number, message)
    values (nextval('pgps_internal.uow_no_seq'), add_message.unit_no, v_number, add_message.message);
    return v_number;
end
$$;
comment on function pgps_internal.add_message(bigint, pgps_internal.service, bytea) is
'Adds a message to a unit; returns its number. Errors: 54000.';

create or replace function pgps_internal.conversation_to_send_in(
    caller name, speaker pgps_internal.speaker, args jsonb, is_uow boolean, out conversation pgps_internal.conversation,
    out service pgps_internal.service, out to_server boolean, out is_new boolean
) returns record
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_parts text[] := string_to_array(args ->> 'to_service', '/');
    v_ended text;
begin
    is_new := lower(coalesce(args ->> 'conversation', 'new')) = 'new';
    if is_new then
        if cardinality(v_parts) is distinct from 3 then
            raise exception 'invalid service "%"', args ->> 'to_service' using errcode = '22023',
                hint = 'Give to_service => ''class/server/service'', or the id of a conversation.';
        end if;
        service := pgps_internal.find_service(v_parts[1], v_parts[2], v_parts[3]);
        perform pgps_internal.require_service_right(caller, service, 'send');
        if not coalesce(service.deferred, pgps_internal.setting('uow_deferred')::boolean)
            and not pgps_internal.is_served(service.service_id) then
            raise exception 'service "%" is not registered, and not deferred', pgps_internal.service_name(service)
            using errcode = '55000', hint = 'Start a server of it, or let it be sent to meanwhile: '
                || format('select pgps.alter_service(%L, %L, %L, deferred => true).', v_parts[1], v_parts[2],
                v_parts[3]);
        end if;
        conversation := pgps_internal.begin_conversation(speaker, service, is_uow);
        to_server := true;
        return;
    end if;
    conversation := pgps_internal.find_conversation(args ->> 'conversation');
    select s.* into service from pgps_internal.service s where s.service_id = conversation.service_id;
    if args ->> 'to_service' <> pgps_internal.service_name(service) then
        raise exception 'conversation "%" is with service "%", not "%"', args ->> 'conversation',
            pgps_internal.service_name(service), args ->> 'to_service'
        using errcode = '22023', hint = 'Leave to_service out, or begin a conversation => ''new''.';
    end if;
    to_server := pgps_internal.direction_of(speaker, conversation, 'send');
    perform pgps_internal.require_service_right(caller, service, case when to_server then 'send' else 'serve' end);
    v_ended := (pgps_internal.state_of(conversation.conversation_no)).ended;
    if v_ended is not null then
        raise exception 'conversation "%" has ended (%)', args ->> 'conversation', v_ended using errcode = '55000',
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

create or replace function pgps_internal.send_message(caller name, args jsonb, message bytea)
returns pgps.received_message
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_option text := lower(args ->> 'option');
    v_speaker pgps_internal.speaker;
    v_place record;
    v_unit bigint;
    v_is_first boolean := true;
    v_status text;
begin
    if v_option not in ('sync', 'commit', 'msg') or v_option is null then
        raise exception 'unknown option "%" of send_message', args ->> 'option' using errcode = '22023',
            hint = 'Give sync, commit or msg.';
    elsif send_message.message is null then
        raise exception 'the message is null' using errcode = '22004', hint = 'Give bytes, which may be none: ''''.';
    end if;
    v_speaker := pgps_internal.speak(caller, args);
    v_place := pgps_internal.conversation_to_send_in(caller, v_speaker, args, v_option <> 'msg');
    perform pgps_internal.unit_limit((v_place.service).max_message_bytes, 'uow_max_message_bytes', v_place.service,
        'max_message_bytes', octet_length(send_message.message), 'bytes in a message');
    if v_option <> 'msg' and not v_place.is_new then
        select u.unit_no, u.status into v_unit, v_status
        from unnest((pgps_internal.hand_of(v_speaker.session_id)).sent) n
        join pgps_internal.unit_standing u on u.unit_no = n
        where u.conversation_no = (v_place.conversation).conversation_no and u.to_server = v_place.to_server
            and u.commit_no is null and u.status <> 'GONE'
        order by n desc limit 1;
        if v_status <> 'RECEIVED' then
            raise exception 'unit of work "U%" is in status %', upper(to_hex(v_unit)), v_status
            using errcode = '55000', hint = 'Messages are added to one in status RECEIVED; send again to begin '
                'another.';
        end if;
    end if;
    if v_unit is null then
        v_unit := pgps_internal.begin_unit(v_speaker, v_place.service, v_place.conversation, v_place.to_server, args);
    else
        v_is_first := false;
        perform from pgps_internal.unit u where u.unit_no = v_unit for update;
        perform pgps_internal.note_user_status(v_unit, args ->> 'user_status');
    end if;
    perform pgps_internal.add_message(v_unit, v_place.service, send_message.message);
    if v_option = 'sync' then
        if v_is_first then
            perform pgps_internal.put_in_hand(v_speaker.session_id, sent => array[v_unit]);
        end if;
        return pgps_internal.row_of(v_unit);
    end if;
    if not v_place.is_new then
        perform pgps_internal.lock_and_require_open((v_place.conversation).conversation_no);
    end if;
    perform pgps_internal.commit_unit(v_unit);
    if not v_is_first then
        perform pgps_internal.put_in_hand(v_speaker.session_id, gone => array[v_unit]);
    end if;
    return pgps_internal.row_of(v_unit);
end
$$;
comment on function pgps_internal.send_message(name, jsonb, bytea) is 'See pgps.send_message';

create or replace function pgps_internal.lock_and_require_open(conversation_no bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ended text;
begin
    perform pgps_internal.lock_conversations(array[lock_and_require_open.conversation_no]);
    v_ended := (pgps_internal.state_of(lock_and_require_open.conversation_no)).ended;
    if v_ended is not null then
        raise exception 'conversation "C%" has ended (%)', upper(to_hex(lock_and_require_open.conversation_no)), v_ended
        using errcode = '55000', hint = 'Back the unit of work out, and begin another conversation.';
    end if;
end
$$;
comment on function pgps_internal.lock_and_require_open(bigint) is
'Locks a conversation until the transaction ends; 55000 when it has ended';
