-- Sending as it is mostly done, in few statements (decision 60): the first message of a unit of work with the options
-- that the service has, in a new conversation or in one of which the session holds the only unit that it holds, with a
-- service of this broker. For anything else it returns null before it has written, and the general way (send.sql),
-- which has the errors, is taken.
-- Locks: none.
-- Writes: conversation, session_hand, unit, unit_commit, unit_message.

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

create or replace function pgps_internal.write_first(
    speaker pgps_internal.speaker, place record, began_at timestamptz, message bytea, commits boolean
) returns pgps.received_message
language plpgsql
as $$
declare
    -- A unit has its number before it counts as begun: see pgps_internal.count_active.
    v_unit bigint := nextval('pgps_internal.uow_no_seq');
    v_talk bigint := write_first.place.conversation_no;
    v_ends_at timestamptz := write_first.began_at + write_first.place.unit_lifetime;
    v_first timestamptz := write_first.place.first_commit_at;
    v_xid xid8;
    v_no bigint;
    v_told text;
begin
    perform pgps_internal.check_begun(write_first.place.whole, write_first.place.max_active, v_ends_at,
        write_first.commits);
    if v_talk is null then
        v_talk := nextval('pgps_internal.uow_no_seq');
        insert into pgps_internal.conversation (at_no, conversation_no, service_id, client_id, is_uow, life_id,
            began_at)
        values (v_talk, v_talk, write_first.place.service_id, speaker.participant_id, true, speaker.life_id, began_at);
    end if;
    with begun as (
        insert into pgps_internal.unit (at_no, unit_no, conversation_no, service_id, to_server, is_uow, sender_id,
            session_id, life_id, is_persistent, status_for, began_at, ends_at, is_relayed)
        values (v_unit, v_unit, v_talk, write_first.place.service_id, write_first.place.to_server, true,
            speaker.participant_id, speaker.session_id, speaker.life_id, write_first.place.is_persistent,
            write_first.place.status_for, write_first.began_at, v_ends_at, false)
    )
    insert into pgps_internal.unit_message (at_no, unit_no, number, message)
    values (nextval('pgps_internal.uow_no_seq'), v_unit, 1, write_first.message);
    if write_first.commits then
        -- The transaction has an id before it takes a number: see pgps_internal.advance_queue.
        v_xid := pg_current_xact_id();
        v_no := nextval('pgps_internal.uow_no_seq');
        v_first := pgps_internal.clock();
        insert into pgps_internal.unit_commit (at_no, queue_id, entry_no, conversation_no, unit_no, to_server,
            commit_no, committed_at, xid)
        values (v_no, pgps_internal.queue_of(write_first.place.service_id), v_no, v_talk, v_unit, true, v_no, v_first,
            v_xid)
        returning pgps_internal.wake_queue(pgps_internal.queue_of(write_first.place.service_id))::text into v_told;
    else
        insert into pgps_internal.session_hand (at_no, session_id, version, sent, held)
        values (nextval('pgps_internal.uow_no_seq'), speaker.session_id, speaker.hand + 1, speaker.sent || v_unit,
            speaker.held);
    end if;
    return (pgps_internal.id_of(v_unit, 'U'), pgps_internal.id_of(v_talk, 'C'),
        case when write_first.commits then 'ACCEPTED' else 'RECEIVED' end, null, write_first.place.class,
        write_first.place.server, write_first.place.service, v_first, 0,
        case when write_first.place.is_persistent then 'broker' else 'no' end, v_ends_at, 'open', null, null, null,
        null, null)::pgps.received_message;
end
$$;
comment on function pgps_internal.write_first(pgps_internal.speaker, record, timestamptz, bytea, boolean) is
'Writes a unit of work with its first message, in a conversation of its own or the one of place, as send_simply has
looked it up; commits: its SYNCPOINT, too. Errors: 54000 too many active units.';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.send_simply(
    caller name, speaker pgps_internal.speaker, args jsonb, message bytea
) returns pgps.received_message
language plpgsql
as $body$
declare
    v_commits boolean := lower(args ->> 'option') = 'commit';
    v_now timestamptz := pgps_internal.clock();
    v_talk bigint;
    v_parts text[];
    v_place record;
begin
    if lower(args ->> 'option') = 'msg' or args ->> 'store' is distinct from 'off'
        or args ->> 'status_lifetime' is distinct from '0'
        or coalesce(args ->> 'lifetime', args ->> 'user_status') is not null then
        return null;
    elsif lower(coalesce(args ->> 'conversation', 'new')) = 'new' then
        v_parts := string_to_array(args ->> 'to_service', '/');
        select s.*, null::bigint as conversation_no, true as to_server, null::timestamptz as first_commit_at
        into v_place
        from pgps_internal.service_to_send s
        where s.class = pgps_internal.fold_part(v_parts[1]) and s.server = pgps_internal.fold_part(v_parts[2])
            and s.service = pgps_internal.fold_part(v_parts[3]) and cardinality(v_parts) = 3;
    elsif v_commits or args ->> 'to_service' is not null or speaker.sent <> '{}'
        or cardinality(speaker.held) > 1 then
        return null;
    else
        v_talk := pgps_internal.number_in(args ->> 'conversation', 'C');
        case pgps_internal.slot_at_hand(v_talk){branches}
        end case;
    end if;
    if v_place.to_server is null or octet_length(send_simply.message) > v_place.message_bytes
        or v_place.messages < 1 or v_place.is_persistent and (not v_place.may_persist or speaker.token is null)
        or v_talk is null and not v_place.is_deferred and not pgps_internal.is_served(v_place.service_id)
        or not pgps_internal.has_service_right(send_simply.caller, v_place.service_id,
            case when v_place.to_server then 'send' else 'serve' end) then
        return null;
    end if;
    return pgps_internal.write_first(send_simply.speaker, v_place, v_now, send_simply.message, v_commits);
end
$body$;
$function$, '{branches}', pgps_internal.branches_of($branch$
            select s.*, t.conversation_no, case when t.ended is not null then null
                    when speaker.held = '{}' then case when t.client_id = speaker.participant_id then true end
                    else (select false from pgps_internal.unit{slot} u
                        where u.unit_no = speaker.held[1] and u.conversation_no = t.conversation_no and u.to_server
                            and u.ends_at > v_now) end as to_server, t.first_commit_at
            into v_place
            from pgps_internal.talk_noted{slot} t join pgps_internal.service_to_send s using (service_id)
            where t.conversation_no = v_talk and t.is_common and t.life_id = speaker.life_id;$branch$));
end
$do$;
comment on function pgps_internal.send_simply(name, pgps_internal.speaker, jsonb, bytea) is
'Sends the first message of a unit of work, as the head of the file says; null: it was not done. Errors: 54000 too many
active units.';
