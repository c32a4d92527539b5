-- Services at another broker. What is committed for the other party of a conversation is an event of the type pgps_uow,
-- in the transaction of the SYNCPOINT: links carry it, each once and in order. The broker of the sender keeps the unit
-- and what it is told of its status; the broker of the receiver has a copy, which lives by the rules of that broker.
-- Verbs: unit (committed, with its messages), status (what became of one: told by the receiver's broker), cancel and
-- note (the sender wants to cancel, or has set the user status), end (of the conversation).
-- Locks: share row exclusive on service while the first service at another broker is placed.
-- Writes: pgps_uow_log, service, serving.

create or replace function pgps_internal.make_relay() returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_roles text := pgps_internal.who_was_let_in('pgps_uow');
begin
    perform pgps_internal.require_free('event type', 'pgps_uow'),
        pgps_internal.require_free('subscription', 'pgps_uow');
    if not exists (select from pgps_internal.event_type t where t.name = 'pgps_uow') then
        perform pgps.create_event_type('pgps_uow', 'to_broker text not null, verb text not null, '
            'client_broker text not null, conversation bigint not null, unit bigint, body jsonb, messages bytea[]');
    end if;
    if not exists (select from pgps_internal.subscription s where s.name = 'pgps_uow') then
        -- A neighbour may have brought the type, on its way to others; its role has both rights since.
        perform pgps.advertise('pgps_uow');
        if v_roles is not null then
            raise warning 'event type "pgps_uow" was here already: % may send and receive units of work', v_roles
            using hint = 'Take it back from who should not: revoke all on pgps_event.pgps_uow from …';
        end if;
        perform pgps.subscribe('pgps_uow', 'pgps_uow', format('to_broker = %L', pgps_internal.broker_name()), 'global',
            max_attempts => 1000000);
        perform pgps_internal.add_feature(t.type_id, 'relay') from pgps_internal.event_type t where t.name = 'pgps_uow';
    end if;
end
$$;
comment on function pgps_internal.make_relay() is
'Makes the event type that carries units of work to other brokers, and the subscription to those for this one';

create or replace function pgps_internal.do_relay_services(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_admin(caller, 'let services be used from other brokers');
    lock table pgps_internal.service in share row exclusive mode;
    perform pgps_internal.make_relay();
end
$$;
comment on function pgps_internal.do_relay_services(name, jsonb) is 'See pgps.relay_services';

create or replace function pgps_internal.do_place_service(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_service pgps_internal.service;
begin
    perform pgps_internal.require_admin(caller, 'place services');
    v_service := pgps_internal.find_service(args ->> 'class', args ->> 'server', args ->> 'service');
    if args ->> 'broker' = '' or args ->> 'broker' = pgps_internal.broker_name() then
        raise exception 'service "%" cannot be placed at broker "%"', pgps_internal.service_name(v_service),
            args ->> 'broker'
        using errcode = '22023', hint = 'Give the name of another broker, as in pgps.links, or null for this one.';
    end if;
    lock table pgps_internal.service in share row exclusive mode;
    -- It may have been dropped while this waited.
    v_service := pgps_internal.find_service(args ->> 'class', args ->> 'server', args ->> 'service');
    if args ->> 'broker' is not null then
        perform pgps_internal.make_relay();
        delete from pgps_internal.serving s where s.service_id = v_service.service_id;
    end if;
    update pgps_internal.service s set broker = args ->> 'broker' where s.service_id = v_service.service_id;
end
$$;
comment on function pgps_internal.do_place_service(name, jsonb) is 'See pgps.place_service';

create or replace function pgps_internal.require_awaited(service pgps_internal.service) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- What is published before that broker's filter has come here would never reach it.
    if not exists (select from pgps_internal.wanted w join pgps_internal.link_filter f using (key)
        join pgps_internal.event_type t on t.type_id = f.type_id
        where t.name = 'pgps_uow' and (f.filter is null
            or strpos(f.filter, quote_literal((require_awaited.service).broker)) > 0)) then
        raise exception 'broker "%", which serves "%", has not asked for units of work yet',
            (require_awaited.service).broker, pgps_internal.service_name(require_awaited.service)
        using errcode = '55000', hint = 'There: select pgps.relay_services(). Here: a link that leads to it, see '
            'pgps.links, and workers at both.';
    end if;
end
$$;
comment on function pgps_internal.require_awaited(pgps_internal.service) is
'Raises 55000 while the broker that serves a service would not get what is sent to it';

-- Inlined, so without a search_path.
create or replace function pgps_internal.stamp_of(began_at timestamptz) returns text
language sql stable
as $$ select extract(epoch from stamp_of.began_at)::text $$;
comment on function pgps_internal.stamp_of(timestamptz) is
'The stamp of a unit or conversation that began then: by number and stamp other brokers tell apart what a broker that
was put back has numbered again (decision 117)';

create or replace function pgps_internal.tell_broker(
    conversation pgps_internal.conversation, verb text, unit_no bigint, body jsonb, messages bytea[] = null
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type integer := (select t.type_id from pgps_internal.event_type t where t.name = 'pgps_uow');
    v_id bigint;
begin
    insert into pgps_internal.pgps_uow_log (to_broker, verb, client_broker, conversation, unit, body, messages)
    values ((tell_broker.conversation).broker, tell_broker.verb,
        case when (tell_broker.conversation).their_no is null then pgps_internal.broker_name()
            else (tell_broker.conversation).broker end,
        coalesce((tell_broker.conversation).their_no, (tell_broker.conversation).conversation_no),
        tell_broker.unit_no, jsonb_strip_nulls(jsonb_build_object('conversation_stamp',
            case when (tell_broker.conversation).their_no is null
                then pgps_internal.stamp_of((tell_broker.conversation).began_at)
                else (tell_broker.conversation).their_stamp end)) || tell_broker.body, tell_broker.messages)
    returning event_id into v_id;
    perform pgps_internal.record(array[v_type], array[v_id], array[v_id], quote_ident(current_user)::regrole,
        array[false], null, null, false);
end
$$;
comment on function pgps_internal.tell_broker(pgps_internal.conversation, text, bigint, jsonb, bytea[]) is
'Tells the broker of the other party of a conversation, when this transaction commits';

create or replace function pgps_internal.conversation_of(conversation_no bigint) returns pgps_internal.conversation
language plpgsql volatile
as $$
declare
    v_conversation pgps_internal.conversation;
begin
    select c.* into v_conversation from pgps_internal.conversation c
    where c.conversation_no = conversation_of.conversation_no;
    return v_conversation;
end
$$;
comment on function pgps_internal.conversation_of(bigint) is 'The conversation of that number; null when there is none';

create or replace function pgps_internal.relay_unit(unit pgps_internal.unit, conversation pgps_internal.conversation)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_unit pgps_internal.unit := relay_unit.unit;
    v_messages bytea[] := array(select m.message from pgps_internal.message_of_unit m where m.unit_no = v_unit.unit_no
        order by m.number);
begin
    perform pgps_internal.tell_broker(relay_unit.conversation, 'unit', v_unit.unit_no, (
        select jsonb_strip_nulls(jsonb_build_object('to_server', v_unit.to_server, 'is_uow', v_unit.is_uow,
            'is_persistent', v_unit.is_persistent, 'began_at', v_unit.began_at, 'ends_at', v_unit.ends_at,
            'class', s.class, 'server', s.server, 'service', s.service, 'role', pg_get_userbyid(p.role::oid),
            'token', coalesce(p.token, '#' || p.participant_id),
            'unit_stamp', pgps_internal.stamp_of(v_unit.began_at),
            'user_status', (select u.user_status from pgps_internal.unit_standing u where u.unit_no = v_unit.unit_no)))
        from pgps_internal.service s, pgps_internal.participant p
        where s.service_id = v_unit.service_id and p.participant_id = v_unit.sender_id), v_messages);
end
$$;
comment on function pgps_internal.relay_unit(pgps_internal.unit, pgps_internal.conversation) is
'Sends a unit that is committed to the broker of its receiver';

create or replace function pgps_internal.tell_status(unit_no bigint, status text, attempts integer, user_status text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_unit pgps_internal.unit;
begin
    select u.* into v_unit from pgps_internal.unit u where u.unit_no = tell_status.unit_no;
    perform pgps_internal.tell_broker(pgps_internal.conversation_of(v_unit.conversation_no), 'status', v_unit.their_no,
        jsonb_strip_nulls(jsonb_build_object('status', tell_status.status, 'attempts', tell_status.attempts,
            'user_status', tell_status.user_status, 'unit_stamp', pgps_internal.stamp_of(v_unit.began_at))));
end
$$;
comment on function pgps_internal.tell_status(bigint, text, integer, text) is
'Tells the broker from which a unit came how it stands; user_status null: that has not changed';

create or replace function pgps_internal.tell_change(standing pgps_internal.unit_standing, status text,
    attempts integer, user_status text) returns void
language plpgsql
as $$
begin
    if tell_change.standing.their_no is not null then
        perform pgps_internal.tell_status(tell_change.standing.unit_no, tell_change.status, tell_change.attempts,
            tell_change.user_status);
    elsif tell_change.standing.is_relayed and tell_change.standing.commit_no is not null
        and tell_change.user_status is not null then
        perform pgps_internal.tell_broker(pgps_internal.conversation_of(tell_change.standing.conversation_no), 'note',
            tell_change.standing.unit_no, jsonb_build_object('user_status', tell_change.user_status,
                'unit_stamp', pgps_internal.stamp_of(tell_change.standing.began_at)));
    end if;
end
$$;
comment on function pgps_internal.tell_change(pgps_internal.unit_standing, text, integer, text) is
'Tells the other broker, if a unit has come from one or was sent to one, what a party has done to it here';

create or replace function pgps.place_service(class text, server text, service text, broker text) returns void
language sql
begin atomic
    select pgps._call('place_service', jsonb_build_object('class', place_service.class,
        'server', place_service.server, 'service', place_service.service, 'broker', place_service.broker));
end;
comment on function pgps.place_service(text, text, text, text) is
'Says that a service is served at another broker, under the same name; null: here. It must have been created at both.
Conversations that begin from now on go over the links: what the client commits is committed there, and the statuses are
those that the other broker tells. That broker needs pgps.relay_services(), and the right to send for the role that
stands for the neighbour there (pgps.grant_service). Locks the services until the transaction ends. Needs pgps_admin.
Errors: 42704 unknown service, 22023 this broker, 42501.';

create or replace function pgps.relay_services() returns void
language sql
begin atomic
    select pgps._call('relay_services', '{}');
end;
comment on function pgps.relay_services() is
'Lets the services of this broker be used from other brokers, by roles that may send to them: makes the event type
pgps_uow, which carries units of work over links, and subscribes to what is for this broker. Does nothing when that is
done. Needs pgps_admin. Errors: 42501.';

grant execute on function pgps.place_service(text, text, text, text), pgps.relay_services() to public;
