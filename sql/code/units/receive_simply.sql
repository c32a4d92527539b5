-- The common cases of receiving and of SYNCPOINT commit in few statements (decision 60): what a session of this broker
-- has in hand, or is about to take, in this life of the broker and within its lifetime. Each function has locked its
-- units; then one statement looks at everything about them and writes. Where anything is out of the common it writes
-- nothing, the function returns null, and the general way is taken. What SYNCPOINT may do is looked up in
-- pgps_internal.uow_transitions() here, too.
-- Locks: the units, then their conversations; see syncpoint.sql and receive.sql.
-- Writes: conversation_state, session_hand, unit_commit, unit_state.

-- Without a search_path, so that it is inlined.
create or replace function pgps_internal.id_of(number bigint, letter text) returns text
language sql immutable
as $$ select id_of.letter || upper(to_hex(id_of.number)) $$;
comment on function pgps_internal.id_of(bigint, text) is 'The id of a unit (U) or of a conversation (C)';

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

create or replace function pgps_internal.transition(option text, caller text, status text) returns text
language sql immutable
as $$
    select t.becomes from pgps_internal.uow_transitions() t
    where t.option = transition.option and t.caller = transition.caller and t.status = transition.status
$$;
comment on function pgps_internal.transition(text, text, text) is
'What an option of a caller makes of a status, by the table of transitions; null: it is not allowed';

-- Inlined, so without a search_path.
create or replace function pgps_internal.row_of_commit(
    unit pgps_internal.unit, status text, user_status text, class text, server text, service text,
    first_commit_at timestamptz, attempts integer, ended text
) returns pgps.received_message[]
language sql immutable
as $$
    select case when (row_of_commit.unit).unit_no is not null then array[(
        pgps_internal.id_of((row_of_commit.unit).unit_no, 'U'),
        pgps_internal.id_of((row_of_commit.unit).conversation_no, 'C'), row_of_commit.status,
        row_of_commit.user_status, row_of_commit.class, row_of_commit.server, row_of_commit.service,
        row_of_commit.first_commit_at, row_of_commit.attempts,
        case when (row_of_commit.unit).is_persistent then 'broker' else 'no' end, (row_of_commit.unit).ends_at,
        coalesce(row_of_commit.ended, 'open'), null, null, null, null, null)::pgps.received_message] end
$$;
comment on function pgps_internal.row_of_commit(pgps_internal.unit, text, text, text, text, text, timestamptz, integer,
    text) is
'What SYNCPOINT returns of a unit that it has committed, as an array of one row; null: null';

do $do$
begin
    execute string_agg(replace($function$
-- Inlined into the statement that writes, so without a search_path.
create or replace function pgps_internal.commit{slot}_as_seen(
    talk bigint, service_id integer, held bigint, sent bigint, to_server boolean, participant_id bigint
) returns table (
    class text, server text, service text, version integer, server_id bigint, done_by_server bigint,
    done_by_client bigint, first_at timestamptz, ended text, held_version integer, status text, receiver_id bigint,
    session_id bigint, attempts integer, messages_given integer, is_next boolean, commit_no bigint,
    binds_from bigint, held_noted boolean, held_note text, sent_noted boolean, sent_note text
)
language sql stable
as $body$
    select v.class, v.server, v.service, coalesce(y.version, 0), coalesce(y.server_id,
            case when commit{slot}_as_seen.to_server then commit{slot}_as_seen.participant_id end),
        coalesce(y.done_by_server, 0), coalesce(y.done_by_client, 0), coalesce(y.first_commit_at, k.first_at), y.ended,
        s.version, s.status, s.receiver_id, s.session_id, s.attempts, s.messages_given,
        k.unit_no = commit{slot}_as_seen.held and (commit{slot}_as_seen.to_server or y.first_commit_at is not null),
        k.commit_no, case when commit{slot}_as_seen.to_server and y.server_id is null and k.count = 2
            then k.commit_no end,
        n.version is not null, n.user_status, o.version is not null, o.user_status
    from pgps_internal.service v
    left join lateral (select y.* from pgps_internal.conversation_state{slot} y
        where y.conversation_no = commit{slot}_as_seen.talk order by y.version desc limit 1) y on true
    left join lateral (select s.* from pgps_internal.unit_state{slot} s
        where s.unit_no = commit{slot}_as_seen.held order by s.version desc limit 1) s on true
    left join lateral (select n.version, n.user_status from pgps_internal.unit_note{slot} n
        where n.unit_no = commit{slot}_as_seen.held order by n.version desc limit 1) n on true
    left join lateral (select n.version, n.user_status from pgps_internal.unit_note{slot} n
        where n.unit_no = commit{slot}_as_seen.sent order by n.version desc limit 1) o on true
    -- The next unit that way; without a state, the conversation's first one.
    cross join lateral (select (array_agg(k.unit_no))[1] as unit_no, min(k.commit_no) as commit_no,
            (array_agg(k.committed_at))[1] as first_at, count(*) as count
        from (select k.unit_no, k.commit_no, k.committed_at from pgps_internal.unit_commit{slot} k
            where k.conversation_no = commit{slot}_as_seen.talk
                and k.to_server = coalesce(commit{slot}_as_seen.to_server, true) and k.entry_no = k.commit_no
                and k.commit_no > coalesce(case when commit{slot}_as_seen.to_server is false then y.done_by_client
                    else y.done_by_server end, 0)
            order by k.commit_no limit 2) k) k
    where v.service_id = commit{slot}_as_seen.service_id
$body$;
comment on function pgps_internal.commit{slot}_as_seen(bigint, integer, bigint, bigint, boolean, bigint) is
'What SYNCPOINT looks at of a conversation, of the unit that a participant holds in it (to_server: which way it went),
and of the one that it sends; server_id: the participant, if that binds the conversation; is_next: the one that is held
is the next one, and it is known when the first one was committed';
$function$, '{slot}', s), '') from unnest(array['', '_0', '_1', '_2', '_3']) s;
end
$do$;

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.commit_at_hand(
    speaker pgps_internal.speaker, held pgps_internal.unit, sent pgps_internal.unit,
    out committed pgps.received_message[], out binds_from bigint) returns record
language plpgsql
as $body$
declare
    v_talk bigint := coalesce(held.conversation_no, sent.conversation_no);
    v_in pgps_internal.conversation;
    v_now timestamptz := pgps_internal.clock();
    -- The transaction has an id, since it has locked a unit, before it takes a number: see queue.sql.
    v_no bigint := nextval('pgps_internal.uow_no_seq');
    v_done text[];
begin
    case pgps_internal.slot_at_hand(v_talk){branches}
    end case;
end
$body$;
$function$, '{branches}', pgps_internal.branches_of($branch$
            select c.* into v_in from pgps_internal.conversation{slot} c where c.conversation_no = v_talk for update;
            with fine as materialized (
                select f.*, pgps_internal.queue_for(sent.to_server, v_in.client_id, f.server_id, v_in.service_id)
                    as queue_id
                from pgps_internal.commit{slot}_as_seen(v_talk, v_in.service_id, held.unit_no, sent.unit_no,
                    held.to_server, speaker.participant_id) f
                where (sent.unit_no is null or f.ended is null
                        and (not sent.to_server or f.server_id is not null or f.first_at is null)
                        and pgps_internal.transition('commit', 'sender', 'RECEIVED') = 'ACCEPTED')
                    and (held.unit_no is null or f.is_next and f.status = 'DELIVERED'
                        and f.session_id = speaker.session_id
                        and pgps_internal.transition('commit', 'receiver', 'DELIVERED') = 'PROCESSED')
            ), processed as (
                insert into pgps_internal.unit_state
                select nextval('pgps_internal.uow_no_seq'), held.unit_no, f.held_version + 1, 'PROCESSED',
                    f.receiver_id, null, f.attempts, f.messages_given, v_now from fine f where held.unit_no is not null
            ), stands as (
                insert into pgps_internal.conversation_state
                select nextval('pgps_internal.uow_no_seq'), v_talk, f.version + 1, f.server_id,
                    case when held.to_server then f.commit_no else f.done_by_server end,
                    case when held.to_server then f.done_by_client else f.commit_no end, f.first_at, f.ended, v_now
                from fine f where held.unit_no is not null
            ), queued as (
                insert into pgps_internal.unit_commit
                select v_no, f.queue_id, v_no, v_talk, sent.unit_no, sent.to_server, v_no, v_now, pg_current_xact_id()
                from fine f where sent.unit_no is not null
            ), hand as (insert into pgps_internal.session_hand
                select nextval('pgps_internal.uow_no_seq'), speaker.session_id, speaker.hand + 1, '{}', '{}' from fine)
            select pgps_internal.row_of_commit(held, 'PROCESSED', case when f.held_noted then f.held_note
                    else held.user_status end, f.class, f.server, f.service, f.first_at, f.attempts, f.ended)
                || pgps_internal.row_of_commit(sent, 'ACCEPTED', case when f.sent_noted then f.sent_note
                    else sent.user_status end, f.class, f.server, f.service, coalesce(f.first_at, v_now), 0, f.ended),
                f.binds_from,
                array[case when held.unit_no is not null then pgps_internal.note_ended(v_in.service_id)::text end,
                    case when sent.unit_no is not null then pgps_internal.wake_queue(f.queue_id)::text end]
            into committed, binds_from, v_done from fine f;$branch$));
end
$do$;
comment on function pgps_internal.commit_at_hand(
    pgps_internal.speaker, pgps_internal.unit, pgps_internal.unit) is
'SYNCPOINT commit of the unit that a session holds, of the one that it sends, or of both, in one conversation; both are
locked, and nothing else is in hand. committed null: nothing was written, and the general way is taken. binds_from: the
conversation is bound by that, and more has been committed in it after this number.';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.commit_in_hand(speaker pgps_internal.speaker, uow_id text)
returns pgps.received_message[]
language plpgsql
as $body$
declare
    v_held bigint := (speaker.held)[1];
    v_units bigint[] := speaker.held || speaker.sent;
    v_locked pgps_internal.unit[];
    v_done record;
begin
    if cardinality(v_units) <> 1 + (commit_in_hand.uow_id is not null)::integer
        or commit_in_hand.uow_id is not null and cardinality(speaker.held) <> 1 then
        return null;
    end if;
    -- In the order of their numbers; null unless they are common, and in one conversation.
    case pgps_internal.slot_at_hand(least(v_units[1], v_units[2])){branches}
    end case;
    if cardinality(v_locked) = cardinality(v_units) then
        v_done := pgps_internal.commit_at_hand(speaker,
            case v_held when v_locked[1].unit_no then v_locked[1] when v_locked[2].unit_no then v_locked[2] end,
            case when v_locked[1].unit_no <> v_held then v_locked[1] when v_held is null then v_locked[1]
                else v_locked[2] end);
        if v_done.binds_from is not null then
            perform pgps_internal.move_entries((null, v_locked[1].conversation_no, null, speaker.participant_id,
                v_done.binds_from, null, null, null, null)::pgps_internal.conversation_state);
        end if;
        return v_done.committed;
    end if;
    return null;
end
$body$;
$function$, '{branches}', pgps_internal.branches_of($branch$
            select case when min(l.conversation_no) = max(l.conversation_no) then array_agg(l.unit)
                    filter (where l.life_id = speaker.life_id and l.ends_at > pgps_internal.clock()
                        and l.is_uow and not l.is_relayed and l.their_no is null) end
            into v_locked
            from (select u.*, u::pgps_internal.unit as unit from pgps_internal.unit{slot} u
                where u.unit_no = any (v_units) order by u.unit_no for update) l;$branch$));
end
$do$;
comment on function pgps_internal.commit_in_hand(pgps_internal.speaker, text) is
'SYNCPOINT commit of the only unit that a session has in hand or, with uow_id both, of the one that it holds and the one
that it sends; null: it was not done, and the general way is taken';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.give_first(speaker pgps_internal.speaker, entry pgps_internal.unit_commit)
returns pgps.received_message
language plpgsql
as $body$
declare
    v_speaker pgps_internal.speaker := give_first.speaker;
    v_now timestamptz := pgps_internal.clock();
    v_row pgps.received_message;
begin
    if v_speaker.hand is null then
        v_speaker := pgps_internal.with_hand(v_speaker);
    end if;
    case pgps_internal.slot_at_hand(entry.conversation_no){branches}
    end case;
    return v_row;
end
$body$;
$function$, '{branches}', pgps_internal.branches_of($branch$
            with one as materialized (
                select u.unit_no, u.is_persistent, u.ends_at, u.user_status, s.version, s.attempts, n.version as noted,
                    n.user_status as note, v.class, v.server, v.service, y.ended, coalesce(y.first_commit_at, (
                        select k.committed_at from pgps_internal.unit_commit{slot} k
                        where k.conversation_no = u.conversation_no and k.to_server and k.entry_no = k.commit_no
                        order by k.commit_no limit 1)) as first_commit_at, m.message, p.role, p.token,
                    exists (select from pgps_internal.unit_message{slot} o where o.unit_no = u.unit_no
                        and o.number = 2) as has_more
                from pgps_internal.unit{slot} u
                join pgps_internal.service v on v.service_id = u.service_id
                join pgps_internal.unit_message{slot} m on m.unit_no = u.unit_no and m.number = 1
                join pgps_internal.participant p on p.participant_id = u.sender_id
                left join lateral (select s.version, s.status, s.attempts from pgps_internal.unit_state{slot} s
                    where s.unit_no = u.unit_no order by s.version desc limit 1) s on true
                left join lateral (select n.version, n.user_status from pgps_internal.unit_note{slot} n
                    where n.unit_no = u.unit_no order by n.version desc limit 1) n on true
                left join lateral (select y.ended, y.first_commit_at from pgps_internal.conversation_state{slot} y
                    where y.conversation_no = u.conversation_no order by y.version desc limit 1) y on true
                where u.unit_no = entry.unit_no and u.life_id = v_speaker.life_id and u.ends_at > v_now
                    and u.is_uow and not u.is_relayed and u.their_no is null
                    and coalesce(s.status, 'ACCEPTED') = 'ACCEPTED'
            ), hand as (
                insert into pgps_internal.session_hand
                select nextval('pgps_internal.uow_no_seq'), v_speaker.session_id, v_speaker.hand + 1, v_speaker.sent,
                    v_speaker.held || o.unit_no from one o
            ), delivered as (
                insert into pgps_internal.unit_state
                select nextval('pgps_internal.uow_no_seq'), o.unit_no, coalesce(o.version, 0) + 1, 'DELIVERED',
                    v_speaker.participant_id, v_speaker.session_id, coalesce(o.attempts, 0), 1, v_now from one o
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
