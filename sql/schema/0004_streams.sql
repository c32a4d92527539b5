-- breaking: no
-- What readers and writers in many sessions need: who reads a subscription as a stream, and loads, which are brought in by several sessions
-- and published as one.

create schema pgps_load;
grant usage on schema pgps_load to public;
comment on schema pgps_load is 'pgps: events on their way in, a table for each load; see pgps.begin_load';

create table pgps_internal.stream (
    subscription_id bigint primary key references pgps_internal.subscription on delete cascade,
    holder text not null,
    opened_at timestamptz not null default clock_timestamp()
);

create table pgps_internal.load (
    name text primary key,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    owner regrole not null,
    relation text not null unique,
    created_at timestamptz not null default clock_timestamp()
);
create sequence pgps_internal.load_seq as bigint;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0004')
on conflict (key) do update set value = excluded.value;
