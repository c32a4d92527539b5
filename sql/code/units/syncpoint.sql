-- SYNCPOINT: what may be done to a unit of work by whom and when stands in pgps_internal.uow_transitions(); here is
-- how.
-- Locks, in this order: the turn of the session, the units in the order of their numbers, their conversations likewise.
-- last and query lock nothing.
-- Writes: nothing.

create or replace function pgps_internal.relation_to(
    speaker pgps_internal.speaker, standing pgps_internal.unit_standing,
    conversation pgps_internal.conversation, state pgps_internal.conversation_state, option text
) returns text
language plpgsql volatile
as $$
declare
    v_me bigint := (relation_to.speaker).participant_id;
    v_is_sender boolean := relation_to.standing.sender_id = v_me;
    v_is_receiver boolean := coalesce(relation_to.standing.status in ('DELIVERED', 'TIMEOUT', 'DISCARDED')
            and relation_to.standing.receiver_session = (relation_to.speaker).session_id, false)
        or coalesce(v_me = case when relation_to.standing.to_server then (relation_to.state).server_id
            else (relation_to.conversation).client_id end, false);
begin
    return case
        -- A participant may be both: then it is what may do that now.
        when v_is_sender and v_is_receiver then case when exists (select from pgps_internal.uow_transitions() t
            where t.option = relation_to.option and t.caller = 'sender' and t.status = relation_to.standing.status)
            then 'sender' else 'receiver' end
        when v_is_sender then 'sender' when v_is_receiver then 'receiver' end;
end
$$;
comment on function pgps_internal.relation_to(pgps_internal.speaker, pgps_internal.unit_standing,
    pgps_internal.conversation, pgps_internal.conversation_state, text) is
'Whether the speaker is the sender or the receiver of a unit; null: neither. A server is the receiver of what it holds,
and of everything in a conversation that is bound to it.';

create or replace function pgps_internal.refuse_transition(option text, caller text,
    standing pgps_internal.unit_standing) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_statuses text := (select string_agg(t.status, ', ') from pgps_internal.uow_transitions() t
        where t.option = refuse_transition.option and t.caller = refuse_transition.caller);
begin
    raise exception 'option "%" is not allowed for the % of unit of work "U%" in status %', refuse_transition.option,
        refuse_transition.caller, upper(to_hex(refuse_transition.standing.unit_no)), refuse_transition.standing.status
    using errcode = '55000', hint = case when v_statuses is null
        then format('Only its %s may do that.', case refuse_transition.caller when 'sender' then 'receiver'
            else 'sender' end)
        else format('The %s may do that in status %s.', refuse_transition.caller, v_statuses) end;
end
$$;
comment on function pgps_internal.refuse_transition(text, text, pgps_internal.unit_standing) is
'Raises 55000: names the option, the state that a unit is in, and those that allow it';

create or replace function pgps_internal.open_units(
    speaker pgps_internal.speaker, conversation_no bigint, out sent bigint[], out held bigint[]
) returns record
language plpgsql volatile
as $$
declare
    v_now timestamptz := pgps_internal.clock();
begin
    -- What a session that lives has in hand is under way until its time is over, or its service is dropped.
    with one as materialized (
        select u.unit_no, u.unit_no = any ((open_units.speaker).sent) as is_sent, u.ends_at > v_now
            and not exists (select from pgps_internal.service_dropped g where g.service_id = u.service_id) as in_time
        from pgps_internal.unit u
        where u.unit_no = any ((open_units.speaker).sent || (open_units.speaker).held)
            and u.conversation_no = coalesce(open_units.conversation_no, u.conversation_no)
            -- Of one that it was sending it has heard; in place of one that it held there may be nothing else.
            and not (u.unit_no = any ((open_units.speaker).sent)
                and exists (select from pgps_internal.unit_told t where t.unit_no = u.unit_no))
    )
    -- With none under way, one that is over says so.
    select coalesce(array_agg(o.unit_no) filter (where o.is_sent), '{}'),
        coalesce(array_agg(o.unit_no) filter (where not o.is_sent), '{}')
    into sent, held
    from one o where o.in_time or not exists (select from one i where i.in_time);
end
$$;
comment on function pgps_internal.open_units(pgps_internal.speaker, bigint) is
'The units that a session is sending, and those that it holds, in one conversation or (null) in all';

create or replace function pgps_internal.unit_to_sync(
    speaker pgps_internal.speaker, option text, uow_id text, conversation_no bigint
) returns bigint
language plpgsql volatile
as $$
declare
    v_open record;
    v_unit bigint;
begin
    if unit_to_sync.uow_id is not null then
        select u.unit_no into v_unit from pgps_internal.unit u
        where u.unit_no = pgps_internal.number_in(unit_to_sync.uow_id, 'U') and u.is_uow
            and u.conversation_no = coalesce(unit_to_sync.conversation_no, u.conversation_no);
        return v_unit;
    end if;
    -- Whoever has more in hand than the one that is over could take the other one for it.
    if unit_to_sync.option <> 'query'
        and cardinality((unit_to_sync.speaker).sent) + cardinality((unit_to_sync.speaker).held) > 1 then
        perform pgps_internal.refuse_lapsed(pgps_internal.lapsed_in_hand(
            (unit_to_sync.speaker).sent || (unit_to_sync.speaker).held, unit_to_sync.conversation_no, false));
    end if;
    v_open := pgps_internal.open_units(unit_to_sync.speaker, unit_to_sync.conversation_no);
    if cardinality(v_open.sent) + cardinality(v_open.held) > 1 then
        raise exception 'several units of work are open: %', (select string_agg('U' || upper(to_hex(n)), ', ')
            from unnest(v_open.sent || v_open.held) n)
        using errcode = '55000', hint = 'Name one of them with uow_id, or its conversation; uow_id => ''both'' '
            'commits the one received and the one sent.';
    elsif cardinality(v_open.sent) + cardinality(v_open.held) = 0 and unit_to_sync.option <> 'query' then
        raise exception 'no unit of work is open%', case when unit_to_sync.conversation_no is null then ''
            else ' in that conversation' end
        using errcode = '55000', hint = 'Open is one that is being sent (RECEIVED) or that has been received '
            '(DELIVERED) by this session; name another one with uow_id.';
    end if;
    return (v_open.sent || v_open.held)[1];
end
$$;
comment on function pgps_internal.unit_to_sync(pgps_internal.speaker, text, text, bigint) is
'The unit of that id, or the only one that the session has open; null when there is none. Errors: 55000.';

create or replace function pgps_internal.becomes_of(
    speaker pgps_internal.speaker, standing pgps_internal.unit_standing, relation text, option text
) returns text
language plpgsql volatile
as $$
declare
    v_becomes text;
begin
    select t.becomes into v_becomes from pgps_internal.uow_transitions() t
    where t.option = becomes_of.option and t.caller = becomes_of.relation and t.status = becomes_of.standing.status;
    if not found or becomes_of.relation = 'receiver' and becomes_of.standing.status = 'DELIVERED'
        and becomes_of.standing.receiver_session <> (becomes_of.speaker).session_id then
        -- Who has it in hand need not hear of it again before going on.
        if becomes_of.relation = 'sender' and becomes_of.standing.commit_no is null
            or becomes_of.standing.unit_no = any ((becomes_of.speaker).held) then
            perform pgps_internal.note_told(becomes_of.standing.unit_no, becomes_of.standing.status);
        end if;
        perform pgps_internal.refuse_transition(becomes_of.option, becomes_of.relation, becomes_of.standing);
    end if;
    return v_becomes;
end
$$;
comment on function pgps_internal.becomes_of(pgps_internal.speaker, pgps_internal.unit_standing, text, text) is
'What an option makes of a unit, by the table of transitions; 55000 when it is not allowed';

create or replace function pgps_internal.apply_transition(
    speaker pgps_internal.speaker, option text, unit_no bigint, user_status text
) returns pgps.received_message
language plpgsql
as $$
declare
    v_standing pgps_internal.unit_standing := pgps_internal.how_stands(apply_transition.unit_no,
        apply_transition.speaker);
    v_conversation pgps_internal.conversation := pgps_internal.conversation_of(v_standing.conversation_no);
    v_state pgps_internal.conversation_state := pgps_internal.state_of(v_standing.conversation_no);
    v_relation text := pgps_internal.relation_to(apply_transition.speaker, v_standing, v_conversation, v_state,
        apply_transition.option);
    v_becomes text := pgps_internal.becomes_of(apply_transition.speaker, v_standing, v_relation,
        apply_transition.option);
begin
    if apply_transition.user_status is not null then
        perform pgps_internal.note_user_status(v_standing.unit_no, apply_transition.user_status);
        v_standing.user_status := apply_transition.user_status;
    end if;
    if apply_transition.option = 'setustatus' then
        perform pgps_internal.tell_change(v_standing, v_standing.status, v_standing.attempts,
            apply_transition.user_status);
        return pgps_internal.row_from(v_standing, v_state, v_standing.status);
    elsif apply_transition.option = 'cancel' and v_relation = 'sender' and v_standing.is_relayed then
        -- The broker that has it decides, and tells.
        perform pgps_internal.tell_broker(v_conversation, 'cancel', v_standing.unit_no,
            jsonb_build_object('unit_stamp', pgps_internal.stamp_of(v_standing.began_at)));
        return pgps_internal.row_from(v_standing, v_state, v_standing.status);
    elsif apply_transition.option = 'delete' then
        perform pgps_internal.note_unit(v_standing.unit_no, 'DELETED', v_standing.receiver_id, null,
            v_standing.attempts, 0);
        v_becomes := v_standing.status;
    elsif v_becomes = 'ACCEPTED' and v_relation = 'sender' then
        perform pgps_internal.require_not_ended(v_state);
        v_standing.committed_at := pgps_internal.commit_unit(v_standing, v_conversation, v_state);
        if apply_transition.option in ('eoc', 'eoccancel') then
            v_state := pgps_internal.note_end(v_state, apply_transition.option);
        end if;
    elsif v_becomes = 'ACCEPTED' then
        v_standing.attempts := v_standing.attempts + 1;
        perform pgps_internal.note_unit(v_standing.unit_no, 'ACCEPTED', null, null, v_standing.attempts, 0),
            pgps_internal.tell_change(v_standing, 'ACCEPTED', v_standing.attempts, apply_transition.user_status);
        perform pgps_internal.wake_queue(pgps_internal.queue_for(v_standing.to_server, v_conversation, v_state));
    else
        perform pgps_internal.note_unit(v_standing, v_becomes, v_standing.receiver_id, null,
            v_standing.messages_given), pgps_internal.note_ended(v_standing.service_id);
        if v_relation = 'receiver' then
            perform pgps_internal.tell_change(v_standing, v_becomes, v_standing.attempts,
                apply_transition.user_status);
            -- Cancelling binds a conversation to nobody.
            v_state := pgps_internal.complete_unit(v_standing, v_state,
                case v_becomes when 'PROCESSED' then (apply_transition.speaker).participant_id end);
            -- So the next unit in it waits for any server.
            perform pgps_internal.wake_queue(pgps_internal.queue_for(v_standing.to_server, v_conversation, v_state))
            where v_becomes = 'CANCELLED';
        end if;
    end if;
    return pgps_internal.row_from(v_standing, v_state, v_becomes);
end
$$;
comment on function pgps_internal.apply_transition(pgps_internal.speaker, text, bigint, text) is
'Does to a unit what an option says, if the table of transitions allows it; the caller has locked the unit and its
conversation. Errors: 55000.';

create or replace function pgps_internal.units_to_sync(
    speaker pgps_internal.speaker, option text, args jsonb, conversation_no bigint
) returns bigint[]
language plpgsql volatile
as $$
declare
    v_open record;
    v_unit bigint;
begin
    if lower(args ->> 'uow_id') = 'both' then
        if units_to_sync.option <> 'commit' then
            raise exception 'uow_id "both" is not allowed with option "%"', units_to_sync.option
            using errcode = '22023', hint = 'Only commit takes both: the one received and the one sent.';
        end if;
        perform pgps_internal.refuse_lapsed(pgps_internal.lapsed_in_hand((units_to_sync.speaker).held,
            units_to_sync.conversation_no, false));
        v_open := pgps_internal.open_units(units_to_sync.speaker, units_to_sync.conversation_no);
        if cardinality(v_open.sent) <> 1 or cardinality(v_open.held) <> 1 then
            raise exception 'there are % units of work received and % being sent, not one each',
                cardinality(v_open.held), cardinality(v_open.sent)
            using errcode = '55000', hint = 'Name the conversation, or commit them one by one with uow_id.';
        end if;
        return v_open.held || v_open.sent;
    end if;
    v_unit := pgps_internal.unit_to_sync(units_to_sync.speaker, units_to_sync.option, args ->> 'uow_id',
        units_to_sync.conversation_no);
    return array[v_unit];
end
$$;
comment on function pgps_internal.units_to_sync(pgps_internal.speaker, text, jsonb, bigint) is
'The units that a SYNCPOINT is about: with uow_id both, the one received and the one sent; null where there is none';

create or replace function pgps_internal.require_relation(speaker pgps_internal.speaker, option text, uow_id text,
    unit_no bigint) returns void
language plpgsql volatile
as $$
declare
    v_standing pgps_internal.unit_standing;
begin
    select s.* into v_standing from pgps_internal.unit_standing s where s.unit_no = require_relation.unit_no;
    -- One that this session has in hand is known to it, also when its status is not kept.
    if v_standing.unit_no is null or v_standing.status = 'GONE'
        or not v_standing.is_known and v_standing.unit_no
            <> all ((require_relation.speaker).sent || (require_relation.speaker).held) then
        raise exception 'unit of work "%" does not exist', require_relation.uow_id using errcode = '42704',
            hint = 'See pgps.units_of_work; of those that are over, only a persistent status is kept.';
    elsif pgps_internal.relation_to(require_relation.speaker, v_standing,
        pgps_internal.conversation_of(v_standing.conversation_no),
        pgps_internal.state_of(v_standing.conversation_no), require_relation.option) is null then
        raise exception 'unit of work "%" is somebody else''s', require_relation.uow_id using errcode = '42501',
            hint = 'Its sender may do that, and who has received it and not backed it out.';
    end if;
end
$$;
comment on function pgps_internal.require_relation(pgps_internal.speaker, text, text, bigint) is
'Raises 42704 when there is no such unit, 42501 when it is neither sent nor received by the speaker';

create or replace function pgps_internal.sync_units(caller name, args jsonb) returns pgps.received_message[]
language plpgsql
as $$
declare
    v_option text := lower(args ->> 'option');
    v_speaker pgps_internal.speaker;
    v_conversation bigint;
    v_units bigint[];
    v_rows pgps.received_message[] := '{}';
    v_unit bigint;
begin
    if v_option is null or not exists (select from pgps_internal.uow_transitions() t where t.option = v_option) then
        raise exception 'unknown option "%" of syncpoint', args ->> 'option' using errcode = '22023',
            hint = format('Give one of: %s.', (select string_agg(distinct t.option, ', ')
                from pgps_internal.uow_transitions() t));
    end if;
    if args ->> 'user_status' is not null then
        perform pgps_internal.check_user_status(args ->> 'user_status');
    end if;
    v_speaker := case when v_option = 'cancel' and (args ->> 'is_for_sender')::boolean
            then pgps_internal.speak_for_sender(caller, args)
        when v_option in ('last', 'query') then pgps_internal.speaker_of(caller, args)
        else pgps_internal.speak_with_hand(caller, args) end;
    if args ->> 'conversation' is not null then
        v_conversation := (pgps_internal.find_conversation(args ->> 'conversation', v_speaker)).conversation_no;
    end if;
    if v_option in ('last', 'query') then
        perform pgps_internal.note_use(v_speaker.session_id)
        where args ->> 'session' is not null and current_setting('transaction_isolation') like 'read %';
        return array[pgps_internal.look_up_unit(v_speaker, v_option, args, v_conversation)];
    elsif v_option = 'setustatus' and args ->> 'user_status' is null then
        raise exception 'no user status is given' using errcode = '22023',
            hint = 'Give user_status => text of at most 32 bytes.';
    end if;
    v_units := pgps_internal.units_to_sync(v_speaker, v_option, args, v_conversation);
    if args ->> 'uow_id' is not null and lower(args ->> 'uow_id') <> 'both' then
        perform pgps_internal.require_relation(v_speaker, v_option, args ->> 'uow_id', v_units[1]);
    end if;
    if v_option <> 'setustatus' then
        perform from pgps_internal.unit u where u.unit_no = any (v_units) order by u.unit_no for update;
    end if;
    perform pgps_internal.lock_conversations(array(select distinct u.conversation_no from pgps_internal.unit u
        where u.unit_no = any (v_units)));
    foreach v_unit in array v_units loop
        v_rows := v_rows || pgps_internal.apply_transition(v_speaker, v_option, v_unit, args ->> 'user_status');
    end loop;
    if v_option <> 'setustatus' and v_speaker.session_id <> 0 then
        perform pgps_internal.put_in_hand(v_speaker, gone => v_units);
    end if;
    return v_rows;
end
$$;
comment on function pgps_internal.sync_units(name, jsonb) is 'See pgps.syncpoint';

create or replace function pgps_internal.end_conversation(caller name, args jsonb) returns pgps.received_message
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_speaker pgps_internal.speaker := pgps_internal.speak_with_hand(caller, args);
    v_conversation pgps_internal.conversation := pgps_internal.find_conversation(args ->> 'conversation', v_speaker);
    v_state pgps_internal.conversation_state;
    v_open record;
    v_row pgps.received_message;
begin
    perform pgps_internal.direction_of(v_speaker, v_conversation,
        pgps_internal.state_of(v_conversation.conversation_no));
    v_open := pgps_internal.open_units(v_speaker, v_conversation.conversation_no);
    perform from pgps_internal.unit u where u.unit_no = any (v_open.sent) order by u.unit_no for update;
    perform pgps_internal.lock_conversations(array[v_conversation.conversation_no]);
    -- What was not committed is not sent any more.
    perform pgps_internal.apply_transition(v_speaker, 'backout', n, null) from unnest(v_open.sent) n
    where (select s.status from pgps_internal.unit_standing s where s.unit_no = n) = 'RECEIVED';
    perform pgps_internal.put_in_hand(v_speaker, gone => v_open.sent) where v_open.sent <> '{}';
    v_state := pgps_internal.state_of(v_conversation.conversation_no);
    if v_state.ended is null then
        v_state := pgps_internal.note_end(v_state, 'eoc');
    end if;
    select null, upper(args ->> 'conversation'), null, null, s.class, s.server, s.service,
        pgps_internal.first_commit_at(v_conversation.conversation_no), null, null, null, v_state.ended, null, null,
        null, null, null
    into v_row from pgps_internal.service s where s.service_id = v_conversation.service_id;
    return v_row;
end
$$;
comment on function pgps_internal.end_conversation(name, jsonb) is 'See pgps.end_conversation';
