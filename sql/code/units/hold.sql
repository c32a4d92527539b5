-- A unit of work is held by who has received its first message, until SYNCPOINT or the end of the session.
-- Locks: the unit, for which lock_unit waits, while others pass over what somebody else has locked. A message that
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
    select m.message, (select max(n.number) from pgps_internal.message_of_unit n where n.unit_no = v_standing.unit_no)
        as count, case when p.role is not null then pg_get_userbyid(p.role::oid) end as sender, p.token
    into v_message
    from pgps_internal.message_of_unit m
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
