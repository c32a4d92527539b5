-- Logon and logoff: what begins and ends the session of a participant. It is in a transaction of its own, over the
-- loopback connection, so that it holds whatever becomes of the caller's.
-- Locks: those of sessions.sql.
-- Writes: nothing.

create or replace function pgps_internal.log_on(caller name, args jsonb, is_pooled boolean) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_token text := args ->> 'token';
    v_role regrole := quote_ident(caller)::regrole;
    v_start timestamptz;
begin
    if not args ? 'token' then
        raise exception 'no token is given' using errcode = '22023',
            hint = 'Use pgps.logon(token), or pgps.logon() without one.';
    elsif v_token = '' or octet_length(v_token) > 255 or v_token ~ '[[:cntrl:]]' then
        raise exception 'invalid token "%"', v_token
        using errcode = '22023', hint = 'Give 1 to 255 bytes without control characters, or null.';
    end if;
    if not log_on.is_pooled then
        select a.backend_start into v_start from pg_stat_get_activity(pg_backend_pid()) a;
    end if;
    return pgps_internal.over_loopback_once(format('select pgps_internal.begin_session(%s, %L, %L, %L, %L)',
        v_role::oid, v_token, case when not log_on.is_pooled then pg_backend_pid() end, v_start,
        coalesce((args ->> 'take_over')::boolean, false)));
end
$$;
comment on function pgps_internal.log_on(name, jsonb, boolean) is
'Begins a session of the caller, of this backend or, behind a pooler, of none; returns its number';

create or replace function pgps_internal.do_logon(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform setval('pgps_internal.participant_mark_seq', pgps_internal.log_on(caller, args, false));
end
$$;
comment on function pgps_internal.do_logon(name, jsonb) is 'See pgps.logon';

create or replace function pgps_internal.do_logon_session(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgps_internal.log_on(caller, args, true);
end
$$;
comment on function pgps_internal.do_logon_session(name, jsonb) is 'See pgps.logon_session';

create or replace function pgps_internal.do_logoff(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_speaker pgps_internal.speaker := pgps_internal.speaker_of(caller, args);
begin
    perform pgps_internal.over_loopback_once(format('select pgps_internal.end_session(%s)', v_speaker.session_id));
    if v_speaker.session_id = pgps_internal.my_session() then
        perform setval('pgps_internal.participant_mark_seq', 0);
    end if;
end
$$;
comment on function pgps_internal.do_logoff(name, jsonb) is 'See pgps.logoff';
