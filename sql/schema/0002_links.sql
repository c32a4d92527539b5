-- breaking: no
-- Links between brokers: who is who, what each neighbour was told, what was sent and received. See docs/decisions/0009-links.md.

do $$
begin
    if not exists (select from pg_catalog.pg_roles where rolname = 'pgps_link') then
        create role pgps_link nologin;
    end if;
    if not exists (select from pg_catalog.pg_roles where rolname = 'pgps_neighbour') then
        create role pgps_neighbour nologin;
    end if;
end
$$;

-- What sessions of links name in COPY: for each event type a view of what is to be sent, and the segments of the log (decision 0014).
create schema pgps_link;
grant usage on schema pgps_link to pgps_link, pgps_worker, pgps_admin;

-- This broker; made when it is first asked for, so that a database cloned before has an identity of its own.
create table pgps_internal.broker (
    is_only boolean primary key default true check (is_only),
    broker_id uuid not null,
    epoch integer not null,
    incarnation text not null,
    state text not null default 'active' check (state in ('active', 'restored'))
);

alter table pgps_internal.link
    add column role regrole,
    add column state text not null default 'defined',
    add column last_error text,
    add column hint text,
    add column changed_at timestamptz not null default clock_timestamp();

-- It has one more argument now.
drop function if exists pgps.create_link(text, text, text);
drop function if exists pgps.drop_link(text);

create table pgps_internal.neighbour (
    neighbour_id integer generated always as identity primary key,
    broker_id uuid not null unique,
    epoch integer not null,
    name text not null,
    role regrole not null,
    link_id integer unique references pgps_internal.link on delete set null,
    direction text not null check (direction in ('both', 'in', 'out')),
    subscription_id bigint not null references pgps_internal.subscription,
    -- The link is being dropped, by one of the two; here: then its definition goes, too. Nothing more comes from there.
    is_draining boolean not null default false,
    is_dropped_here boolean not null default false,
    has_sent_all boolean not null default false,
    is_blocked boolean not null default false,
    last_error text,
    created_at timestamptz not null default clock_timestamp()
);

-- Event types on which pgps_neighbour was given rights once: what is revoked then stays so.
create table pgps_internal.lent (
    type_id integer primary key references pgps_internal.event_type on delete cascade,
    lent_at timestamptz not null default clock_timestamp()
);

-- Which sessions carry what for a neighbour, on this broker; a lease as long as the session lives.
create table pgps_internal.link_session (
    neighbour_id integer not null references pgps_internal.neighbour on delete cascade,
    duty text not null check (duty in ('send', 'receive')),
    holder text not null,
    caller name not null,
    since timestamptz not null default clock_timestamp(),
    primary key (neighbour_id, duty)
);

-- Where events are published: a broker in one of its epochs. Batches of an earlier epoch of this broker end at to_batch.
create table pgps_internal.origin (
    origin_id integer generated always as identity primary key,
    broker_id uuid not null,
    epoch integer not null,
    name text not null,
    is_self boolean not null default false,
    from_batch bigint not null default 0,
    to_batch bigint,
    parent integer references pgps_internal.neighbour on delete set null,
    attachment integer not null default 0,
    is_settled boolean not null default false,
    rewind_start bigint,
    rewind_from bigint,
    rewind_to bigint,
    rewind_keep text[] not null default '{}',
    unique (broker_id, epoch)
);

-- What neighbours offer: how far it is to an origin through them, and what it publishes.
create table pgps_internal.offer (
    neighbour_id integer not null references pgps_internal.neighbour on delete cascade,
    origin_id integer not null references pgps_internal.origin,
    path uuid[] not null,
    cost integer not null,
    types text[] not null,
    primary key (neighbour_id, origin_id)
);

create table pgps_internal.foreign_type (
    neighbour_id integer not null references pgps_internal.neighbour on delete cascade,
    name text not null,
    definition jsonb not null,
    difference text,
    primary key (neighbour_id, name)
);

-- Filters as they travel: the pushed part of a subscription's, or what a neighbour has sent. No text: every event of the type.
create table pgps_internal.filter (
    key text primary key,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    filter text,
    constant_types text[],
    environment jsonb not null,
    shape text,
    constants text[],
    bounds text[]
);
create index filter_shape_idx on pgps_internal.filter (type_id, md5(shape));

-- Every event of key's is one of by_key's, too.
create table pgps_internal.cover (
    key text not null references pgps_internal.filter on delete cascade,
    by_key text not null references pgps_internal.filter on delete cascade,
    primary key (key, by_key)
);
create index cover_by_idx on pgps_internal.cover (by_key);

create table pgps_internal.pushed (
    subscription_id bigint not null references pgps_internal.subscription on delete cascade,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    key text not null references pgps_internal.filter on delete cascade,
    primary key (subscription_id, type_id)
);

create table pgps_internal.wanted (
    neighbour_id integer not null references pgps_internal.neighbour on delete cascade,
    -- The neighbour's name for it: an own filter of that key may be another one.
    known_as text not null,
    key text not null references pgps_internal.filter on delete cascade,
    class_id bigint not null,
    -- Taken back; matched until what was dispatched before is packed.
    gone_batch bigint,
    primary key (neighbour_id, known_as)
);

-- Origins for which a neighbour has made this broker its parent.
create table pgps_internal.attached (
    neighbour_id integer not null references pgps_internal.neighbour on delete cascade,
    origin_id integer not null references pgps_internal.origin,
    attachment integer not null,
    horizon bigint not null,
    keep text[] not null,
    is_live boolean not null default false,
    -- From where on it, or somebody behind it, may ask again.
    low bigint not null,
    primary key (neighbour_id, origin_id)
);

-- What a neighbour has been told; what it should know follows from the other tables, and the difference is sent.
create table pgps_internal.told (
    neighbour_id integer not null references pgps_internal.neighbour on delete cascade,
    kind text not null,
    key text not null,
    value jsonb not null,
    primary key (neighbour_id, kind, key)
);

-- From which batch of an origin on a filter has been in force here without a break.
create table pgps_internal.activation (
    origin_id integer not null references pgps_internal.origin,
    key text not null references pgps_internal.filter on delete cascade,
    since bigint not null,
    is_confirmed boolean not null,
    primary key (origin_id, key)
);

-- Events that this broker's constraints refused, and gaps (of no type); shown among the exceptions.
create table pgps_internal.rejected (
    rejected_id bigint generated always as identity primary key,
    neighbour_id integer references pgps_internal.neighbour on delete set null,
    neighbour text not null,
    publisher regrole not null,
    type_id integer references pgps_internal.event_type on delete cascade,
    origin_id integer not null references pgps_internal.origin,
    origin_batch bigint not null,
    origin_event bigint,
    payload jsonb,
    published_at timestamptz,
    attempts integer not null default 1,
    sqlstate text not null,
    error text not null,
    failed_at timestamptz not null default clock_timestamp()
);

-- Batches of an origin that this broker has been told are trimmed; its children are told in turn.
create table pgps_internal.gap (
    origin_id integer not null references pgps_internal.origin,
    after_batch bigint not null,
    upto bigint not null,
    primary key (origin_id, after_batch, upto)
);

-- How far a log has been truncated; see rule 4 of the horizon.
create table pgps_internal.trimmed (
    type_id integer primary key references pgps_internal.event_type on delete cascade,
    event_id bigint not null
);

-- What a batch has for a neighbour of one type, and of which batch of which origin it was.
create type pgps_internal.parcel as (
    batch_id bigint,
    type_id integer,
    ids int8multirange,
    origin_id integer,
    upto bigint
);

-- The events of one type in an item.
create type pgps_internal.slice as (
    type_id integer,
    ids int8multirange
);

create sequence pgps_internal.shipment_id_seq as bigint;
create table pgps_internal.shipment (
    shipment_id bigint not null default nextval('pgps_internal.shipment_id_seq'),
    neighbour_id integer not null,
    lseq bigint not null,
    kind text not null,
    origin_id integer,
    attachment integer,
    previous bigint,
    upto bigint,
    batch_id bigint,
    events integer not null default 0,
    slices pgps_internal.slice[],
    body jsonb,
    created_at timestamptz not null default clock_timestamp()
) partition by list (((shipment_id / 65536) % 4));
create index shipment_idx on pgps_internal.shipment (neighbour_id, lseq);
create index shipment_origin_idx on pgps_internal.shipment (neighbour_id, origin_id, lseq) where upto is not null;

create sequence pgps_internal.arrival_id_seq as bigint;
create table pgps_internal.arrival (
    arrival_id bigint not null default nextval('pgps_internal.arrival_id_seq'),
    neighbour_id integer not null,
    lseq bigint not null,
    mark text not null,
    origin_id integer,
    attachment integer,
    upto bigint,
    horizon bigint,
    events integer not null default 0,
    lo bigint,
    hi bigint,
    ids int8multirange,
    hops jsonb,
    received_at timestamptz not null default clock_timestamp()
) partition by list (((arrival_id / 65536) % 4));
create index arrival_idx on pgps_internal.arrival (neighbour_id, lseq);
create index arrival_origin_idx on pgps_internal.arrival (origin_id, arrival_id) where origin_id is not null;
create index arrival_events_idx on pgps_internal.arrival (hi) where hi is not null;

do $$
declare
    v_ledger text;
    v_slot integer;
begin
    foreach v_ledger in array array['shipment', 'arrival'] loop
        for v_slot in 0..3 loop
            execute format('create table pgps_internal.%I partition of pgps_internal.%I for values in (%s)',
                v_ledger || '_' || v_slot, v_ledger, v_slot);
        end loop;
    end loop;
end
$$;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0002')
on conflict (key) do update set value = excluded.value;
