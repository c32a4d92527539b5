-- breaking: no
-- Clients: names with a session number, what they have registered for, where they are. See docs/decisions/0015-clients.md.

-- Who is to handle what a statement raised (null: as its type says), and the client that raised it.
alter table pgps_internal.control
    add column handler text constraint handler_is_all_raiser_or_any check (handler in ('all', 'raiser', 'any')),
    add column client_id bigint;
alter type pgps_internal.message
    add attribute handler text,
    add attribute client_id bigint,
    add attribute lo bigint,
    add attribute hi bigint;

-- An event with where it stands: the note it came by, the registration it is for, the client that raised it, its occurrence's first event.
create type pgps_internal.handed as (
    note integer,
    event_name text,
    raiser text,
    occurrence bigint,
    message pgps_internal.message
);

-- It has two more arguments now.
drop function if exists pgps_internal.publish_as(name, text, jsonb, text, bigint, text, text);

-- A client, and its newest session: whose backend it is, and whether it said good-bye.
create table pgps_internal.client (
    client_id bigint generated always as identity primary key,
    name text not null unique,
    owner regrole not null,
    session bigint not null default 0,
    holder text,
    pid integer,
    address inet,
    connected_at timestamptz,
    -- Who may hear what is pushed to the session: the role that connected it, by a channel that nobody else knows.
    connected_as regrole,
    secret text,
    disconnected boolean,
    created_at timestamptz not null default clock_timestamp()
);

create table pgps_internal.registration (
    registration_id bigint generated always as identity primary key,
    client_id bigint not null references pgps_internal.client on delete cascade,
    event_name text not null,
    is_pattern boolean not null,
    mode text not null check (mode in ('direct', 'queued')),
    style text not null check (style in ('handler', 'polling')),
    subscription_id bigint unique references pgps_internal.subscription on delete cascade,
    state text not null default 'valid' check (state in ('valid', 'invalid')),
    reason text,
    -- Of a direct one: how often it was not reached, since which batch, and when it is tried again.
    attempts integer not null default 0,
    missed_batch bigint,
    due_at timestamptz,
    registered_at timestamptz not null default clock_timestamp(),
    unique (client_id, event_name),
    check (mode = 'direct' or subscription_id is not null)
);
create index registration_due_idx on pgps_internal.registration (due_at) where mode = 'direct';
create index registration_pattern_idx on pgps_internal.registration (registration_id) where is_pattern;

-- The event types a registration is about: of a prefix, those that its client's owner might see one day, too.
create table pgps_internal.registration_type (
    registration_id bigint not null references pgps_internal.registration on delete cascade,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    primary key (type_id, registration_id)
);
create index registration_type_idx on pgps_internal.registration_type (registration_id);

-- Where a client is: the newest row of a client counts, and the newest completed one of a client and of a registration.
create sequence pgps_internal.client_mark_id_seq as bigint;
create table pgps_internal.client_mark (
    mark_id bigint not null default nextval('pgps_internal.client_mark_id_seq'),
    client_id bigint not null,
    registration_id bigint not null,
    batch_id bigint not null,
    type_id integer not null,
    xid xid8 not null,
    lo bigint not null,
    hi bigint not null,
    first_event bigint not null,
    last_event bigint not null,
    tuples bigint not null,
    attempt integer not null,
    completed boolean not null
) partition by list (((mark_id / 16384) % 4));
create index client_mark_client_idx on pgps_internal.client_mark (client_id, mark_id desc);
create index client_mark_completed_idx on pgps_internal.client_mark (client_id, mark_id desc) where completed;
create index client_mark_registration_idx on pgps_internal.client_mark (registration_id, mark_id desc) where completed;

-- Checkpoints: the newest row of a client and kind counts; a large one is a row of its own, in client_blob, and here is its length only.
create sequence pgps_internal.client_checkpoint_id_seq as bigint;
create table pgps_internal.client_checkpoint (
    checkpoint_id bigint not null default nextval('pgps_internal.client_checkpoint_id_seq'),
    client_id bigint not null,
    kind text not null,
    bytes bigint not null,
    data bytea
) partition by list (((checkpoint_id / 16384) % 4));
create index client_checkpoint_idx on pgps_internal.client_checkpoint (client_id, kind, checkpoint_id desc);

create table pgps_internal.client_blob (
    client_id bigint not null references pgps_internal.client on delete cascade,
    kind text not null,
    data bytea not null,
    primary key (client_id, kind)
);
-- It is written often and read seldom; what a program keeps is as a rule compressed already.
alter table pgps_internal.client_blob alter column data set storage external;

-- Which client was chosen for a statement whose handler is "any".
create table pgps_internal.appointment (
    batch_id bigint not null,
    type_id integer not null,
    xid xid8 not null,
    hi bigint not null,
    client_id bigint not null
) partition by list (((batch_id / 4096) % 4));
create index appointment_idx on pgps_internal.appointment (hi, xid);

-- Requests, tries, replies, and the rows of replies, by the number of the request.
create sequence pgps_internal.request_no_seq as bigint;
create table pgps_internal.request (
    request_no bigint not null default nextval('pgps_internal.request_no_seq'),
    client_id bigint not null,
    request_id bigint not null,
    role regrole not null,
    request text,
    environment jsonb not null,
    sent_at timestamptz not null default clock_timestamp()
) partition by list (((request_no / 4096) % 4));
create index request_no_idx on pgps_internal.request (request_no);
create index request_client_idx on pgps_internal.request (client_id, request_id desc);

create table pgps_internal.request_attempt (
    request_no bigint not null,
    holder text not null,
    started_at timestamptz not null default clock_timestamp()
) partition by list (((request_no / 4096) % 4));
create index request_attempt_idx on pgps_internal.request_attempt (request_no);

create table pgps_internal.reply (
    request_no bigint not null,
    client_id bigint not null,
    request_id bigint not null,
    status text not null,
    columns text[],
    row_count bigint,
    sqlstate text,
    error text,
    detail text,
    hint text,
    attempts integer not null,
    replied_at timestamptz not null default clock_timestamp()
) partition by list (((request_no / 4096) % 4));
create index reply_no_idx on pgps_internal.reply (request_no);
create index reply_client_idx on pgps_internal.reply (client_id, request_id desc);

create table pgps_internal.reply_rows (
    request_no bigint not null,
    from_row bigint not null,
    upto bigint not null,
    payloads jsonb[] not null
) partition by list (((request_no / 64) % 4));
create index reply_rows_idx on pgps_internal.reply_rows (request_no, upto);

-- How far a client is with its replies: the newest row counts.
create sequence pgps_internal.reply_mark_id_seq as bigint;
create table pgps_internal.reply_mark (
    mark_id bigint not null default nextval('pgps_internal.reply_mark_id_seq'),
    client_id bigint not null,
    received bigint,
    committed bigint
) partition by list (((mark_id / 16384) % 4));
create index reply_mark_idx on pgps_internal.reply_mark (client_id, mark_id desc);

-- Whose requests are executed just now: the row is locked meanwhile, and never changed.
create table pgps_internal.client_turn (
    client_id bigint primary key references pgps_internal.client on delete cascade
);

do $$
declare
    v_ledger text;
    v_slot integer;
begin
    foreach v_ledger in array array['client_mark', 'client_checkpoint', 'appointment', 'request', 'request_attempt', 'reply', 'reply_rows', 'reply_mark'] loop
        for v_slot in 0..3 loop
            execute format('create table pgps_internal.%I partition of pgps_internal.%I for values in (%s)',
                v_ledger || '_' || v_slot, v_ledger, v_slot);
        end loop;
    end loop;
end
$$;

-- Confirming events: a link has a subscription of its own to the original, owned by who made the link.
create table pgps_internal.confirm_link (
    link_id integer generated always as identity primary key,
    confirming integer not null references pgps_internal.event_type on delete cascade,
    original integer not null references pgps_internal.event_type on delete cascade,
    owner regrole not null,
    subscription_id bigint not null unique references pgps_internal.subscription,
    last_error text,
    created_at timestamptz not null default clock_timestamp(),
    unique (confirming, original)
);
create index confirm_link_original_idx on pgps_internal.confirm_link (original);

-- Events raised at once whose raising transaction still ran when they were looked at.
create table pgps_internal.confirm_open (
    link_id integer not null references pgps_internal.confirm_link on delete cascade,
    raiser xid8 not null,
    ids int8multirange not null
);
create index confirm_open_idx on pgps_internal.confirm_open (link_id);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0003')
on conflict (key) do update set value = excluded.value;
