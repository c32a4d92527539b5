-- The common cases of receiving in few statements (decisions 60 and 84): what waits for a session of this broker, in
-- this life of the broker and within its lifetime. The unit is locked; then one statement looks at everything about it
-- and writes. Where anything is out of the common it writes nothing, and the general way is taken (receive.sql). That
-- statement looks at the server, too: the unit before it may have bound the conversation while the queue was read.
-- Locks: see at_hand.sql and queue.sql.
-- Writes: session_hand, unit_state.

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.give_first(speaker pgps_internal.speaker, entry pgps_internal.unit_commit)
returns pgps.received_message
language plpgsql
as $body$
declare
    v_now timestamptz := pgps_internal.clock();
    v_no bigint := nextval('pgps_internal.uow_no_seq'); v_row pgps.received_message;
begin
    case pgps_internal.slot_at_hand(entry.conversation_no){branches}
    end case;
    return v_row;
end
$body$;
$function$, '{branches}', pgps_internal.branches_of($branch$
            with one as materialized (
                select u.unit_no, u.service_id, u.is_persistent, u.ends_at, u.user_status, s.version, s.attempts,
                    n.version as noted, n.user_status as note, v.class, v.server, v.service, y.ended,
                    coalesce(y.first_commit_at, (select k.committed_at from pgps_internal.unit_commit{slot} k
                        where k.conversation_no = u.conversation_no and k.to_server and k.entry_no = k.commit_no
                        order by k.commit_no limit 1)) as first_commit_at, u.message, p.role, p.token,
                    exists (select from pgps_internal.unit_message{slot} o where o.unit_no = u.unit_no) as has_more,
                    h.version as hand, h.sent, h.held
                from pgps_internal.unit{slot} u join pgps_internal.service v on v.service_id = u.service_id
                join pgps_internal.participant p on p.participant_id = u.sender_id
                left join lateral (select s.version, s.status, s.attempts from pgps_internal.unit_state{slot} s
                    where s.unit_no = u.unit_no order by s.version desc limit 1) s on true
                left join lateral (select n.version, n.user_status from pgps_internal.unit_note{slot} n
                    where n.unit_no = u.unit_no order by n.version desc limit 1) n on true
                left join lateral (select y.* from pgps_internal.conversation_state{slot} y
                    where y.conversation_no = u.conversation_no order by y.version desc limit 1) y on true
                -- The newest segment has the newest version, if it has any: see speak_with_hand.
                cross join lateral (select n.at_no, n.version, n.sent, n.held from pgps_internal.session_hand{slot} n
                    where n.session_id = speaker.session_id order by n.version desc limit 1) h
                where h.at_no >= v_no / 65536 * 65536 and u.unit_no = entry.unit_no and u.life_id = speaker.life_id
                    and u.ends_at > v_now and u.is_uow and not u.is_relayed and u.message is not null
                    and coalesce(s.status, 'ACCEPTED') = 'ACCEPTED' and (entry.queue_id % 2 = 1 or y.server_id is null)
            ), hand as (
                insert into pgps_internal.session_hand
                select v_no, speaker.session_id, o.hand + 1, o.sent, o.held || o.unit_no, speaker.participant_id,
                    speaker.role, speaker.token, speaker.life_id, case when not o.has_more then (o.unit_no,
                        entry.conversation_no, o.service_id, entry.to_server, o.is_persistent, o.ends_at,
                        o.user_status, coalesce(o.version, 0) + 1, coalesce(o.attempts, 0), entry.commit_no,
                        coalesce(o.first_commit_at, entry.committed_at))::pgps_internal.in_hand end from one o
            ), delivered as (
                insert into pgps_internal.unit_state
                select v_no, o.unit_no, coalesce(o.version, 0) + 1, 'DELIVERED', speaker.participant_id,
                    speaker.session_id, coalesce(o.attempts, 0), 1, v_now from one o
            )
            select pgps_internal.id_of(o.unit_no, 'U'), pgps_internal.id_of(entry.conversation_no, 'C'),
                case when o.has_more then 'RECV_FIRST' else 'RECV_ONLY' end,
                case when o.noted is not null then o.note else o.user_status end, o.class, o.server, o.service,
                coalesce(o.first_commit_at, entry.committed_at), coalesce(o.attempts, 0),
                case when o.is_persistent then 'broker' else 'no' end, o.ends_at, coalesce(o.ended, 'open'), null,
                o.message, 1, pg_get_userbyid(o.role::oid), o.token
            into v_row from one o;$branch$));
end
$do$;
comment on function pgps_internal.give_first(pgps_internal.speaker, pgps_internal.unit_commit) is
'Gives the first message of the unit of an entry to a session that has locked it, and makes it DELIVERED; null: it was
not done, and the general way is taken';

create or replace function pgps_internal.speak_to_serve(
    caller name, out speaker pgps_internal.speaker, out queues bigint[]
) returns record
language plpgsql
as $$
declare
    v_session bigint := pgps_internal.my_session();
    v_found record;
begin
    select (s.session_id, s.participant_id, s.role, s.token, m.life_id,
            case when pg_current_xact_id_if_assigned() is null
                then coalesce(pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass), 0) end,
            null, null, null)::pgps_internal.speaker as speaker,
        array(select pgps_internal.queue_of(v.service_id) from pgps_internal.serving v
            where v.session_id = s.session_id
                and pgps_internal.has_service_right(speak_to_serve.caller, v.service_id, 'serve')) as queues
    into v_found
    from pgps_internal.participant_session s cross join pgps_internal.broker_life_mark m
    where s.session_id = v_session and pg_get_userbyid(s.role::oid) = speak_to_serve.caller
        and current_setting('transaction_isolation') like 'read %committed' and pg_stat_clear_snapshot() is not null;
    speaker := v_found.speaker;
    queues := v_found.queues;
end
$$;
comment on function pgps_internal.speak_to_serve(name) is
'As speak in its common case, with the queues of the services that the session serves and may serve; null: not the
common case';

create or replace function pgps_internal.receive_plain(caller name, conversation text, option text)
returns pgps.received_message
language plpgsql
as $$
declare
    v_no bigint;
    v_look record;
    v_row pgps.received_message;
begin
    if receive_plain.conversation = 'new' and receive_plain.option in ('sync', 'msg', 'any') then
        v_look := pgps_internal.speak_to_serve(caller);
        if v_look.queues <> '{}' then
            return pgps_internal.receive_next(v_look.speaker, v_look.queues, null, receive_plain.option, null);
        end if;
    elsif receive_plain.option in ('sync', 'any') then
        v_no := pgps_internal.number_in(receive_plain.conversation, 'C');
        v_look := pgps_internal.answer_at_hand(caller, v_no);
        if v_look.session_id is null then
            null;
        elsif v_look.unit_no is not null then
            -- Also where client and server are the same participant, what waits for the client comes first.
            if v_look.unit_no <> all (v_look.held) then
                v_row := pgps_internal.give_first((v_look.session_id, v_look.participant_id, v_look.role,
                    v_look.token, v_look.life_id, null, v_look.hand, v_look.sent, v_look.held)::pgps_internal.speaker,
                    v_look.entry);
                if v_row.uow_id is not null then
                    return v_row;
                end if;
            end if;
        -- Who serves as well may be the server of its own conversation.
        elsif not v_look.may_serve then
            return null;
        end if;
    end if;
    return pgps_internal.receive_message(caller, jsonb_build_object('conversation', receive_plain.conversation,
        'option', receive_plain.option));
end
$$;
comment on function pgps_internal.receive_plain(name, text, text) is
'Receives from any service, and sets no user status; see pgps.receive_message';
