-- Sending as it is mostly done, in few statements (decision 60): the first message of a unit of work with the options
-- that the service has, in a new conversation or in one of which the session holds the only unit that it holds, with a
-- service of this broker. For anything else it returns null before it has written, and the general way (send.sql),
-- which has the errors, is taken.
-- Locks: none.
-- Writes: unit, unit_message.

create or replace function pgps_internal.uow_settings(
    out store text, out lifetime interval, out status_lifetime integer, out max_messages integer,
    out max_message_bytes integer, out deferred boolean, out persistent_store text
) returns record
language plpgsql stable
as $$
begin
    select max(t.value) filter (where t.name = 'uow_store'),
        (max(t.value) filter (where t.name = 'uow_lifetime'))::interval,
        (max(t.value) filter (where t.name = 'uow_status_lifetime'))::integer,
        (max(t.value) filter (where t.name = 'uow_max_messages'))::integer,
        (max(t.value) filter (where t.name = 'uow_max_message_bytes'))::integer,
        (max(t.value) filter (where t.name = 'uow_deferred'))::boolean,
        max(t.value) filter (where t.name = 'uow_persistent_store')
    into store, lifetime, status_lifetime, max_messages, max_message_bytes, deferred, persistent_store
    from pgps_internal.setting t where t.name >= 'uow_' and t.name < 'uow`';
end
$$;
comment on function pgps_internal.uow_settings() is 'What holds for services that do not say otherwise';

create or replace function pgps_internal.place_simply(
    speaker pgps_internal.speaker, args jsonb, out service pgps_internal.service, out conversation_no bigint,
    out to_server boolean, out first_commit_at timestamptz
) returns record
language plpgsql volatile
as $$
declare
    v_parts text[];
    v_client bigint;
    v_service integer;
begin
    if lower(coalesce(args ->> 'conversation', 'new')) = 'new' then
        v_parts := string_to_array(args ->> 'to_service', '/');
        select s.* into service from pgps_internal.service s
        where s.class = pgps_internal.fold_part(v_parts[1]) and s.server = pgps_internal.fold_part(v_parts[2])
            and s.service = pgps_internal.fold_part(v_parts[3]) and cardinality(v_parts) = 3 and s.broker is null;
        to_server := found;
        return;
    elsif args ->> 'to_service' is not null or speaker.sent <> '{}' or cardinality(speaker.held) > 1 then
        return;
    end if;
    conversation_no := pgps_internal.number_in(args ->> 'conversation', 'C');
    select c.client_id, c.service_id into v_client, v_service from pgps_internal.conversation c
    where c.conversation_no = place_simply.conversation_no and c.is_uow and c.broker is null
        and c.life_id = speaker.life_id;
    if not found then
        return;
    elsif speaker.held = '{}' then
        to_server := case when v_client = speaker.participant_id then true end;
    else
        select false into to_server from pgps_internal.unit u
        where u.unit_no = speaker.held[1] and u.conversation_no = place_simply.conversation_no and u.to_server
            and u.ends_at > pgps_internal.clock();
    end if;
    select y.first_commit_at, case when y.ended is null then to_server end into first_commit_at, to_server
    from (values (true)) x left join lateral (select y.* from pgps_internal.conversation_state y
        where y.conversation_no = place_simply.conversation_no order by y.version desc limit 1) y on true;
    select s.* into service from pgps_internal.service s where s.service_id = v_service;
end
$$;
comment on function pgps_internal.place_simply(pgps_internal.speaker, jsonb) is
'Where a message is sent, and which way; to_server null: that is not simple; conversation_no null: in a new
conversation';

create or replace function pgps_internal.unit_to_send(
    speaker pgps_internal.speaker, service pgps_internal.service, message bytea, is_new boolean
) returns pgps_internal.unit
language plpgsql volatile
as $$
declare
    v_set record := pgps_internal.uow_settings();
    v_now timestamptz := pgps_internal.clock();
    v_is_persistent boolean := coalesce(unit_to_send.service.store, v_set.store) = 'broker';
    v_lifetime interval := coalesce(unit_to_send.service.lifetime, v_set.lifetime);
    v_unit pgps_internal.unit;
begin
    if octet_length(unit_to_send.message) > coalesce(unit_to_send.service.max_message_bytes, v_set.max_message_bytes)
        or coalesce(unit_to_send.service.max_messages_in_uow, v_set.max_messages) < 1
        or v_is_persistent and (v_set.persistent_store = 'no' or unit_to_send.speaker.token is null)
        or unit_to_send.is_new and not coalesce(unit_to_send.service.deferred, v_set.deferred)
            and not pgps_internal.is_served(unit_to_send.service.service_id) then
        return null;
    end if;
    v_unit.unit_no := nextval('pgps_internal.uow_no_seq');
    v_unit.at_no := v_unit.unit_no;
    v_unit.service_id := unit_to_send.service.service_id;
    v_unit.sender_id := unit_to_send.speaker.participant_id;
    v_unit.session_id := unit_to_send.speaker.session_id;
    v_unit.life_id := unit_to_send.speaker.life_id;
    v_unit.is_uow := true;
    v_unit.is_persistent := v_is_persistent;
    v_unit.status_for := nullif(coalesce(unit_to_send.service.status_lifetime, v_set.status_lifetime), 0) * v_lifetime;
    v_unit.began_at := v_now;
    v_unit.ends_at := v_now + v_lifetime;
    v_unit.is_relayed := false;
    return v_unit;
end
$$;
comment on function pgps_internal.unit_to_send(pgps_internal.speaker, pgps_internal.service, bytea, boolean) is
'A unit as a service has them, not written yet; null: its first message may not be sent so';

create or replace function pgps_internal.send_simply(
    caller name, speaker pgps_internal.speaker, args jsonb, message bytea
) returns pgps.received_message
language plpgsql
as $$
declare
    v_commits boolean := lower(args ->> 'option') = 'commit';
    v_place record;
    v_service pgps_internal.service;
    v_unit pgps_internal.unit;
    v_first timestamptz;
begin
    if lower(args ->> 'option') = 'msg' or args ->> 'store' is distinct from 'off'
        or args ->> 'status_lifetime' is distinct from '0'
        or coalesce(args ->> 'lifetime', args ->> 'user_status') is not null then
        return null;
    end if;
    v_place := pgps_internal.place_simply(send_simply.speaker, args);
    v_service := v_place.service;
    if v_place.to_server is null or v_service.service_id is null or v_commits and v_place.conversation_no is not null
        or not pgps_internal.has_service_right(send_simply.caller, v_service.service_id,
            case when v_place.to_server then 'send' else 'serve' end) then
        return null;
    end if;
    v_unit := pgps_internal.unit_to_send(send_simply.speaker, v_service, send_simply.message,
        v_place.conversation_no is null);
    if v_unit.unit_no is null then
        return null;
    end if;
    -- It has its number before it counts as begun: see pgps_internal.count_active.
    perform pgps_internal.check_active(v_service, v_unit.ends_at, v_commits);
    v_unit.to_server := v_place.to_server;
    v_unit.conversation_no := coalesce(v_place.conversation_no, (pgps_internal.begin_conversation(
        send_simply.speaker, v_service, true)).conversation_no);
    insert into pgps_internal.unit values (v_unit.*);
    insert into pgps_internal.unit_message (at_no, unit_no, number, message)
    values (nextval('pgps_internal.uow_no_seq'), v_unit.unit_no, 1, send_simply.message);
    if v_commits then
        v_first := pgps_internal.queue_unit(v_unit.unit_no, v_unit.conversation_no, true,
            pgps_internal.queue_of(v_service.service_id));
    else
        perform pgps_internal.put_in_hand(send_simply.speaker, sent => array[v_unit.unit_no]);
        v_first := coalesce(v_place.first_commit_at, pgps_internal.first_commit_in(v_unit.conversation_no));
    end if;
    return (pgps_internal.id_of(v_unit.unit_no, 'U'), pgps_internal.id_of(v_unit.conversation_no, 'C'),
        case when v_commits then 'ACCEPTED' else 'RECEIVED' end, null, v_service.class, v_service.server,
        v_service.service, v_first, 0, case when v_unit.is_persistent then 'broker' else 'no' end, v_unit.ends_at,
        'open', null, null, null, null, null)::pgps.received_message;
end
$$;
comment on function pgps_internal.send_simply(name, pgps_internal.speaker, jsonb, bytea) is
'Sends the first message of a unit of work, as the head of the file says; null: it was not done. Errors: 54000 too many
active units.';
