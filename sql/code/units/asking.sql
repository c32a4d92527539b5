-- SYNCPOINT with option last or query: how a unit stands. A read-only transaction may not insert into
-- pgps_entry.unit_calls. There, who asks is told by a secret of the session, which nobody but its role can read: a
-- function that runs with the rights of its owner would not know for whom it does.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.changes_of(unit_no bigint) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select count(*) from pgps_internal.unit_commit c where c.unit_no = changes_of.unit_no)
        + coalesce((select max(s.version) from pgps_internal.unit_state s where s.unit_no = changes_of.unit_no), 0);
end
$$;
comment on function pgps_internal.changes_of(bigint) is 'A number that changes when how a unit stands is written';

create or replace function pgps_internal.require_as_seen(unit_no bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_standing pgps_internal.unit_standing;
begin
    if current_setting('transaction_isolation') like 'read %committed' then
        return;
    end if;
    select s.* into v_standing from pgps_internal.unit_standing s where s.unit_no = require_as_seen.unit_no
        -- Where a session ended, which nobody has noted in the unit. Who lives is known as of now, and what the session
        -- had done before it ended perhaps not: together these may be a status that never was.
        and (s.receiver_session is not null and s.status <> 'DELIVERED' or s.commit_no is null and s.version = 0
            and s.status <> 'RECEIVED'
            -- Or its time is over, also as of now: it may have been PROCESSED before.
            or s.commit_no is not null and s.status = 'TIMEOUT'
            -- Or it is shown as it stood in the snapshot, which is for those who look, not for who goes on by it.
            or s.is_active and s.ends_at <= pgps_internal.clock() and (s.commit_no is null or not s.is_relayed)
            or s.status = 'DELIVERED' and s.receiver_session is not null
                and not pgps._session_lives(s.receiver_session)
            or s.status = 'RECEIVED' and not pgps._session_lives(s.sender_session));
    if found and pgps_internal.changes_of(v_standing.unit_no) <> pgps_internal.over_loopback_once(
            format('select pgps_internal.changes_of(%s)', v_standing.unit_no)) then
        raise exception 'unit of work "U%" has changed since this % transaction began to look',
            upper(to_hex(v_standing.unit_no)), current_setting('transaction_isolation')
        using errcode = '25001', hint = 'Ask in another transaction, or use BEGIN ISOLATION LEVEL READ COMMITTED.';
    end if;
end
$$;
comment on function pgps_internal.require_as_seen(bigint) is
'Raises 25001 in a transaction that keeps its snapshot when that does not show how a unit stands of which a session has
ended, or the lifetime';

create or replace function pgps_internal.last_unit(speaker pgps_internal.speaker, conversation_no bigint)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_unit bigint;
begin
    for v_unit in select u.unit_no from pgps_internal.unit u
        where u.sender_id = (last_unit.speaker).participant_id and u.is_uow
            and u.conversation_no = coalesce(last_unit.conversation_no, u.conversation_no)
        order by u.unit_no desc
    loop
        perform pgps_internal.require_as_seen(v_unit);
        if (select s.is_known from pgps_internal.unit_standing s where s.unit_no = v_unit) then
            return v_unit;
        end if;
    end loop;
    return null;
end
$$;
comment on function pgps_internal.last_unit(pgps_internal.speaker, bigint) is
'The unit that a participant began last, of those whose status is known; null when there is none';

create or replace function pgps_internal.not_found_row() returns pgps.received_message
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select (null, null, null, null, null, null, null, null, null, null, null, null, '00780305', null, null, null,
        null)::pgps.received_message
$$;
comment on function pgps_internal.not_found_row() is 'What last and query return when they find nothing';

create or replace function pgps_internal.look_up_unit(speaker pgps_internal.speaker, option text, args jsonb,
    conversation_no bigint) returns pgps.received_message
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_unit bigint := case look_up_unit.option
        when 'last' then pgps_internal.last_unit(look_up_unit.speaker, look_up_unit.conversation_no)
        else pgps_internal.unit_to_sync(look_up_unit.speaker, 'query', args ->> 'uow_id',
            look_up_unit.conversation_no) end;
    v_standing pgps_internal.unit_standing;
    v_state pgps_internal.conversation_state;
    v_relation text;
begin
    perform pgps_internal.require_as_seen(v_unit);
    select s.* into v_standing from pgps_internal.unit_standing s where s.unit_no = v_unit and s.is_known;
    if found then
        v_state := pgps_internal.state_of(v_standing.conversation_no);
        v_relation := pgps_internal.relation_to(look_up_unit.speaker, v_standing,
            pgps_internal.conversation_of(v_standing.conversation_no), v_state, 'query');
    end if;
    if v_relation is null then
        return pgps_internal.not_found_row();
    elsif v_relation = 'receiver' and (v_standing.status <> 'DELIVERED'
        or v_standing.receiver_session <> (look_up_unit.speaker).session_id) then
        perform pgps_internal.refuse_transition('query', 'receiver', v_standing);
    end if;
    return pgps_internal.row_from(v_standing, v_state, v_standing.status);
end
$$;
comment on function pgps_internal.look_up_unit(pgps_internal.speaker, text, jsonb, bigint) is
'SYNCPOINT with option last or query: locks nothing';

create or replace view pgps_entry.own_sessions with (security_barrier) as
select s.session_id, s.secret
from pgps_internal.participant_session s join pgps_internal.participant p using (participant_id)
where p.role = quote_ident(current_user)::regrole;
comment on view pgps_entry.own_sessions is
'The sessions of the reader''s role, with what proves that; see pgps.syncpoint';

create or replace function pgps._my_session() returns bigint
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$ select pgps_internal.my_session() $$;
comment on function pgps._my_session() is 'The number of the session that this backend has logged on; null: none';

create or replace function pgps._look_up_unit(secret uuid, args jsonb) returns pgps.received_message[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_role name;
    v_speaker pgps_internal.speaker;
    v_conversation bigint;
begin
    select pg_get_userbyid(p.role::oid) into v_role
    from pgps_internal.participant_session s join pgps_internal.participant p using (participant_id)
    where s.session_id = coalesce((_look_up_unit.args ->> 'session')::bigint, pgps_internal.my_session())
        and s.secret = _look_up_unit.secret;
    if v_role is null then
        raise exception 'this session is not logged on'
        using errcode = '55000', hint = 'First: select pgps.logon(''token''), by the role that asks.';
    end if;
    v_speaker := pgps_internal.speaker_of(v_role, _look_up_unit.args);
    if _look_up_unit.args ->> 'conversation' is not null then
        v_conversation := (pgps_internal.find_conversation(_look_up_unit.args ->> 'conversation',
            v_speaker)).conversation_no;
    end if;
    return array[pgps_internal.look_up_unit(v_speaker, lower(_look_up_unit.args ->> 'option'), _look_up_unit.args,
        v_conversation)];
end
$$;
comment on function pgps._look_up_unit(uuid, jsonb) is
'SYNCPOINT with option last or query, for the session that has this secret. Errors: as pgps.syncpoint.';

create or replace function pgps._refuse_read_only() returns void
language plpgsql stable
as $$
begin
    raise exception 'units of work cannot be sent or received in a read-only transaction'
    using errcode = '25006', hint = 'Use BEGIN READ WRITE; pgps.syncpoint with option last or query is allowed here.';
end
$$;
comment on function pgps._refuse_read_only() is 'Raises 25006';

grant select on pgps_entry.own_sessions to public;
grant execute on function pgps._my_session(), pgps._look_up_unit(uuid, jsonb), pgps._refuse_read_only() to public;
