-- What other brokers send: units of work, and what became of those that were sent to them. Each event is applied in the
-- transaction that acknowledges it. What cannot be done is told to the other broker as a unit that is cancelled; what
-- concerns a unit or a conversation that is not there any more is ignored.
-- Locks: the turn of the subscription pgps_uow, or share row exclusive on relay_told; then the units that it is about
-- in the order of their numbers, their conversations likewise.
-- Writes: conversation, participant, relay_session, relay_told, unit, unit_message.

create or replace function pgps_internal.their_conversation(origin text, event jsonb) returns pgps_internal.conversation
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_conversation pgps_internal.conversation;
begin
    if their_conversation.event ->> 'client_broker' = pgps_internal.broker_name() then
        select c.* into v_conversation from pgps_internal.conversation c
        where c.conversation_no = (their_conversation.event ->> 'conversation')::bigint
            and c.broker = their_conversation.origin and c.their_no is null
            and c.life_id >= (pgps._this_life()).emptied_id;
    elsif their_conversation.event ->> 'client_broker' = their_conversation.origin then
        select c.* into v_conversation from pgps_internal.conversation c
        where c.their_no = (their_conversation.event ->> 'conversation')::bigint
            and c.broker = their_conversation.origin and c.life_id >= (pgps._this_life()).emptied_id;
    end if;
    return v_conversation;
end
$$;
comment on function pgps_internal.their_conversation(text, jsonb) is
'The conversation with a broker (origin) that an event is about; null when there is none';

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
            (check_their_unit.event -> 'body' ->> 'ends_at')::timestamptz, true);
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

create or replace function pgps_internal.take_their_unit(publisher name, origin text, event jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_body jsonb := take_their_unit.event -> 'body';
    v_to_server boolean := (v_body ->> 'to_server')::boolean;
    v_conversation pgps_internal.conversation
        := pgps_internal.their_conversation(take_their_unit.origin, take_their_unit.event);
    v_service pgps_internal.service;
    v_life bigint := coalesce(pgps_internal.noted_life(), pgps_internal.note_life());
    v_sender bigint;
    v_no bigint;
begin
    if v_to_server then
        v_service := pgps_internal.find_service(quote_ident(v_body ->> 'class'), quote_ident(v_body ->> 'server'),
            quote_ident(v_body ->> 'service'));
        perform pgps_internal.check_their_unit(v_service, take_their_unit.publisher, take_their_unit.event);
    elsif v_conversation.conversation_no is null then
        raise exception 'conversation % does not exist', take_their_unit.event ->> 'conversation'
        using errcode = '42704', hint = 'It is over, or its service was dropped.';
    end if;
    v_sender := pgps_internal.their_participant(take_their_unit.publisher, take_their_unit.origin, v_body);
    if v_conversation.conversation_no is null then
        v_no := nextval('pgps_internal.uow_no_seq');
        insert into pgps_internal.conversation (at_no, conversation_no, service_id, client_id, is_uow, life_id,
            began_at, broker, their_no)
        values (v_no, v_no, v_service.service_id, v_sender, (v_body ->> 'is_uow')::boolean, v_life,
            pgps_internal.clock(), take_their_unit.origin, (take_their_unit.event ->> 'conversation')::bigint)
        returning * into v_conversation;
    end if;
    v_no := nextval('pgps_internal.uow_no_seq');
    insert into pgps_internal.unit (at_no, unit_no, conversation_no, service_id, to_server, is_uow, sender_id,
        session_id, life_id, is_persistent, began_at, ends_at, user_status, is_relayed, their_no)
    values (v_no, v_no, v_conversation.conversation_no, v_conversation.service_id, v_to_server,
        (v_body ->> 'is_uow')::boolean, v_sender, 0, v_life, (v_body ->> 'is_persistent')::boolean,
        (v_body ->> 'began_at')::timestamptz, (v_body ->> 'ends_at')::timestamptz, v_body ->> 'user_status', false,
        (take_their_unit.event ->> 'unit')::bigint);
    insert into pgps_internal.unit_message (at_no, unit_no, number, message)
    select nextval('pgps_internal.uow_no_seq'), v_no, m.number, m.message::bytea
    from jsonb_array_elements_text(take_their_unit.event -> 'messages') with ordinality m(message, number);
    perform pgps_internal.commit_unit(pgps_internal.how_stands(v_no), v_conversation,
        pgps_internal.state_of(v_conversation.conversation_no));
    if (v_body ->> 'ends_at')::timestamptz <= pgps_internal.clock() then
        perform pgps_internal.note_unit(v_no, 'TIMEOUT', null, null, 0, 0);
        perform pgps_internal.tell_status(v_no, 'TIMEOUT', 0, null);
    end if;
end
$$;
comment on function pgps_internal.take_their_unit(name, text, jsonb) is
'Makes a copy of a unit from another broker, committed and queued for its receiver here. Errors: 42501, 42704, 54000,
55000.';

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
        jsonb_build_object('status', 'CANCELLED', 'attempts', 0, 'user_status', 'refused: '
            || refuse_their_unit.sqlstate));
end
$$;
comment on function pgps_internal.refuse_their_unit(text, jsonb, text) is
'Tells the broker of its sender that a unit is cancelled, since it is not taken here';

create or replace function pgps_internal.unit_meant(origin text, event jsonb) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_conversation bigint
        := (pgps_internal.their_conversation(unit_meant.origin, unit_meant.event)).conversation_no;
    v_no bigint := (unit_meant.event ->> 'unit')::bigint;
begin
    case unit_meant.event ->> 'verb'
        when 'status' then
            return (select u.unit_no from pgps_internal.unit u
                where u.unit_no = v_no and u.conversation_no = v_conversation and u.is_relayed);
        when 'cancel', 'note' then
            return (select u.unit_no from pgps_internal.unit_commit c join pgps_internal.unit u using (unit_no)
                where c.conversation_no = v_conversation and c.entry_no = c.commit_no and u.their_no = v_no);
        else
            return null;
    end case;
end
$$;
comment on function pgps_internal.unit_meant(text, jsonb) is
'The unit here that an event from another broker is about; null when there is none, or it is to be made';

create or replace function pgps_internal.take_their_status(origin text, event jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_body jsonb := take_their_status.event -> 'body';
    v_standing pgps_internal.unit_standing;
begin
    select s.* into v_standing from pgps_internal.unit_standing s
    where s.unit_no = pgps_internal.unit_meant(take_their_status.origin, take_their_status.event);
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
        perform pgps_internal.tell_status(v_unit, 'CANCELLED', v_standing.attempts, null);
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

create or replace function pgps_internal.note_relay_session(standing pgps_internal.unit_standing, session_id bigint)
returns void
language plpgsql
as $$
begin
    if note_relay_session.standing.their_no is not null then
        insert into pgps_internal.relay_session (session_id) values (note_relay_session.session_id)
        on conflict do nothing;
    end if;
end
$$;
comment on function pgps_internal.note_relay_session(pgps_internal.unit_standing, bigint) is
'Notes that a session holds a unit from another broker, which is to be told when the session ends';

create or replace function pgps_internal.relayed_to_look_at(since timestamptz, life_id bigint) returns setof bigint
language plpgsql volatile rows 100
set search_path = pg_catalog, pg_temp
as $$
begin
    if relayed_to_look_at.life_id is distinct from (pgps._this_life()).life_id then
        -- A restart ends all sessions, and discards what is not persistent.
        return query select u.unit_no from pgps_internal.unit u where u.their_no is not null;
        return;
    end if;
    return query
    select u.unit_no from pgps_internal.unit u
    where u.their_no is not null and u.ends_at > relayed_to_look_at.since and u.ends_at <= pgps_internal.clock()
    union
    select h.unit_no from pgps_internal.relay_session r
    cross join lateral unnest((pgps_internal.hand_of(r.session_id)).held) h(unit_no)
    where not pgps._session_lives(r.session_id);
end
$$;
comment on function pgps_internal.relayed_to_look_at(timestamptz, bigint) is
'The units from other brokers to which something may have happened that nobody has done: their time was over, their
session ended, or the broker restarted';

create or replace function pgps_internal.tell_what_happened() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_told pgps_internal.relay_told;
    v_life pgps_internal.life;
    v_dead bigint[];
    v_unit bigint;
    v_standing pgps_internal.unit_standing;
    v_noted text;
    v_count bigint := 0;
begin
    perform pg_stat_clear_snapshot();
    v_life := pgps._this_life();
    select t.* into v_told from pgps_internal.relay_told t;
    v_dead := array(select r.session_id from pgps_internal.relay_session r where not pgps._session_lives(r.session_id));
    for v_unit in select n from pgps_internal.relayed_to_look_at(coalesce(v_told.until, '-infinity'), v_told.life_id) n
        order by n
    loop
        perform from pgps_internal.unit u where u.unit_no = v_unit for update;
        select s.* into v_standing from pgps_internal.unit_standing s where s.unit_no = v_unit;
        v_noted := coalesce((select s.status from pgps_internal.unit_state s where s.unit_no = v_unit
            order by s.version desc limit 1), 'ACCEPTED');
        continue when v_noted = v_standing.status or v_noted not in ('ACCEPTED', 'DELIVERED');
        perform pgps_internal.note_unit(v_unit, v_status, null, null, v_standing.attempts, 0),
            pgps_internal.tell_status(v_unit, v_status, v_standing.attempts, null)
        from (select case v_standing.status when 'GONE' then 'DISCARDED' else v_standing.status end) s(v_status);
        v_count := v_count + 1;
    end loop;
    delete from pgps_internal.relay_session r where r.session_id = any (v_dead);
    -- Written only when there was something, or now and then.
    if v_count > 0 or v_told.life_id is distinct from v_life.life_id
        or v_told.until < v_life.seen_at - interval '1 minute' then
        delete from pgps_internal.relay_told;
        insert into pgps_internal.relay_told (life_id, until) values (v_life.life_id, v_life.seen_at);
    end if;
    return v_count;
end
$$;
comment on function pgps_internal.tell_what_happened() is
'Notes what time, ended sessions and restarts did to units from other brokers, and tells these; returns to how many';

create or replace function pgps.relay_units(max_events integer = 100) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan
as $$
declare
    v_events jsonb;
    v_ended bigint;
begin
    perform pgps_internal.require_read_committed();
    v_ended := pgps_internal.note_lost_sessions();
    if not exists (select from pgps_internal.subscription s where s.name = 'pgps_uow') then
        return case when v_ended > 0 or exists (select from pgps_internal.serving s) then v_ended end;
    end if;
    select to_jsonb(array_agg(e order by e.place)) into v_events
    from (select e.publisher, e.origin, e.payload, e.place
        from pgps.take('pgps_uow', relay_units.max_events) with ordinality
            e(event_id, event_type, payload, published_at, publisher, xid, origin, attempt, place)) e;
    if v_events is null then
        -- One session at a time tells what happened, in the order in which it did.
        lock table pgps_internal.relay_told in share row exclusive mode;
        return v_ended + pgps_internal.tell_what_happened();
    end if;
    -- In the order of SYNCPOINT: first all units, then all conversations.
    perform from pgps_internal.unit u
    where u.unit_no = any (array(select pgps_internal.unit_meant(e ->> 'origin', e -> 'payload')
        from jsonb_array_elements(v_events) e))
    order by u.unit_no for update;
    perform pgps_internal.lock_conversations(array(
        select (pgps_internal.their_conversation(e ->> 'origin', e -> 'payload')).conversation_no
        from jsonb_array_elements(v_events) e));
    perform pgps_internal.take_relayed((e ->> 'publisher')::name, e ->> 'origin', e -> 'payload')
    from jsonb_array_elements(v_events) e;
    return jsonb_array_length(v_events);
end
$$;
comment on function pgps.relay_units(integer) is
'Applies what other brokers have sent about units of work, at most so many events, and tells them what became of theirs
by time, ended sessions and restarts, all in one transaction. Before that, wakes servers that wait for what lost
sessions held. Returns how much it did, null when no service is served here or used over links (pgps.relay_services). A
worker calls it. Waits for another session that does. Needs pgps_worker or pgps_admin. Errors: 42501.';

revoke all on function pgps.relay_units(integer) from public;
grant execute on function pgps.relay_units(integer) to pgps_worker, pgps_admin;
