-- What is sent becomes a unit of work, which is committed into the queue of its receiver.
-- Locks: the conversation, when what is sent is committed with it.
-- Writes: conversation, unit, unit_commit, unit_message, unit_note.

create or replace view pgps_internal.message_of_unit as
select u.unit_no, 1 as number, u.message from pgps_internal.unit u where u.message is not null
union all
select m.unit_no, m.number, m.message from pgps_internal.unit_message m;
comment on view pgps_internal.message_of_unit is
'The messages of units, which have the first one in their row, unless it came from another broker';

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
    to_server boolean, args jsonb, message bytea
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
    perform pgps_internal.unit_limit((begin_unit.service).max_messages_in_uow, 'uow_max_messages', begin_unit.service,
        'max_messages_in_uow', 1, 'messages in a unit of work');
    if begin_unit.conversation.is_uow then
        perform pgps_internal.check_active(begin_unit.service, v_now + v_options.lifetime,
            lower(args ->> 'option') = 'commit');
    end if;
    insert into pgps_internal.unit (at_no, unit_no, conversation_no, service_id, to_server, is_uow, sender_id,
        session_id, life_id, is_persistent, status_for, began_at, ends_at, user_status, is_relayed, message)
    values (v_no, v_no, begin_unit.conversation.conversation_no, begin_unit.service.service_id, begin_unit.to_server,
        begin_unit.conversation.is_uow, (begin_unit.speaker).participant_id, (begin_unit.speaker).session_id,
        (begin_unit.speaker).life_id, v_options.is_persistent, v_options.status_for, v_now, v_now + v_options.lifetime,
        args ->> 'user_status', pgps_internal.queue_for(begin_unit.to_server, begin_unit.conversation, null) = 0,
        begin_unit.message);
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
    boolean, jsonb, bytea) is
'A new unit of work with its first message, or message that belongs to none, in a conversation, and how it stands.
Errors: those of options_of and check_active, 54000.';

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

-- Inlined, so without a search_path.
create or replace function pgps_internal.queue_for(
    to_server boolean, client_id bigint, server_id bigint, service_id integer
) returns bigint
language sql immutable
as $$
    select case when not queue_for.to_server then pgps_internal.queue_of(queue_for.client_id)
        when queue_for.server_id is not null then pgps_internal.queue_of(queue_for.server_id)
        else pgps_internal.queue_of(queue_for.service_id) end
$$;
comment on function pgps_internal.queue_for(boolean, bigint, bigint, integer) is
'As queue_for(to_server, conversation, state), in a conversation of which both parties are here';

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
    v_first bigint;
begin
    if v_queue % 2 = 0 and v_queue <> 0 then
        select c.commit_no into v_first from pgps_internal.unit_commit c
        where c.conversation_no = commit_unit.standing.conversation_no and c.to_server and c.entry_no = c.commit_no
        order by c.commit_no limit 1;
    end if;
    -- New conversations are as old as their first unit, whatever becomes of that one: in the queue of a service the
    -- others have its place, in a row of their own.
    if v_first is not null then
        perform nextval('pgps_internal.units_placed_seq');
    end if;
    insert into pgps_internal.unit_commit (at_no, queue_id, entry_no, conversation_no, unit_no, to_server, commit_no,
        committed_at, xid)
    select v_no, q.queue_id, q.entry_no, commit_unit.standing.conversation_no, commit_unit.standing.unit_no,
        commit_unit.standing.to_server, v_no, v_now, v_xid
    from (values (case when v_first is null then v_queue else 0 end, v_no),
        (case when v_first is not null then v_queue end, v_first)) q(queue_id, entry_no)
    where q.queue_id is not null;
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

create or replace function pgps_internal.add_message(unit_no bigint, service pgps_internal.service, message bytea)
returns void
language plpgsql
as $$
declare
    v_number integer := 1 + (select max(m.number) from pgps_internal.message_of_unit m
        where m.unit_no = add_message.unit_no);
begin
    perform pgps_internal.unit_limit((add_message.service).max_messages_in_uow, 'uow_max_messages',
        add_message.service, 'max_messages_in_uow', v_number, 'messages in a unit of work');
    insert into pgps_internal.unit_message (at_no, unit_no, number, message)
    values (nextval('pgps_internal.uow_no_seq'), add_message.unit_no, v_number, add_message.message);
end
$$;
comment on function pgps_internal.add_message(bigint, pgps_internal.service, bytea) is
'Adds another message to a unit. Errors: 54000.';
