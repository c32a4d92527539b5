-- Who may send to a service, and who may serve it.
-- Locks: the row of a service on which a right is granted.
-- Writes: service_right.

create or replace function pgps_internal.has_service_right(caller name, service_id integer, privilege text)
returns boolean
language plpgsql stable
as $$
begin
    -- A statement of its own: the executor need not be started for the one below.
    if pg_has_role(has_service_right.caller, 'pgps_admin', 'usage') then
        return true;
    end if;
    return exists (
        select from pgps_internal.service_right r
        where r.service_id = has_service_right.service_id and r.privilege = has_service_right.privilege
            -- Nobody has the role of one that was dropped.
            and (r.role::oid = 0 or pg_has_role(has_service_right.caller, r.role::oid, 'usage')));
end
$$;
comment on function pgps_internal.has_service_right(name, integer, text) is
'True when a role may send to, or serve, a service; administrators may';

create or replace function pgps_internal.require_service_right(caller name, service pgps_internal.service,
    privilege text) returns void
language plpgsql stable
as $$
begin
    if not pgps_internal.has_service_right(require_service_right.caller, (require_service_right.service).service_id,
        require_service_right.privilege) then
        raise exception 'role "%" may not % service "%"', require_service_right.caller,
            case require_service_right.privilege when 'send' then 'send to' else 'serve' end,
            pgps_internal.service_name(require_service_right.service)
        using errcode = '42501', hint = format('Ask an administrator for: select pgps.grant_service(%L, %L, %L, %L, '
            '%L)', quote_ident((require_service_right.service).class),
            quote_ident((require_service_right.service).server), quote_ident((require_service_right.service).service),
            require_service_right.privilege, require_service_right.caller);
    end if;
end
$$;
comment on function pgps_internal.require_service_right(name, pgps_internal.service, text) is
'Raises 42501 unless a role may send to (send), or serve (serve), a service';

create or replace function pgps_internal.service_role(name text) returns regrole
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_role oid;
begin
    if service_role.name is null then
        raise exception 'no role is given' using errcode = '22023', hint = 'Give the name of a role, or public.';
    elsif service_role.name = 'public' then
        return 0::oid::regrole;
    end if;
    select r.oid into v_role from pg_roles r where r.rolname = service_role.name;
    if not found then
        raise exception 'role "%" does not exist', service_role.name using errcode = '42704',
            hint = 'Give the name of a role, or public.';
    end if;
    return v_role::regrole;
end
$$;
comment on function pgps_internal.service_role(text) is
'The role of that name, 0 for public; 42704 when there is none, 22023 on null';

create or replace function pgps_internal.check_privilege(privilege text) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if lower(check_privilege.privilege) in ('send', 'serve') then
        return lower(check_privilege.privilege);
    end if;
    raise exception 'unknown privilege "%"', check_privilege.privilege using errcode = '22023',
        hint = 'Give send or serve.';
end
$$;
comment on function pgps_internal.check_privilege(text) is 'The privilege in lower case; 22023 unless send or serve';

create or replace function pgps_internal.do_grant_service(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_admin(caller, 'grant rights on services');
    insert into pgps_internal.service_right (service_id, privilege, role)
    values ((pgps_internal.lock_service(args ->> 'class', args ->> 'server', args ->> 'service')).service_id,
        pgps_internal.check_privilege(args ->> 'privilege'), pgps_internal.service_role(args ->> 'role'))
    on conflict do nothing;
end
$$;
comment on function pgps_internal.do_grant_service(name, jsonb) is 'See pgps.grant_service';

create or replace function pgps_internal.do_revoke_service(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_admin(caller, 'revoke rights on services');
    delete from pgps_internal.service_right r
    where r.service_id
            = (pgps_internal.find_service(args ->> 'class', args ->> 'server', args ->> 'service')).service_id
        and r.privilege = pgps_internal.check_privilege(args ->> 'privilege')
        and r.role = pgps_internal.service_role(args ->> 'role');
end
$$;
comment on function pgps_internal.do_revoke_service(name, jsonb) is 'See pgps.revoke_service';
