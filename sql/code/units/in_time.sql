-- A unit of work that is over before the transaction of its SYNCPOINT is committed is TIMEOUT: others may have seen it,
-- and acted on it. So the lifetime is looked at once more before the commit, which is refused then (decision 101). The
-- same when its service was dropped meanwhile, which has made it DISCARDED, or when the session that called SYNCPOINT
-- has ended, which has given back what it held and backed out what it was sending.
-- Locks: for key share, the participant of a session that belongs to no backend, against its next logon.
-- Writes: nothing.

-- What the call in progress is about must not be taken for what was in hand before, so who had that hears of its end
-- first, and once, as the sender of one does (see unit_being_sent).
create or replace function pgps_internal.lapsed_in_hand(units bigint[], conversation_no bigint, in_part boolean)
returns pgps_internal.unit_standing
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_standing pgps_internal.unit_standing;
begin
    if lapsed_in_hand.units = '{}' then
        return null;
    end if;
    select s.* into v_standing
    from pgps_internal.unit u join pgps_internal.unit_standing s using (unit_no)
    where u.unit_no = any (lapsed_in_hand.units) and u.ends_at <= pgps_internal.clock()
        and u.conversation_no = coalesce(lapsed_in_hand.conversation_no, u.conversation_no)
        and s.status = 'TIMEOUT'
        and not exists (select from pgps_internal.unit_told t where t.unit_no = u.unit_no)
        and (not lapsed_in_hand.in_part or s.messages_given < (select max(m.number)
            from pgps_internal.message_of_unit m where m.unit_no = u.unit_no))
    order by u.unit_no limit 1;
    return v_standing;
end
$$;
comment on function pgps_internal.lapsed_in_hand(bigint[], bigint, boolean) is
'The first of the units that a session has in hand that has timed out there, of which the session has not been told, in
one conversation or (null) in all; in_part: only if more of it was to be received. Null: none';

create or replace function pgps_internal.refuse_lapsed(standing pgps_internal.unit_standing) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if (refuse_lapsed.standing).unit_no is not null then
        perform pgps_internal.note_told((refuse_lapsed.standing).unit_no, 'TIMEOUT');
        raise exception 'unit of work "U%" is TIMEOUT: it was over at %, in the hands of this session',
            upper(to_hex((refuse_lapsed.standing).unit_no)), (refuse_lapsed.standing).ends_at
        using errcode = '55000', hint = 'Undo what was done for it: it is gone, and cannot be committed or backed out. '
            'The same call again goes on with what else there is.';
    end if;
end
$$;
comment on function pgps_internal.refuse_lapsed(pgps_internal.unit_standing) is
'Raises 55000 for a unit that has timed out in the hands of a session, and notes at once that it was told; null: nothing
is done';

create or replace function pgps_internal.require_in_time() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ends_at timestamptz;
    v_dropped_at timestamptz;
begin
    -- The broker that has a unit of another one decides when it was over; to cancel one for the other is a wish.
    select u.ends_at, g.dropped_at into v_ends_at, v_dropped_at
    from pgps_internal.unit u left join pgps_internal.service_dropped g on g.service_id = u.service_id
    where u.unit_no = new.unit_no and u.is_uow and not u.is_relayed
        and (u.ends_at <= pgps_internal.clock() or g.dropped_at is not null)
        and not (u.their_no is not null and new.status = 'CANCELLED');
    -- Reclaim writes what it keeps again, which is then there twice.
    if found and not exists (
            select from pgps_internal.unit_state s
            where s.unit_no = new.unit_no and s.version = new.version and s.at_no < new.at_no) then
        if v_dropped_at < v_ends_at then
            raise exception 'unit of work "U%" is DISCARDED: its service was dropped at %, before the transaction of '
                'its SYNCPOINT was committed', upper(to_hex(new.unit_no)), v_dropped_at
            using errcode = '55000', hint = 'All that the transaction has written is undone. The service is gone, and '
                'so is what was sent to it.';
        end if;
        -- Who hears of it now need not hear of it again before going on.
        begin
            perform pgps_internal.note_told(new.unit_no, 'TIMEOUT');
        exception when connection_exception or too_many_connections then
            null;
        end;
        raise exception 'unit of work "U%" is TIMEOUT: it was over at %, before the transaction of its SYNCPOINT was',
            upper(to_hex(new.unit_no)), v_ends_at
        using errcode = '55000', hint = 'All that the transaction has written is undone. Commit sooner after '
            'SYNCPOINT, or have its sender give it a longer lifetime.';
    end if;
    return null;
end
$$;
comment on function pgps_internal.require_in_time() is
'Before the commit: raises 55000 when a unit that was PROCESSED or CANCELLED meanwhile is TIMEOUT, or DISCARDED
with its service';
revoke all on function pgps_internal.require_in_time() from public;

do $$
begin
    if not exists (select from pg_trigger t
            where t.tgname = 'pgps_in_time' and t.tgrelid = 'pgps_internal.unit_state'::regclass) then
        create constraint trigger pgps_in_time after insert on pgps_internal.unit_state
        deferrable initially deferred for each row when (new.status in ('PROCESSED', 'CANCELLED'))
        execute function pgps_internal.require_in_time();
        alter table pgps_internal.unit_state enable always trigger pgps_in_time;
    end if;
end
$$;

create or replace function pgps_internal.require_living() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_unit bigint;
begin
    -- Reclaim writes what it keeps again, which is then there twice.
    if exists (select from pgps_internal.session_hand h
            where h.session_id = new.session_id and h.version = new.version and h.at_no < new.at_no) then
        return null;
    end if;
    -- Whoever takes the token over waits until this transaction is committed, or has been seen here.
    perform from pgps_internal.participant p where p.participant_id = new.participant_id for key share;
    if pgps._session_lives(new.session_id) then
        return null;
    end if;
    v_unit := pgps_internal.settled_here(new.session_id, new.sent || new.held);
    if v_unit is not null then
        raise exception 'session % has ended, before the transaction of its SYNCPOINT of unit of work "U%" was '
            'committed', new.session_id, upper(to_hex(v_unit))
        using errcode = '55000', hint = 'All that the transaction has written is undone; what the session had in hand '
            'was given back or backed out. Log on again.';
    end if;
    return null;
end
$$;
comment on function pgps_internal.require_living() is
'Before the commit: raises 55000 when the session that has called SYNCPOINT has ended meanwhile';
revoke all on function pgps_internal.require_living() from public;

do $$
begin
    -- Only for sessions that belong to no backend (see put_in_hand): another one ends in its own backend, which looks
    -- at that before (see require_settled).
    if not exists (select from pg_trigger t
            where t.tgname = 'pgps_living' and t.tgrelid = 'pgps_internal.session_hand'::regclass) then
        create constraint trigger pgps_living after insert on pgps_internal.session_hand
        deferrable initially deferred for each row when (new.life_id is null)
        execute function pgps_internal.require_living();
        alter table pgps_internal.session_hand enable always trigger pgps_living;
    end if;
end
$$;
