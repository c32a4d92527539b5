-- breaking: no
-- Composite events: what is defined, and what the detector keeps. What changes with every batch is appended to ledgers
-- in four segments, as elsewhere: the newest row counts, and a segment is truncated when what still counts in it has
-- been written again.

create sequence pgps_internal.composite_state_seq as bigint;
create sequence pgps_internal.composite_row_seq as bigint;

create table pgps_internal.composite (
    composite_id bigint generated always as identity primary key,
    type_id integer not null unique references pgps_internal.event_type on delete cascade,
    owner regrole not null,
    -- What is open belongs to a state; a new number forgets it.
    state_id bigint not null default nextval('pgps_internal.composite_state_seq'),
    expression text not null,
    context text not null,
    partition_by text,
    within interval,
    filter text,
    attributes text,
    scope text not null check (scope in ('local', 'global')),
    time_basis text not null,
    lateness interval not null,
    start text not null,
    max_open integer,
    environment jsonb not null,
    -- The arguments of the definition as the detector takes them, and what was found in them when it was parsed.
    given jsonb not null,
    parsed jsonb not null,
    -- Of one that a neighbour has asked for: the brokers of the sources that its leaves name; null: those of this
    -- broker.
    sources jsonb,
    enabled boolean not null default true,
    last_error text,
    began_at timestamptz not null,
    after_batch bigint not null,
    created_at timestamptz not null
);

-- The events that a composite event is made of, in the order of its expression; each is a hidden subscription, but for
-- those that a neighbour detects in. What it detects is one more leaf, behind those of the expression.
create table pgps_internal.composite_leaf (
    composite_id bigint not null references pgps_internal.composite on delete cascade,
    leaf integer not null,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    subscription_id bigint unique,
    source text,
    -- Events that a rule published at the other moment are left out; null: none are.
    moment text,
    primary key (composite_id, leaf)
);
create index composite_leaf_type_idx on pgps_internal.composite_leaf (type_id);

-- Sub-expressions that a neighbour is asked to detect, named by their nodes, and the leaves in them. name: the event
-- type by which it tells what it has detected. leaf: the number of that among the leaves. resets: [number, keys or
-- null] of each time that what is open was forgotten. answered: it detects; reason: why it does not, or does no
-- longer.
create table pgps_internal.composite_part (
    name text primary key,
    composite_id bigint not null references pgps_internal.composite on delete cascade,
    leaf integer not null,
    broker_id uuid not null,
    broker text not null,
    nodes text[] not null,
    leaves integer[] not null,
    given jsonb not null,
    resets jsonb not null default '[]',
    answered boolean not null default false,
    reason text
);
create index composite_part_idx on pgps_internal.composite_part (composite_id);

-- What this broker detects for a neighbour: a composite event, or why it does not. reset_no: the last reset that was
-- heard of; neighbour_id: as which it has asked.
create table pgps_internal.hosted_part (
    name text primary key,
    broker_id uuid not null,
    neighbour_id integer not null,
    composite_id bigint references pgps_internal.composite on delete set null,
    asked jsonb not null,
    reset_no bigint not null default 0,
    reason text
);
create index hosted_part_idx on pgps_internal.hosted_part (composite_id);

-- Whether the broker at the other end can be asked to detect.
alter table pgps_internal.neighbour add column detects boolean not null default false;

-- The attribute by which the events of a type are taken in order, where the time basis is event.
create table pgps_internal.time_attribute (
    type_id integer primary key references pgps_internal.event_type on delete cascade,
    name text not null
);

-- Logical names of applications, for leaves: a broker and, where given, one client there.
create table pgps_internal.source (
    name text primary key,
    broker text not null,
    client text,
    owner regrole not null,
    created_at timestamptz not null
);

-- Taken by who detects: shared among the workers, alone by who detects everything.
create table pgps_internal.turn_of_detection (held boolean);

-- Sessions of workers that detect.
create table pgps_internal.detecting (
    pid integer primary key,
    started_at timestamptz not null
);

-- The parts in which a composite event is detected, each by one session at a time. A key belongs to the share that its
-- hash leaves when it is divided by the number of shares.
create table pgps_internal.composite_share (
    composite_id bigint not null references pgps_internal.composite on delete cascade,
    share integer not null,
    shares integer not null,
    primary key (composite_id, share)
);

-- How far each share of a composite event is: its newest row counts. now: microseconds up to which all has come;
-- heard: when each source was last heard of (time basis event); the rest are totals, and when a source will be idle.
create table pgps_internal.composite_step (
    row_id bigint not null default nextval('pgps_internal.composite_row_seq'),
    composite_id bigint not null,
    share integer not null,
    state_id bigint not null,
    batch_id bigint not null,
    ordering jsonb not null,
    heard jsonb,
    idle_at timestamptz,
    open bigint not null,
    keys bigint not null,
    detected bigint not null,
    late bigint not null,
    given_up bigint not null,
    stepped_at timestamptz not null
) partition by list (((row_id / 262144) % 4));
create index composite_step_idx on pgps_internal.composite_step (composite_id, share, row_id desc);

-- What there is once for each partition key: its newest row counts. live: the serials of open occurrences that still
-- count, those behind born; version 0: nothing is left of the key.
create table pgps_internal.composite_key (
    row_id bigint not null default nextval('pgps_internal.composite_row_seq'),
    state_id bigint not null,
    key text not null,
    born bigint not null,
    version integer not null,
    serial bigint not null,
    clock numeric not null,
    ticked bigint,
    due bigint,
    live int8multirange not null
) partition by list (((row_id / 262144) % 4));
create index composite_key_idx on pgps_internal.composite_key (state_id, key, row_id desc);
create index composite_key_due_idx on pgps_internal.composite_key (state_id, due) where due is not null;

-- Open occurrences, which never change. Slot -1: an event that waits for the watermark.
create table pgps_internal.composite_open (
    row_id bigint not null default nextval('pgps_internal.composite_row_seq'),
    state_id bigint not null,
    key text not null,
    node text not null,
    slot integer not null,
    serial bigint,
    start_at numeric not null,
    data json not null
) partition by list (((row_id / 262144) % 4));
create index composite_open_idx on pgps_internal.composite_open (state_id, key, serial);
create index composite_held_idx on pgps_internal.composite_open (state_id, key, start_at) where slot = -1;

-- Detections on their way into the log, as arrays that are matched by place. Times are microseconds since 1970; points
-- tell what is first among equal times; bound: what the names in attributes stand for.
create type pgps_internal.detections as (
    starts bigint[],
    ends bigint[],
    detected bigint[],
    start_points numeric[],
    end_points numeric[],
    constituents text[],
    bound text[]
);

-- Rules that run in the publisher's transaction: internal subscriptions that no dispatch matches.
create table pgps_internal.coupled_rule (
    subscription_id bigint primary key references pgps_internal.subscription on delete cascade,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    coupling text not null check (coupling in ('deferred', 'immediate'))
);
create index coupled_rule_type_idx on pgps_internal.coupled_rule (type_id);

-- How far the rules are in a transaction that publishes for them: the newest row counts. before: the event id before
-- the first of its events; done: up to which its events have been taken; type_ids: what it has published; depth: how
-- many rules deep; is_due: rules are to run before it commits; numbered: some of its events have producers' numbers, so
-- repeats are looked for.
create sequence pgps_internal.coupling_row_seq as bigint;
create table pgps_internal.coupling_mark (
    row_id bigint not null default nextval('pgps_internal.coupling_row_seq'),
    xid xid8 not null default pg_current_xact_id(),
    coupling text not null,
    before bigint not null,
    done bigint not null,
    type_ids integer[] not null,
    depth integer not null,
    is_due boolean not null,
    numbered boolean not null
) partition by list (((row_id / 65536) % 4));
create index coupling_mark_idx on pgps_internal.coupling_mark (xid, coupling, row_id desc);

-- At which moment rules published the events of a transaction behind an id, where somebody asks for it: the newest row
-- before an event counts; null: no rule did.
create sequence pgps_internal.rule_moment_seq as bigint;
create table pgps_internal.rule_moment (
    row_id bigint not null default nextval('pgps_internal.rule_moment_seq'),
    after_event bigint not null,
    xid xid8 not null default pg_current_xact_id(),
    type_id integer not null,
    moment text
) partition by list (((after_event / 65536) % 4));
create index rule_moment_idx on pgps_internal.rule_moment (xid, type_id, row_id desc);

do $$
declare
    v_ledger text;
    v_slot integer;
begin
    foreach v_ledger in array array[
        'composite_step', 'composite_key', 'composite_open', 'coupling_mark', 'rule_moment'
    ] loop
        for v_slot in 0..3 loop
            execute format('create table pgps_internal.%I partition of pgps_internal.%I for values in (%s)',
                v_ledger || '_' || v_slot, v_ledger, v_slot);
        end loop;
    end loop;
    for v_slot in 0..3 loop
        execute format('alter table pgps_internal.coupling_mark_%s set unlogged', v_slot);
    end loop;
end
$$;

-- At which moment of a statement a rule publishes.
alter table pgps_internal.rule add column moment text not null default 'end' check (moment in ('begin', 'end'));

-- Events that came when the watermark had passed their time, or without a time.
create table pgps_internal.composite_late (
    composite_id bigint not null references pgps_internal.composite on delete cascade,
    type_id integer not null,
    event_id bigint,
    at timestamptz,
    reason text not null,
    noted_at timestamptz not null
);
create index composite_late_idx on pgps_internal.composite_late (composite_id, noted_at);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0019')
on conflict (key) do update set value = excluded.value;
