-- The common case of SYNCPOINT commit in few statements (decisions 60 and 84): of what a session of this broker has in
-- hand and knows, in this life of the broker and within its lifetime. The conversation is locked; then one statement
-- looks at it and writes. Where anything is out of the common it writes nothing, the function returns null, and the
-- general way is taken. What SYNCPOINT may do is looked up in pgps_internal.uow_transitions() here, too.
-- Locks: the conversation. The units need no lock, since nobody else changes what a session that lives has in hand.
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
    one pgps_internal.in_hand, status text, user_status text, class text, server text, service text,
    first_commit_at timestamptz, ended text
) returns pgps.received_message[]
language sql immutable
as $$
    select case when (row_of_commit.one).unit_no is not null then array[(
        pgps_internal.id_of((row_of_commit.one).unit_no, 'U'),
        pgps_internal.id_of((row_of_commit.one).conversation_no, 'C'), row_of_commit.status,
        row_of_commit.user_status, row_of_commit.class, row_of_commit.server, row_of_commit.service,
        row_of_commit.first_commit_at, (row_of_commit.one).attempts,
        case when (row_of_commit.one).is_persistent then 'broker' else 'no' end, (row_of_commit.one).ends_at,
        coalesce(row_of_commit.ended, 'open'), null, null, null, null, null)::pgps.received_message] end
$$;
comment on function pgps_internal.row_of_commit(pgps_internal.in_hand, text, text, text, text, text, timestamptz,
    text) is
'What SYNCPOINT returns of a unit that it has committed, as an array of one row; null: null';

do $do$
begin
    execute string_agg(replace($function$
-- Inlined into the statement that writes, so without a search_path.
create or replace function pgps_internal.commit{slot}_as_seen(
    talk bigint, service_id integer, held pgps_internal.in_hand, sent bigint, participant_id bigint
) returns table (
    class text, server text, service text, version integer, server_id bigint, done_by_server bigint,
    done_by_client bigint, first_at timestamptz, ended text, binds_from bigint, held_noted boolean, held_note text,
    sent_noted boolean, sent_note text
)
language sql stable
as $body$
    select v.class, v.server, v.service, coalesce(y.version, 0), coalesce(y.server_id,
            case when (commit{slot}_as_seen.held).to_server then commit{slot}_as_seen.participant_id end),
        coalesce(y.done_by_server, 0), coalesce(y.done_by_client, 0),
        coalesce(y.first_commit_at, (commit{slot}_as_seen.held).first_commit_at), y.ended,
        case when (commit{slot}_as_seen.held).to_server and y.server_id is null and exists (
                select from pgps_internal.unit_commit{slot} k
                where k.conversation_no = commit{slot}_as_seen.talk and k.to_server and k.entry_no = k.commit_no
                    and k.commit_no > (commit{slot}_as_seen.held).commit_no)
            then (commit{slot}_as_seen.held).commit_no end,
        n.version is not null, n.user_status, o.version is not null, o.user_status
    from pgps_internal.service v
    left join lateral (select y.* from pgps_internal.conversation_state{slot} y
        where y.conversation_no = commit{slot}_as_seen.talk order by y.version desc limit 1) y on true
    left join lateral (select n.version, n.user_status from pgps_internal.unit_note{slot} n
        where n.unit_no = (commit{slot}_as_seen.held).unit_no order by n.version desc limit 1) n on true
    left join lateral (select n.version, n.user_status from pgps_internal.unit_note{slot} n
        where n.unit_no = commit{slot}_as_seen.sent order by n.version desc limit 1) o on true
    where v.service_id = commit{slot}_as_seen.service_id
$body$;
comment on function pgps_internal.commit{slot}_as_seen(bigint, integer, pgps_internal.in_hand, bigint, bigint) is
'What SYNCPOINT looks at of a conversation, and of the units that a participant holds and sends in it; server_id: the
participant, if that binds the conversation; binds_from: it does, and more has been committed after this number';
$function$, '{slot}', s), '') from unnest(array['', '_0', '_1', '_2', '_3']) s;
end
$do$;

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.commit_at_hand(
    hand pgps_internal.session_hand, held pgps_internal.in_hand, sent pgps_internal.in_hand,
    out committed pgps.received_message[], out binds_from bigint) returns record
language plpgsql
as $body$
declare
    v_talk bigint := coalesce(held.conversation_no, sent.conversation_no);
    v_service integer := coalesce(held.service_id, sent.service_id);
    v_client bigint;
    v_now timestamptz := pgps_internal.clock();
    v_no bigint; v_done text[];
begin
    case pgps_internal.slot_at_hand(v_talk){branches}
    end case;
end
$body$;
$function$, '{branches}', pgps_internal.branches_of($branch$
            select c.client_id into v_client from pgps_internal.conversation{slot} c
            where c.conversation_no = v_talk for update;
            -- The transaction has an id, since it has locked a row, before it takes a number: see queue.sql.
            v_no := nextval('pgps_internal.uow_no_seq');
            with fine as materialized (
                select f.*, pgps_internal.queue_for(sent.to_server, v_client, f.server_id, v_service) as queue_id
                from pgps_internal.commit{slot}_as_seen(v_talk, v_service, held, sent.unit_no, hand.participant_id) f
                where (sent.unit_no is null or f.ended is null
                        and (not sent.to_server or f.server_id is not null or f.version = 0)
                        and pgps_internal.transition('commit', 'sender', 'RECEIVED') = 'ACCEPTED')
                    and (held.unit_no is null or f.first_at is not null
                        and pgps_internal.transition('commit', 'receiver', 'DELIVERED') = 'PROCESSED')
            ), processed as (
                insert into pgps_internal.unit_state
                select v_no, held.unit_no, held.version + 1, 'PROCESSED', hand.participant_id, null, held.attempts, 1,
                    v_now from fine where held.unit_no is not null
            ), stands as (
                insert into pgps_internal.conversation_state
                select v_no, v_talk, f.version + 1, f.server_id,
                    case when held.to_server then held.commit_no else f.done_by_server end,
                    case when held.to_server then f.done_by_client else held.commit_no end, f.first_at, f.ended, v_now
                from fine f where held.unit_no is not null
            ), queued as (
                insert into pgps_internal.unit_commit
                select v_no, f.queue_id, v_no, v_talk, sent.unit_no, sent.to_server, v_no, v_now, pg_current_xact_id()
                from fine f where sent.unit_no is not null
            ), kept as (insert into pgps_internal.session_hand (at_no, session_id, version, sent, held, participant_id,
                    role, token, life_id)
                select v_no, hand.session_id, hand.version + 1, '{}', '{}', hand.participant_id, hand.role, hand.token,
                    hand.life_id from fine)
            select pgps_internal.row_of_commit(held, 'PROCESSED', case when f.held_noted then f.held_note
                    else held.user_status end, f.class, f.server, f.service, f.first_at, f.ended)
                || pgps_internal.row_of_commit(sent, 'ACCEPTED', case when f.sent_noted then f.sent_note
                    else sent.user_status end, f.class, f.server, f.service, coalesce(f.first_at, v_now), f.ended),
                f.binds_from,
                array[case when held.unit_no is not null then pgps_internal.note_ended(v_service)::text end,
                    case when sent.unit_no is not null then pgps_internal.wake_queue(f.queue_id)::text end]
            into committed, binds_from, v_done from fine f;$branch$));
end
$do$;
comment on function pgps_internal.commit_at_hand(
    pgps_internal.session_hand, pgps_internal.in_hand, pgps_internal.in_hand) is
'SYNCPOINT commit of the unit that a session holds, of the one that it sends, or of both, in one conversation; nothing
else is in hand. committed null: nothing was written, and the general way is taken. binds_from: the conversation is
bound by that, and more has been committed in it after this number.';

create or replace function pgps_internal.commit_in_hand(caller name, uow_id text) returns pgps.received_message[]
language plpgsql
as $$
declare
    v_hand pgps_internal.session_hand := pgps_internal.own_hand(caller);
    v_held pgps_internal.in_hand := v_hand.held_one;
    v_sent pgps_internal.in_hand := v_hand.sent_one;
    v_done record;
begin
    if cardinality(v_hand.held) = (v_held.unit_no is not null)::integer
        and cardinality(v_hand.sent) = (v_sent.unit_no is not null)::integer
        and (case when commit_in_hand.uow_id is null then (v_held.unit_no is null) <> (v_sent.unit_no is null)
            else v_held.conversation_no = v_sent.conversation_no end)
        and least(v_held.ends_at, v_sent.ends_at) > pgps_internal.clock() then
        v_done := pgps_internal.commit_at_hand(v_hand, v_held, v_sent);
        if v_done.binds_from is not null then
            perform pgps_internal.move_entries((null, v_held.conversation_no, null, v_hand.participant_id,
                v_done.binds_from, null, null, null, null)::pgps_internal.conversation_state);
        end if;
        return v_done.committed;
    end if;
    return null;
end
$$;
comment on function pgps_internal.commit_in_hand(name, text) is
'SYNCPOINT commit of the only unit that a session has in hand or, with uow_id both, of the one that it holds and the one
that it sends, if all of it is known; null: it was not done, and the general way is taken';

create or replace function pgps_internal.sync_plain(caller name, uow_id text) returns pgps.received_message[]
language plpgsql
as $$
declare
    v_rows pgps.received_message[];
begin
    if sync_plain.uow_id is null or sync_plain.uow_id = 'both' then
        v_rows := pgps_internal.commit_in_hand(caller, sync_plain.uow_id);
    end if;
    return coalesce(v_rows, pgps_internal.sync_units(caller,
        jsonb_build_object('option', 'commit', 'uow_id', sync_plain.uow_id)));
end
$$;
comment on function pgps_internal.sync_plain(name, text) is
'SYNCPOINT commit that names no conversation and sets no user status; see pgps.syncpoint';
