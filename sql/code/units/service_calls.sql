-- The public functions of services: what may be sent to, and by whom.
-- Locks: see the functions that they call.
-- Writes: nothing.

create or replace function pgps.create_service(
    class text, server text, service text, store text = null, lifetime interval = null,
    status_lifetime integer = null, max_uows integer = null, max_messages_in_uow integer = null,
    max_message_bytes integer = null, deferred boolean = null
) returns void
language sql
begin atomic
    select pgps._call('create_service', jsonb_build_object(
        'class', create_service.class, 'server', create_service.server, 'service', create_service.service,
        'store', create_service.store, 'lifetime', create_service.lifetime,
        'status_lifetime', create_service.status_lifetime, 'max_uows', create_service.max_uows,
        'max_messages_in_uow', create_service.max_messages_in_uow,
        'max_message_bytes', create_service.max_message_bytes, 'deferred', create_service.deferred));
end;
comment on function pgps.create_service(text, text, text, text, interval, integer, integer, integer, integer,
    boolean) is
'Creates a service, class/server/service, names of 40 bytes each at most, which are case-folded unless in double
quotes. store: broker (its units of work survive restarts) or off; lifetime: how long they may take until they are
processed; status_lifetime: for how many lifetimes, 0 to 254, their status is kept when they are over; max_uows: how
many may be active, 0 for none; max_messages_in_uow, max_message_bytes; deferred: may be sent to while nobody serves it.
Null: as the broker''s settings say (uow_…). Needs pgps_admin. Errors: 42710 exists, 22023, 42602, 42501.';

create or replace function pgps.alter_service(
    class text, server text, service text, store text = null, lifetime interval = null,
    status_lifetime integer = null, max_uows integer = null, max_messages_in_uow integer = null,
    max_message_bytes integer = null, deferred boolean = null, reset text[] = null
) returns void
language sql
begin atomic
    select pgps._call('alter_service', jsonb_build_object(
        'class', alter_service.class, 'server', alter_service.server, 'service', alter_service.service,
        'store', alter_service.store, 'lifetime', alter_service.lifetime,
        'status_lifetime', alter_service.status_lifetime, 'max_uows', alter_service.max_uows,
        'max_messages_in_uow', alter_service.max_messages_in_uow,
        'max_message_bytes', alter_service.max_message_bytes, 'deferred', alter_service.deferred,
        'reset', alter_service.reset));
end;
comment on function pgps.alter_service(text, text, text, text, interval, integer, integer, integer, integer,
    boolean, text[]) is
'Changes a service, for units of work that are sent from now on. Null leaves an attribute as it is; the names in reset
go back to the broker''s settings. Locks the service until the transaction ends. Needs pgps_admin. Errors: 42704
unknown service, 22023, 42501.';

create or replace function pgps.drop_service(class text, server text, service text) returns void
language sql
begin atomic
    select pgps._call('drop_service', jsonb_build_object(
        'class', drop_service.class, 'server', drop_service.server, 'service', drop_service.service));
end;
comment on function pgps.drop_service(text, text, text) is
'Drops a service, with its conversations; units of work that are under way in them are DISCARDED. Needs pgps_admin.
Errors: 42704 unknown service, 42501.';

create or replace function pgps.grant_service(
    class text, server text, service text, privilege text, role name
) returns void
language sql
begin atomic
    select pgps._call('grant_service', jsonb_build_object(
        'class', grant_service.class, 'server', grant_service.server, 'service', grant_service.service,
        'privilege', grant_service.privilege, 'role', grant_service.role));
end;
comment on function pgps.grant_service(text, text, text, text, name) is
'Lets a role, or public, send to a service (privilege send) or serve it (serve). Needs pgps_admin. Errors: 42704
unknown service or role, 22023 unknown privilege, 42501.';

create or replace function pgps.revoke_service(
    class text, server text, service text, privilege text, role name
) returns void
language sql
begin atomic
    select pgps._call('revoke_service', jsonb_build_object(
        'class', revoke_service.class, 'server', revoke_service.server, 'service', revoke_service.service,
        'privilege', revoke_service.privilege, 'role', revoke_service.role));
end;
comment on function pgps.revoke_service(text, text, text, text, name) is
'Takes back what pgps.grant_service gave: what is sent or received from then on is refused. Needs pgps_admin. Errors:
42704 unknown service or role, 22023 unknown privilege, 42501.';

grant execute on function
    pgps.create_service(text, text, text, text, interval, integer, integer, integer, integer, boolean),
    pgps.alter_service(text, text, text, text, interval, integer, integer, integer, integer, boolean, text[]),
    pgps.drop_service(text, text, text),
    pgps.grant_service(text, text, text, text, name),
    pgps.revoke_service(text, text, text, text, name)
to public;
