-- Who this broker is: an id of its own, and an epoch that begins anew when the database was restored from an older
-- state.
-- Locks: the broker's row.
-- Writes: activation, broker, origin.

create or replace function pgps_internal.link_incarnation() returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select format('%s/%s', pgps_internal.incarnation(), (select c.timeline_id from pg_control_checkpoint() c)) $$;
comment on function pgps_internal.link_incarnation() is
'The incarnation of this database: system identifier, database oid, timeline; a restored or cloned one has another';

create or replace function pgps_internal.is_this_database(incarnation text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select (string_to_array(is_this_database.incarnation, '/'))[:2] = string_to_array(pgps_internal.incarnation(), '/')
$$;
comment on function pgps_internal.is_this_database(text) is
'Whether what was a link''s incarnation is this server and database, in whatever timeline';

create or replace function pgps_internal.goes_on(incarnation text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- A standby that was promoted has a timeline of its own, as what was recovered to a point in time has; that one has
    -- been told to which. What an asynchronous standby lacked, or a put-back server, the neighbours notice.
    select goes_on.incarnation = pgps_internal.link_incarnation()
        or pgps_internal.is_this_database(goes_on.incarnation)
            and concat(current_setting('recovery_target'), current_setting('recovery_target_name'),
                current_setting('recovery_target_time'), current_setting('recovery_target_xid'),
                current_setting('recovery_target_lsn')) = ''
$$;
comment on function pgps_internal.goes_on(text) is
'Whether this is still the database in which links were last started or resumed, or its promoted standby';

create or replace function pgps_internal.me() returns pgps_internal.broker
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_me pgps_internal.broker;
begin
    select b.* into v_me from pgps_internal.broker b;
    if not found then
        insert into pgps_internal.broker (broker_id, epoch, incarnation)
            values (gen_random_uuid(), 1, pgps_internal.link_incarnation())
        on conflict do nothing;
        select b.* into v_me from pgps_internal.broker b;
        insert into pgps_internal.origin (broker_id, epoch, name, is_self)
            values (v_me.broker_id, v_me.epoch, pgps_internal.broker_name(), true)
        on conflict do nothing;
    end if;
    if not pgps_internal.goes_on(v_me.incarnation) then
        v_me.state := 'restored';
    end if;
    return v_me;
end
$$;
comment on function pgps_internal.me() is
'This broker, entered when first asked for. state: restored when its incarnation is not the one in which links were last
started or resumed, nor that of a standby of it that was promoted';

create or replace function pgps_internal.self_origin() returns integer
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select o.origin_id from pgps_internal.origin o where o.is_self and o.to_batch is null);
end
$$;
comment on function pgps_internal.self_origin() is
'This broker in its present epoch as an origin; null before the first link';

drop function if exists pgps_internal.find_origin(uuid, integer, text);
create or replace function pgps_internal.find_origin(
    broker_id uuid, epoch integer, name text, neighbour pgps_internal.neighbour
) returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_origin integer;
begin
    select o.origin_id into v_origin from pgps_internal.origin o where o.broker_id = find_origin.broker_id
        and o.epoch = find_origin.epoch;
    if v_origin is null then
        perform pgps_internal.check_origins((find_origin.neighbour).role);
        insert into pgps_internal.origin (broker_id, epoch, name, named_by)
            values (find_origin.broker_id, find_origin.epoch, find_origin.name, (find_origin.neighbour).role)
        on conflict do nothing;
        select o.origin_id into v_origin from pgps_internal.origin o where o.broker_id = find_origin.broker_id
            and o.epoch = find_origin.epoch;
        update pgps_internal.origin o set is_renewed = true where o.broker_id = find_origin.broker_id
            and exists (select from pgps_internal.origin x where x.broker_id = o.broker_id and x.epoch <> o.epoch);
        -- A new epoch of a known broker: filters in force for the former epoch are in force for this one from its
        -- start, so that none of its events is missed.
        insert into pgps_internal.activation (origin_id, key, since, is_confirmed)
        select v_origin, a.key, 0, false from pgps_internal.activation a
        where a.origin_id = (select o.origin_id from pgps_internal.origin o
            where o.broker_id = find_origin.broker_id and o.epoch < find_origin.epoch order by o.epoch desc limit 1)
        on conflict do nothing;
    end if;
    return v_origin;
end
$$;
comment on function pgps_internal.find_origin(uuid, integer, text, pgps_internal.neighbour) is
'The id of an origin at this broker, assigned when a neighbour names it first. Errors: 54000 those of its role have
named too many.';

create or replace function pgps_internal.require_link_role(caller name, action text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not (pg_has_role(require_link_role.caller, 'pgps_link', 'usage')
        or pg_has_role(require_link_role.caller, 'pgps_worker', 'usage')
            or pg_has_role(require_link_role.caller, 'pgps_admin', 'usage')) then
        raise exception 'role "%" may not %', require_link_role.caller, require_link_role.action
        using errcode = '42501',
            hint = format('Ask an administrator for: grant pgps_link to %I', require_link_role.caller);
    end if;
end
$$;
comment on function pgps_internal.require_link_role(name, text) is
'Raises 42501 unless caller is a member of pgps_link, pgps_worker or pgps_admin';

create or replace function pgps_internal.do_link_identity(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_me pgps_internal.broker;
begin
    perform pgps_internal.require_link_role(caller, 'link brokers');
    v_me := pgps_internal.me();
    return jsonb_build_object('broker', v_me.broker_id, 'epoch', v_me.epoch, 'state', v_me.state, 'name',
        pgps_internal.broker_name(), 'is_put_back', v_me.state <> 'active'
            and pgps_internal.is_this_database(v_me.incarnation), 'protocol', 1, 'audits', true,
        'recounts', true, 'detects', true, 'remembers', true,
        'version', pgps.version(), 'collation',
            -- Before version 17 of the server datlocale was daticulocale.
            (select concat_ws('/', d.datcollate, d.datctype, d.datlocprovider,
                coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale'))
            from pg_database d where d.datname = current_database()));
end
$$;
comment on function pgps_internal.do_link_identity(name, jsonb) is 'See pgps.link_identity';

create or replace function pgps.link_identity() returns jsonb
language sql
begin atomic
    select pgps._call('link_identity', '{}');
end;
comment on function pgps.link_identity() is
'Who this broker is, for a link''s handshake: broker, epoch, state (active or restored), name, protocol, version,
collation; is_put_back: it is restored, and as no copy of a database; remembers: it has pgps.link_past. Needs pgps_link,
pgps_worker or pgps_admin. Errors: 42501.';

revoke all on function pgps.link_identity() from public;
grant execute on function pgps.link_identity() to pgps_link, pgps_worker, pgps_admin;
