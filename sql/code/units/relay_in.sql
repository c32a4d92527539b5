-- What other brokers send: units of work, and what became of those that were sent to them. Each event is applied in the
-- transaction that acknowledges it. What cannot be done is told to the other broker as a unit that is cancelled; what
-- concerns a unit or a conversation that is not there any more is ignored.
-- Locks: the turn of the subscription pgps_uow, if something has come; share row exclusive on relay_told; then the
-- units that it is about in the order of their numbers, their conversations likewise, as far as nobody has them: see
-- relay_held.sql.
-- Writes: conversation, participant, unit, unit_message.

create or replace function pgps_internal.their_conversation(origin text, event jsonb) returns pgps_internal.conversation
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_stamp text := their_conversation.event -> 'body' ->> 'conversation_stamp';
    v_conversation pgps_internal.conversation;
begin
    if their_conversation.event ->> 'client_broker' = pgps_internal.broker_name() then
        select c.* into v_conversation from pgps_internal.conversation c
        where c.conversation_no = (their_conversation.event ->> 'conversation')::bigint
            and c.broker = their_conversation.origin and c.their_no is null
            and c.life_id >= (pgps._this_life()).emptied_id
            and coalesce(v_stamp = pgps_internal.stamp_of(c.began_at), true);
    elsif their_conversation.event ->> 'client_broker' = their_conversation.origin then
        select c.* into v_conversation from pgps_internal.conversation c
        where c.their_no = (their_conversation.event ->> 'conversation')::bigint
            and c.broker = their_conversation.origin and c.life_id >= (pgps._this_life()).emptied_id
            and coalesce(v_stamp = c.their_stamp, true)
        order by v_stamp = c.their_stamp desc nulls last, c.conversation_no desc limit 1;
    end if;
    return v_conversation;
end
$$;
comment on function pgps_internal.their_conversation(text, jsonb) is
'The conversation with a broker (origin) that an event is about; null when there is none. Raises nothing, whatever the
body of the event says.';

create or replace function pgps_internal.their_unit(conversation_no bigint, unit bigint, stamp text) returns bigint
language plpgsql volatile
as $$
begin
    return (select u.unit_no from pgps_internal.unit u
        where u.conversation_no = their_unit.conversation_no and u.their_no = their_unit.unit
            and coalesce(their_unit.stamp = pgps_internal.stamp_of(u.began_at), true)
        order by u.unit_no desc limit 1);
end
$$;
comment on function pgps_internal.their_unit(bigint, bigint, text) is
'The copy here, in a conversation, of the unit with that number at the other broker; stamp: see stamp_of, null where
the other broker is of a former release and tells none';

create or replace function pgps_internal.their_participant(role name, origin text, body jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_token text := concat_ws('/', their_participant.origin, their_participant.body ->> 'role',
        their_participant.body ->> 'token');
    v_id bigint;
begin
    insert into pgps_internal.participant (role, token)
    values (quote_ident(their_participant.role)::regrole, v_token) on conflict do nothing;
    select p.participant_id into v_id from pgps_internal.participant p
    where p.role = quote_ident(their_participant.role)::regrole and p.token = v_token;
    return v_id;
end
$$;
comment on function pgps_internal.their_participant(name, text, jsonb) is
'Who stands here for a participant at another broker: the role that stands for the neighbour, with the token
broker/role/token';

create or replace function pgps_internal.check_their_unit(service pgps_internal.service, publisher name, event jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_messages jsonb := check_their_unit.event -> 'messages';
begin
    perform pgps_internal.require_service_right(check_their_unit.publisher, check_their_unit.service,
        case when (check_their_unit.event -> 'body' ->> 'to_server')::boolean then 'send' else 'serve' end);
    perform pgps_internal.unit_limit((check_their_unit.service).max_messages_in_uow, 'uow_max_messages',
        check_their_unit.service, 'max_messages_in_uow', jsonb_array_length(v_messages), 'messages in a unit of work');
    perform pgps_internal.unit_limit((check_their_unit.service).max_message_bytes, 'uow_max_message_bytes',
        check_their_unit.service, 'max_message_bytes', (octet_length(m) - 2) / 2, 'bytes in a message')
    from jsonb_array_elements_text(v_messages) m;
    if (check_their_unit.event -> 'body' ->> 'is_uow')::boolean then
        perform pgps_internal.check_active(check_their_unit.service,
            pgps_internal.told_time(check_their_unit.event -> 'body' ->> 'ends_at'), true);
    end if;
    if (check_their_unit.event -> 'body' ->> 'is_persistent')::boolean
        and pgps_internal.setting('uow_persistent_store') = 'no' then
        raise exception 'this broker has no persistent store' using errcode = '55000',
            hint = 'Send with store => ''no''.';
    end if;
end
$$;
comment on function pgps_internal.check_their_unit(pgps_internal.service, name, jsonb) is
'Raises unless a unit from another broker may be sent to, or by, a service here';

create or replace function pgps_internal.check_their_conversation(
    conversation pgps_internal.conversation, service pgps_internal.service, event jsonb
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_no bigint := (check_their_conversation.conversation).conversation_no;
    v_of integer := (check_their_conversation.conversation).service_id;
begin
    if check_their_conversation.event ->> 'unit' is null
        or jsonb_array_length(check_their_conversation.event -> 'messages') = 0 then
        raise exception 'a unit of work without %', case when check_their_conversation.event ->> 'unit' is null
            then 'a number' else 'messages' end using errcode = '22023';
    elsif v_no is null and (check_their_conversation.service).service_id is null
        or v_no is not null and not exists (select from pgps_internal.service s where s.service_id = v_of) then
        raise exception 'conversation % does not exist', check_their_conversation.event ->> 'conversation'
        using errcode = '42704', hint = 'It is over, or its service was dropped.';
    elsif v_no is not null and (check_their_conversation.service).service_id <> v_of then
        -- Its rights and limits are those of another service.
        raise exception 'conversation % is not with service "%"', check_their_conversation.event ->> 'conversation',
            pgps_internal.service_name(check_their_conversation.service) using errcode = '42501';
    end if;
end
$$;
comment on function pgps_internal.check_their_conversation(pgps_internal.conversation, pgps_internal.service, jsonb) is
'Raises unless a unit from another broker belongs to a conversation, or begins one, with the service that it names';

create or replace function pgps_internal.take_their_unit(publisher name, origin text, event jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_body jsonb := take_their_unit.event -> 'body';
    v_ends_at timestamptz := pgps_internal.told_time(v_body ->> 'ends_at');
    v_to_server boolean := (v_body ->> 'to_server')::boolean;
    v_conversation pgps_internal.conversation
        := pgps_internal.their_conversation(take_their_unit.origin, take_their_unit.event);
    v_service pgps_internal.service;
    v_life bigint := coalesce(pgps_internal.noted_life(), pgps_internal.note_life());
    v_sender bigint;
    v_no bigint;
begin
    if pgps_internal.their_unit(v_conversation.conversation_no, (take_their_unit.event ->> 'unit')::bigint,
        pgps_internal.stamp_of(pgps_internal.told_time(v_body ->> 'began_at'))) is not null then
        -- Not refused: that would cancel the one that was taken.
        raise warning 'broker "%" sends unit of work % twice', take_their_unit.origin, take_their_unit.event ->> 'unit';
        return;
    end if;
    if v_to_server then
        v_service := pgps_internal.find_service(quote_ident(v_body ->> 'class'), quote_ident(v_body ->> 'server'),
            quote_ident(v_body ->> 'service'));
        perform pgps_internal.check_their_unit(v_service, take_their_unit.publisher, take_their_unit.event);
    end if;
    perform pgps_internal.check_their_conversation(v_conversation, v_service, take_their_unit.event);
    v_sender := pgps_internal.their_participant(take_their_unit.publisher, take_their_unit.origin, v_body);
    if v_conversation.conversation_no is null then
        v_no := nextval('pgps_internal.uow_no_seq');
        insert into pgps_internal.conversation (at_no, conversation_no, service_id, client_id, is_uow, life_id,
            began_at, broker, their_no, their_stamp)
        values (v_no, v_no, v_service.service_id, v_sender, (v_body ->> 'is_uow')::boolean, v_life,
            pgps_internal.clock(), take_their_unit.origin, (take_their_unit.event ->> 'conversation')::bigint,
            v_body ->> 'conversation_stamp')
        returning * into v_conversation;
    end if;
    v_no := nextval('pgps_internal.uow_no_seq');
    insert into pgps_internal.unit (at_no, unit_no, conversation_no, service_id, to_server, is_uow, sender_id,
        session_id, life_id, is_persistent, began_at, ends_at, user_status, is_relayed, their_no)
    values (v_no, v_no, v_conversation.conversation_no, v_conversation.service_id, v_to_server,
        (v_body ->> 'is_uow')::boolean, v_sender, 0, v_life, (v_body ->> 'is_persistent')::boolean,
        pgps_internal.told_time(v_body ->> 'began_at'), v_ends_at, v_body ->> 'user_status', false,
        (take_their_unit.event ->> 'unit')::bigint);
    insert into pgps_internal.unit_message (at_no, unit_no, number, message)
    select nextval('pgps_internal.uow_no_seq'), v_no, m.number, m.message::bytea
    from jsonb_array_elements_text(take_their_unit.event -> 'messages') with ordinality m(message, number);
    perform pgps_internal.commit_unit(pgps_internal.how_stands(v_no), v_conversation,
        pgps_internal.state_of(v_conversation.conversation_no));
    if v_ends_at <= pgps_internal.clock() then
        perform pgps_internal.note_unit(v_no, 'TIMEOUT', null, null, 0, 0);
        perform pgps_internal.tell_status(v_no, 'TIMEOUT', 0, null);
    end if;
end
$$;
comment on function pgps_internal.take_their_unit(name, text, jsonb) is
'Makes a copy of a unit from another broker, committed and queued for its receiver here; ignores one that is here.
Errors: 22023, 42501, 42704, 54000, 55000.';

create or replace function pgps_internal.refuse_their_unit(origin text, event jsonb, sqlstate text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_answer pgps_internal.conversation;
begin
    v_answer.broker := refuse_their_unit.origin;
    if refuse_their_unit.event ->> 'client_broker' = refuse_their_unit.origin then
        v_answer.their_no := (refuse_their_unit.event ->> 'conversation')::bigint;
    else
        v_answer.conversation_no := (refuse_their_unit.event ->> 'conversation')::bigint;
    end if;
    perform pgps_internal.tell_broker(v_answer, 'status', (refuse_their_unit.event ->> 'unit')::bigint,
        jsonb_strip_nulls(jsonb_build_object('status', 'CANCELLED', 'attempts', 0,
            'user_status', 'refused: ' || refuse_their_unit.sqlstate,
            'conversation_stamp', refuse_their_unit.event -> 'body' ->> 'conversation_stamp',
            'unit_stamp', refuse_their_unit.event -> 'body' ->> 'unit_stamp')));
end
$$;
comment on function pgps_internal.refuse_their_unit(text, jsonb, text) is
'Tells the broker of its sender that a unit is cancelled, since it is not taken here';

create or replace function pgps_internal.unit_meant(origin text, event jsonb) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_conversation bigint
        := (pgps_internal.their_conversation(unit_meant.origin, unit_meant.event)).conversation_no;
    v_no bigint := (unit_meant.event ->> 'unit')::bigint;
    v_stamp text := unit_meant.event -> 'body' ->> 'unit_stamp';
begin
    case unit_meant.event ->> 'verb'
        when 'status' then
            return (select u.unit_no from pgps_internal.unit u
                where u.unit_no = v_no and u.conversation_no = v_conversation and u.is_relayed
                    and coalesce(v_stamp = pgps_internal.stamp_of(u.began_at), true));
        when 'cancel', 'note' then
            return pgps_internal.their_unit(v_conversation, v_no, v_stamp);
        else
            return null;
    end case;
end
$$;
comment on function pgps_internal.unit_meant(text, jsonb) is
'The unit here that an event from another broker is about; null when there is none, or it is to be made. Raises nothing,
whatever the body of the event says.';

create or replace function pgps_internal.take_their_status(origin text, event jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_body jsonb := take_their_status.event -> 'body';
    v_standing pgps_internal.unit_standing;
begin
    select s.* into v_standing from pgps_internal.unit_standing s
    where s.unit_no = (select pgps_internal.unit_meant(take_their_status.origin, take_their_status.event));
    if v_standing.status in ('ACCEPTED', 'DELIVERED') then
        perform pgps_internal.note_unit(v_standing.unit_no, v_body ->> 'status', null, null,
            (v_body ->> 'attempts')::integer, 0);
        perform pgps_internal.note_user_status(v_standing.unit_no, v_body ->> 'user_status'),
            pgps_internal.note_ended(v_standing.service_id);
        perform pgps_internal.wake_queue(pgps_internal.queue_of(v_standing.sender_id));
    end if;
end
$$;
comment on function pgps_internal.take_their_status(text, jsonb) is
'Notes what became of a unit that was sent to another broker';

create or replace function pgps_internal.take_their_wish(origin text, event jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_conversation pgps_internal.conversation
        := pgps_internal.their_conversation(take_their_wish.origin, take_their_wish.event);
    v_state pgps_internal.conversation_state;
    v_unit bigint := pgps_internal.unit_meant(take_their_wish.origin, take_their_wish.event);
    v_standing pgps_internal.unit_standing;
begin
    if v_conversation.conversation_no is null then
        return;
    elsif take_their_wish.event ->> 'verb' = 'end' then
        v_state := pgps_internal.state_of(v_conversation.conversation_no);
        v_state.ended := coalesce(v_state.ended, take_their_wish.event -> 'body' ->> 'ended');
        perform pgps_internal.note_conversation(v_state);
        return;
    end if;
    select s.* into v_standing from pgps_internal.unit_standing s where s.unit_no = v_unit;
    if take_their_wish.event ->> 'verb' = 'note' and v_standing.is_active then
        perform pgps_internal.note_user_status(v_unit, take_their_wish.event -> 'body' ->> 'user_status');
    elsif take_their_wish.event ->> 'verb' = 'cancel' and v_standing.status = 'ACCEPTED' then
        -- One that a server holds, or has processed, is not cancelled any more: that is told, or has been.
        perform pgps_internal.note_unit(v_unit, 'CANCELLED', v_standing.receiver_id, null, v_standing.attempts, 0);
        perform pgps_internal.tell_status(v_unit, 'CANCELLED', v_standing.attempts, null),
            pgps_internal.note_ended(v_standing.service_id);
    end if;
end
$$;
comment on function pgps_internal.take_their_wish(text, jsonb) is
'Does what a party at another broker wants: ends the conversation, cancels a unit or sets its user status';

create or replace function pgps_internal.take_relayed(publisher name, origin text, event jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    case take_relayed.event ->> 'verb'
        when 'status' then perform pgps_internal.take_their_status(take_relayed.origin, take_relayed.event);
        when 'unit' then
            perform pgps_internal.take_their_unit(take_relayed.publisher, take_relayed.origin, take_relayed.event);
        else perform pgps_internal.take_their_wish(take_relayed.origin, take_relayed.event);
    end case;
exception
    when insufficient_privilege or undefined_object or program_limit_exceeded or object_not_in_prerequisite_state
        or data_exception or integrity_constraint_violation then
        -- Whoever may publish the type may write anything into it. What makes no sense holds up nobody else's units.
        if take_relayed.event ->> 'verb' = 'unit' then
            perform pgps_internal.refuse_their_unit(take_relayed.origin, take_relayed.event, sqlstate);
        else
            raise warning 'what broker "%" says of a unit of work is ignored: %', take_relayed.origin, sqlerrm;
        end if;
end
$$;
comment on function pgps_internal.take_relayed(name, text, jsonb) is 'Does what an event from another broker says';

create or replace function pgps.relay_units(max_events integer = 100) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan
as $$
declare
    v_events jsonb;
    v_held bigint[];
    v_ended bigint;
begin
    perform pgps_internal.require_read_committed();
    v_ended := pgps_internal.note_lost_sessions();
    if not exists (select from pgps_internal.subscription s where s.name = 'pgps_uow'
            and pgps_internal.is_own_role(s.owner::oid)) then
        return case when v_ended > 0 or exists (select from pgps_internal.serving s) then v_ended end;
    end if;
    select to_jsonb(array_agg(e order by e.place)) into v_events
    from (select e.event_id, e.publisher, e.origin, e.payload, e.attempt, e.place
        from pgps.take('pgps_uow', relay_units.max_events) with ordinality
            e(event_id, event_type, payload, published_at, publisher, xid, origin, attempt, place)) e;
    -- One session at a time: who tells what happened sees all that was taken before, and in this order.
    lock table pgps_internal.relay_told in share row exclusive mode;
    if v_events is null then
        return v_ended + pgps_internal.tell_what_happened();
    end if;
    v_held := pgps_internal.lock_what_is_meant(v_events);
    perform pgps_internal.take_relayed((e ->> 'publisher')::name, e ->> 'origin', e -> 'payload')
    from jsonb_array_elements(v_events) e where v_held is null or (e ->> 'event_id')::bigint <> all (v_held);
    perform pgps_internal.leave_for_later(v_events, v_held) where v_held is not null;
    return jsonb_array_length(v_events);
end
$$;
comment on function pgps.relay_units(integer) is
'Applies what other brokers have sent about units of work, at most so many events, in one transaction; when nothing has
come, tells them what became of theirs by time, ended sessions, dropped services and restarts, at most 1,000 at a time.
What concerns a unit or conversation that an open transaction holds is looked at again later, at least once a second,
with what comes behind it in that conversation. Before all that, wakes servers that wait for what lost sessions held.
Returns how much it did or looked at, null when no service is served here or used over links (pgps.relay_services). A
worker calls it. Waits for another session that does. Needs pgps_worker or pgps_admin. Errors: 42501.';

revoke all on function pgps.relay_units(integer) from public;
grant execute on function pgps.relay_units(integer) to pgps_worker, pgps_admin;
