-- Who sends and receives units of work. A session speaks for a participant, a role and a token, from the moment of its
-- logon: that is written in a transaction of its own, over the loopback connection. Which session a backend has is
-- the value that currval returns there for participant_mark_seq: it is the backend's own, no transaction takes it back,
-- and nobody else can set it.
-- Locks: the participant's row while it logs on or (behind a pooler) off, in that transaction.
-- Writes: participant, participant_session, participant_session_end.

create or replace function pgps_internal.my_session() returns bigint
language plpgsql volatile
as $$
begin
    return nullif(currval('pgps_internal.participant_mark_seq'), 0);
exception when object_not_in_prerequisite_state then
    return null;
end
$$;
comment on function pgps_internal.my_session() is
'The session that this backend has logged on; null when there is none';

create or replace function pgps._session_lives(session_id bigint) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_session pgps_internal.participant_session;
begin
    select s.* into v_session from pgps_internal.participant_session s
    where s.session_id = _session_lives.session_id
        and not exists (select from pgps_internal.participant_session_end e where e.session_id = s.session_id);
    if not found then
        return false;
    elsif v_session.pid is null then
        -- Behind a pooler nobody can tell whether the program lives: another one may take its token over once its
        -- lease is over (see pgps_internal.free_token).
        return v_session.life_id = pgps_internal.noted_life() and not exists (
            select from pgps_internal.participant_session n
            where n.participant_id = v_session.participant_id and n.session_id > v_session.session_id);
    elsif v_session.pid = pg_backend_pid() then
        return v_session.session_id = pgps_internal.my_session();
    end if;
    -- A backend speaks for the session that it logged on last.
    return not exists (select from pgps_internal.participant_session n
            where n.pid = v_session.pid and n.backend_start = v_session.backend_start
                and n.session_id > v_session.session_id)
        and exists (select from pg_stat_get_activity(v_session.pid) a
            where a.pid = v_session.pid and a.backend_start = v_session.backend_start);
end
$$;
comment on function pgps._session_lives(bigint) is
'True while a session is logged on: its backend lives, and has not logged off or on again. For views: anybody may ask.';

create or replace function pgps._session_ended_at(session_id bigint) returns timestamptz
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(
        (select e.ended_at from pgps_internal.participant_session_end e
            where e.session_id = _session_ended_at.session_id),
        (select min(n.began_at) from pgps_internal.participant_session s
            join pgps_internal.participant_session n on n.session_id > s.session_id
                and (n.pid = s.pid and n.backend_start = s.backend_start or n.participant_id = s.participant_id)
            where s.session_id = _session_ended_at.session_id))
$$;
comment on function pgps._session_ended_at(bigint) is
'When a session ended, at the latest; null when nothing has told of its end. For views: anybody may ask.';

create or replace function pgps_internal.free_token(
    participant_id bigint, pid integer, backend_start timestamptz, takes_over boolean
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lease interval := pgps_internal.setting('session_lease')::interval;
    v_other pgps_internal.participant_session;
    v_error text;
begin
    select s.* into v_other from pgps_internal.participant_session s
    where s.participant_id = free_token.participant_id
        and (s.pid is null or (s.pid, s.backend_start) is distinct from (free_token.pid, free_token.backend_start))
        and pgps._session_lives(s.session_id)
    order by s.pid is null, s.session_id desc limit 1;
    if not found then
        return;
    end if;
    select format('token "%s" of role %s is in use by ', p.token, p.role) into v_error
    from pgps_internal.participant p where p.participant_id = free_token.participant_id;
    if v_other.pid is not null then
        raise exception '%process % since %', v_error, v_other.pid, v_other.began_at
        using errcode = '55006', hint = 'Let that session end or call pgps.logoff() there, or use another token.';
    end if;
    -- A call of that session holds its row until the transaction ends. One that comes later finds used_at null.
    update pgps_internal.participant_session s set used_at = null
    where s.session_id = (select o.session_id from pgps_internal.participant_session o
        where o.session_id = v_other.session_id
            and (free_token.takes_over or o.used_at <= pgps_internal.clock() - v_lease)
        for update skip locked);
    if not found and not free_token.takes_over then
        raise exception '%session % since %', v_error, v_other.session_id, v_other.began_at
        using errcode = '55006', hint = format('It keeps the token until %s after its last call (setting '
            'session_lease). If its program is gone: pgps.logon_session(token, take_over => true), or '
            'pgps.logoff(%s).', v_lease, v_other.session_id);
    end if;
end
$$;
comment on function pgps_internal.free_token(bigint, integer, timestamptz, boolean) is
'Takes a token from the session behind a pooler that has it, if its lease is over or takes_over is true. Errors: 55006
when that session, or one of another backend, goes on.';

create or replace function pgps_internal.begin_session(
    role oid, token text, pid integer, backend_start timestamptz, takes_over boolean
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_life bigint := coalesce(pgps_internal.noted_life(), pgps_internal.note_life());
    v_participant bigint;
    v_session bigint;
begin
    if begin_session.token is not null then
        insert into pgps_internal.participant as p (role, token)
        values (begin_session.role, begin_session.token) on conflict do nothing;
        select p.participant_id into v_participant from pgps_internal.participant p
        where p.role = begin_session.role and p.token = begin_session.token for update;
        perform pgps_internal.free_token(v_participant, begin_session.pid, begin_session.backend_start,
            begin_session.takes_over);
    else
        insert into pgps_internal.participant (role) values (begin_session.role)
        returning participant_id into v_participant;
    end if;
    v_session := nextval('pgps_internal.participant_session_seq');
    perform pgps_internal.wake_for(l.session_id) from (
        select max(s.session_id) from pgps_internal.participant_session s where s.participant_id = v_participant
        union
        select max(s.session_id) from pgps_internal.participant_session s
        where s.pid = begin_session.pid and s.backend_start = begin_session.backend_start) l(session_id);
    insert into pgps_internal.participant_session (session_id, participant_id, life_id, pid, backend_start, began_at,
        used_at, role, token)
    values (v_session, v_participant, v_life, begin_session.pid, begin_session.backend_start, pgps_internal.clock(),
        case when begin_session.pid is null then pgps_internal.clock() end, begin_session.role, begin_session.token);
    return v_session;
end
$$;
comment on function pgps_internal.begin_session(oid, text, integer, timestamptz, boolean) is
'On the loopback connection: writes that a backend (null: none in particular) speaks for a role and a token; returns the
number of the session. Errors: 55006, see pgps_internal.free_token.';

create or replace function pgps_internal.wake_for(session_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_held bigint[] := (pgps_internal.hand_of(wake_for.session_id)).held;
begin
    perform pgps_internal.wake_queue(pgps_internal.queue_for(u.to_server,
        pgps_internal.conversation_of(u.conversation_no), pgps_internal.state_of(u.conversation_no)))
    from pgps_internal.unit u where u.unit_no = any (v_held);
end
$$;
comment on function pgps_internal.wake_for(bigint) is
'Wakes those who may receive what a session holds: it ends, which backs these units out';

create or replace function pgps_internal.end_session(session_id bigint) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Who commits a SYNCPOINT of it just now comes first (see in_time.sql).
    perform from pgps_internal.participant p
    where p.participant_id = (select s.participant_id from pgps_internal.participant_session s
        where s.session_id = end_session.session_id and s.pid is null)
    for update;
    perform pgps_internal.wake_for(end_session.session_id);
    insert into pgps_internal.participant_session_end (session_id, ended_at)
    values (end_session.session_id, pgps_internal.clock()) on conflict do nothing;
    return end_session.session_id;
end
$$;
comment on function pgps_internal.end_session(bigint) is 'On the loopback connection: writes that a session has ended';

create or replace function pgps_internal.note_lost_sessions() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lost bigint[];
begin
    perform pg_stat_clear_snapshot();
    v_lost := array(select s.session_id from pgps_internal.participant_session s
        where s.pid is not null
            and not exists (select from pgps_internal.participant_session_end e where e.session_id = s.session_id)
            and not pgps._session_lives(s.session_id));
    with noted as (
        insert into pgps_internal.participant_session_end (session_id, ended_at)
        select n, pgps_internal.clock() from unnest(v_lost) n on conflict do nothing
        returning session_id
    )
    select array_agg(n.session_id) into v_lost from noted n;
    perform pgps_internal.wake_for(n) from unnest(v_lost) n;
    -- What it was receiving in a transaction that has ended with it nobody else has seen in its hand: those who serve
    -- the same services look for it.
    perform pgps_internal.wake_queue(pgps_internal.queue_of(v.service_id))
    from (select distinct v.service_id from pgps_internal.serving v where v.session_id = any (v_lost)) v;
    return coalesce(cardinality(v_lost), 0);
end
$$;
comment on function pgps_internal.note_lost_sessions() is
'Notes which sessions have ended without logging off, and wakes those who may receive what they held, or were about to;
returns how many';

grant execute on function pgps._session_lives(bigint), pgps._session_ended_at(bigint) to public;
