-- Process groups: a group is named as its spool, its members are clients (clients/clients.sql). A member is present
-- while the session lives in which it has joined; whoever looks notices that one has crashed.
-- Locks: the turn of a member's client, until the transaction ends, for whatever moves the member; the rows of the
-- spools of a client that is dropped.
-- Writes: spool_mark, spool_member, turn.

create or replace function pgps_internal.is_present(member pgps_internal.spool_member) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- A member whose right was revoked gets nothing, so nobody waits for it.
    select (is_present.member).session is not null and exists (select from pgps_internal.client c
        join pg_roles r on r.oid = c.owner
        join pgps_internal.spool s on s.spool_id = (is_present.member).spool_id
        where c.client_id = (is_present.member).client_id and c.session = (is_present.member).session
            and pgps_internal.is_reachable(c) and pgps_internal.spool_allows(r.rolname, s, 'replay'))
$$;
comment on function pgps_internal.is_present(pgps_internal.spool_member) is
'True while a member has joined, has not left, is connected, and may replay the spool';

create or replace function pgps._is_present(member_id bigint) returns boolean
language sql stable security definer
begin atomic
    select coalesce(bool_or(pgps_internal.is_present(m)), false) from pgps_internal.spool_member m
    where m.member_id = _is_present.member_id;
end;
comment on function pgps._is_present(bigint) is
'True while a member of a process group is present. For the views: whoever reads them may not see the sessions of
others';
grant execute on function pgps._is_present(bigint) to public;

create or replace function pgps_internal.resolved(mark pgps_internal.spool_mark) returns pgps_internal.spool_mark
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pgps_internal.spool_mark := resolved.mark;
    v_replay pgps_internal.spool_replay;
begin
    if v_mark.phase = 'r' and v_mark.seqn = -9223372036854775808 then
        -- It has just begun the replay, or waits for it to be dispatched.
        select r.* into v_replay from pgps_internal.spool_replay r where r.replay_id = v_mark.replay_id;
    end if;
    if v_replay.first_seqn is not null then
        v_mark.seqn := v_replay.first_seqn - 1;
        v_mark.got_seqn := v_mark.seqn;
        v_mark.start := v_replay.start;
        v_mark.checkpoints_upto := v_replay.checkpoints_upto;
        v_mark.skip := v_replay.repeated + v_mark.acked;
    end if;
    return v_mark;
end
$$;
comment on function pgps_internal.resolved(pgps_internal.spool_mark) is
'Where a member is, with the numbers of the replay that it has just begun';

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.mark_of(member_id bigint) returns pgps_internal.spool_mark
        language plpgsql volatile
        as $$
        declare
            v_segment bigint := pg_sequence_last_value('pgps_internal.spool_mark_id_seq'::regclass) / 16384;
            v_mark pgps_internal.spool_mark;
        begin
            -- Common case: the newest mark is in the newest segment, and the other segments are not opened.
            case v_segment %% 4%s
                else null;
            end case;
            if v_mark.mark_id is null then
                select m.* into v_mark from pgps_internal.spool_mark m where m.member_id = mark_of.member_id
                    order by m.mark_id desc limit 1;
            end if;
            if v_mark.phase = 'r' and v_mark.seqn = -9223372036854775808 then
                return pgps_internal.resolved(v_mark);
            end if;
            return v_mark;
        end
        $$$f$, (select string_agg(format($b$
                when %1$s then select m.* into v_mark from pgps_internal.spool_mark_%1$s m
                    where m.member_id = mark_of.member_id and m.mark_id >= v_segment * 16384
                    order by m.mark_id desc limit 1;$b$, n), '' order by n) from generate_series(0, 3) n));
end
$do$;
comment on function pgps_internal.mark_of(bigint) is
'Where a member is; null before it first joined. Its seqn is the lowest number of all while its replay waits for
dispatch';

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.write_mark(mark pgps_internal.spool_mark) returns void
        language plpgsql
        as $$
        declare
            v_mark pgps_internal.spool_mark := write_mark.mark;
        begin
            v_mark.mark_id := nextval('pgps_internal.spool_mark_id_seq');
            -- Written into the segment itself: routing through the partitioned parent costs more than the row.
            case v_mark.mark_id / 16384 %% 4%s
            end case;
        end
        $$$f$, (select string_agg(format($b$
                when %1$s then insert into pgps_internal.spool_mark_%1$s values (v_mark.*);$b$, n), '' order by n)
            from generate_series(0, 3) n));
end
$do$;
comment on function pgps_internal.write_mark(pgps_internal.spool_mark) is 'Writes where a member is now';

create or replace function pgps_internal.begin_new(member_id bigint, state pgps_internal.spool_state) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pgps_internal.spool_mark := pgps_internal.mark_of(begin_new.member_id);
    v_last bigint := (begin_new.state).last_seqn;
begin
    perform pgps_internal.write_mark(row(null, begin_new.member_id, null, 'n', v_last, 'n', v_last, null, 0, v_last,
        null, '{}', coalesce(v_mark.acked, '{}'), coalesce(v_mark.had, '{}'),
        coalesce(pg_sequence_last_value('pgps_internal.event_id_seq'), 0))::pgps_internal.spool_mark);
end
$$;
comment on function pgps_internal.begin_new(bigint, pgps_internal.spool_state) is
'Lets a member begin with what is spooled from now on';

create or replace function pgps_internal.find_member(caller name, args jsonb) returns pgps_internal.spool_member
language plpgsql stable
as $$
declare
    v_name text := args ->> 'name';
    v_client text := args ->> 'member';
    v_session bigint := (args ->> 'session')::bigint;
    v_member pgps_internal.spool_member;
begin
    -- One statement finds a member with which all is well: this is asked with every call. Otherwise the checks say why.
    v_name := case when v_name ~ '^[a-z_][a-z0-9_]*$' then v_name else pgps_internal.fold(v_name) end;
    v_client := case when v_client ~ '^[a-z_][a-z0-9_]*$' then v_client else pgps_internal.fold(v_client) end;
    select m.* into v_member
    from pgps_internal.spool s cross join pgps_internal.client c
    join pgps_internal.spool_member m on m.spool_id = s.spool_id and m.client_id = c.client_id
        and m.session = c.session
    where s.name = v_name and s.network_id is null and c.name = v_client and c.holder is not null
        and case when v_session is null then c.pid = pg_backend_pid()
                and current_setting('pgps.session_' || c.client_id, true) = c.session::text
            else c.session = v_session end
        and pg_has_role(caller, c.owner::oid, 'usage') and pgps_internal.spool_allows(caller, s, 'replay');
    if not found then
        v_member := pgps_internal.check_member(caller, args);
    end if;
    return v_member;
end
$$;
comment on function pgps_internal.find_member(name, jsonb) is
'The member of a call, after a check of its session; 55000 when it has not joined in this session, 42704, 42501, 08003';

create or replace function pgps_internal.check_member(caller name, args jsonb) returns pgps_internal.spool_member
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool pgps_internal.spool := pgps_internal.find_spool(caller, args ->> 'name', 'replay');
    v_client pgps_internal.client := pgps_internal.find_client(caller, args ->> 'member');
    v_member pgps_internal.spool_member;
begin
    perform pgps_internal.require_session(v_client, (args ->> 'session')::bigint);
    select m.* into v_member from pgps_internal.spool_member m
    where m.spool_id = v_spool.spool_id and m.client_id = v_client.client_id;
    if v_member.session is null or v_member.session <> v_client.session then
        raise exception 'client "%" is not a member of group "%"', v_client.name, v_spool.name using errcode = '55000',
            hint = format('First, in this session: select pgps.join_group(%L, %L, replay => true)',
                quote_ident(v_spool.name), quote_ident(v_client.name));
    end if;
    return v_member;
end
$$;
comment on function pgps_internal.check_member(name, jsonb) is
'As pgps_internal.find_member, check by check: the first that fails is raised';

create or replace function pgps_internal.do_join_group(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool pgps_internal.spool := pgps_internal.find_spool(caller, args ->> 'name', 'replay');
    v_client pgps_internal.client := pgps_internal.enter_session(caller,
        jsonb_build_object('client', args -> 'member', 'session', args -> 'session'));
    v_replay boolean := coalesce((args ->> 'replay')::boolean, false);
    v_member pgps_internal.spool_member;
    v_is_new boolean;
    v_before bigint;
begin
    select m.* into v_member from pgps_internal.spool_member m
    where m.spool_id = v_spool.spool_id and m.client_id = v_client.client_id;
    perform pgps_internal.enter_group(v_spool.spool_id) where not found;
    -- The right may have been taken while the turns were waited for.
    perform pgps_internal.find_spool(caller, args ->> 'name', 'replay');
    v_is_new := v_member.session is null or v_member.session <> v_client.session;
    v_before := v_member.session;
    insert into pgps_internal.spool_member as m (spool_id, client_id, session, ready)
    values (v_spool.spool_id, v_client.client_id, v_client.session, coalesce((args ->> 'ready')::boolean, true))
    on conflict on constraint spool_member_spool_id_client_id_key do update
    set session = excluded.session, ready = excluded.ready, joined_at = pgps_internal.clock()
    returning m.* into v_member;
    -- Here, so that nobody who takes its turn makes it first, for which others would wait until that is committed.
    insert into pgps_internal.turn (kind, id) values ('h', v_member.member_id) on conflict do nothing;
    if v_replay then
        perform pgps_internal.enter_store();
        perform pgps_internal.begin_replay(caller, v_spool, '{}', array[v_member.member_id], v_member.member_id);
    elsif v_is_new and not (v_before is not null and coalesce((args ->> 'resume')::boolean, false)) then
        perform pgps_internal.begin_new(v_member.member_id, pgps_internal.standing_of_spool(v_spool.spool_id));
    end if;
end
$$;
comment on function pgps_internal.do_join_group(name, jsonb) is 'See pgps.join_group';

create or replace function pgps_internal.do_leave_group(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.find_client(caller, args ->> 'member');
    v_member pgps_internal.spool_member;
begin
    perform pgps_internal.require_session(v_client, (args ->> 'session')::bigint);
    -- Also without the right to replay.
    select m.* into v_member from pgps_internal.spool_member m join pgps_internal.spool s using (spool_id)
    where s.name = pgps_internal.fold(args ->> 'name') and s.network_id is null and m.client_id = v_client.client_id
        and m.session = v_client.session;
    if not found then
        v_member := pgps_internal.find_member(caller, args);
    end if;
    perform pgps_internal.hold_client(v_member.client_id);
    -- Another program may have taken the name over meanwhile, and be a member itself.
    perform pgps_internal.spool_in_turn(v_member, args);
    update pgps_internal.spool_member m set session = null where m.member_id = v_member.member_id;
end
$$;
comment on function pgps_internal.do_leave_group(name, jsonb) is 'See pgps.leave_group';

create or replace function pgps_internal.do_group_ready(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_member pgps_internal.spool_member := pgps_internal.find_member(caller, args);
begin
    perform pgps_internal.hold_client(v_member.client_id);
    perform pgps_internal.replayed_in_turn(caller, v_member, args);
    update pgps_internal.spool_member m set ready = true where m.member_id = v_member.member_id and not m.ready;
end
$$;
comment on function pgps_internal.do_group_ready(name, jsonb) is 'See pgps.group_ready';

create or replace function pgps_internal.remember_had(client_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- One client after the other: each adds to what the one before has left.
    perform from pgps_internal.spool s
    where s.spool_id in (select m.spool_id from pgps_internal.spool_member m
        where m.client_id = remember_had.client_id)
    order by s.spool_id for no key update;
    -- What the replay pointer has passed nobody takes back (see somebody_had).
    perform pgps_internal.write_mark(row(null, - m.spool_id, null, 'n', 0, 'n', 0, null, 0, 0, null, '{}', '{}',
        (k.had + coalesce(b.had, '{}')) * (int8multirange(int8range(t.replay_pointer, null, '()'))
            + int8multirange(int8range(null, 0))), 0)::pgps_internal.spool_mark)
    from pgps_internal.spool_member m
    cross join lateral pgps_internal.mark_of(m.member_id) k
    cross join lateral pgps_internal.mark_of(- m.spool_id) b
    cross join lateral pgps_internal.standing_of_spool(m.spool_id) t
    where m.client_id = remember_had.client_id and k.had <> '{}';
end
$$;
comment on function pgps_internal.remember_had(bigint) is
'Before a client is dropped: keeps which messages it had as a member of groups, in a mark of the number of the spool,
below 0, as if that were a member';

create or replace function pgps_internal.somebody_had(spool_id integer, seqn bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- What the replay pointer has passed was processed; it never passes what was put at the front.
    return somebody_had.seqn > 0
            and somebody_had.seqn <= (pgps_internal.standing_of_spool(somebody_had.spool_id)).replay_pointer
        or exists (select from pgps_internal.spool_member m cross join lateral pgps_internal.mark_of(m.member_id) k
            where m.spool_id = somebody_had.spool_id and somebody_had.seqn <@ k.had)
        or coalesce(somebody_had.seqn <@ (pgps_internal.mark_of(- somebody_had.spool_id)).had, false)
        or exists (select from pgps_internal.spool s join pgps_internal.network_contact c using (network_id)
            cross join lateral pgps_internal.network_mark_of(c.contact_id) k
            where s.spool_id = somebody_had.spool_id and somebody_had.seqn <= k.handed)
        or exists (select from pgps_internal.spool s
            cross join lateral pgps_internal.network_mark_of(pgps_internal.left_out_line(s.network_id)) k
            where s.spool_id = somebody_had.spool_id and s.network_id is not null and somebody_had.seqn <= k.handed);
end
$$;
comment on function pgps_internal.somebody_had(integer, bigint) is
'True when a message was handed out to a member, or to a contact point, also when it is none any more';

create or replace function pgps_internal.all_acked(spool_id integer, seqn bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A member that has joined later, without a replay, does not get the message: it is not waited for.
    return coalesce((
        select not bool_or(o.is_owed and not o.is_acked) and (bool_or(o.is_acked)
            or all_acked.seqn <= (pgps_internal.standing_of_spool(all_acked.spool_id)).replay_pointer)
        from pgps_internal.spool_member m
        cross join lateral pgps_internal.mark_of(m.member_id) k
        left join pgps_internal.spool_replay r on r.replay_id = k.replay_id
        cross join lateral (
            select coalesce(all_acked.seqn between r.first_seqn and r.last_seqn, false) as is_repeated) p
        cross join lateral (
            select p.is_repeated or all_acked.seqn > k.start as is_owed,
                all_acked.seqn <@ k.acked or p.is_repeated and (k.phase <> 'r' or all_acked.seqn <= k.seqn)
                    or k.phase = 'n' and all_acked.seqn > k.start and all_acked.seqn <= k.seqn as is_acked
        ) o
        where m.spool_id = all_acked.spool_id and pgps_internal.is_present(m)), false);
end
$$;
comment on function pgps_internal.all_acked(integer, bigint) is
'True when every member present has acknowledged a message, those excepted that do not get it, and at least one has';
