-- Spools: messages for a group that may be away (decision 43). This file makes and drops them, and says who may use
-- them. Their messages are events of a hidden type, pgps_spool, until they are dispatched: then they get their numbers
-- and go into the store (number.sql).
-- Locks: share row exclusive on the table of spools while the first is made, and while their event type is dropped. A
-- spool that is dropped: its row, and the one about the store.
-- Writes: network, pgps_entry.spool_calls, spool, spool_counted, spool_store, turn.

create or replace function pgps._uses_role(caller name, roles regrole[]) returns boolean
language plpgsql stable
as $$
begin
    -- It may run with a caller's search_path. regrole prints the bare OID of a role that was dropped.
    return exists (select from pg_catalog.unnest(_uses_role.roles) r
        where r operator(pg_catalog.=) 0::pg_catalog.regrole
            or r::pg_catalog.text operator(pg_catalog.<>) r::pg_catalog.oid::pg_catalog.text
            and pg_catalog.pg_has_role(_uses_role.caller, r::pg_catalog.oid, 'usage'));
end
$$;
comment on function pgps._uses_role(name, regrole[]) is
'True when a role has the rights of one of several roles; 0 is public, which everybody has';
grant execute on function pgps._uses_role(name, regrole[]) to public;

create or replace function pgps_internal.spool_allows(caller name, spool pgps_internal.spool, privilege text)
returns boolean
language plpgsql stable
as $$
declare
    v_caller regrole := quote_ident(spool_allows.caller)::regrole;
    v_granted regrole[];
begin
    -- No SET clause, and one statement for each test, the cheapest first: members ask this with every call, and what is
    -- not reached costs nothing. Administrators change spools and see their statistics. To read messages they grant
    -- themselves the privilege.
    if v_caller = (spool_allows.spool).owner then
        return true;
    elsif spool_allows.privilege = 'owner' then
        if pg_has_role(spool_allows.caller, 'pgps_admin', 'usage') then
            return true;
        end if;
    else
        v_granted := case spool_allows.privilege when 'spool' then (spool_allows.spool).spoolers
            else (spool_allows.spool).replayers end;
        if v_caller = any (v_granted) then
            return true;
        end if;
    end if;
    return pgps._uses_role(spool_allows.caller, (spool_allows.spool).owner || v_granted);
end
$$;
comment on function pgps_internal.spool_allows(name, pgps_internal.spool, text) is
'True when a role may use a spool: privilege spool or replay; owner: to change it, as its owner and administrators may';

create or replace function pgps_internal.find_spool(caller name, name text, privilege text) returns pgps_internal.spool
language plpgsql stable
as $$
declare
    v_spool pgps_internal.spool;
begin
    select s.* into v_spool from pgps_internal.spool s
    where s.name = pgps_internal.fold(find_spool.name) and s.network_id is null;
    if not found then
        raise exception 'spool "%" does not exist', pgps_internal.fold(find_spool.name)
        using errcode = '42704',
            hint = format('See pgps.spools, or create it: select pgps.create_spool(%L)', find_spool.name);
    elsif not pgps_internal.spool_allows(find_spool.caller, v_spool, find_spool.privilege) then
        raise exception 'role "%" may not %', find_spool.caller,
            case find_spool.privilege when 'spool' then format('spool into spool "%s"', v_spool.name)
                when 'replay' then format('replay spool "%s"', v_spool.name)
                else format('change spool "%s"', v_spool.name) end
        using errcode = '42501', hint = case find_spool.privilege when 'owner'
            then format('Become a member of its owner %s, or of pgps_admin.', v_spool.owner)
            else format('Ask its owner or an administrator for: select pgps.grant_spool(%L, %L, %L)',
                quote_ident(v_spool.name),
                find_spool.privilege, find_spool.caller) end;
    end if;
    return v_spool;
end
$$;
comment on function pgps_internal.find_spool(name, text, text) is
'The spool of that name; 42704 when there is none, 42501 when caller has not the privilege (spool, replay; owner: to
change it)';

create or replace function pgps_internal.make_spool_type() returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
begin
    if pgps_internal.spool_type() is not null then
        -- Whoever drops the type waits for this one, but nobody who changes another spool.
        lock table pgps_internal.spool in row exclusive mode;
    else
        lock table pgps_internal.spool in share row exclusive mode;
    end if;
    if pgps_internal.spool_type() is not null then
        perform pgps_internal.require_free('event type', 'pgps_spool')
        where not exists (select from pgps_internal.feature f
            where f.type_id = pgps_internal.spool_type() and f.name = 'spool');
        return;
    end if;
    -- Made with the first spool: a broker without spools has nothing of it. Nobody advertises it, nobody may see it.
    perform pgps.create_event_type('pgps_spool', 'spool_id integer, verb text, entry integer, message jsonb, '
        'keys jsonb, keywords text[], expires timestamptz, sender text, spooler text, spooled_at timestamptz, '
        'value bigint, pattern jsonb');
    revoke all on pgps_event.pgps_spool from pgps_admin;
    -- What has been asked for and is not dispatched yet is found without reading the messages.
    create index pgps_spool_request_idx on pgps_internal.pgps_spool_log (spool_id, xid) where verb <> 's';
    perform pgps_internal.add_feature(t.type_id, 'spool'),
        pgps_internal.build(pgps_internal.write_spooling(t), t.type_id)
    from pgps_internal.event_type t where t.name = 'pgps_spool';
end
$$;
comment on function pgps_internal.make_spool_type() is
'Makes the event type whose events are what spools are asked for, when the first spool is made';

create or replace function pgps_internal.do_create_spool(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.check_name(args ->> 'name', 'spool');
begin
    perform pgps_internal.require_admin(caller, 'create spools'), pgps_internal.check_limits(args);
    if args ->> 'on_limit' is null then
        raise exception 'on_limit is null' using errcode = '22023', hint = 'Use refuse or drop_oldest.';
    end if;
    perform pgps_internal.make_spool_type();
    insert into pgps_internal.spool (name, owner, type_id, persistent, max_messages, max_bytes, retention, on_limit)
    values (v_name, quote_ident(caller)::regrole, pgps_internal.spool_type(),
        coalesce((args ->> 'persistent')::boolean, true), (args ->> 'max_messages')::bigint,
        (args ->> 'max_bytes')::bigint, (args ->> 'retention')::interval, args ->> 'on_limit')
    on conflict on constraint spool_name_key do nothing;
    if not found then
        raise exception 'spool "%" exists already', v_name using errcode = '42710',
            hint = 'Choose another name, or change it with pgps.spool_advise.';
    end if;
    -- Those who become members at the same time wait for one another only where there is no such row yet.
    insert into pgps_internal.turn (kind, id)
    select 'q', s.spool_id from pgps_internal.spool s where s.name = v_name on conflict do nothing;
end
$$;
comment on function pgps_internal.do_create_spool(name, jsonb) is 'See pgps.create_spool';

create or replace function pgps_internal.do_spool_advise(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool pgps_internal.spool := pgps_internal.find_spool(caller, args ->> 'name', 'owner');
begin
    perform pgps_internal.check_limits(args);
    update pgps_internal.spool s
    set max_messages = coalesce((args ->> 'max_messages')::bigint, s.max_messages),
        max_bytes = coalesce((args ->> 'max_bytes')::bigint, s.max_bytes),
        retention = coalesce((args ->> 'retention')::interval, s.retention),
        on_limit = coalesce(args ->> 'on_limit', s.on_limit)
    where s.spool_id = v_spool.spool_id;
    -- Limits are applied where messages get their numbers.
    perform pgps_internal.ask_spool(caller, v_spool, 'l');
end
$$;
comment on function pgps_internal.do_spool_advise(name, jsonb) is 'See pgps.spool_advise';

create or replace function pgps_internal.do_drop_spool(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool pgps_internal.spool := pgps_internal.find_spool(caller, args ->> 'name', 'owner');
begin
    update pgps_internal.spool_store t
    set dropped = t.dropped + (select greatest(s.messages + s.discarded, 1)
        from pgps_internal.standing_of_spool(v_spool.spool_id) s);
    delete from pgps_internal.spool_counted c where c.spool_id = v_spool.spool_id;
    delete from pgps_internal.spool s where s.spool_id = v_spool.spool_id;
end
$$;
comment on function pgps_internal.do_drop_spool(name, jsonb) is 'See pgps.drop_spool';

create or replace function pgps_internal.drop_spools_of(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if (drop_spools_of.event_type).name = 'pgps_spool' then
        lock table pgps_internal.spool in share row exclusive mode;
        perform pgps_internal.close_spooling();
        delete from pgps_internal.spool_counted;
        delete from pgps_internal.spool;
        -- A network without the spool in which its messages wait could neither be used nor made again.
        delete from pgps_internal.network;
        perform pg_notify('pgps_network', '');
        update pgps_internal.spool_store t set dropped = t.dropped + 1;
    end if;
end
$$;
comment on function pgps_internal.drop_spools_of(pgps_internal.event_type) is
'Drops all spools, and all networks, when the event type of what they are asked for is dropped';

create or replace function pgps_internal.grantee(role text) returns oid
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_role oid;
begin
    if grantee.role = 'public' then
        return 0;
    end if;
    select r.oid into v_role from pg_roles r where r.rolname = grantee.role;
    if not found then
        raise exception 'role "%" does not exist', grantee.role using errcode = '42704',
            hint = 'See pg_roles; "public" is everybody.';
    end if;
    return v_role;
end
$$;
comment on function pgps_internal.grantee(text) is 'The OID of a role, 0 for public; 42704 when there is none';

create or replace function pgps_internal.set_grant(caller name, args jsonb, granted boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool_id integer;
    v_role regrole;
    v_added regrole[];
    v_is_spool boolean := args ->> 'privilege' = 'spool';
begin
    if args ->> 'privilege' is null or args ->> 'privilege' not in ('spool', 'replay') then
        raise exception 'invalid privilege "%"', args ->> 'privilege' using errcode = '22023',
            hint = 'Use spool or replay.';
    end if;
    v_spool_id := (pgps_internal.find_spool(caller, args ->> 'name', 'owner')).spool_id;
    v_role := pgps_internal.grantee(args ->> 'role');
    v_added := case when set_grant.granted then array[v_role] end;
    update pgps_internal.spool s
    set spoolers = case when v_is_spool then array_remove(s.spoolers, v_role) || v_added else s.spoolers end,
        replayers = case when v_is_spool then s.replayers else array_remove(s.replayers, v_role) || v_added end
    where s.spool_id = v_spool_id
        and v_role = any (case when v_is_spool then s.spoolers else s.replayers end) <> set_grant.granted;
end
$$;
comment on function pgps_internal.set_grant(name, jsonb, boolean) is
'Gives a role a privilege at a spool, or takes it back; 22023 unknown privilege, 42704, 42501';

create or replace function pgps_internal.do_grant_spool(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.set_grant(caller, args, true);
end
$$;
comment on function pgps_internal.do_grant_spool(name, jsonb) is 'See pgps.grant_spool';

create or replace function pgps_internal.do_revoke_spool(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.set_grant(caller, args, false);
end
$$;
comment on function pgps_internal.do_revoke_spool(name, jsonb) is 'See pgps.revoke_spool';

-- ---------------------------------------------------------------------------------------------------------------------
-- The way in: like pgps_entry.calls; calls of this room are many, and one of them returns messages, as names of cursors
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.enter_spool() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
set plan_cache_mode = force_generic_plan
as $$
begin
    case new.verb
        when 'spool' then new.result := to_jsonb(pgps_internal.do_spool(new.caller,
            pgps_internal.localized(new.args)));
        when 'receive_spooled' then new.spooled := pgps_internal.receive_spooled(new.caller, new.args);
        when 'ack_spooled' then new.result := to_jsonb(pgps_internal.ack_spooled(new.caller, new.args));
        else
            raise exception 'unknown call "%"', new.verb using errcode = '22023',
                hint = 'Use the functions of schema pgps.';
    end case;
    return new;
end
$$;
comment on function pgps_internal.enter_spool() is
'Runs a verb about spools for whoever inserts into pgps_entry.spool_calls';

do $$
begin
    if to_regclass('pgps_entry.spool_calls') is null then
        create view pgps_entry.spool_calls as
        select null::text as verb, null::jsonb as args, null::name as caller, null::jsonb as result,
            null::text[] as spooled where false;
        alter view pgps_entry.spool_calls alter column caller set default current_user;
        create trigger enter instead of insert on pgps_entry.spool_calls
        for each row execute function pgps_internal.enter_spool();
        grant insert (verb, args), select (result, spooled) on pgps_entry.spool_calls to public;
    end if;
end
$$;
comment on view pgps_entry.spool_calls is
'The way in of receive_spooled, ack_spooled and, but for plain messages, of pgps.spool; see pgps._call';

create or replace function pgps._call_spool(verb text, args jsonb) returns jsonb
language plpgsql
as $$
declare
    v_result pg_catalog.jsonb;
begin
    insert into pgps_entry.spool_calls (verb, args) values (_call_spool.verb, _call_spool.args)
    returning result into v_result;
    return v_result;
end
$$;
comment on function pgps._call_spool(text, jsonb) is
'Calls an internal verb about spools as the current user. Not for applications: use the functions named in the
reference.';

create or replace function pgps.create_spool(
    name text, persistent boolean = true, max_messages bigint = null, max_bytes bigint = null,
    retention interval = null, on_limit text = 'refuse'
) returns void
language sql
begin atomic
    select pgps._call('create_spool', jsonb_build_object('name', create_spool.name, 'persistent',
        create_spool.persistent, 'max_messages', create_spool.max_messages, 'max_bytes', create_spool.max_bytes,
        'retention', create_spool.retention, 'on_limit', create_spool.on_limit));
end;
comment on function pgps.create_spool(text, boolean, bigint, bigint, interval, text) is
'Creates a spool: messages for the process group of the same name, kept until they are discarded. persistent: false =
its messages are lost when the server crashes. max_messages, max_bytes, retention: null = no limit; what is older than
retention is discarded. on_limit: refuse = pgps.spool raises 54000 (calls at the same moment may exceed a limit by what
they add), drop_oldest = the oldest are discarded, and noted in pgps.spool_gaps. Needs pgps_admin. Errors: 42710 exists,
42602/42622 bad name, 22023 bad limit, 42501.';

create or replace function pgps.spool_advise(
    name text, max_messages bigint = null, max_bytes bigint = null, retention interval = null, on_limit text = null
) returns void
language sql
begin atomic
    select pgps._call('spool_advise', jsonb_build_object('name', spool_advise.name, 'max_messages',
        spool_advise.max_messages, 'max_bytes', spool_advise.max_bytes, 'retention', spool_advise.retention,
        'on_limit', spool_advise.on_limit));
end;
comment on function pgps.spool_advise(text, bigint, bigint, interval, text) is
'Changes the limits of a spool (see pgps.create_spool) from the next dispatch on; null leaves one as it is. Waits for a
transaction that changes the spool. Needs to own the spool, or pgps_admin. Errors: 42704, 22023, 42501.';

create or replace function pgps.drop_spool(name text) returns void
language sql
begin atomic
    select pgps._call('drop_spool', jsonb_build_object('name', drop_spool.name));
end;
comment on function pgps.drop_spool(text) is
'Drops a spool with its messages, and the process group of that name; pgps.reclaim gives the space back. Waits for
transactions that drop a spool or a network, or in which a member joins this one. Needs to own it, or pgps_admin.
Errors: 42704, 42501.';

create or replace function pgps.grant_spool(name text, privilege text, role name) returns void
language sql
begin atomic
    select pgps._call('grant_spool', jsonb_build_object('name', grant_spool.name, 'privilege', grant_spool.privilege,
        'role', grant_spool.role));
end;
comment on function pgps.grant_spool(text, text, name) is
'Lets a role use a spool. privilege: spool = pgps.spool; replay = join its group, receive, replay, move its pointers,
discard, and read pgps.spooled_messages. role: public = everybody. Waits for a transaction that changes the spool. Needs
to own the spool, or pgps_admin. Errors: 42704 spool or role, 22023 unknown privilege, 42501.';

create or replace function pgps.revoke_spool(name text, privilege text, role name) returns void
language sql
begin atomic
    select pgps._call('revoke_spool', jsonb_build_object('name', revoke_spool.name, 'privilege',
        revoke_spool.privilege, 'role', revoke_spool.role));
end;
comment on function pgps.revoke_spool(text, text, name) is
'Takes back what pgps.grant_spool has granted; nothing to take back is no error. Errors: 42704, 22023, 42501.';

grant execute on function
    pgps._call_spool(text, jsonb),
    pgps.create_spool(text, boolean, bigint, bigint, interval, text),
    pgps.spool_advise(text, bigint, bigint, interval, text),
    pgps.drop_spool(text),
    pgps.grant_spool(text, text, name),
    pgps.revoke_spool(text, text, name)
to public;
