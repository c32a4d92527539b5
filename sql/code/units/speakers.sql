-- Who speaks in a call: the session of the backend, or the one that a program behind a pooler names.
-- Locks: the row of a session that belongs to no backend until the transaction ends, so that its calls follow one
-- another.
-- Writes: participant_session.

create or replace function pgps_internal.speaker_of(caller name, args jsonb) returns pgps_internal.speaker
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_given bigint := (args ->> 'session')::bigint;
    v_session bigint := coalesce(v_given, pgps_internal.my_session());
    v_speaker pgps_internal.speaker;
begin
    -- A number is for sessions that belong to no backend: the calls of another one's would not follow each other.
    select s.session_id, p.participant_id, p.role, p.token, s.life_id, null, coalesce(h.version, 0),
        coalesce(h.sent, '{}'), coalesce(h.held, '{}')
    into v_speaker
    from pgps_internal.participant_session s join pgps_internal.participant p using (participant_id)
    left join lateral (select h.version, h.sent, h.held from pgps_internal.session_hand h
        where h.session_id = s.session_id order by h.version desc limit 1) h on true
    where s.session_id = v_session and (s.pid is null or s.pid = pg_backend_pid());
    if v_given is not null and v_speaker.role is distinct from quote_ident(caller)::regrole then
        raise exception 'session % is none of role "%"', v_given, caller
        using errcode = case when v_speaker.role is null then '55000' else '42501' end,
            hint = 'Give the number that pgps.logon_session returned to this role.';
    elsif v_speaker.role is null or not pgps._session_lives(v_session) then
        raise exception 'this session is not logged on'
        using errcode = '55000', hint = 'First: select pgps.logon(''token''), or pgps.logon() for units of work that '
            'need not be found again.';
    elsif v_speaker.role <> quote_ident(caller)::regrole then
        raise exception 'this session is logged on as role %, not as %', v_speaker.role, quote_ident(caller)::regrole
        using errcode = '55000', hint = 'Log on again after SET ROLE: select pgps.logon(''token'').';
    end if;
    return v_speaker;
end
$$;
comment on function pgps_internal.speaker_of(name, jsonb) is
'For whom the caller speaks, by the session in args or that of this backend. Errors: 55000 not logged on, 42501 the
session of another role.';

create or replace function pgps_internal.note_use(session_id bigint) returns void
language plpgsql
as $$
begin
    update pgps_internal.participant_session s set used_at = pgps_internal.clock()
    where s.session_id = (select o.session_id from pgps_internal.participant_session o
        where o.session_id = note_use.session_id
            and o.used_at < pgps_internal.clock() - pgps_internal.setting('session_lease')::interval / 4
        for update skip locked);
end
$$;
comment on function pgps_internal.note_use(bigint) is
'Notes that a session behind a pooler is used, unless that was done in the last quarter of its lease';

create or replace function pgps_internal.require_own_snapshots() returns void
language plpgsql stable
as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'units of work cannot be sent or received in a % transaction',
            current_setting('transaction_isolation')
        using errcode = '25001',
            hint = 'Use BEGIN ISOLATION LEVEL READ COMMITTED: an older snapshot would not show what '
                'others have received meanwhile. Asking is allowed here (pgps.syncpoint with last or query), and so is '
                'sending with option commit or msg in a new conversation.';
    end if;
end
$$;
comment on function pgps_internal.require_own_snapshots() is
'Raises 25001 unless each statement of the transaction has a snapshot of its own';

create or replace function pgps_internal.speak(caller name, args jsonb, reads_nothing boolean = false)
returns pgps_internal.speaker
language plpgsql
as $$
declare
    v_speaker pgps_internal.speaker;
    v_session bigint := case when args ->> 'session' is null then pgps_internal.my_session() end;
    v_seen bigint;
begin
    -- The common case in one statement: a session of this backend, which lives until it logs off here. Its calls follow
    -- one another anyway.
    select s.session_id, s.participant_id, s.role, s.token, m.life_id,
        case when pg_current_xact_id_if_assigned() is null
            then coalesce(pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass), 0) end
    into v_speaker
    from pgps_internal.participant_session s cross join pgps_internal.broker_life_mark m
    where s.session_id = v_session and pg_get_userbyid(s.role::oid) = speak.caller
        and (speak.reads_nothing or current_setting('transaction_isolation') like 'read %committed')
        -- Who else lives is asked anew in this call.
        and pg_stat_clear_snapshot() is not null;
    if found then
        return v_speaker;
    elsif not speak.reads_nothing then
        perform pgps_internal.require_own_snapshots();
    end if;
    if pg_current_xact_id_if_assigned() is null then
        v_seen := coalesce(pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass), 0);
    end if;
    perform pg_stat_clear_snapshot();
    v_speaker := pgps_internal.speaker_of(caller, args);
    perform from pgps_internal.participant_session s
    where s.session_id = v_speaker.session_id and (s.pid is not null or s.used_at is not null) for update;
    -- While this waited for the turn of the session, another call may have changed what it has in hand, or another
    -- session have taken its token over.
    v_speaker := pgps_internal.speaker_of(caller, args);
    perform pgps_internal.note_use(v_speaker.session_id);
    v_speaker.seen_no := v_seen;
    return v_speaker;
end
$$;
comment on function pgps_internal.speak(name, jsonb, boolean) is
'As speaker_of, for a call that changes something: takes the turn of the session. reads_nothing: of what others may
change meanwhile. Errors: also 25001, unless that. What the session has in hand is not looked up in the common case: see
with_hand.';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.speak_with_hand(caller name, args jsonb) returns pgps_internal.speaker
language plpgsql
as $body$
declare
    v_newest bigint := coalesce(pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass), 0);
    v_session bigint := case when args ->> 'session' is null then pgps_internal.my_session() end;
    v_speaker pgps_internal.speaker;
begin
    case v_newest / 65536 % 4{branches}
    end case;
    if v_speaker.hand is null then
        v_speaker := pgps_internal.with_hand(pgps_internal.speak(caller, args));
    end if;
    return v_speaker;
end
$body$;
$function$, '{branches}', (select string_agg(replace($branch$
        when {slot} then
            select s.session_id, s.participant_id, s.role, s.token, m.life_id,
                case when pg_current_xact_id_if_assigned() is null then v_newest end, h.version, h.sent, h.held
            into v_speaker
            from pgps_internal.participant_session s cross join pgps_internal.broker_life_mark m
            cross join lateral (select n.at_no, n.version, n.sent, n.held from pgps_internal.session_hand_{slot} n
                where n.session_id = s.session_id order by n.version desc limit 1) h
            where s.session_id = v_session and pg_get_userbyid(s.role::oid) = speak_with_hand.caller
                and current_setting('transaction_isolation') like 'read %committed'
                -- Not of an older segment in the same place.
                and h.at_no >= v_newest / 65536 * 65536
                and pg_stat_clear_snapshot() is not null;$branch$, '{slot}', s::text), '')
        from generate_series(0, 3) s));
end
$do$;
comment on function pgps_internal.speak_with_hand(name, jsonb) is
'As speak, with what the session has in hand: in one statement where a session of this backend speaks that has had
something in hand of late. The newest segment has its newest version, if it has any: reclaim writes one again only while
nobody is writing a newer one, since who does has read it in the segment that reclaim truncates.';

create or replace function pgps_internal.speak_for_sender(caller name, args jsonb) returns pgps_internal.speaker
language plpgsql
as $$
declare
    v_speaker pgps_internal.speaker;
begin
    perform pg_stat_clear_snapshot(), pgps_internal.require_own_snapshots();
    -- No session has the number 0, and no life.
    select 0, p.participant_id, p.role, p.token, 0, null, 0, '{}', '{}' into v_speaker
    from pgps_internal.unit u join pgps_internal.participant p on p.participant_id = u.sender_id
    where u.unit_no = pgps_internal.number_in(args ->> 'uow_id', 'U') and u.is_uow;
    if v_speaker.role <> quote_ident(caller)::regrole then
        raise exception 'unit of work "%" is somebody else''s', args ->> 'uow_id' using errcode = '42501',
            hint = 'A role may cancel what it has sent itself.';
    end if;
    return v_speaker;
end
$$;
comment on function pgps_internal.speak_for_sender(name, jsonb) is
'Who has sent the unit in args, if that is the caller''s role, whichever of its sessions it was; null where there is no
such unit. Errors: 42501, 25001.';
