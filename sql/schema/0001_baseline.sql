-- breaking: yes
-- Schemas, group roles, tables and indexes of a broker. Released revisions never change; functions and views live in ../code.

do $$
begin
    if not exists (select from pg_catalog.pg_roles where rolname = 'pgps_admin') then
        create role pgps_admin nologin;
    end if;
    if not exists (select from pg_catalog.pg_roles where rolname = 'pgps_worker') then
        create role pgps_worker nologin;
    end if;
end
$$;

create extension if not exists plpython3u;

create schema if not exists pgps_internal;
create schema pgps;
create schema pgps_event;
create schema pgps_queue;
revoke all on schema pgps_internal from public;
grant usage on schema pgps, pgps_event, pgps_queue to public;
grant create on schema pgps_event to pgps_admin;
comment on schema pgps is 'pgps: functions and catalogue views';
comment on schema pgps_event is 'pgps: one publish endpoint per event type; INSERT = may publish, SELECT = may subscribe';
comment on schema pgps_queue is 'pgps: read-only views of the in, out and exception queues';
comment on schema pgps_internal is 'pgps: tables and generated code; nobody but the owner';

-- What the installer remembers.
create table pgps_internal.installation (
    key text primary key,
    value text not null
);

create table pgps_internal.setting (
    name text primary key,
    value text not null,
    kind text not null check (kind in ('text', 'integer', 'interval', 'boolean')),
    description text not null
);

-- ---------------------------------------------------------------------------------------------------------------------
-- Definitions: small tables, changed by people
-- ---------------------------------------------------------------------------------------------------------------------

create table pgps_internal.event_type (
    type_id integer generated always as identity primary key,
    name text not null unique,
    endpoint regclass not null,
    log regclass not null,
    owner regrole not null,
    visibility text not null check (visibility in ('deferred', 'immediate')),
    reliability text not null check (reliability in ('guaranteed', 'non-guaranteed')),
    persistent boolean not null,
    handler text not null check (handler in ('all', 'any', 'raiser')),
    has_policy boolean not null default false,
    dedupe_retention interval,
    created_at timestamptz not null default clock_timestamp()
);

create table pgps_internal.queue (
    type_id integer not null references pgps_internal.event_type on delete cascade,
    kind text not null check (kind in ('in', 'out', 'exception')),
    name text not null unique,
    auditable boolean not null,
    retention interval,
    primary key (type_id, kind)
);

create table pgps_internal.advertisement (
    type_id integer not null references pgps_internal.event_type on delete cascade,
    role regrole not null,
    advertised_at timestamptz not null default clock_timestamp(),
    primary key (type_id, role)
);

create table pgps_internal.policy (
    type_id integer not null references pgps_internal.event_type on delete cascade,
    name text not null,
    role regrole not null,
    using_expression text not null,
    primary key (type_id, name)
);

create table pgps_internal.rule (
    rule_id integer generated always as identity primary key,
    name text not null unique,
    owner regrole not null,
    table_name regclass not null,
    operations text[] not null,
    type_id integer not null references pgps_internal.event_type,
    attributes text[] not null,
    condition text,
    run_as text not null check (run_as in ('invoker', 'owner')),
    created_at timestamptz not null default clock_timestamp()
);

create table pgps_internal.link (
    link_id integer generated always as identity primary key,
    name text not null unique,
    conninfo text not null,
    direction text not null check (direction in ('both', 'in', 'out')),
    enabled boolean not null default true,
    created_at timestamptz not null default clock_timestamp()
);

-- A shape of filter: classes that differ only in constants share one (Hanson et al., Scalable Trigger Processing, ICDE 1999).
create table pgps_internal.signature (
    signature_id bigint generated always as identity primary key,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    owner regrole not null,
    shape text not null,
    tier text not null check (tier in ('safe', 'owner')),
    parameter_types text[] not null,
    key_columns integer[] not null,
    environment jsonb not null,
    has_table boolean not null default false,
    members bigint not null default 0
);
create unique index signature_shape_key
on pgps_internal.signature (type_id, owner, md5(shape), parameter_types, environment);

-- Subscriptions with the same predicate and rights share a class: evaluated once, stored once (covering, paper section 6.1).
create table pgps_internal.class (
    class_id bigint generated always as identity primary key,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    owner regrole not null,
    signature_id bigint references pgps_internal.signature on delete cascade,
    constants text[] not null default '{}',
    is_private boolean not null default false,
    is_active boolean not null default true,
    failures integer not null default 0,
    last_error text,
    suspended_batch bigint
);
create index class_signature_idx on pgps_internal.class (signature_id, hash_array_extended(constants, 0));
create index class_type_idx on pgps_internal.class (type_id) where signature_id is null;

create table pgps_internal.subscription (
    subscription_id bigint generated always as identity primary key,
    name text not null unique,
    owner regrole not null,
    event_type text not null,
    is_pattern boolean not null,
    filter text,
    environment jsonb not null,
    parameter_types text[],
    scope text not null check (scope in ('local', 'global', 'link')),
    callback text,
    priority integer not null,
    max_attempts integer not null check (max_attempts > 0),
    handler text not null check (handler in ('all', 'any')),
    state text not null default 'active' check (state in ('active', 'paused', 'suspended')),
    last_error text,
    created_at timestamptz not null default clock_timestamp()
);
create index subscription_internal_idx on pgps_internal.subscription (priority desc, subscription_id) where callback is not null;
create index subscription_quiet_idx on pgps_internal.subscription (subscription_id) where callback is not null or state <> 'active';
create index subscription_pattern_idx on pgps_internal.subscription (subscription_id) where is_pattern;

-- Which classes feed a subscription, from after which batch, without which events (published before it subscribed).
create table pgps_internal.member (
    subscription_id bigint not null references pgps_internal.subscription on delete cascade,
    class_id bigint not null references pgps_internal.class,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    from_batch bigint not null,
    skip int8multirange not null default '{}',
    takes_batch boolean not null default false,
    primary key (subscription_id, class_id)
);
create index member_class_idx on pgps_internal.member (class_id);

-- ---------------------------------------------------------------------------------------------------------------------
-- Ledgers: append-only, in rotating segments; a row is never updated or deleted, a segment is truncated when all is past it
-- ---------------------------------------------------------------------------------------------------------------------

create sequence pgps_internal.event_id_seq as bigint;

-- One row per publishing statement: what the events of the statement have in common.
create table pgps_internal.control (
    hi bigint not null,
    lo bigint not null,
    xid xid8 not null,
    type_id integer not null,
    publisher regrole not null,
    woken boolean not null,
    volatile boolean not null,
    published_at timestamptz not null default clock_timestamp(),
    raiser xid8,
    origin_id integer
) partition by list (((hi / 65536) % 4));
create index control_xid_idx on pgps_internal.control (xid, hi);

-- A batch: the transactions visible in snapshot and not in previous; numbered densely.
create table pgps_internal.batch (
    batch_id bigint not null,
    previous pg_snapshot not null,
    snapshot pg_snapshot not null,
    upto xid8,
    base_hi bigint not null,
    max_hi bigint not null,
    incarnation text not null,
    started_at timestamptz not null default pg_postmaster_start_time(),
    created_at timestamptz not null default clock_timestamp()
) partition by list (((batch_id / 4096) % 4));
create index batch_id_idx on pgps_internal.batch (batch_id);

create table pgps_internal.batch_type (
    batch_id bigint not null,
    type_id integer not null,
    ids int8multirange not null,
    events bigint not null,
    total bigint not null,
    repeats bigint not null
) partition by list (((batch_id / 4096) % 4));
create index batch_type_idx on pgps_internal.batch_type (type_id, batch_id);

-- A delivery: the events of a batch that a class wants, as a list or, where they are contiguous, as ranges.
create table pgps_internal.delivery (
    batch_id bigint not null,
    class_id bigint not null,
    type_id integer not null,
    events integer not null,
    event_ids bigint[],
    ids int8multirange
) partition by list (((batch_id / 4096) % 4));
-- Compressing the ids of 1,000 events takes 0.8 ms, longer than finding them.
alter table pgps_internal.delivery alter column event_ids set storage external, alter column ids set storage external;
create index delivery_class_idx on pgps_internal.delivery (class_id, batch_id);

-- How far a subscription is: the newest row counts. Of competing consumers (handler any) the sum of acked_total counts.
create sequence pgps_internal.position_id_seq as bigint;
create table pgps_internal.position (
    position_id bigint not null default nextval('pgps_internal.position_id_seq'),
    subscription_id bigint not null,
    acked_batch bigint not null,
    acked_event bigint not null,
    received_batch bigint not null,
    received_event bigint not null,
    acked_total bigint not null,
    outstanding integer not null,
    moved_at timestamptz not null default clock_timestamp()
) partition by list (((position_id / 262144) % 4));
create index position_subscription_idx on pgps_internal.position (subscription_id, position_id desc);

-- Numbers of a producer that have been taken: the newest row counts. A producer's name means something for each role that publishes.
create table pgps_internal.producer (
    batch_id bigint not null,
    type_id integer not null,
    publisher regrole not null,
    producer text not null,
    taken int8multirange not null,
    seen_at timestamptz not null default clock_timestamp()
) partition by list (((batch_id / 4096) % 4));
create index producer_idx on pgps_internal.producer (type_id, producer, publisher, batch_id desc);

do $$
declare
    v_ledger text;
    v_slot integer;
begin
    foreach v_ledger in array array['control', 'batch', 'batch_type', 'delivery', 'position', 'producer'] loop
        for v_slot in 0..3 loop
            execute format('create table pgps_internal.%I partition of pgps_internal.%I for values in (%s)',
                v_ledger || '_' || v_slot, v_ledger, v_slot);
        end loop;
    end loop;
end
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Sparse exceptions beside the ledgers
-- ---------------------------------------------------------------------------------------------------------------------

-- Failed steps and events put back: one row per (subscription, event).
create table pgps_internal.failure (
    subscription_id bigint not null references pgps_internal.subscription on delete cascade,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    event_id bigint not null,
    step text not null check (step in ('filter', 'callback', 'nack')),
    state text not null check (state in ('retrying', 'leased', 'failed', 'settled')),
    attempts integer not null,
    sqlstate text,
    error text,
    failed_at timestamptz not null default clock_timestamp(),
    due_at timestamptz not null default clock_timestamp(),
    primary key (subscription_id, event_id)
);
create index failure_type_idx on pgps_internal.failure (type_id, event_id);

-- Competing consumers: one row per waiting event, leased with a time limit and a fencing number.
create table pgps_internal.share (
    subscription_id bigint not null references pgps_internal.subscription on delete cascade,
    batch_id bigint not null,
    event_id bigint not null,
    type_id integer not null,
    holder text,
    fence integer not null default 0,
    leased_until timestamptz,
    attempts integer not null default 0,
    primary key (subscription_id, batch_id, event_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200, fillfactor = 80);

-- The id that pgps.publish gave a role for (producer, number).
create table pgps_internal.receipt (
    type_id integer not null references pgps_internal.event_type on delete cascade,
    publisher regrole not null,
    producer text not null,
    producer_seq bigint not null,
    event_id bigint,
    published_at timestamptz not null default clock_timestamp(),
    primary key (type_id, producer, producer_seq, publisher)
);

-- Deliveries kept for audit after their segment was reclaimed.
create table pgps_internal.delivered (
    type_id integer not null references pgps_internal.event_type on delete cascade,
    batch_id bigint not null,
    class_id bigint not null,
    event_ids bigint[] not null,
    matched_at timestamptz not null
);
create index delivered_idx on pgps_internal.delivered (type_id, matched_at);

-- Of subscriptions that have ended or moved, what an auditable out queue still shows: the deliveries of a class up to where they were.
create table pgps_internal.former (
    type_id integer not null references pgps_internal.event_type on delete cascade,
    subscription text not null,
    class_id bigint not null,
    from_batch bigint not null,
    skip int8multirange not null,
    upto_batch bigint not null,
    upto_event bigint not null,
    missed int8multirange not null,
    ended_at timestamptz not null default clock_timestamp()
);
create index former_class_idx on pgps_internal.former (class_id);
create index former_type_idx on pgps_internal.former (type_id, ended_at);

create table pgps_internal.discarded (
    type_id integer not null references pgps_internal.event_type on delete cascade,
    subscription text not null,
    event_id bigint not null,
    attempts integer not null,
    sqlstate text,
    error text,
    failed_at timestamptz not null,
    state text not null,
    settled_at timestamptz not null default clock_timestamp()
);
create index discarded_idx on pgps_internal.discarded (type_id, event_id);

-- What of a batch belongs to one event type: the transactions, and the id ranges of their statements.
create type pgps_internal.part as (
    type_id integer,
    xids xid8[],
    ranges int8multirange
);
-- The events of a part: their ids, how many, and whether any has a producer's number.
create type pgps_internal.taken as (
    ids int8multirange,
    events bigint,
    numbered boolean
);
create index member_share_idx on pgps_internal.member (type_id) where takes_batch;

-- What a filter found, kept over a rolled-back subtransaction.
create type pgps_internal.found as (
    class_id bigint,
    event_ids bigint[],
    lowest bigint,
    highest bigint
);

-- An event handed out, and the same with its payload.
create type pgps_internal.received as (
    batch_id bigint,
    event_id bigint,
    type_id integer,
    attempt integer
);
create type pgps_internal.message as (
    place bigint,
    event_id bigint,
    event_type text,
    payload jsonb,
    published_at timestamptz,
    publisher name,
    xid xid8,
    origin text,
    attempt integer
);
create type pgps_internal.cut as (
    batch pgps_internal.batch,
    parts pgps_internal.part[]
);
