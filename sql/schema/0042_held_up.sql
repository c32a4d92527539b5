-- breaking: no
-- Roles whose filters over the event alone have taken more of the dispatcher's time than they may (decision 108). Only
-- the dispatcher writes this, so it waits for nobody. since, spent: how much too much since then; offences: how often
-- that came to more than the setting dispatch_filter_timeout; apart_until: until then the dispatcher asks no further
-- forms of filters of the role.
create table pgps_internal.held_up (
    owner oid primary key,
    since timestamptz not null,
    spent interval not null,
    offences integer not null default 0,
    apart_until timestamptz not null default '-infinity'
);

-- Forms of filters that the dispatcher does not ask any more, after a batch, and that are not in the lane of their role
-- yet, since a transaction that is open has them locked.
create table pgps_internal.unasked (
    signature_id bigint primary key,
    from_batch bigint not null,
    place bigint generated always as identity
);

-- Beside matching_seq: since when a form of filter is being asked, in milliseconds since 1970, and a millisecond more
-- for each event.
create unlogged sequence pgps_internal.matching_since_seq as bigint minvalue 0 start 0;

-- A form that is moved to a lane may be there already: a pattern subscription has the same.
drop index pgps_internal.signature_shape_key;
create index signature_shape_key
on pgps_internal.signature (type_id, owner, md5(shape), parameter_types, environment, in_lane);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0042')
on conflict (key) do update set value = excluded.value;
