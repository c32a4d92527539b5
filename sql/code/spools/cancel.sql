-- What became of a spooled message: its number, whether it is cancelled, and cancelling it.
-- Locks: those of asking the spool (requests.sql); the turns of the members of a group, until the transaction ends.
-- Writes: spool_cancelled, turn.

create or replace function pgps_internal.stored(id bigint) returns pgps_internal.spool_message
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_message pgps_internal.spool_message;
begin
    select m.* into v_message from pgps_internal.spool_message m where m.id = stored.id limit 1;
    return v_message;
end
$$;
comment on function pgps_internal.stored(bigint) is
'The message of a request, also when it was discarded, while it is in the store; null when there is none';

create or replace function pgps_internal.is_past(xid xid8, id bigint, last pgps_internal.batch) returns boolean
language sql stable
as $$
    select pgps_internal.is_dispatched(is_past.xid, is_past.id, is_past.last)
        and not exists (select from pgps_internal.set_aside s
            where s.batch_id is null and is_past.xid = any (s.xids) and is_past.id <@ s.ranges)
$$;
comment on function pgps_internal.is_past(xid8, bigint, pgps_internal.batch) is
'True when a request has been dispatched: it is in a batch up to last, and was not set aside there to be dispatched
later';

create or replace function pgps_internal.asked(id bigint) returns pgps_internal.spool_asked
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_asked pgps_internal.spool_asked;
    v_last pgps_internal.batch := pgps_internal.last_batch();
begin
    if pgps_internal.spool_type() is null then
        return null;
    end if;
    select l.spool_id, l.spooler, l.xid = pg_current_xact_id_if_assigned() into v_asked
    from pgps_internal.pgps_spool_log l
    where l.event_id = asked.id and l.verb in ('s', 'c', 'p')
        and (v_last.batch_id is null or not pgps_internal.is_past(l.xid, l.event_id, v_last));
    return v_asked;
end
$$;
comment on function pgps_internal.asked(bigint) is
'The spool and the spooler of a message that is not dispatched yet; nulls when there is none';

create or replace function pgps_internal.spools_there(role name, spool pgps_internal.spool, id bigint)
returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
    v_here pgps_internal.spool;
begin
    if (spools_there.spool).network_id is null then
        return pgps_internal.spool_allows(role, spool, 'spool');
    end if;
    -- As pgps_internal.outbox_of asks.
    v_name := coalesce((pgps_internal.stored(spools_there.id)).message,
        (select l.message from pgps_internal.pgps_spool_log l where l.event_id = spools_there.id)) ->> 'spool';
    select s.* into v_here from pgps_internal.spool s where s.name = v_name and s.network_id is null;
    return case when found then pgps_internal.spool_allows(role, v_here, 'spool')
        else pg_has_role(role, 'pgps_admin', 'usage') end;
end
$$;
comment on function pgps_internal.spools_there(name, pgps_internal.spool, bigint) is
'True while a role may spool into the spool of a request, or into that of its name when it is for a network';

drop function if exists pgps_internal.may_follow(name, integer, text);
create or replace function pgps_internal.may_follow(caller name, spool_id integer, spooler text, id bigint)
returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool pgps_internal.spool;
begin
    select s.* into v_spool from pgps_internal.spool s where s.spool_id = may_follow.spool_id;
    -- Messages know their spoolers by name: one of the same name that came later has not the rights of that one.
    return found and (exists (select from pg_roles r where r.rolname = may_follow.spooler
            and pg_has_role(may_follow.caller, r.oid, 'usage')
            and pgps_internal.spools_there(r.rolname, v_spool, may_follow.id))
        or pgps_internal.spool_allows(may_follow.caller, v_spool, 'replay'));
end
$$;
comment on function pgps_internal.may_follow(name, integer, text, bigint) is
'True for whoever spooled a message and may spool there still, and for whoever may replay its spool';

create or replace function pgps_internal.require_following(caller name, spool_id integer, spooler text, id bigint)
returns void
language plpgsql
as $$
begin
    if not pgps_internal.may_follow(require_following.caller, require_following.spool_id,
            require_following.spooler, require_following.id) then
        raise exception 'role "%" may not cancel request %', require_following.caller, require_following.id
        using errcode = '42501',
            hint = 'Only whoever spooled it, while it may spool there, and whoever may replay the spool, can take it '
                'back.';
    end if;
end
$$;
comment on function pgps_internal.require_following(name, integer, text, bigint) is
'Raises 42501 unless caller may cancel a request: see pgps_internal.may_follow';

create or replace function pgps_internal.request_id(args jsonb) returns bigint
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if args ->> 'id' is null then
        raise exception 'the id of a request to a spool is null' using errcode = '22023',
            hint = 'Give what pgps.spool returned.';
    end if;
    return (args ->> 'id')::bigint;
end
$$;
comment on function pgps_internal.request_id(jsonb) is 'The id in a call; 22023 when there is none';

create or replace function pgps_internal.followed(
    caller name, id bigint, out message pgps_internal.spool_message, out asked pgps_internal.spool_asked,
    out is_followed boolean
) returns record
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.enter_store();
    asked := pgps_internal.asked(followed.id);
    message := pgps_internal.stored(followed.id);
    is_followed := pgps_internal.may_follow(followed.caller, coalesce(message.spool_id, asked.spool_id),
        coalesce(message.spooler, asked.spooler), followed.id);
    if not is_followed then
        raise exception 'let go';
    end if;
exception when raise_exception then
    -- Whoever has no right at the spool does not keep its space from being given back until the transaction ends.
    null;
end
$$;
comment on function pgps_internal.followed(name, bigint) is
'A message: as it is in the store, or as it was asked for and waits; nulls when there is none. is_followed: the caller
may see what becomes of it; then, and only then, the store is kept until the transaction ends';

create or replace function pgps_internal.do_spool_getseqn(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := pgps_internal.request_id(args);
    v_found record := pgps_internal.followed(caller, v_id);
begin
    return case when v_found.is_followed then (v_found.message).seqn else 0 end;
end
$$;
comment on function pgps_internal.do_spool_getseqn(name, jsonb) is 'See pgps.spool_getseqn';

create or replace function pgps_internal.is_gone(message pgps_internal.spool_message) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (is_gone.message).seqn <@ (pgps_internal.standing_of_spool((is_gone.message).spool_id)).emptied
        or exists (select from pgps_internal.spool_gone g
            where g.spool_id = (is_gone.message).spool_id and g.seqn = (is_gone.message).seqn)
        or exists (select from pgps_internal.spool_cancelled c where c.id = (is_gone.message).id);
end
$$;
comment on function pgps_internal.is_gone(pgps_internal.spool_message) is
'True for a message in the store that was discarded or cancelled';

create or replace function pgps_internal.try_members(
    spool_id integer, most integer, out is_held boolean, out busy bigint
) returns record
language plpgsql
set search_path = pg_catalog, pg_temp set lock_timeout = 0
as $$
declare
    v_member bigint;
begin
    perform set_config('lock_timeout', try_members.most || 'ms', true);
    -- Nobody becomes a member until the transaction ends (see enter_group): so these are all.
    perform from pgps_internal.turn t where t.kind = 'q' and t.id = try_members.spool_id for update;
    for v_member in select m.member_id from pgps_internal.spool_member m
        where m.spool_id = try_members.spool_id order by m.member_id
    loop
        busy := v_member;
        perform from pgps_internal.turn t where t.kind = 'h' and t.id = v_member for update;
    end loop;
    is_held := true;
exception when lock_not_available or deadlock_detected then
    is_held := false;
end
$$;
comment on function pgps_internal.try_members(integer, integer) is
'Takes the turns of all members of a group, and that of becoming one; when somebody has one of them for longer than so
many milliseconds, none, and busy is the member that has, null for who becomes one';

create or replace function pgps_internal.hold_members(spool_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tried record;
    v_most numeric := 1;
    v_tries integer := 0;
begin
    insert into pgps_internal.turn (kind, id) values ('q', hold_members.spool_id) on conflict do nothing;
    insert into pgps_internal.turn (kind, id)
    select 'h', m.member_id from pgps_internal.spool_member m where m.spool_id = hold_members.spool_id
    on conflict do nothing;
    loop
        v_tried := pgps_internal.try_members(hold_members.spool_id, v_most::integer);
        exit when v_tried.is_held;
        -- One of them is at work: it alone is waited for, with none of the turns, so that the others go on.
        begin
            perform pgps_internal.hold((case when v_tried.busy is null then 'q' else 'h' end)::"char",
                coalesce(v_tried.busy, hold_members.spool_id));
            raise exception 'let go';
        exception when raise_exception then
            null;
        end;
        v_tries := v_tries + 1;
        if v_tries >= 3 then
            -- Somebody always is. So the turns that are free are kept for a while, and each time for longer: until
            -- those at work have ended theirs, and wait for this one.
            v_most := least(greatest(2 * v_most, 50), 3600000, nullif(1000 * extract(epoch from
                current_setting('lock_timeout')::interval), 0));
        end if;
    end loop;
end
$$;
comment on function pgps_internal.hold_members(integer) is
'Takes the turns of all members of a group, and that of becoming one: at a moment when nobody has any of them, or, where
that does not come, one after the other, while those whose turns it has wait';

create or replace function pgps_internal.enter_group(spool_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform from pgps_internal.turn t where t.kind = 'q' and t.id = enter_group.spool_id for share;
    if not found then
        insert into pgps_internal.turn (kind, id) values ('q', enter_group.spool_id) on conflict do nothing;
        perform from pgps_internal.turn t where t.kind = 'q' and t.id = enter_group.spool_id for share;
    end if;
end
$$;
comment on function pgps_internal.enter_group(integer) is
'Called before a client becomes a member of a group for the first time: waits for those who are taking a message back,
which nobody had; several enter at the same time';

create or replace function pgps_internal.do_spool_cancel(caller name, args jsonb) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := pgps_internal.request_id(args);
    v_found record;
    v_message pgps_internal.spool_message;
    v_asked pgps_internal.spool_asked;
    v_spool pgps_internal.spool;
begin
    perform pgps_internal.require_read_committed();
    v_found := pgps_internal.followed(caller, v_id);
    v_message := v_found.message;
    v_asked := v_found.asked;
    select s.* into v_spool from pgps_internal.spool s
    where s.spool_id = coalesce(v_message.spool_id, v_asked.spool_id);
    if not found then
        return false;
    end if;
    perform pgps_internal.require_following(caller, v_spool.spool_id, coalesce(v_message.spooler, v_asked.spooler),
        v_id);
    perform pgps_internal.enter_store();
    if v_asked.is_own is not true then
        perform pgps_internal.hold_members(v_spool.spool_id);
        -- What this transaction itself has spooled is nowhere yet, and nobody waits.
        if v_spool.network_id is not null then
            perform pgps_internal.hold_network(v_spool.network_id);
        end if;
        -- The right may have been taken while the turns were waited for.
        perform pgps_internal.require_following(caller, v_spool.spool_id,
            coalesce(v_message.spooler, v_asked.spooler), v_id);
    end if;
    -- A dispatch may have come in between.
    v_message := pgps_internal.stored(v_id);
    if v_message.id is not null and (pgps_internal.is_gone(v_message)
        or pgps_internal.somebody_had(v_spool.spool_id, v_message.seqn))
        or exists (select from pgps_internal.spool_cancelled c where c.id = v_id) then
        return false;
    end if;
    insert into pgps_internal.spool_cancelled (id, spool_id, request)
    values (v_id, v_spool.spool_id, pgps_internal.ask_spool(caller, v_spool, 'x', v_id)) on conflict do nothing;
    return found;
end
$$;
comment on function pgps_internal.do_spool_cancel(name, jsonb) is 'See pgps.spool_cancel';

create or replace function pgps_internal.has_arrived(network_id integer, message pgps_internal.spool_message)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if (has_arrived.message).expires <= pgps_internal.clock() then
        -- What has expired is passed over: only who noted an arrival before that has it.
        return (select 1 from pgps_internal.network_contact c join pgps_internal.network_mark k on k.line = c.contact_id
            where c.network_id = has_arrived.network_id and k.upto >= (has_arrived.message).seqn
                and k.marked_at < (has_arrived.message).expires limit 1);
    end if;
    return coalesce((select bool_or(k.upto >= (has_arrived.message).seqn) from pgps_internal.network_contact c
        cross join lateral pgps_internal.network_mark_of(c.contact_id) k
        where c.network_id = has_arrived.network_id), false)::integer;
end
$$;
comment on function pgps_internal.has_arrived(integer, pgps_internal.spool_message) is
'1 when a message has arrived at a contact point of a network, else 0; null when it has expired, and it is not known
that it arrived before';

create or replace function pgps_internal.do_spool_inquire(caller name, args jsonb) returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := pgps_internal.request_id(args);
    v_found record := pgps_internal.followed(caller, v_id);
    v_message pgps_internal.spool_message := v_found.message;
    v_network integer;
begin
    if not v_found.is_followed
        or exists (select from pgps_internal.spool_cancelled c where c.id = v_id) then
        return null;
    elsif v_message.id is null then
        return 0;
    end if;
    select s.network_id into v_network from pgps_internal.spool s where s.spool_id = v_message.spool_id;
    if v_network is not null then
        -- What has arrived is discarded here as a range; what was cancelled is noted by itself.
        return case when not exists (select from pgps_internal.spool_gone g
                where g.spool_id = v_message.spool_id and g.seqn = v_message.seqn)
            then pgps_internal.has_arrived(v_network, v_message) end;
    end if;
    -- Who is present is asked as of now, not as of the first time that this transaction has asked.
    perform pg_stat_clear_snapshot();
    return case when not pgps_internal.is_gone(v_message)
            -- What has expired is passed over, and then looks as if it were acknowledged.
            and coalesce(v_message.expires > pgps_internal.clock(), true)
        then pgps_internal.all_acked(v_message.spool_id, v_message.seqn)::integer end;
end
$$;
comment on function pgps_internal.do_spool_inquire(name, jsonb) is 'See pgps.spool_inquire';
