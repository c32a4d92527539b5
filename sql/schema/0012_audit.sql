-- breaking: no
-- What every broker counts of what it sends and receives.

-- How many events of a type came with an item; those that were here already are not counted.
create type pgps_internal.tally as (
    type_id integer,
    events bigint
);
alter table pgps_internal.arrival add column tallies pgps_internal.tally[];

-- An older broker does not understand what is said of counts.
alter table pgps_internal.neighbour add column is_audited boolean not null default false;

-- Up to which batch of an origin what it says was compared; of this broker itself: up to which batch its own events
-- are counted.
create table pgps_internal.audited (
    origin_id integer primary key references pgps_internal.origin,
    batch_id bigint not null,
    -- All that came before this row of the ledger is compared.
    arrival_id bigint not null default 0,
    audited_at timestamptz not null
);

-- What an origin says of its events of a type: how many, the sum over their batches, and the contents of some; and
-- what was compared with it.
create table pgps_internal.audit_point (
    origin_id integer not null references pgps_internal.origin,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    events bigint not null,
    places numeric not null,
    contents bigint not null,
    shape text,
    -- From which batch on this holds, without a gap or a refused event on the way here; the contents from a later one.
    since bigint not null,
    contents_since bigint not null,
    -- The same, of what is known here.
    here_since bigint not null default 0,
    there bigint not null default 0,
    here bigint not null default 0,
    compared integer not null default 0,
    primary key (origin_id, type_id)
);

-- What a neighbour was told of it.
create table pgps_internal.audit_told (
    neighbour_id integer not null references pgps_internal.neighbour on delete cascade,
    origin_id integer not null references pgps_internal.origin,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    attachment integer not null,
    value jsonb,
    since bigint not null,
    rights text,
    told_at timestamptz not null,
    primary key (neighbour_id, origin_id, type_id)
);

-- What came from a neighbour and is in the ledger of arrivals no more.
create table pgps_internal.audit_hop (
    neighbour_id integer not null references pgps_internal.neighbour on delete cascade,
    origin_id integer not null references pgps_internal.origin,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    events bigint not null,
    primary key (neighbour_id, origin_id, type_id)
);

-- Where counts or digests differ. One row for each place, until an administrator has seen it; further windows are
-- added to it.
create table pgps_internal.audit_finding (
    finding_id bigint generated always as identity primary key,
    kind text not null check (kind in ('hop', 'end', 'here')),
    what text not null check (what in ('count', 'places', 'contents')),
    neighbour text not null,
    origin_id integer not null references pgps_internal.origin,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    after_batch bigint not null,
    upto bigint not null,
    there bigint not null,
    here bigint not null,
    windows integer not null default 1,
    found_at timestamptz not null,
    last_found_at timestamptz not null,
    unique (kind, what, neighbour, origin_id, type_id)
);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0012')
on conflict (key) do update set value = excluded.value;
