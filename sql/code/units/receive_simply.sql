-- The common cases of receiving and of SYNCPOINT commit in few statements (decision 60): what a session of this broker
-- has in hand, or is about to take, in this life of the broker and within its lifetime. Each function locks its units,
-- looks at everything about one in one statement, and writes. Where anything is out of the common it returns null
-- before it has written, and the general way is taken. What SYNCPOINT may do is looked up in
-- pgps_internal.uow_transitions() here, too.
-- Locks: the units, then their conversations; see syncpoint.sql and receive.sql.
-- Writes: conversation_state, session_hand, unit_commit, unit_state.

-- Without a search_path, so that it is inlined.
create or replace function pgps_internal.id_of(number bigint, letter text) returns text
language sql immutable
as $$ select id_of.letter || upper(to_hex(id_of.number)) $$;
comment on function pgps_internal.id_of(bigint, text) is 'The id of a unit (U) or of a conversation (C)';

create or replace function pgps_internal.first_commit_in(conversation_no bigint) returns timestamptz
language plpgsql stable
as $$
begin
    return (select c.committed_at from pgps_internal.unit_commit c
        where c.conversation_no = first_commit_in.conversation_no and c.to_server and c.entry_no = c.commit_no
        order by c.commit_no limit 1);
end
$$;
comment on function pgps_internal.first_commit_in(bigint) is
'The SYNCPOINT of a conversation''s first unit of work, from the queues; null while there is none';

create or replace function pgps_internal.move_entries(state pgps_internal.conversation_state) returns void
language plpgsql
as $$
begin
    insert into pgps_internal.unit_commit (at_no, queue_id, entry_no, conversation_no, unit_no, to_server,
        commit_no, committed_at, xid)
    select n.no, pgps_internal.queue_of((move_entries.state).server_id), n.no, c.conversation_no, c.unit_no,
        c.to_server, c.commit_no, c.committed_at, pg_current_xact_id()
    from (select c.* from pgps_internal.unit_commit c
        where c.conversation_no = (move_entries.state).conversation_no and c.to_server and c.entry_no = c.commit_no
            and c.commit_no > (move_entries.state).done_by_server order by c.commit_no) c
    cross join lateral (select nextval('pgps_internal.uow_no_seq') + 0 * c.unit_no as no) n;
end
$$;
comment on function pgps_internal.move_entries(pgps_internal.conversation_state) is
'Puts what the client has committed meanwhile into the queue of the server that its conversation is bound to now';

create or replace function pgps_internal.is_common(unit pgps_internal.unit_at_hand, speaker pgps_internal.speaker)
returns boolean
language sql volatile
as $$
    select coalesce((is_common.unit).life_id = (is_common.speaker).life_id
        and (is_common.unit).ends_at > pgps_internal.clock() and (is_common.unit).is_uow
        and not (is_common.unit).is_relayed and (is_common.unit).their_no is null, false)
$$;
comment on function pgps_internal.is_common(pgps_internal.unit_at_hand, pgps_internal.speaker) is
'True for a unit of work of this broker, in this life of it and within its lifetime';

create or replace function pgps_internal.transition(option text, caller text, status text) returns text
language sql immutable
as $$
    select t.becomes from pgps_internal.uow_transitions() t
    where t.option = transition.option and t.caller = transition.caller and t.status = transition.status
$$;
comment on function pgps_internal.transition(text, text, text) is
'What an option of a caller makes of a status, by the table of transitions; null: it is not allowed';

create or replace function pgps_internal.holds_unit(unit pgps_internal.unit_at_hand, speaker pgps_internal.speaker)
returns boolean
language plpgsql volatile
as $$
begin
    return coalesce(pgps_internal.is_common(holds_unit.unit, holds_unit.speaker)
        and holds_unit.unit.status = 'DELIVERED' and holds_unit.unit.holder = holds_unit.speaker.session_id
        and pgps_internal.transition('commit', 'receiver', 'DELIVERED') = 'PROCESSED', false);
end
$$;
comment on function pgps_internal.holds_unit(pgps_internal.unit_at_hand, pgps_internal.speaker) is
'True for a common unit that the session holds, and may commit by the table of transitions';

create or replace function pgps_internal.is_sent(unit pgps_internal.unit_at_hand, speaker pgps_internal.speaker)
returns boolean
language plpgsql volatile
as $$
begin
    return coalesce(pgps_internal.is_common(is_sent.unit, is_sent.speaker) and is_sent.unit.status is null
        and is_sent.unit.commit_no is null and is_sent.unit.ended is null
        and pgps_internal.transition('commit', 'sender', 'RECEIVED') = 'ACCEPTED', false);
end
$$;
comment on function pgps_internal.is_sent(pgps_internal.unit_at_hand, pgps_internal.speaker) is
'True for a common unit that is being sent, and may be committed by the table of transitions';

create or replace function pgps_internal.row_at_hand(
    unit pgps_internal.unit_at_hand, status text, first_commit_at timestamptz
) returns pgps.received_message
language plpgsql volatile
as $$
begin
    return (pgps_internal.id_of(row_at_hand.unit.unit_no, 'U'),
        pgps_internal.id_of(row_at_hand.unit.conversation_no, 'C'), row_at_hand.status, row_at_hand.unit.user_status,
        row_at_hand.unit.class, row_at_hand.unit.server, row_at_hand.unit.service, coalesce(row_at_hand.first_commit_at,
            pgps_internal.first_commit_in(row_at_hand.unit.conversation_no), row_at_hand.unit.committed_at),
        row_at_hand.unit.attempts, case when row_at_hand.unit.is_persistent then 'broker' else 'no' end,
        row_at_hand.unit.ends_at, coalesce(row_at_hand.unit.ended, 'open'), null, null, null, null,
        null)::pgps.received_message;
end
$$;
comment on function pgps_internal.row_at_hand(pgps_internal.unit_at_hand, text, timestamptz) is
'What calls return of a unit that has this status now; first_commit_at: of its conversation, null: to be looked up';

create or replace function pgps_internal.queue_unit(
    unit_no bigint, conversation_no bigint, to_server boolean, queue_id bigint
) returns timestamptz
language plpgsql
as $$
declare
    v_now timestamptz := pgps_internal.clock();
    v_xid xid8 := pg_current_xact_id();
    -- The transaction has an id before it takes a number: see pgps_internal.advance_queue.
    v_no bigint := nextval('pgps_internal.uow_no_seq');
begin
    insert into pgps_internal.unit_commit (at_no, queue_id, entry_no, conversation_no, unit_no, to_server, commit_no,
        committed_at, xid)
    values (v_no, queue_unit.queue_id, v_no, queue_unit.conversation_no, queue_unit.unit_no, queue_unit.to_server, v_no,
        v_now, v_xid);
    perform pg_notify('pgps_uow_' || queue_unit.queue_id, '');
    return v_now;
end
$$;
comment on function pgps_internal.queue_unit(bigint, bigint, boolean, bigint) is
'The sender''s SYNCPOINT: puts a unit into a queue of this broker, and wakes who listens for it; returns when';

create or replace function pgps_internal.commit_held(
    speaker pgps_internal.speaker, unit pgps_internal.unit_at_hand, first_commit_at timestamptz
) returns pgps_internal.conversation_state
language plpgsql
as $$
declare
    v_now timestamptz := pgps_internal.clock();
    v_state pgps_internal.conversation_state := (nextval('pgps_internal.uow_no_seq'), commit_held.unit.conversation_no,
        coalesce(commit_held.unit.state_version, 0) + 1, commit_held.unit.server_id,
        coalesce(commit_held.unit.done_by_server, 0), coalesce(commit_held.unit.done_by_client, 0),
        commit_held.first_commit_at, commit_held.unit.ended, v_now);
begin
    if commit_held.unit.to_server then
        v_state.server_id := coalesce(v_state.server_id, commit_held.speaker.participant_id);
        v_state.done_by_server := commit_held.unit.commit_no;
    else
        v_state.done_by_client := commit_held.unit.commit_no;
    end if;
    insert into pgps_internal.unit_state (at_no, unit_no, version, status, receiver_id, session_id, attempts,
        messages_given, noted_at)
    values (nextval('pgps_internal.uow_no_seq'), commit_held.unit.unit_no, commit_held.unit.version + 1, 'PROCESSED',
        commit_held.unit.receiver_id, null, commit_held.unit.attempts, commit_held.unit.messages_given, v_now);
    insert into pgps_internal.conversation_state values (v_state.*);
    perform pgps_internal.note_ended(commit_held.unit.service_id);
    if commit_held.unit.to_server and commit_held.unit.server_id is null then
        perform pgps_internal.move_entries(v_state);
    end if;
    return v_state;
end
$$;
comment on function pgps_internal.commit_held(pgps_internal.speaker, pgps_internal.unit_at_hand, timestamptz) is
'Notes that the speaker has processed a unit that it holds, as apply_transition does; returns the state of its
conversation, whose first SYNCPOINT was first_commit_at';

create or replace function pgps_internal.commit_in_hand(speaker pgps_internal.speaker, uow_id text)
returns pgps.received_message[]
language plpgsql
as $$
declare
    v_units bigint[] := (commit_in_hand.speaker).held || (commit_in_hand.speaker).sent;
    v_conversation bigint;
    v_other bigint;
    v_held pgps_internal.unit_at_hand;
    v_sent pgps_internal.unit_at_hand;
    v_holds boolean;
    v_sends boolean;
    v_first timestamptz;
    v_server bigint;
    v_rows pgps.received_message[];
begin
    if cardinality(v_units) <> 1 + (commit_in_hand.uow_id is not null)::integer
        or commit_in_hand.uow_id is not null and cardinality((commit_in_hand.speaker).held) <> 1 then
        return null;
    end if;
    select min(l.conversation_no), max(l.conversation_no) into v_conversation, v_other
    from (select u.conversation_no from pgps_internal.unit u where u.unit_no = any (v_units)
        order by u.unit_no for update) l;
    if v_conversation <> v_other then
        return null;
    end if;
    perform from pgps_internal.conversation c where c.conversation_no = v_conversation for update;
    if cardinality((commit_in_hand.speaker).held) = 1 then
        v_held := pgps_internal.at_hand(v_units[1], v_conversation);
    end if;
    if cardinality((commit_in_hand.speaker).sent) = 1 then
        v_sent := pgps_internal.at_hand((commit_in_hand.speaker).sent[1], v_conversation);
    end if;
    v_holds := pgps_internal.holds_unit(v_held, commit_in_hand.speaker);
    v_sends := pgps_internal.is_sent(v_sent, commit_in_hand.speaker);
    if v_holds::integer + v_sends::integer <> cardinality(v_units) then
        return null;
    end if;
    -- First what is received, then what is sent.
    v_server := coalesce(v_held.server_id, v_sent.server_id);
    v_first := coalesce(v_held.first_commit_at, v_sent.first_commit_at,
        pgps_internal.first_commit_in(v_conversation));
    if v_holds then
        v_server := (pgps_internal.commit_held(commit_in_hand.speaker, v_held, v_first)).server_id;
        v_rows := v_rows || pgps_internal.row_at_hand(v_held, 'PROCESSED', v_first);
    end if;
    if v_sends then
        v_sent.committed_at := pgps_internal.queue_unit(v_sent.unit_no, v_sent.conversation_no, v_sent.to_server,
            case when not v_sent.to_server then pgps_internal.queue_of(v_sent.client_id)
                when v_server is not null then pgps_internal.queue_of(v_server)
                else pgps_internal.queue_of(v_sent.in_service) end);
        v_rows := v_rows || pgps_internal.row_at_hand(v_sent, 'ACCEPTED', coalesce(v_first, v_sent.committed_at));
    end if;
    insert into pgps_internal.session_hand (at_no, session_id, version, sent, held)
    values (nextval('pgps_internal.uow_no_seq'), (commit_in_hand.speaker).session_id,
        (commit_in_hand.speaker).hand + 1, '{}', '{}');
    return v_rows;
end
$$;
comment on function pgps_internal.commit_in_hand(pgps_internal.speaker, text) is
'SYNCPOINT commit of the only unit that a session has in hand or, with uow_id both, of the one that it holds and the one
that it sends; null: it was not done, and the general way is taken';

create or replace function pgps_internal.hand_out_first(
    speaker pgps_internal.speaker, unit_no bigint, conversation_no bigint
) returns pgps.received_message
language plpgsql
as $$
declare
    v_now timestamptz := pgps_internal.clock();
    v_one pgps_internal.unit_at_hand := pgps_internal.at_hand(hand_out_first.unit_no, hand_out_first.conversation_no);
    v_message record;
    v_speaker pgps_internal.speaker;
    v_row pgps.received_message;
begin
    if not pgps_internal.is_common(v_one, hand_out_first.speaker) or v_one.commit_no is null
        or v_one.status <> 'ACCEPTED' then
        return null;
    end if;
    select m.message, p.role, p.token, exists (select from pgps_internal.unit_message o
        where o.unit_no = hand_out_first.unit_no and o.number = 2) as has_more
    into v_message
    from pgps_internal.unit_message m, pgps_internal.participant p
    where m.unit_no = hand_out_first.unit_no and m.number = 1 and p.participant_id = v_one.sender_id;
    if not found then
        return null;
    end if;
    v_speaker := pgps_internal.with_hand(hand_out_first.speaker);
    with hand as (
        insert into pgps_internal.session_hand (at_no, session_id, version, sent, held)
        values (nextval('pgps_internal.uow_no_seq'), v_speaker.session_id,
            v_speaker.hand + 1, v_speaker.sent,
            v_speaker.held || v_one.unit_no)
    )
    insert into pgps_internal.unit_state (at_no, unit_no, version, status, receiver_id, session_id, attempts,
        messages_given, noted_at)
    values (nextval('pgps_internal.uow_no_seq'), v_one.unit_no, v_one.version + 1, 'DELIVERED',
        v_speaker.participant_id, v_speaker.session_id, v_one.attempts, 1, v_now);
    v_row := pgps_internal.row_at_hand(v_one, case when v_message.has_more then 'RECV_FIRST' else 'RECV_ONLY' end,
        v_one.first_commit_at);
    v_row.message := v_message.message;
    v_row.number := 1;
    v_row.sender := pg_get_userbyid(v_message.role::oid);
    v_row.sender_token := v_message.token;
    return v_row;
end
$$;
comment on function pgps_internal.hand_out_first(pgps_internal.speaker, bigint, bigint) is
'Gives the first message of a unit to a session that has locked it, and makes it DELIVERED; null: it was not done, and
the general way is taken';

create or replace function pgps_internal.first_answer(
    speaker pgps_internal.speaker, conversation pgps_internal.conversation, out is_none boolean,
    out answer pgps.received_message
) returns record
language plpgsql
as $$
declare
    -- Also where client and server are the same participant, what waits for the client comes first.
    v_unit bigint := pgps_internal.answer_at_hand((first_answer.conversation).conversation_no);
    v_speaker pgps_internal.speaker;
begin
    is_none := v_unit is null;
    if is_none then
        return;
    end if;
    v_speaker := pgps_internal.with_hand(first_answer.speaker);
    if v_unit <> all (v_speaker.held) then
        perform from pgps_internal.unit u where u.unit_no = v_unit for update;
        answer := pgps_internal.hand_out_first(v_speaker, v_unit, (first_answer.conversation).conversation_no);
    end if;
end
$$;
comment on function pgps_internal.first_answer(pgps_internal.speaker, pgps_internal.conversation) is
'The first message of the next unit for the client of a conversation, which the speaker is; null: it was not done, and
the general way is taken. is_none: nothing waits for the client';
