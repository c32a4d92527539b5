-- Links to other brokers: their definitions. The worker that carries events over them reads these rows.

create or replace function pgps_internal.do_create_link(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.check_name(args ->> 'name', 'link');
begin
    perform pgps_internal.require_admin(caller, 'create links');
    if args ->> 'direction' is null or args ->> 'direction' not in ('both', 'in', 'out') then
        raise exception 'invalid direction "%"', args ->> 'direction' using errcode = '22023', hint = 'Use both, in or out.';
    elsif coalesce(args ->> 'conninfo', '') !~ '=|^postgres(ql)?://' then
        raise exception 'invalid connection string for link "%"', v_name
        using errcode = '22023', hint = 'Give a libpq string: ''host=… dbname=… user=… passfile=…''.';
    elsif exists (select from pgps_internal.link l where l.name = v_name) then
        raise exception 'link "%" exists already', v_name using errcode = '42710', hint = format('Change it with pgps.alter_link(%L, …).', v_name);
    end if;
    insert into pgps_internal.link (name, conninfo, direction) values (v_name, args ->> 'conninfo', args ->> 'direction');
end
$$;
comment on function pgps_internal.do_create_link(name, jsonb) is 'See pgps.create_link';

create or replace function pgps.create_link(name text, conninfo text, direction text = 'both') returns void
language sql
begin atomic
    select pgps._call('create_link', jsonb_build_object('name', create_link.name, 'conninfo', create_link.conninfo,
        'direction', create_link.direction));
end;
comment on function pgps.create_link(text, text, text) is
'Defines a link to another broker (paper, section 4.6). conninfo: a libpq string; prefer passfile or service to a password; nobody but
the owner of pgps can read it. direction: both, in or out. Needs pgps_admin. Errors: 42710, 22023, 42501.';

create or replace function pgps_internal.do_alter_link(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_admin(caller, 'alter links');
    update pgps_internal.link l
    set conninfo = coalesce(args ->> 'conninfo', l.conninfo), enabled = coalesce((args ->> 'enabled')::boolean, l.enabled)
    where l.name = pgps_internal.fold(args ->> 'name');
    if not found then
        raise exception 'link "%" does not exist', args ->> 'name' using errcode = '42704', hint = 'See pgps.links.';
    end if;
end
$$;
comment on function pgps_internal.do_alter_link(name, jsonb) is 'See pgps.alter_link';

create or replace function pgps.alter_link(name text, conninfo text = null, enabled boolean = null) returns void
language sql
begin atomic
    select pgps._call('alter_link', jsonb_build_object('name', alter_link.name, 'conninfo', alter_link.conninfo, 'enabled', alter_link.enabled));
end;
comment on function pgps.alter_link(text, text, boolean) is
'Changes a link; null leaves a property as it is. Needs pgps_admin. Errors: 42704, 42501.';

create or replace function pgps_internal.do_drop_link(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_admin(caller, 'drop links');
    delete from pgps_internal.link l where l.name = pgps_internal.fold(args ->> 'name');
    if not found then
        raise exception 'link "%" does not exist', args ->> 'name' using errcode = '42704', hint = 'See pgps.links.';
    end if;
end
$$;
comment on function pgps_internal.do_drop_link(name, jsonb) is 'See pgps.drop_link';

create or replace function pgps.drop_link(name text) returns void
language sql
begin atomic
    select pgps._call('drop_link', jsonb_build_object('name', drop_link.name));
end;
comment on function pgps.drop_link(text) is 'Drops a link. Needs pgps_admin. Errors: 42704, 42501.';

create or replace view pgps.links as
select l.name, l.direction, l.enabled, case when l.enabled then 'defined' else 'disabled' end as state, null::text as last_error
from pgps_internal.link l
where pg_has_role(current_user, 'pgps_admin', 'usage') or pg_has_role(current_user, 'pgps_worker', 'usage');
comment on view pgps.links is 'Links to other brokers, for pgps_admin and pgps_worker; defined: no events are carried yet';
grant select on pgps.links to public;

revoke all on all functions in schema pgps_internal from public;
grant execute on function pgps.create_link(text, text, text), pgps.alter_link(text, text, boolean), pgps.drop_link(text) to public;
