-- Sending as it is mostly done, in few statements (decisions 60 and 84): the first message of a unit of work with the
-- options that the service has, in a new conversation or in one of which the session holds the only unit that it holds,
-- with a service of this broker. For anything else these functions return null before they have written, and the
-- general way (send.sql), which has the errors, is taken.
-- Locks: none.
-- Writes: conversation, session_hand, unit, unit_commit.

create or replace view pgps_internal.service_to_send as
select s.service_id, s.class, s.server, s.service, s as whole, coalesce(s.store, t.store) = 'broker' as is_persistent,
    coalesce(s.lifetime, t.lifetime) as unit_lifetime,
    nullif(coalesce(s.status_lifetime, t.status_lifetime), 0) * coalesce(s.lifetime, t.lifetime) as status_for,
    coalesce(s.max_message_bytes, t.max_message_bytes) as message_bytes,
    coalesce(s.max_messages_in_uow, t.max_messages) as messages, coalesce(s.deferred, t.deferred) as is_deferred,
    t.persistent_store <> 'no' as may_persist, t.max_active
from pgps_internal.service s cross join lateral (
    select max(t.value) filter (where t.name = 'uow_store') as store,
        (max(t.value) filter (where t.name = 'uow_lifetime'))::interval as lifetime,
        (max(t.value) filter (where t.name = 'uow_status_lifetime'))::integer as status_lifetime,
        (max(t.value) filter (where t.name = 'uow_max_messages'))::integer as max_messages,
        (max(t.value) filter (where t.name = 'uow_max_message_bytes'))::integer as max_message_bytes,
        (max(t.value) filter (where t.name = 'uow_deferred'))::boolean as deferred,
        max(t.value) filter (where t.name = 'uow_persistent_store') as persistent_store,
        (max(t.value) filter (where t.name = 'uow_max_active'))::bigint as max_active
    from pgps_internal.setting t where t.name >= 'uow_' and t.name < 'uow`') t
where s.broker is null;
comment on view pgps_internal.service_to_send is
'Services of this broker, with what holds for what is sent to them: as they say, else as the settings say';

create or replace function pgps_internal.send_first(
    hand pgps_internal.session_hand, service pgps_internal.service_to_send, commits boolean, message bytea
) returns pgps.received_message
language plpgsql
as $$
declare
    v_now timestamptz := pgps_internal.clock();
    v_ends_at timestamptz := v_now + send_first.service.unit_lifetime;
    v_talk bigint := nextval('pgps_internal.uow_no_seq');
    -- A unit has its number before it counts as begun: see pgps_internal.count_active.
    v_unit bigint := nextval('pgps_internal.uow_no_seq');
    v_queue bigint := pgps_internal.queue_of(send_first.service.service_id);
    v_xid xid8;
    v_no bigint;
    v_told text;
begin
    perform pgps_internal.check_begun(send_first.service.whole, send_first.service.max_active, v_ends_at, commits);
    -- The transaction has an id before it takes the number of a commit: see pgps_internal.advance_queue.
    v_xid := pg_current_xact_id();
    v_no := nextval('pgps_internal.uow_no_seq');
    with talk as (
        insert into pgps_internal.conversation (at_no, conversation_no, service_id, client_id, is_uow, life_id,
            began_at)
        values (v_talk, v_talk, send_first.service.service_id, hand.participant_id, true, hand.life_id, v_now)
    )
    insert into pgps_internal.unit (at_no, unit_no, conversation_no, service_id, to_server, is_uow, sender_id,
        session_id, life_id, is_persistent, status_for, began_at, ends_at, is_relayed, message)
    values (v_unit, v_unit, v_talk, send_first.service.service_id, true, true, hand.participant_id,
        hand.session_id, hand.life_id, send_first.service.is_persistent, send_first.service.status_for, v_now,
        v_ends_at, false, send_first.message);
    if commits then
        insert into pgps_internal.unit_commit (at_no, queue_id, entry_no, conversation_no, unit_no, to_server,
            commit_no, committed_at, xid)
        values (v_no, v_queue, v_no, v_talk, v_unit, true, v_no, v_now, v_xid)
        returning pgps_internal.wake_queue(v_queue)::text into v_told;
    else
        insert into pgps_internal.session_hand (at_no, session_id, version, sent, held, participant_id, role, token,
            life_id, sent_one)
        values (v_no, hand.session_id, hand.version + 1, hand.sent || v_unit, hand.held,
            hand.participant_id, hand.role, hand.token, hand.life_id,
            case when hand.sent = '{}' then (v_unit, v_talk, send_first.service.service_id, true,
                send_first.service.is_persistent, v_ends_at, null, 0, 0, null, null)::pgps_internal.in_hand end);
    end if;
    return (pgps_internal.id_of(v_unit, 'U'), pgps_internal.id_of(v_talk, 'C'),
        case when commits then 'ACCEPTED' else 'RECEIVED' end, null, send_first.service.class,
        send_first.service.server, send_first.service.service, case when commits then v_now end, 0,
        case when send_first.service.is_persistent then 'broker' else 'no' end, v_ends_at, 'open', null, null, null,
        null, null)::pgps.received_message;
end
$$;
comment on function pgps_internal.send_first(pgps_internal.session_hand, pgps_internal.service_to_send, boolean,
    bytea) is
'Writes a conversation, and a unit of work with its first message in it; commits: its SYNCPOINT, too. Errors: 54000 too
many active units.';

create or replace function pgps_internal.send_new(caller name, to_service text, option text, message bytea)
returns pgps.received_message
language plpgsql
as $$
declare
    v_parts text[] := string_to_array(send_new.to_service, '/');
    v_hand pgps_internal.session_hand := pgps_internal.own_hand(caller);
    v_service pgps_internal.service_to_send;
begin
    if cardinality(v_parts) is distinct from 3 then
        return null;
    elsif v_hand.session_id is null then
        -- With option commit nothing stays in hand, so there may never have been anything.
        v_hand := pgps_internal.hand_from(case send_new.option
            when 'commit' then pgps_internal.speak(caller, null, true)
            else pgps_internal.speak_with_hand(caller, null) end);
    end if;
    select s.* into v_service from pgps_internal.service_to_send s
    where s.class = pgps_internal.fold_part(v_parts[1]) and s.server = pgps_internal.fold_part(v_parts[2])
        and s.service = pgps_internal.fold_part(v_parts[3]);
    if not found or octet_length(send_new.message) > v_service.message_bytes or v_service.messages < 1
        or v_service.is_persistent and (not v_service.may_persist or v_hand.token is null)
        or not v_service.is_deferred and not (pg_stat_clear_snapshot() is not null
            and pgps_internal.is_served(v_service.service_id))
        or not pgps_internal.has_service_right(send_new.caller, v_service.service_id, 'send') then
        return null;
    end if;
    return pgps_internal.send_first(v_hand, v_service, send_new.option = 'commit', send_new.message);
end
$$;
comment on function pgps_internal.send_new(name, text, text, bytea) is
'Sends the first message of a new conversation; null: it was not done. Errors: 55000 not logged on, 25001, 54000.';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.place_of(hand pgps_internal.session_hand, conversation_no bigint)
returns record
language plpgsql
as $body$
declare
    v_held pgps_internal.in_hand := hand.held_one;
    v_place record;
begin
    case pgps_internal.slot_at_hand(place_of.conversation_no){branches}
    end case;
    return v_place;
end
$body$;
$function$, '{branches}', pgps_internal.branches_of($branch$
            if hand.held = '{}' then
                select s.*, true as to_server, t.first_commit_at, t.server_id is not null as is_bound into v_place
                from pgps_internal.talk_noted{slot} t join pgps_internal.service_to_send s using (service_id)
                where t.conversation_no = place_of.conversation_no and t.is_common and t.ended is null
                    and t.life_id = hand.life_id and t.client_id = hand.participant_id;
            else
                select s.*, false as to_server, v_held.first_commit_at, true as is_bound into v_place
                from pgps_internal.service_to_send s
                where s.service_id = v_held.service_id and not exists (select from (
                    select y.ended from pgps_internal.conversation_state{slot} y
                    where y.conversation_no = place_of.conversation_no order by y.version desc limit 1) y
                    where y.ended is not null);
            end if;$branch$));
end
$do$;
comment on function pgps_internal.place_of(pgps_internal.session_hand, bigint) is
'A conversation that has not ended as a place to send in, with its service and what holds for what is sent there: for
its client, who has nothing in hand, or as an answer, for who holds a unit of it; null: neither, and the general way is
taken. is_bound: what is sent there goes to one participant.';

create or replace function pgps_internal.send_more(caller name, conversation text, message bytea)
returns pgps.received_message
language plpgsql
as $$
declare
    v_talk bigint := pgps_internal.number_in(send_more.conversation, 'C');
    v_hand pgps_internal.session_hand := pgps_internal.own_hand(caller);
    v_held pgps_internal.in_hand := v_hand.held_one;
    v_now timestamptz := pgps_internal.clock();
    v_unit bigint;
    v_ends_at timestamptz;
    v_in record;
begin
    if v_hand.sent <> '{}' or v_hand.held <> '{}' and (cardinality(v_hand.held) > 1 or v_held.ends_at <= v_now
        or not v_held.to_server or v_held.conversation_no is distinct from v_talk) or v_hand.session_id is null then
        return null;
    end if;
    v_in := pgps_internal.place_of(v_hand, v_talk);
    if v_in.service_id is null or octet_length(send_more.message) > v_in.message_bytes or v_in.messages < 1
        or v_in.is_persistent and (not v_in.may_persist or v_hand.token is null)
        or not pgps_internal.has_service_right(send_more.caller, v_in.service_id,
            case when v_in.to_server then 'send' else 'serve' end) then
        return null;
    end if;
    v_unit := nextval('pgps_internal.uow_no_seq');
    v_ends_at := v_now + v_in.unit_lifetime;
    perform pgps_internal.check_begun(v_in.whole, v_in.max_active, v_ends_at, false);
    with begun as (
        insert into pgps_internal.unit (at_no, unit_no, conversation_no, service_id, to_server, is_uow, sender_id,
            session_id, life_id, is_persistent, status_for, began_at, ends_at, is_relayed, message)
        values (v_unit, v_unit, v_talk, v_in.service_id, v_in.to_server, true, v_hand.participant_id,
            v_hand.session_id, v_hand.life_id, v_in.is_persistent, v_in.status_for, v_now, v_ends_at, false,
            send_more.message)
    )
    insert into pgps_internal.session_hand
    values (v_unit, v_hand.session_id, v_hand.version + 1, array[v_unit], v_hand.held, v_hand.participant_id,
        v_hand.role, v_hand.token, v_hand.life_id, v_held, case when v_in.is_bound then (v_unit, v_talk,
            v_in.service_id, v_in.to_server, v_in.is_persistent, v_ends_at, null, 0, 0, null, null
            )::pgps_internal.in_hand end);
    return (pgps_internal.id_of(v_unit, 'U'), pgps_internal.id_of(v_talk, 'C'), 'RECEIVED', null, v_in.class,
        v_in.server, v_in.service, v_in.first_commit_at, 0,
        case when v_in.is_persistent then 'broker' else 'no' end, v_ends_at, 'open', null, null, null, null, null
        )::pgps.received_message;
end
$$;
comment on function pgps_internal.send_more(name, text, bytea) is
'Sends the first message of a unit of work in a conversation of which there is one, with option sync; null: it was not
done. Errors: 54000.';

create or replace function pgps_internal.send_plain(
    caller name, conversation text, to_service text, option text, message bytea
) returns pgps.received_message
language plpgsql
as $$
declare
    v_row pgps.received_message;
begin
    if send_plain.message is null then
        null;
    elsif send_plain.conversation = 'new' and send_plain.option in ('commit', 'sync') then
        v_row := pgps_internal.send_new(caller, send_plain.to_service, send_plain.option, send_plain.message);
    elsif send_plain.option = 'sync' and send_plain.to_service is null then
        v_row := pgps_internal.send_more(caller, send_plain.conversation, send_plain.message);
    end if;
    if v_row.uow_id is null then
        v_row := pgps_internal.send_message(caller, jsonb_build_object('conversation', send_plain.conversation,
            'to_service', send_plain.to_service, 'option', send_plain.option, 'store', 'off'), send_plain.message);
    end if;
    return v_row;
end
$$;
comment on function pgps_internal.send_plain(name, text, text, text, bytea) is
'Sends a message with the options that the service has; see pgps.send_message';
