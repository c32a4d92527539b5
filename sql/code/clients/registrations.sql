-- Registrations for events: a queued one is a subscription underneath; a direct one makes the publishing statements of
-- its types send a note. That a type has a direct registration is recorded as a privilege that is of no other use
-- (TRIGGER on the log, for pgps_worker), as advertisements are: the rule of the endpoint checks it in 1 us, and
-- granting it waits for no publisher.
-- Locks: the client; rows and logs (access share) of event types that it may see, or has joined.
-- Writes: registration, registration_type, subscription, unmet.

create or replace function pgps_internal.refresh_direct(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_wanted boolean;
begin
    perform pgps_internal.stay_in(array[refresh_direct.type_id]);
    -- This row lock puts GRANTs on one log in turn: of two at the same time one fails.
    select t.* into v_type from pgps_internal.event_type t where t.type_id = refresh_direct.type_id for no key update;
    if not found then
        return;
    end if;
    v_wanted := exists (select from pgps_internal.registration_type t join pgps_internal.registration r
        using (registration_id)
        where t.type_id = v_type.type_id and r.mode = 'direct' and r.state = 'valid');
    if v_wanted <> has_table_privilege('pgps_worker', v_type.log, 'trigger') then
        execute format(case when v_wanted then 'grant trigger on %s to pgps_worker'
            else 'revoke trigger on %s from pgps_worker' end, v_type.log);
    end if;
end
$$;
comment on function pgps_internal.refresh_direct(integer) is
'Makes the statements of a type send notes while a valid direct registration exists, and only then';

create or replace function pgps_internal.do_register_for_event(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.enter_session(caller, args);
    v_name jsonb := pgps_internal.event_name_of(v_client, args ->> 'event_name');
    v_mode text := coalesce(args ->> 'mode', 'queued');
    v_style text := coalesce(args ->> 'style', 'handler');
    v_registration pgps_internal.registration;
begin
    if v_mode not in ('direct', 'queued') then
        raise exception 'invalid mode "%"', v_mode using errcode = '22023', hint = 'Use direct or queued.';
    elsif v_style not in ('handler', 'polling') then
        raise exception 'invalid style "%"', v_style using errcode = '22023', hint = 'Use handler or polling.';
    end if;
    update pgps_internal.registration r
    set style = v_style, state = 'valid', reason = null, registered_at = pgps_internal.clock(),
        -- A valid registration keeps what it has missed, which is still to be pushed.
        attempts = case r.state when 'valid' then r.attempts else 0 end, missed_batch = case r.state when 'valid'
            then r.missed_batch end,
        due_at = case r.state when 'valid' then r.due_at end
    where r.client_id = v_client.client_id and r.event_name = v_name ->> 'event_type' and r.mode = v_mode returning *
        into v_registration;
    if not found then
        perform pgps_internal.drop_registration(r) from pgps_internal.registration r
        where r.client_id = v_client.client_id and r.event_name = v_name ->> 'event_type';
        v_registration := pgps_internal.make_registration(v_client, v_name, v_mode, v_style);
    end if;
    perform pgps_internal.refresh_direct(t.type_id) from pgps_internal.registration_type t
    where t.registration_id = v_registration.registration_id and v_mode = 'direct';
    return jsonb_build_object('registration', v_registration.registration_id,
        'subscription', (select s.name from pgps_internal.subscription s
            where s.subscription_id = v_registration.subscription_id),
        'channels', pgps_internal.channels_of(v_client, v_registration.registration_id));
end
$$;
comment on function pgps_internal.do_register_for_event(name, jsonb) is 'See pgps.register_for_event';

create or replace function pgps_internal.event_name_of(client pgps_internal.client, event_name text) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
begin
    if event_name_of.event_name ~ '\*$' then
        return pgps_internal.do_types_for(pg_get_userbyid((event_name_of.client).owner::oid),
            jsonb_build_object('event_type', event_name_of.event_name));
    end if;
    v_type := pgps_internal.find_type(event_name_of.event_name);
    if not has_table_privilege((event_name_of.client).owner::oid, v_type.endpoint, 'select') then
        raise exception 'role % may not register for event type "%"', (event_name_of.client).owner, v_type.name
        using errcode = '42501',
            hint = format('Ask for: grant select on %s to %s', v_type.endpoint, (event_name_of.client).owner);
    end if;
    return jsonb_build_object('event_type', v_type.name, 'pattern', false);
end
$$;
comment on function pgps_internal.event_name_of(pgps_internal.client, text) is
'The event type that a registration names, which the client''s owner must be able to see, or its prefix. Errors: 42704,
42501, 22023.';

create or replace function pgps_internal.make_registration(
    client pgps_internal.client, name jsonb, mode text, style text
) returns pgps_internal.registration
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := nextval(pg_get_serial_sequence('pgps_internal.registration', 'registration_id'));
    v_pattern boolean := (make_registration.name ->> 'pattern')::boolean;
    v_event_name text := make_registration.name ->> 'event_type';
    v_subscription pgps_internal.subscription;
    v_registration pgps_internal.registration;
begin
    if make_registration.mode = 'queued' then
        -- Somebody may have had a subscription of such a name before they were refused.
        while exists (select from pgps_internal.subscription s where s.name = 'pgps_registration_' || v_id) loop
            v_id := nextval(pg_get_serial_sequence('pgps_internal.registration', 'registration_id'));
        end loop;
        insert into pgps_internal.subscription (name, owner, event_type, is_pattern, environment, kind, scope, priority,
            max_attempts, handler)
        values ('pgps_registration_' || v_id, (make_registration.client).owner, v_event_name, v_pattern,
            jsonb_build_object('search_path', 'pg_catalog, pg_temp'), 'registration', 'local', 0, 5, 'all')
        returning * into v_subscription;
    end if;
    insert into pgps_internal.registration (registration_id, client_id, event_name, is_pattern, mode, style,
        subscription_id)
    overriding system value
    values (v_id, (make_registration.client).client_id, v_event_name, v_pattern, make_registration.mode,
        make_registration.style, v_subscription.subscription_id)
    returning * into v_registration;
    if v_pattern then
        perform pgps_internal.note_unmet('pgps_internal.event_type');
    end if;
    perform pgps_internal.join_registration(v_registration, v_subscription, t) from pgps_internal.event_type t
    where case when v_pattern then pgps._covers(v_event_name, t.name)
            and has_table_privilege((make_registration.client).owner::oid, t.endpoint, 'select')
        else t.name = v_event_name end;
    if not found and not v_pattern then
        perform pgps_internal.refuse_dropped(v_event_name);
    elsif v_pattern then
        perform pgps_internal.register_unseen(v_registration, v_subscription);
    end if;
    return v_registration;
end
$$;
comment on function pgps_internal.make_registration(pgps_internal.client, jsonb, text, text) is
'Makes a registration, and the subscription of a queued one';

create or replace function pgps_internal.join_registration(
    registration pgps_internal.registration, subscription pgps_internal.subscription,
    event_type pgps_internal.event_type
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not (join_registration.registration).is_pattern then
        perform pgps_internal.hold_log(join_registration.event_type);
    end if;
    insert into pgps_internal.registration_type (registration_id, type_id)
    values ((join_registration.registration).registration_id, (join_registration.event_type).type_id)
        on conflict do nothing;
    perform pgps_internal.add_feature((join_registration.event_type).type_id, 'registration');
    if (join_registration.subscription).subscription_id is not null then
        perform pgps_internal.join_type(join_registration.subscription, join_registration.event_type, 'now');
    end if;
end
$$;
comment on function pgps_internal.join_registration(pgps_internal.registration, pgps_internal.subscription,
    pgps_internal.event_type) is
'Joins a registration to an event type, from now on';

create or replace function pgps_internal.register_unseen(
    registration pgps_internal.registration, subscription pgps_internal.subscription
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Rights are checked when an event comes; to join these types here would hold up those who have them.
    if not exists (select from pgps_internal.event_type t
            where pgps._covers((register_unseen.registration).event_name, t.name)
                and not exists (select from pgps_internal.registration_type k
                    where k.registration_id = (register_unseen.registration).registration_id
                        and k.type_id = t.type_id)) then
        return;
    end if;
    perform pgps_internal.note_unseen(register_unseen.subscription)
        where (register_unseen.subscription).subscription_id is not null;
    -- See meet_registrations; there is nobody whose end is to be waited for.
    insert into pgps_internal.unmet (holders) values ('{}');
    perform pgps_internal.wake_dispatcher();
end
$$;
comment on function pgps_internal.register_unseen(pgps_internal.registration, pgps_internal.subscription) is
'Has the dispatcher join a registration for a prefix to the event types that its client may not see yet';

create or replace function pgps_internal.match_pattern_registrations(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_told bigint;
begin
    -- The subscriptions of queued registrations have joined the type already.
    with joined as (
        insert into pgps_internal.registration_type (registration_id, type_id)
        select r.registration_id, t.type_id from pgps_internal.registration r
        join pgps_internal.event_type t on t.type_id = match_pattern_registrations.type_id
            and pgps._covers(r.event_name, t.name)
        where r.is_pattern on conflict do nothing returning registration_id
    )
    select count(pg_notify('pgps_client_' || r.client_id, 'registrations')::text) into v_told
    from joined join pgps_internal.registration r using (registration_id) where r.mode = 'direct';
    perform pgps_internal.add_feature(match_pattern_registrations.type_id, 'registration')
    where exists (select from pgps_internal.registration_type t where t.type_id = match_pattern_registrations.type_id);
    perform pgps_internal.refresh_direct(match_pattern_registrations.type_id)
    where exists (select from pgps_internal.registration_type t join pgps_internal.registration r
        using (registration_id)
        where t.type_id = match_pattern_registrations.type_id and r.mode = 'direct');
end
$$;
comment on function pgps_internal.match_pattern_registrations(integer) is
'Joins the registrations for a prefix to a new event type';

create or replace function pgps_internal.meet_registrations() returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_types integer[] := array(
        select t.type_id from pgps_internal.event_type t
        where exists (select from pgps_internal.registration r
            where r.is_pattern and pgps._covers(r.event_name, t.name)
                and not exists (select from pgps_internal.registration_type k
                    where k.registration_id = r.registration_id and k.type_id = t.type_id)));
    v_free integer[];
begin
    if v_types = '{}' then
        return true;
    end if;
    -- Nothing is waited for: somebody may be changing or dropping an event type, or a registration.
    v_free := array(select t.type_id from pgps_internal.event_type t
        where t.type_id = any (v_types) for no key update skip locked);
    if (select count(*) from pgps_internal.registration r where r.is_pattern) <> cardinality(array(
            select r.registration_id from pgps_internal.registration r where r.is_pattern
            for key share skip locked)) then
        return false;
    end if;
    perform pgps_internal.match_pattern_registrations(t) from unnest(v_free) t;
    return cardinality(v_free) = cardinality(v_types);
end
$$;
comment on function pgps_internal.meet_registrations() is
'Joins registrations for a prefix to event types that were made at the same time; false: some are locked, to be joined
later. See join_unmet';

create or replace function pgps_internal.leave_unregistered() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_types integer[];
begin
    with gone as (
        delete from pgps_internal.registration_type k using pgps_internal.registration r, pgps_internal.event_type t
        where r.registration_id = k.registration_id and t.type_id = k.type_id and r.is_pattern
            and not pgps._covers(r.event_name, t.name)
        returning k.type_id
    )
    select array_agg(distinct g.type_id) into v_types from gone g;
    perform pgps_internal.refresh_direct(t) from unnest(v_types) t;
end
$$;
comment on function pgps_internal.leave_unregistered() is
'Has registrations for a prefix leave the event types for which it does not stand; see leave_uncovered';

create or replace function pgps_internal.drop_registration(registration pgps_internal.registration) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_types integer[] := array(select t.type_id from pgps_internal.registration_type t
        where t.registration_id = (drop_registration.registration).registration_id);
begin
    if (drop_registration.registration).subscription_id is not null then
        perform pgps_internal.drop_subscription((drop_registration.registration).subscription_id);
    end if;
    delete from pgps_internal.registration r where r.registration_id = (drop_registration.registration).registration_id;
    perform pgps_internal.refresh_direct(t) from unnest(v_types) t;
end
$$;
comment on function pgps_internal.drop_registration(pgps_internal.registration) is
'Ends a registration; the events that a queued one has not received are not kept for it';

create or replace function pgps_internal.do_unregister_for_event(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.enter_session(caller, args);
    v_registration pgps_internal.registration;
begin
    -- The name is compared, as given and folded, and not looked up: the event type may be gone.
    select r.* into v_registration from pgps_internal.registration r
    where r.client_id = v_client.client_id
        and r.event_name in (args ->> 'event_name', pgps_internal.fold(args ->> 'event_name'),
        lower(args ->> 'event_name' collate "C"))
    order by r.event_name = args ->> 'event_name' desc limit 1;
    if not found then
        raise exception 'client "%" is not registered for "%"', v_client.name, args ->> 'event_name'
        using errcode = '42704',
            hint = format('select event_name from pgps.registrations where client = %L', v_client.name);
    end if;
    perform pgps_internal.drop_registration(v_registration);
end
$$;
comment on function pgps_internal.do_unregister_for_event(name, jsonb) is 'See pgps.unregister_for_event';

create or replace function pgps.register_for_event(
    client text, event_name text, mode text = 'queued', style text = 'handler', session bigint = null
) returns table (registration bigint, subscription text, channels text[])
language sql rows 1
begin atomic
    select r.registration, r.subscription, r.channels
    from jsonb_to_record(pgps._call('register_for_event', jsonb_build_object('client', register_for_event.client,
        'event_name', register_for_event.event_name, 'mode', register_for_event.mode, 'style', register_for_event.style,
        'session', register_for_event.session))) r(registration bigint, subscription text, channels text[]);
end;
comment on function pgps.register_for_event(text, text, text, text, bigint) is
'Registers a client for an event type, or for every type of a prefix that its owner may see, now and later (Ariel,
section 3.1; types pgps_…: as with pgps.subscribe). mode: queued (events are kept until they are completed; a
subscription underneath) or direct (events are pushed while the client is connected, see pgps.fetch_direct). style:
handler or polling, only remembered. Registering again: a queued registration goes on where it stood, an invalid one
becomes valid, another mode replaces it. Listen to the channels. Needs SELECT on the type. Errors: 42704, 42501, 22023,
08003, 25001.';

create or replace function pgps.unregister_for_event(client text, event_name text, session bigint = null) returns void
language sql
begin atomic
    select pgps._call('unregister_for_event', jsonb_build_object('client', unregister_for_event.client,
        'event_name', unregister_for_event.event_name, 'session', unregister_for_event.session));
end;
comment on function pgps.unregister_for_event(text, text, bigint) is
'Ends a registration; the events that a queued one has not received are not kept for it. Errors: 42704, 42501, 08003,
25001.';

create or replace function pgps_internal.registration_of(event_type pgps_internal.event_type) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select format('client "%s" is registered for it', c.name)
        from pgps_internal.registration r join pgps_internal.client c using (client_id)
        where r.event_name = (registration_of.event_type).name limit 1);
end
$$;
comment on function pgps_internal.registration_of(pgps_internal.event_type) is
'A client that is registered for an event type by its name, as a reason not to drop it; null when there is none';

create or replace function pgps_internal.drop_registrations_of(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.drop_registration(r) from pgps_internal.registration r
    where r.event_name = (drop_registrations_of.event_type).name;
end
$$;
comment on function pgps_internal.drop_registrations_of(pgps_internal.event_type) is
'Ends the registrations for an event type by its name';

grant execute on function
    pgps.register_for_event(text, text, text, text, bigint),
    pgps.unregister_for_event(text, text, bigint)
to public;
