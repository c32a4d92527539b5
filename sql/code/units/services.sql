-- Services: what may be sent to them, and who serves them; who may do that is in rights.sql.
-- Locks: the row of a service that is altered or dropped.
-- Writes: service, service_dropped, serving, setting.

insert into pgps_internal.setting (name, value, kind, description) values
    ('uow_store', 'off', 'text', 'Whether units of work survive a restart (broker) or not (off), where neither the '
        'service nor the sender says so'),
    ('uow_lifetime', '1 day', 'interval', 'How long a unit of work may take until it is processed'),
    ('uow_status_lifetime', '0', 'integer',
        'How long the status of a unit of work is kept when it is over, as a multiple of its lifetime, 0 to 254'),
    ('uow_max_active', '1000000', 'integer', 'How many units of work may be under way; 0: none at all'),
    ('uow_max_messages', '16', 'integer', 'How many messages a unit of work may have'),
    ('uow_max_message_bytes', '31647', 'integer', 'How long a message to or from a service may be'),
    ('uow_deferred', 'no', 'boolean', 'Services may be sent to while nobody serves them'),
    ('uow_persistent_store', 'hot', 'text', 'What a restart does with persistent units of work: hot gives them out '
        'again, cold drops them all, once, warm holds them back until hot is set; no: there are to be none'),
    ('session_lease', '1 minute', 'interval', 'How long after its last call a session behind a pooler keeps its token')
on conflict (name) do nothing;

-- Without a search_path of its own, so that it is inlined.
create or replace function pgps_internal.service_name(service pgps_internal.service) returns text
language sql immutable
as $$ select concat_ws('/', (service_name.service).class, (service_name.service).server,
    (service_name.service).service) $$;
comment on function pgps_internal.service_name(pgps_internal.service) is 'class/server/service';

-- Without a search_path of its own, so that it is inlined. Most names have nothing to fold.
create or replace function pgps_internal.fold_part(part text) returns text
language sql immutable
as $$ select case when fold_part.part ~ '[A-Z"]' then pgps_internal.fold(fold_part.part) else fold_part.part end $$;
comment on function pgps_internal.fold_part(text) is
'A class, server or service as pgps_internal.service has it: case-folded unless in double quotes; null: null';

create or replace function pgps_internal.find_service(class text, server text, service text)
returns pgps_internal.service
language plpgsql stable
as $$
declare
    v_service pgps_internal.service;
begin
    select s.* into v_service from pgps_internal.service s
    where s.class = pgps_internal.fold_part(find_service.class)
        and s.server = pgps_internal.fold_part(find_service.server)
        and s.service = pgps_internal.fold_part(find_service.service);
    if not found then
        raise exception 'service "%/%/%" does not exist', find_service.class, find_service.server, find_service.service
        using errcode = '42704',
            hint = 'See pgps.services, or create it with pgps.create_service(class, server, service).';
    end if;
    return v_service;
end
$$;
comment on function pgps_internal.find_service(text, text, text) is
'The service of that name, which is folded; 42704 when there is none';

create or replace function pgps_internal.lock_service(class text, server text, service text)
returns pgps_internal.service
language plpgsql volatile
as $$
declare
    v_found pgps_internal.service;
    v_service pgps_internal.service;
begin
    loop
        v_found := pgps_internal.find_service(lock_service.class, lock_service.server, lock_service.service);
        select s.* into v_service from pgps_internal.service s where s.service_id = v_found.service_id
        for no key update;
        -- It may have been dropped while this waited, and another one created by that name.
        if found then
            return v_service;
        end if;
    end loop;
end
$$;
comment on function pgps_internal.lock_service(text, text, text) is
'The service of that name as it is now, locked until the transaction ends; 42704 when there is none';

create or replace function pgps_internal.check_service_part(part text, what text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_service_part.part is null then
        raise exception 'the % of a service is missing', check_service_part.what using errcode = '22023',
            hint = 'Give class, server and service, each as text.';
    elsif check_service_part.part = '' or check_service_part.part ~ '[/[:cntrl:]]'
        or octet_length(check_service_part.part) > 40 then
        raise exception 'invalid % "%" of a service', check_service_part.what, check_service_part.part
        using errcode = '42602', hint = 'Give 1 to 40 bytes, without / and control characters.';
    end if;
end
$$;
comment on function pgps_internal.check_service_part(text, text) is
'Raises 22023 or 42602 unless a class, server or service has a proper name';

create or replace function pgps_internal.check_service(service pgps_internal.service) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_service pgps_internal.service := check_service.service;
    v_bad text;
begin
    if v_service.store not in ('off', 'broker') then
        raise exception 'unknown store "%"', v_service.store using errcode = '22023',
            hint = 'Give off or broker, or null for what the broker''s setting uow_store says.';
    end if;
    perform pgps_internal.check_lifetime(v_service.lifetime);
    v_bad := case when v_service.status_lifetime not between 0 and 254 then 'status_lifetime '
            || v_service.status_lifetime
        when v_service.max_uows < 0 then 'max_uows ' || v_service.max_uows
        when v_service.max_messages_in_uow < 1 then 'max_messages_in_uow ' || v_service.max_messages_in_uow
        when v_service.max_message_bytes < 1 then 'max_message_bytes ' || v_service.max_message_bytes end;
    if v_bad is not null then
        raise exception 'invalid %', v_bad using errcode = '22023',
            hint = 'status_lifetime is 0 to 254, max_uows 0 or more, the others 1 or more; null: the broker''s.';
    end if;
end
$$;
comment on function pgps_internal.check_service(pgps_internal.service) is
'Raises 22023 unless the attributes of a service are in their ranges';

create or replace function pgps_internal.check_lifetime(lifetime interval) returns void
language plpgsql immutable
as $$
begin
    if check_lifetime.lifetime <= '0' or check_lifetime.lifetime > '100 years' then
        raise exception 'invalid lifetime "%"', check_lifetime.lifetime using errcode = '22023',
            hint = 'Give an interval above 0, of 100 years at most, or null for that of the service.';
    end if;
end
$$;
comment on function pgps_internal.check_lifetime(interval) is
'Raises 22023 unless a unit of work can have that lifetime';

create or replace function pgps_internal.do_create_service(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_service pgps_internal.service;
begin
    perform pgps_internal.require_admin(caller, 'create services');
    v_service := jsonb_populate_record(null::pgps_internal.service, args);
    v_service.class := pgps_internal.fold_part(v_service.class);
    v_service.server := pgps_internal.fold_part(v_service.server);
    v_service.service := pgps_internal.fold_part(v_service.service);
    perform pgps_internal.check_service_part(v_service.class, 'class'),
        pgps_internal.check_service_part(v_service.server, 'server'),
        pgps_internal.check_service_part(v_service.service, 'service'),
        pgps_internal.check_service(v_service);
    insert into pgps_internal.service (class, server, service, store, lifetime, status_lifetime, max_uows,
        max_messages_in_uow, max_message_bytes, deferred, created_at)
    values (v_service.class, v_service.server, v_service.service, v_service.store, v_service.lifetime,
        v_service.status_lifetime, v_service.max_uows, v_service.max_messages_in_uow, v_service.max_message_bytes,
        v_service.deferred, pgps_internal.clock())
    on conflict do nothing returning service_id into v_service.service_id;
    if not found then
        raise exception 'service "%" exists', pgps_internal.service_name(v_service) using errcode = '42710',
            hint = 'Change it with pgps.alter_service(class, server, service, …).';
    end if;
    -- See limits.sql.
    execute format('create sequence pgps_internal.units_begun_%1$s as bigint minvalue 0 start 0; '
        'create sequence pgps_internal.units_ended_%1$s as bigint minvalue 0 start 0', v_service.service_id);
end
$$;
comment on function pgps_internal.do_create_service(name, jsonb) is 'See pgps.create_service';

create or replace function pgps_internal.do_alter_service(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_service pgps_internal.service;
    v_names text[] := array['store', 'lifetime', 'status_lifetime', 'max_uows', 'max_messages_in_uow',
        'max_message_bytes', 'deferred'];
    v_reset text[];
    v_unknown text;
begin
    perform pgps_internal.require_admin(caller, 'alter services');
    v_service := pgps_internal.lock_service(args ->> 'class', args ->> 'server', args ->> 'service');
    v_reset := array(select n from jsonb_array_elements_text(
        case jsonb_typeof(args -> 'reset') when 'array' then args -> 'reset' else '[]' end) n);
    select n into v_unknown from unnest(v_reset) n where n is null or n <> all (v_names) limit 1;
    if found then
        raise exception 'unknown attribute "%" of a service', v_unknown using errcode = '22023',
            hint = format('Give of: %s.', array_to_string(v_names, ', '));
    end if;
    v_service := jsonb_populate_record(v_service, jsonb_strip_nulls(args - 'reset'));
    v_service := jsonb_populate_record(v_service,
        coalesce((select jsonb_object_agg(n, null) from unnest(v_reset) n), '{}'));
    perform pgps_internal.check_service(v_service);
    update pgps_internal.service s
    set store = v_service.store, lifetime = v_service.lifetime, status_lifetime = v_service.status_lifetime,
        max_uows = v_service.max_uows, max_messages_in_uow = v_service.max_messages_in_uow,
        max_message_bytes = v_service.max_message_bytes, deferred = v_service.deferred
    where s.service_id = v_service.service_id;
end
$$;
comment on function pgps_internal.do_alter_service(name, jsonb) is 'See pgps.alter_service';

create or replace function pgps_internal.do_drop_service(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_service pgps_internal.service;
begin
    perform pgps_internal.require_admin(caller, 'drop services');
    v_service := pgps_internal.lock_service(args ->> 'class', args ->> 'server', args ->> 'service');
    delete from pgps_internal.serving s where s.service_id = v_service.service_id;
    delete from pgps_internal.service s where s.service_id = v_service.service_id;
    -- Its units of work are DISCARDED from now on. Its sequences go later, because senders in open transactions have
    -- them locked.
    insert into pgps_internal.service_dropped (service_id, class, server, service, dropped_at)
    values (v_service.service_id, v_service.class, v_service.server, v_service.service, pgps_internal.clock());
    perform pgps_internal.note_ended(v_service.service_id);
end
$$;
comment on function pgps_internal.do_drop_service(name, jsonb) is 'See pgps.drop_service';

create or replace function pgps_internal.do_register_service(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_speaker pgps_internal.speaker := pgps_internal.speak(caller, args);
    v_service pgps_internal.service
        := pgps_internal.find_service(args ->> 'class', args ->> 'server', args ->> 'service');
begin
    perform pgps_internal.require_service_right(caller, v_service, 'serve');
    if v_service.broker is not null then
        raise exception 'service "%" is served at broker "%"', pgps_internal.service_name(v_service), v_service.broker
        using errcode = '55000', hint = 'Register there; or, as an administrator, serve it here: select '
            || format('pgps.place_service(%L, %L, %L, null).', quote_ident(v_service.class),
            quote_ident(v_service.server), quote_ident(v_service.service));
    end if;
    insert into pgps_internal.serving (session_id, service_id, since)
    values (v_speaker.session_id, v_service.service_id, pgps_internal.clock()) on conflict do nothing;
end
$$;
comment on function pgps_internal.do_register_service(name, jsonb) is 'See pgps.register_service';

create or replace function pgps_internal.do_deregister_service(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_speaker pgps_internal.speaker := pgps_internal.speak(caller, args);
    v_service pgps_internal.service
        := pgps_internal.find_service(args ->> 'class', args ->> 'server', args ->> 'service');
begin
    delete from pgps_internal.serving s
    where s.session_id = v_speaker.session_id and s.service_id = v_service.service_id;
    if not found then
        raise exception 'this session is not registered for service "%"', pgps_internal.service_name(v_service)
        using errcode = '55000', hint = 'It serves after: select pgps.register_service(class, server, service).';
    end if;
end
$$;
comment on function pgps_internal.do_deregister_service(name, jsonb) is 'See pgps.deregister_service';

create or replace function pgps_internal.do_session_channels(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_speaker pgps_internal.speaker := pgps_internal.speaker_of(caller, args);
begin
    return (select to_jsonb(array_agg('pgps_uow_' || q.queue_id order by q.queue_id)) from (
        select pgps_internal.queue_of(v_speaker.participant_id) as queue_id
        union
        select pgps_internal.queue_of(s.service_id) from pgps_internal.serving s
        where s.session_id = v_speaker.session_id) q);
end
$$;
comment on function pgps_internal.do_session_channels(name, jsonb) is 'See pgps.session_channels';

create or replace function pgps_internal.is_served(service_id integer) returns boolean
language plpgsql volatile
as $$
declare
    v_lives boolean;
begin
    -- In PL/pgSQL, which keeps the plan. The newest session first: rows of those that have ended are kept for a day.
    select true into v_lives from pgps_internal.serving s
    where s.service_id = is_served.service_id and pgps._session_lives(s.session_id)
    order by s.session_id desc limit 1;
    return v_lives is not null;
end
$$;
comment on function pgps_internal.is_served(integer) is 'True while a session that lives is registered for a service';
