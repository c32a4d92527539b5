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

create or replace function pgps_internal.require_settled(session_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_hand pgps_internal.session_hand;
    v_unit bigint;
begin
    if require_settled.session_id is null or pg_current_xact_id_if_assigned() is null then
        return;
    end if;
    v_hand := pgps_internal.hand_of(require_settled.session_id);
    v_unit := pgps_internal.settled_here(require_settled.session_id, v_hand.sent || v_hand.held);
    if v_unit is not null then
        raise exception 'session % cannot end: the SYNCPOINT of unit of work "U%" is not committed',
            require_settled.session_id, upper(to_hex(v_unit))
        using errcode = '55000', hint = 'Its end counts at once, which would give that unit to others while this '
            'transaction can still be committed. Commit or roll back first.';
    end if;
end
$$;
comment on function pgps_internal.require_settled(bigint) is
'Raises 55000 when this transaction has called SYNCPOINT for what others still see in the hand of a session';

create or replace function pgps_internal.go_on_as(session_id bigint, sqlstate text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- After a connection was lost (08) or the server was told to stop (57) it is not known what has been committed;
    -- 08001: it was never made.
    if go_on_as.session_id is not null
        and (left(go_on_as.sqlstate, 2) not in ('08', '57') or go_on_as.sqlstate = '08001') then
        perform setval('pgps_internal.participant_mark_seq', go_on_as.session_id);
    end if;
end
$$;
comment on function pgps_internal.go_on_as(bigint, text) is
'After an error with which nothing has become of a logon or logoff: the backend has the session that it had';

create or replace function pgps_internal.do_logon(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_old bigint := pgps_internal.my_session();
    v_new bigint;
begin
    perform pgps_internal.require_settled(v_old);
    -- Where this is cancelled nobody here knows whether the session was replaced: then the backend has none.
    perform setval('pgps_internal.participant_mark_seq', 0);
    begin
        v_new := pgps_internal.log_on(caller, args, false);
    exception when others then
        perform pgps_internal.go_on_as(v_old, sqlstate);
        raise;
    end;
    perform setval('pgps_internal.participant_mark_seq', v_new);
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
    v_session bigint := (pgps_internal.speaker_of(caller, args)).session_id;
    v_own bigint := pgps_internal.my_session();
begin
    perform pgps_internal.require_settled(v_session);
    if v_session = v_own then
        -- Before it ends for others: where this is cancelled, nobody here knows whether it has.
        perform setval('pgps_internal.participant_mark_seq', 0);
    end if;
    perform pgps_internal.over_loopback_once(format('select pgps_internal.end_session(%s)', v_session));
exception when others then
    perform pgps_internal.go_on_as(v_own, sqlstate) where v_session = v_own;
    raise;
end
$$;
comment on function pgps_internal.do_logoff(name, jsonb) is 'See pgps.logoff';
