-- Who speaks for a broker whose network spools here: the role that was the first to do so, or a member of it. Another
-- one would otherwise say how far that broker is, which then discards what it takes for arrived (decision 107).
-- Locks: share row exclusive on the table of origins, when one is heard of for the first time; the turn of an origin.
-- Writes: network_mark, network_origin, setting.

insert into pgps_internal.setting (name, value, kind, description) values
    ('link_networks', '1000', 'integer', 'For how many networks one role may be the first to bring messages here'),
    ('link_spools', '20000', 'integer', 'How many spools the messages that one role brings here may make')
on conflict (name) do nothing;

create or replace function pgps_internal.require_voice(caller name, origin pgps_internal.network_origin) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The role may have been dropped.
    if (require_voice.origin).role is not null
        and not coalesce(pg_has_role(require_voice.caller, (require_voice.origin).role::oid, 'usage'), false)
        and not pg_has_role(require_voice.caller, 'pgps_admin', 'usage') then
        raise exception 'role "%" does not speak for broker "%" at broker "%"', require_voice.caller,
            (require_voice.origin).name, pgps_internal.broker_name()
        using errcode = '42501', hint = format('That is role %s. If it is another now, as an administrator over there: '
            'select pgps.set_network_role(%L, %L)', (require_voice.origin).role, (require_voice.origin).broker_id,
            require_voice.caller);
    end if;
end
$$;
comment on function pgps_internal.require_voice(name, pgps_internal.network_origin) is
'Raises 42501 when another role speaks for a broker; administrators may speak for any';

create or replace function pgps_internal.find_network_origin(broker_id uuid, network_id integer)
returns pgps_internal.network_origin
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_origin pgps_internal.network_origin;
begin
    select o.* into v_origin from pgps_internal.network_origin o
    where o.broker_id = find_network_origin.broker_id and o.network_id = find_network_origin.network_id;
    return v_origin;
end
$$;
comment on function pgps_internal.find_network_origin(uuid, integer) is
'What is known of a network that spools here, as of now; null when nothing is';

create or replace function pgps_internal.meet_origin(caller name, args jsonb) returns pgps_internal.network_origin
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_role regrole := quote_ident(caller)::regrole;
    v_origin pgps_internal.network_origin;
begin
    lock table pgps_internal.network_origin in share row exclusive mode;
    v_origin := pgps_internal.find_network_origin((args ->> 'broker')::uuid, (args ->> 'network_id')::integer);
    if v_origin.origin_id is not null then
        return v_origin;
    end if;
    -- Nobody else takes the further networks of a broker beforehand.
    perform pgps_internal.require_voice(caller, o) from pgps_internal.network_origin o
    where o.broker_id = (args ->> 'broker')::uuid;
    perform pgps_internal.require_few(count(*) + 1, 'link_networks', v_role, 'speak for too many networks',
        'Alter a network instead of making it anew.')
    from pgps_internal.network_origin o where o.role = v_role and not pg_has_role(caller, 'pgps_admin', 'usage');
    insert into pgps_internal.network_origin (broker_id, network_id, network, epoch, name, role)
    values ((args ->> 'broker')::uuid, (args ->> 'network_id')::integer, args ->> 'network',
        (args ->> 'epoch')::integer, args ->> 'name', v_role)
    returning * into v_origin;
    return v_origin;
end
$$;
comment on function pgps_internal.meet_origin(name, jsonb) is
'Notes a network that spools here for the first time, and which role speaks for it. Errors: 42501 another role speaks
for its broker, 54000 its role has named too many.';

create or replace function pgps_internal.hold_origin(caller name, args jsonb) returns pgps_internal.network_origin
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_origin pgps_internal.network_origin
        := pgps_internal.find_network_origin((args ->> 'broker')::uuid, (args ->> 'network_id')::integer);
begin
    if v_origin.origin_id is null then
        v_origin := pgps_internal.meet_origin(caller, args);
    end if;
    perform pgps_internal.require_voice(caller, v_origin), pgps_internal.hold('m', v_origin.origin_id);
    v_origin := pgps_internal.find_network_origin(v_origin.broker_id, v_origin.network_id);
    perform pgps_internal.require_voice(caller, v_origin);
    if (args ->> 'epoch')::integer < v_origin.epoch then
        raise exception 'broker "%" is in epoch %, and was in % before', args ->> 'name', args ->> 'epoch',
            v_origin.epoch
        using errcode = '55000', hint = 'It was put back, or this is a batch of its former life. On it, if it was put '
            'back: select pgps.resume_links(''restored'').';
    end if;
    return v_origin;
end
$$;
comment on function pgps_internal.hold_origin(name, jsonb) is
'The origin of a batch, whose turn is held until the transaction ends. Errors: 42501 another role speaks for it, 54000,
55000 it comes from an earlier epoch than is known.';

create or replace function pgps_internal.enter_origin(caller name, args jsonb) returns pgps_internal.network_origin
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_origin pgps_internal.network_origin := pgps_internal.hold_origin(caller, args);
    v_mark pgps_internal.network_mark := pgps_internal.network_mark_of(-v_origin.origin_id);
    v_after bigint := (args ->> 'after')::bigint;
    v_is_anew boolean;
begin
    -- The first that is heard of an origin, or the sender was restored and counts anew (it says from where, if it has
    -- asked), or this broker was.
    v_is_anew := v_mark.upto is null or v_origin.epoch <> (args ->> 'epoch')::integer or v_mark.upto < v_after
        or coalesce(v_mark.upto = (args ->> 'from')::bigint and v_mark.upto <> v_after
            and split_part(v_mark.mark, ':', 1) <> args ->> 'epoch', false);
    -- It has no role yet when it was known before roles were remembered.
    update pgps_internal.network_origin o
    set epoch = (args ->> 'epoch')::integer, name = args ->> 'name',
        role = coalesce(o.role, quote_ident(caller)::regrole),
        gaps = o.gaps + case when o.epoch = (args ->> 'epoch')::integer
            then greatest(v_after - coalesce(v_mark.upto, v_after), 0) else 0 end
    where o.origin_id = v_origin.origin_id and (v_is_anew or o.role is null);
    if v_is_anew then
        insert into pgps_internal.network_mark (line, handed, upto) values (-v_origin.origin_id, v_after, v_after);
    end if;
    return v_origin;
end
$$;
comment on function pgps_internal.enter_origin(name, jsonb) is
'The origin of a batch, whose turn is held until the transaction ends. Errors: 42501 another role speaks for it,
54000, 55000 it comes from an earlier epoch.';

create or replace function pgps_internal.do_set_network_role(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_admin(caller, 'say who speaks for a broker');
    update pgps_internal.network_origin o set role = pgps_internal.find_role(args ->> 'role')::regrole
    where o.broker_id = (args ->> 'broker_id')::uuid;
    if not found then
        raise exception 'no network of broker % spools here', args ->> 'broker_id' using errcode = '42704',
            hint = 'See pgps.network_origins.';
    end if;
end
$$;
comment on function pgps_internal.do_set_network_role(name, jsonb) is 'See pgps.set_network_role';

create or replace function pgps.set_network_role(broker_id uuid, role name) returns void
language sql
begin atomic
    select pgps._call('set_network_role', jsonb_build_object('broker_id', set_network_role.broker_id, 'role',
        set_network_role.role));
end;
comment on function pgps.set_network_role(uuid, name) is
'Says which role speaks from now on for a broker whose networks spool here (pgps.network_origins): another one than that
which was the first, because the connection of its contact point has another user now. Waits for messages of that broker
that are arriving. Needs pgps_admin. Errors: 42704 unknown broker or role, 42501.';

grant execute on function pgps.set_network_role(uuid, name) to public;
