-- breaking: no
-- What failed, seen.

-- What older releases had, and what returns something else from now on.
drop function if exists pgps_internal.received_events(bigint, pgps_internal.position), pgps.try_lead(),
    pgps_internal.evict_impostor(integer), pgps_internal.require_harmless_expressions(regclass),
    pgps_internal.require_trusted_types(regclass);

-- How much may wait for a subscription, for how long, and what is done beyond; a row only for those that have a limit.
create table pgps_internal.backlog_limit (
    subscription_id bigint primary key references pgps_internal.subscription on delete cascade,
    dead_after interval check (dead_after > '0'),
    max_backlog bigint check (max_backlog > 0),
    on_backlog text not null default 'suspend' check (on_backlog in ('keep', 'suspend', 'drop_oldest')),
    -- Resumed with more than that waiting: until its consumer has caught up, it is not suspended again.
    is_resting boolean not null default false
);

-- What was passed over because more than that waited: from behind one place in delivery order up to another, of one
-- event type.
create table pgps_internal.backlog_gap (
    gap_id bigint generated always as identity primary key,
    subscription_id bigint not null references pgps_internal.subscription on delete cascade,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    events bigint not null,
    first_event bigint not null,
    last_event bigint not null,
    after_batch bigint not null,
    after_event bigint not null,
    upto_batch bigint not null,
    upto_event bigint not null,
    -- Of competing consumers: which ones, since others had those between.
    ids int8multirange,
    max_backlog bigint not null,
    noted_at timestamptz not null default clock_timestamp()
);
create index backlog_gap_subscription_idx on pgps_internal.backlog_gap (subscription_id, type_id, gap_id desc);
create index backlog_gap_type_idx on pgps_internal.backlog_gap (type_id);

-- It has arguments more; beside the old one, a call would be ambiguous.
drop function if exists pgps.alter_subscription(text, text, integer, integer);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0011')
on conflict (key) do update set value = excluded.value;
