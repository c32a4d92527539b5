-- Advertisements: who has announced to publish what. A publication checks it by a privilege that serves no other
-- purpose (REFERENCES on the log, in a schema that nobody may use): that takes 1 us, a look-up in the table 11, which
-- is made when the privilege is not there. So who advertises waits for nobody: the privilege may come later.
-- Locks: the event type's row, which advertise does not wait for, and its log, access share.
-- Writes: advertisement.

create or replace function pgps_internal.require_advertised(type_id integer, publisher oid) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if (select r.rolsuper from pg_roles r where r.oid = require_advertised.publisher)
        or not exists (select from pgps_internal.advertisement a
            where a.type_id = require_advertised.type_id
                and pg_has_role(require_advertised.publisher, a.role::oid, 'usage')) then
        raise exception 'role % has not advertised event type "%"', require_advertised.publisher::regrole,
            (select t.name from pgps_internal.event_type t where t.type_id = require_advertised.type_id)
        using errcode = '55000', hint = format('First: select pgps.advertise(%L)',
            (select quote_ident(t.name) from pgps_internal.event_type t where t.type_id = require_advertised.type_id));
    end if;
end
$$;
comment on function pgps_internal.require_advertised(integer, oid) is
'Raises 55000 unless publisher, or a role whose rights it inherits, has advertised the type (a superuser must do so
itself)';

create or replace function pgps_internal.grant_advertised(event_type pgps_internal.event_type, role name) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.stay_in(array[(grant_advertised.event_type).type_id]);
    -- The row lock puts GRANTs on one log in turn, of which two at the same time fail. Who registers for direct events
    -- has it, too.
    perform from pgps_internal.event_type t where t.type_id = (grant_advertised.event_type).type_id
    for no key update skip locked;
    if found then
        execute format('grant references on %s to %I', (grant_advertised.event_type).log, grant_advertised.role);
    end if;
end
$$;
comment on function pgps_internal.grant_advertised(pgps_internal.event_type, name) is
'Grants a role that has advertised an event type the privilege that tells it, unless somebody has the event type''s row
locked';

create or replace function pgps_internal.sweep_advertised() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.grant_advertised(x.t, x.rolname)
    from (select t, r.rolname from pgps_internal.advertisement a
        join pgps_internal.event_type t using (type_id)
        join pg_roles r on r.oid = a.role::oid
        where not has_table_privilege(r.oid, t.log, 'references')
            and not exists (select from pgps_internal.composite c where c.type_id = t.type_id)
            -- Nobody who changes the type is waited for.
            and pgps_internal.try_lock(t.log, 'access share')
        offset 0) x;
end
$$;
comment on function pgps_internal.sweep_advertised() is
'Grants roles that have advertised the privilege that tells it, where they could not have it then; called by reclaim';

create or replace function pgps_internal.do_advertise(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'event_type');
    -- Nobody has INSERT on a composite event; its creator says whether it is advertised.
    v_is_composite boolean := pgps_internal.may_drop(caller, v_type);
begin
    if not v_is_composite and not has_table_privilege(caller, v_type.endpoint, 'insert') then
        raise exception 'role "%" may not publish event type "%"', caller, v_type.name
        using errcode = '42501', hint = format('Ask for: grant insert on %s to %I', v_type.endpoint, caller);
    end if;
    -- Programs advertise whenever they begin: what is so already takes no lock, and waits for nobody's.
    if exists (select from pgps_internal.advertisement a
            where a.type_id = v_type.type_id and a.role = quote_ident(caller)::regrole) then
        return;
    end if;
    insert into pgps_internal.advertisement (type_id, role) values (v_type.type_id, quote_ident(caller)::regrole)
        on conflict do nothing;
    if found and not v_is_composite then
        perform pgps_internal.grant_advertised(v_type, caller);
    end if;
end
$$;
comment on function pgps_internal.do_advertise(name, jsonb) is 'See pgps.advertise';

create or replace function pgps.advertise(event_type text) returns void
language sql
begin atomic
    select pgps._call('advertise', jsonb_build_object('event_type', advertise.event_type));
end;
comment on function pgps.advertise(text) is
'Announces that the current role publishes events of this type (paper, section 4.5); repeating it changes nothing.
Needs INSERT on the event type; a composite event is advertised by its creator. Errors: 42704, 42501.';

create or replace function pgps_internal.do_unadvertise(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'event_type');
begin
    perform pgps_internal.stay_in(array[v_type.type_id]);
    perform from pgps_internal.event_type t where t.type_id = v_type.type_id for no key update;
    delete from pgps_internal.advertisement a where a.type_id = v_type.type_id
        and a.role = quote_ident(caller)::regrole;
    if found then
        execute format('revoke references on %s from %I', v_type.log, caller);
    else
        raise exception 'role "%" has not advertised event type "%"', caller, v_type.name
        using errcode = '55000', hint = 'See pgps.advertisements.';
    end if;
end
$$;
comment on function pgps_internal.do_unadvertise(name, jsonb) is 'See pgps.unadvertise';

create or replace function pgps.unadvertise(event_type text) returns void
language sql
begin atomic
    select pgps._call('unadvertise', jsonb_build_object('event_type', unadvertise.event_type));
end;
comment on function pgps.unadvertise(text) is
'Takes the current role''s advertisement back; events already published are still delivered. Errors: 42704, 55000 not
advertised.';

grant execute on function pgps.advertise(text), pgps.unadvertise(text) to public;
