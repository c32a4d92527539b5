-- How units of work and conversations stand, for those who look and for those who change it; what lapses by itself is
-- in lifetimes.sql.
-- Locks: none.
-- Writes: conversation_state.

-- Without a search_path of their own, so that they are inlined.
create or replace function pgps_internal.queue_of(service_id integer) returns bigint
language sql immutable
as $$ select 2 * queue_of.service_id::bigint $$;
comment on function pgps_internal.queue_of(integer) is
'The queue of a service: units of conversations without a server';

create or replace function pgps_internal.queue_of(participant_id bigint) returns bigint
language sql immutable
as $$ select 2 * queue_of.participant_id + 1 $$;
comment on function pgps_internal.queue_of(bigint) is 'The queue of a participant: units that only it may receive';

create or replace function pgps_internal.state_of(conversation_no bigint) returns pgps_internal.conversation_state
language plpgsql volatile
as $$
declare
    v_state pgps_internal.conversation_state;
begin
    select s.* into v_state from pgps_internal.conversation_state s
    where s.conversation_no = state_of.conversation_no order by s.version desc limit 1;
    if not found then
        v_state := (0, state_of.conversation_no, 0, null, 0, 0, null, null, null);
    end if;
    return v_state;
end
$$;
comment on function pgps_internal.state_of(bigint) is 'The newest state of a conversation; version 0: nothing is noted';

create or replace function pgps_internal.note_conversation(state pgps_internal.conversation_state)
returns pgps_internal.conversation_state
language plpgsql
as $$
declare
    v_state pgps_internal.conversation_state := note_conversation.state;
begin
    v_state.at_no := nextval('pgps_internal.uow_no_seq');
    v_state.version := v_state.version + 1;
    v_state.noted_at := pgps_internal.clock();
    if v_state.first_commit_at is null then
        v_state.first_commit_at := pgps_internal.first_commit_at(v_state.conversation_no);
    end if;
    insert into pgps_internal.conversation_state values (v_state.*);
    return v_state;
end
$$;
comment on function pgps_internal.note_conversation(pgps_internal.conversation_state) is
'Writes the next version of the state of a conversation, and returns it; the caller has locked the conversation';

create or replace function pgps_internal.note_end(state pgps_internal.conversation_state, how text)
returns pgps_internal.conversation_state
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgps_internal.conversation_state := note_end.state;
    v_conversation pgps_internal.conversation := pgps_internal.conversation_of(v_state.conversation_no);
begin
    v_state.ended := note_end.how;
    v_state := pgps_internal.note_conversation(v_state);
    if v_conversation.broker is not null then
        perform pgps_internal.tell_broker(v_conversation, 'end', null, jsonb_build_object('ended', note_end.how));
    end if;
    return v_state;
end
$$;
comment on function pgps_internal.note_end(pgps_internal.conversation_state, text) is
'Ends a conversation (eoc, eoccancel), here and at the other party''s broker; the caller has locked it';

create or replace function pgps_internal.first_commit_at(conversation_no bigint) returns timestamptz
language plpgsql volatile
as $$
begin
    -- In PL/pgSQL, which keeps the plan: in SQL this took a quarter of the time of a receive.
    return coalesce((select s.first_commit_at from pgps_internal.conversation_state s
            where s.conversation_no = first_commit_at.conversation_no order by s.version desc limit 1),
        (select c.committed_at from pgps_internal.unit_commit c
            where c.conversation_no = first_commit_at.conversation_no and c.to_server and c.entry_no = c.commit_no
            order by c.commit_no limit 1));
end
$$;
comment on function pgps_internal.first_commit_at(bigint) is
'The SYNCPOINT of a conversation''s first unit of work; null while there is none';

create or replace function pgps_internal.next_unit(
    conversation_no bigint, to_server boolean, speaker pgps_internal.speaker
) returns pgps_internal.unit_standing
language plpgsql volatile
as $$
declare
    v_state pgps_internal.conversation_state := pgps_internal.state_of(next_unit.conversation_no);
    v_unit bigint;
    v_standing pgps_internal.unit_standing;
begin
    for v_unit in select c.unit_no from pgps_internal.unit_commit c
        where c.conversation_no = next_unit.conversation_no and c.to_server = next_unit.to_server
            and c.entry_no = c.commit_no
            and c.commit_no > case when next_unit.to_server then v_state.done_by_server
                else v_state.done_by_client end
        order by c.commit_no
    loop
        v_standing := pgps_internal.how_stands(v_unit, next_unit.speaker);
        if v_standing.is_active then
            return v_standing;
        end if;
    end loop;
    return null;
end
$$;
comment on function pgps_internal.next_unit(bigint, boolean, pgps_internal.speaker) is
'The unit that whoever is sent to in a conversation receives next, or has begun to receive; null when there is none';

create or replace function pgps_internal.is_next(entry pgps_internal.unit_commit, speaker pgps_internal.speaker)
returns boolean
language plpgsql volatile
as $$
declare
    v_server bigint;
    v_is_alone boolean;
begin
    select t.server_id, not exists (select from pgps_internal.unit_commit c
        where c.conversation_no = (is_next.entry).conversation_no and c.to_server = (is_next.entry).to_server
            and c.entry_no = c.commit_no and c.commit_no < (is_next.entry).commit_no
            and c.commit_no > coalesce(case when (is_next.entry).to_server then t.done_by_server
                else t.done_by_client end, 0))
    into v_server, v_is_alone
    from (values (true)) x left join lateral (select t.* from pgps_internal.conversation_state t
        where t.conversation_no = (is_next.entry).conversation_no order by t.version desc limit 1) t on true;
    -- Common case: every unit before it is completed. One that is not may still be over, because its time has passed.
    return ((is_next.entry).queue_id % 2 = 1 or v_server is null) and (v_is_alone
        or (is_next.entry).unit_no = (pgps_internal.next_unit((is_next.entry).conversation_no,
            (is_next.entry).to_server, is_next.speaker)).unit_no);
end
$$;
comment on function pgps_internal.is_next(pgps_internal.unit_commit, pgps_internal.speaker) is
'True when the unit of an entry is the next one in its conversation, which, in the queue of a service, is not bound';

create or replace function pgps_internal.row_from(
    standing pgps_internal.unit_standing, state pgps_internal.conversation_state, status text, code text = null,
    service pgps_internal.service = null
) returns pgps.received_message
language plpgsql volatile
as $$
declare
    v_row pgps.received_message;
begin
    v_row.class := row_from.service.class;
    v_row.server := row_from.service.server;
    v_row.service := row_from.service.service;
    if v_row.class is null then
        select s.class, s.server, s.service into v_row.class, v_row.server, v_row.service
        from pgps_internal.service s where s.service_id = row_from.standing.service_id;
    end if;
    if v_row.class is null then
        select s.class, s.server, s.service into v_row.class, v_row.server, v_row.service
        from pgps_internal.service_dropped s where s.service_id = row_from.standing.service_id;
    end if;
    v_row.uow_id := case when row_from.standing.is_uow then 'U' || upper(to_hex(row_from.standing.unit_no)) end;
    v_row.conversation := 'C' || upper(to_hex(row_from.standing.conversation_no));
    v_row.status := row_from.status;
    v_row.user_status := row_from.standing.user_status;
    v_row.committed_at := row_from.state.first_commit_at;
    if v_row.committed_at is null then
        select c.committed_at into v_row.committed_at from pgps_internal.unit_commit c
        where c.conversation_no = row_from.standing.conversation_no and c.to_server and c.entry_no = c.commit_no
        order by c.commit_no limit 1;
    end if;
    v_row.committed_at := coalesce(v_row.committed_at, row_from.standing.committed_at);
    v_row.attempts := row_from.standing.attempts;
    v_row.store := case when row_from.standing.is_persistent then 'broker' else 'no' end;
    v_row.lifetime_ends := row_from.standing.ends_at;
    v_row.conversation_state := coalesce(row_from.state.ended, 'open');
    v_row.code := row_from.code;
    return v_row;
end
$$;
comment on function pgps_internal.row_from(pgps_internal.unit_standing, pgps_internal.conversation_state, text, text,
    pgps_internal.service) is
'What calls return of a unit that stands so, in a conversation in that state; status: in place of its status; service:
where the caller has it';

create or replace function pgps_internal.how_stands(unit_no bigint) returns pgps_internal.unit_standing
language plpgsql volatile
as $$
declare
    v_standing pgps_internal.unit_standing;
begin
    select s.* into v_standing from pgps_internal.unit_standing s where s.unit_no = how_stands.unit_no;
    return v_standing;
end
$$;
comment on function pgps_internal.how_stands(bigint) is 'How a unit stands; null when there is none';

create or replace function pgps_internal.how_stands(unit_no bigint, speaker pgps_internal.speaker)
returns pgps_internal.unit_standing
language plpgsql volatile
as $$
declare
    v_standing pgps_internal.unit_standing;
begin
    -- The common cases, which need neither the lives of the broker nor other sessions: it was begun in this life, its
    -- time is not over, it is this broker's, and nobody else is at it. The view says the same of them.
    select u.unit_no, u.conversation_no, u.service_id, u.to_server, u.is_uow, u.sender_id, u.session_id, u.life_id,
        u.is_persistent, u.status_for, u.began_at, u.ends_at, c.commit_no, c.committed_at, coalesce(s.version, 0),
        s.receiver_id, s.session_id, coalesce(s.messages_given, 0),
        case when u.ends_at <= pgps_internal.clock() or u.is_relayed
                or u.life_id <> (how_stands.speaker).life_id
                or not exists (select from pgps_internal.service v where v.service_id = u.service_id) then null
            when c.commit_no is null then
                case when s.status is null and u.session_id = (how_stands.speaker).session_id then 'RECEIVED' end
            when coalesce(s.status, 'ACCEPTED') = 'ACCEPTED' then 'ACCEPTED'
            when s.status = 'DELIVERED' and s.session_id = (how_stands.speaker).session_id then 'DELIVERED' end,
        coalesce(s.attempts, 0), true, true, false, null::timestamptz,
        case when n.version is not null then n.user_status else u.user_status end, coalesce(n.version, 0),
        u.is_relayed, u.their_no
    into v_standing
    from pgps_internal.unit u
    left join lateral (select c.commit_no, c.committed_at from pgps_internal.unit_commit c
        where c.unit_no = u.unit_no order by c.entry_no limit 1) c on true
    left join lateral (select s.* from pgps_internal.unit_state s
        where s.unit_no = u.unit_no order by s.version desc limit 1) s on true
    left join lateral (select n.version, n.user_status from pgps_internal.unit_note n
        where n.unit_no = u.unit_no order by n.version desc limit 1) n on true
    where u.unit_no = how_stands.unit_no;
    if found and v_standing.status is null then
        select s.* into v_standing from pgps_internal.unit_standing s where s.unit_no = how_stands.unit_no;
    end if;
    return v_standing;
end
$$;
comment on function pgps_internal.how_stands(bigint, pgps_internal.speaker) is
'How a unit stands, quicker than the view where the speaker is at it; null when there is none';

drop function if exists pgps_internal.stands_as(pgps_internal.unit_standing);
create or replace function pgps_internal.stands_as(
    standing pgps_internal.unit_standing, speaker pgps_internal.speaker
) returns boolean
language plpgsql volatile
as $$
declare
    v_now pgps_internal.unit_standing := pgps_internal.how_stands(stands_as.standing.unit_no, stands_as.speaker);
begin
    -- The status as well: that its time passes, its service is dropped or a session ends is noted nowhere.
    return (v_now.version, v_now.status) is not distinct from (stands_as.standing.version, stands_as.standing.status);
end
$$;
comment on function pgps_internal.stands_as(pgps_internal.unit_standing, pgps_internal.speaker) is
'True when a unit stands as it did when it was looked at: for who has locked it since';

create or replace function pgps_internal.row_of(unit_no bigint, status text = null, code text = null)
returns pgps.received_message
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_standing pgps_internal.unit_standing := pgps_internal.how_stands(row_of.unit_no);
begin
    return pgps_internal.row_from(v_standing, pgps_internal.state_of(v_standing.conversation_no),
        coalesce(row_of.status, v_standing.status), row_of.code);
end
$$;
comment on function pgps_internal.row_of(bigint, text, text) is
'What calls return of a unit; status: in place of its status';

create or replace function pgps_internal.number_in(id text, letter text) returns bigint
language plpgsql immutable
as $$
begin
    -- Without a regular expression, which took most of the time of this.
    if translate(upper(number_in.id), '0123456789ABCDEF', '') = translate(number_in.letter, 'C', '')
        and upper(left(number_in.id, 1)) = number_in.letter and length(number_in.id) between 2 and 16 then
        return ('x' || lpad(substr(number_in.id, 2), 16, '0'))::bit(64)::bigint;
    end if;
    return null;
end
$$;
comment on function pgps_internal.number_in(text, text) is
'The number of a unit (U) or of a conversation (C) in its id; null when it is none';

create or replace function pgps_internal.find_conversation(id text, speaker pgps_internal.speaker)
returns pgps_internal.conversation
language plpgsql volatile
as $$
declare
    v_no bigint := pgps_internal.number_in(find_conversation.id, 'C');
    v_conversation pgps_internal.conversation;
begin
    select c.* into v_conversation
    from pgps_internal.conversation c join pgps_internal.service s using (service_id)
    where c.conversation_no = v_no;
    -- An emptied store has no conversations from before.
    if v_conversation.life_id is null or v_conversation.life_id <> (find_conversation.speaker).life_id
        and v_conversation.life_id < (pgps._this_life()).emptied_id then
        raise exception 'conversation "%" does not exist', find_conversation.id using errcode = '42704',
            hint = 'See pgps.conversations.';
    end if;
    return v_conversation;
end
$$;
comment on function pgps_internal.find_conversation(text, pgps_internal.speaker) is
'The conversation of that id; 42704 when there is none. Not locked.';

create or replace function pgps_internal.lock_conversations(numbers bigint[]) returns void
language plpgsql
as $$
begin
    perform from pgps_internal.conversation c where c.conversation_no = any (lock_conversations.numbers)
    order by c.conversation_no for update;
end
$$;
comment on function pgps_internal.lock_conversations(bigint[]) is
'Locks conversations until the transaction ends, in the order of their numbers';
