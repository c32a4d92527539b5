-- breaking: no
-- Spools: messages for a group that may be away (decision 43).

-- Networks of other brokers, and their contact points: each gets every message that is spooled there. username and
-- passfile are for contacts that have none of their own. holder: the session that manages the connection.
create table pgps_internal.network (
    network_id integer generated always as identity primary key,
    name text not null unique,
    username text,
    passfile text,
    created_at timestamptz not null default pgps._clock()
);
create table pgps_internal.network_contact (
    contact_id bigint generated always as identity primary key,
    network_id integer not null references pgps_internal.network on delete cascade,
    place integer not null,
    conninfo text not null,
    state text not null default 'defined',
    last_error text,
    hint text,
    changed_at timestamptz not null default pgps._clock(),
    holder text,
    pid integer,
    unique (network_id, conninfo)
);

-- Networks that spool here, by the broker that sends and its number of the network: one that is dropped and made again
-- counts anew. gaps: messages that this broker lost when it was restored.
create table pgps_internal.network_origin (
    origin_id bigint generated always as identity primary key,
    broker_id uuid not null,
    network_id integer not null,
    network text not null,
    epoch integer not null,
    name text not null,
    gaps bigint not null default 0,
    unique (broker_id, network_id)
);

create table pgps_internal.spool (
    spool_id integer generated always as identity primary key,
    -- Not null: what waits for the contact points of a network. Nobody uses such a spool by its name.
    network_id integer unique references pgps_internal.network on delete cascade,
    name text not null unique,
    owner regrole not null,
    -- The event type of what it is asked for: the same for all spools, read with each call.
    type_id integer not null,
    persistent boolean not null,
    max_messages bigint check (max_messages > 0),
    max_bytes bigint check (max_bytes > 0),
    retention interval,
    on_limit text not null check (on_limit in ('refuse', 'drop_oldest')),
    play_through boolean not null default true,
    -- The roles, besides the owner's, that may spool into it, or replay it; role 0 (-) is public.
    spoolers regrole[] not null default '{}',
    replayers regrole[] not null default '{}',
    -- One message is spooled without a look at limits (sql/code/spools/spool_one.sql), under a name that is as given.
    is_plain boolean not null generated always as (network_id is null and max_bytes is null
        and (max_messages is null or on_limit = 'drop_oldest') and name ~ '^[a-z_][a-z0-9_]*$') stored,
    created_at timestamptz not null default pgps._clock()
);

-- What is stored, by the number that a message got when it was dispatched. A slot is a segment of the store, for all
-- spools: the first eight are logged, the last four, for spools that are not persistent, are not. One of each kind is
-- written; what is left of one that is mostly discarded is copied into that, and the slot is truncated.
create table pgps_internal.spool_message (
    slot smallint not null,
    spool_id integer not null,
    seqn bigint not null,
    id bigint not null,
    entry integer not null,
    message jsonb not null,
    keys jsonb,
    keywords text[],
    expires timestamptz,
    sender text not null,
    spooler text not null,
    spooled_at timestamptz not null,
    is_checkpoint boolean not null,
    bytes integer not null
) partition by list (slot);
create index spool_message_seqn_idx on pgps_internal.spool_message (spool_id, seqn);
create index spool_message_id_idx on pgps_internal.spool_message (id);
create index spool_message_checkpoint_idx on pgps_internal.spool_message (spool_id, seqn) where is_checkpoint;
create index spool_message_expires_idx on pgps_internal.spool_message (spool_id, expires) where expires is not null;

-- place: the ctid of the message, which stays while the slot does, since messages are neither updated nor deleted.
-- Whether it may be used is asked first: see spool_slot.
create table pgps_internal.spool_key (
    slot smallint not null,
    spool_id integer not null,
    seqn bigint not null,
    name text not null,
    value numeric not null,
    place tid not null
) partition by list (slot);
create index spool_key_idx on pgps_internal.spool_key (spool_id, name, value, seqn) include (place, slot);

-- Messages that were discarded by a pattern, or cancelled, and are still in the store. What was discarded without a
-- pattern is a range: spool_state.emptied.
create table pgps_internal.spool_gone (
    slot smallint not null,
    spool_id integer not null,
    seqn bigint not null
) partition by list (slot);
create index spool_gone_idx on pgps_internal.spool_gone (spool_id, seqn);

do $$
declare
    v_table text;
    v_slot integer;
begin
    foreach v_table in array array['spool_message', 'spool_key', 'spool_gone'] loop
        for v_slot in 0..11 loop
            execute format('create %s table pgps_internal.%I partition of pgps_internal.%I for values in (%s)',
                case when v_slot < 8 then '' else 'unlogged' end, v_table || '_' || v_slot, v_table, v_slot);
        end loop;
    end loop;
end
$$;

-- Which slots are written, and how much was discarded when reclaim looked for something to copy last; one row.
create table pgps_internal.spool_store (
    logged_slot smallint not null,
    unlogged_slot smallint not null,
    dropped bigint not null,
    looked_at bigint not null
);
insert into pgps_internal.spool_store (logged_slot, unlogged_slot, dropped, looked_at) values (0, 8, 0, 0);

-- In which file of which database a slot was begun; null: there is nothing in it. When it is another one now (the
-- database was dumped and restored, or the slot was rewritten by vacuum full), places are not valid, and messages are
-- looked up by their numbers.
create table pgps_internal.spool_slot (
    slot smallint primary key,
    begun_in text
);
insert into pgps_internal.spool_slot (slot) select generate_series(0, 11);

-- The standing of a spool after a batch that asked for something: the newest row counts. Only the dispatcher writes it.
create table pgps_internal.spool_state (
    batch_id bigint not null,
    spool_id integer not null,
    lowest bigint not null,
    last_seqn bigint not null,
    replay_pointer bigint,
    checkpoint_pointer bigint,
    messages bigint not null,
    bytes bigint not null,
    discarded bigint not null,
    emptied int8multirange not null
) partition by list (((batch_id / 4096) % 4));
create index spool_state_idx on pgps_internal.spool_state (spool_id, batch_id desc);

-- Messages that a limit, or the retention, has discarded. Members are told of a limit by a row with the id of the gap.
create table pgps_internal.spool_gap (
    gap_id bigint not null default nextval('pgps_internal.event_id_seq'),
    spool_id integer not null references pgps_internal.spool on delete cascade,
    first_seqn bigint not null,
    last_seqn bigint not null,
    messages bigint not null,
    reason text not null,
    noted_at timestamptz not null default pgps._clock()
);
create index spool_gap_idx on pgps_internal.spool_gap (spool_id, last_seqn);
create index spool_gap_id_idx on pgps_internal.spool_gap (gap_id);

-- Requests that were taken back, until the dispatcher has taken note of it.
create table pgps_internal.spool_cancelled (
    id bigint primary key,
    spool_id integer not null references pgps_internal.spool on delete cascade,
    request bigint not null
);

-- The members of a group; session: that of the client in which it joined, null when it has left.
create table pgps_internal.spool_member (
    member_id bigint generated always as identity primary key,
    spool_id integer not null references pgps_internal.spool on delete cascade,
    client_id bigint not null references pgps_internal.client on delete cascade,
    session bigint,
    ready boolean not null,
    joined_at timestamptz not null default pgps._clock(),
    unique (spool_id, client_id)
);
create index spool_member_client_idx on pgps_internal.spool_member (client_id);

-- A replay: what it repeats (from first_seqn to last_seqn, if they match the pattern), and after which number what is
-- new begins (start, checkpoints_upto: see spool_mark). Its id is that of the marker that ends it. It has no numbers
-- yet when the spool was asked for something before that is not dispatched. Members go from one replay to the next, in
-- the order of the ids.
create table pgps_internal.spool_replay (
    replay_id bigint primary key,
    spool_id integer not null references pgps_internal.spool on delete cascade,
    members bigint[] not null,
    pattern jsonb not null,
    first_seqn bigint,
    last_seqn bigint,
    start bigint,
    checkpoints_upto bigint,
    repeated int8multirange,
    replayed_at timestamptz not null default pgps._clock()
);
create index spool_replay_spool_idx on pgps_internal.spool_replay (spool_id, replay_id);

-- Where a member is: the newest row counts. The phase is r (replay), m (its marker) or n (what is new); seqn: up to
-- which it has acknowledged in that phase; got: up to which it was handed out, and how many since. start: after which
-- number what is new begins; skip: what is not new to it; acked, had: of what is new, what it ever acknowledged, and
-- what it ever got. seen: the newest replay that it has begun, or need not begin.
create sequence pgps_internal.spool_mark_id_seq as bigint;
create table pgps_internal.spool_mark (
    mark_id bigint not null default nextval('pgps_internal.spool_mark_id_seq'),
    member_id bigint not null,
    replay_id bigint,
    phase "char" not null,
    seqn bigint not null,
    got_phase "char" not null,
    got_seqn bigint not null,
    got_id bigint,
    got_count bigint not null,
    start bigint not null,
    checkpoints_upto bigint,
    skip int8multirange not null,
    acked int8multirange not null,
    had int8multirange not null,
    seen bigint not null
) partition by list (((mark_id / 16384) % 4));
create index spool_mark_idx on pgps_internal.spool_mark (member_id, mark_id desc);

-- How far a line is: the newest row counts. A line is a contact point, or as a negative number an origin; handed: up to
-- which number of the spool of the network messages were read to be sent, upto: up to which they have arrived.
create sequence pgps_internal.network_mark_id_seq as bigint;
create table pgps_internal.network_mark (
    mark_id bigint not null default nextval('pgps_internal.network_mark_id_seq'),
    line bigint not null,
    handed bigint not null,
    upto bigint not null,
    marked_at timestamptz not null default pgps._clock()
) partition by list (((mark_id / 16384) % 4));
create index network_mark_idx on pgps_internal.network_mark (line, mark_id desc);

do $$
declare
    v_ledger text;
    v_slot integer;
begin
    foreach v_ledger in array array['spool_state', 'spool_mark', 'network_mark'] loop
        for v_slot in 0..3 loop
            execute format('create table pgps_internal.%I partition of pgps_internal.%I for values in (%s)',
                v_ledger || '_' || v_slot, v_ledger, v_slot);
        end loop;
    end loop;
end
$$;

-- Messages that are handed out: a cursor over them, how many, and the number and the id of the last.
create type pgps_internal.spooled_part as (
    phase "char",
    portal text,
    messages bigint,
    seqn bigint,
    id bigint
);

-- A pattern as values that stand in for parameters of statements whose plans are kept (sql/code/spools/read.sql). key,
-- low, high: one of its numeric keys, as a rule the only one; is_indexed: messages are looked up by it. more: the
-- other keys.
create type pgps_internal.spool_filter as (
    is_empty boolean,
    is_indexed boolean,
    key text,
    low numeric,
    high numeric,
    more jsonb,
    seqns int8range,
    period tstzrange,
    sender text,
    spooler text,
    keywords text[]
);

-- Where the messages of a spool are, and what of them is not to be seen any more. first_slot, last_slot: in one of
-- these or between them; is_whole: nothing is discarded or cancelled; oldest: what was spooled before is past the
-- retention.
create type pgps_internal.spool_reach as (
    spool_id integer,
    first_slot smallint,
    last_slot smallint,
    is_whole boolean,
    emptied int8multirange,
    oldest timestamptz
);

-- Something else than a message that a spool was asked for.
create type pgps_internal.spool_request as (
    id bigint,
    verb text,
    value bigint,
    pattern jsonb
);

-- A message that is not dispatched yet: for which spool, by whom; is_own: by the present transaction.
create type pgps_internal.spool_asked as (
    spool_id integer,
    spooler text,
    is_own boolean
);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0021')
on conflict (key) do update set value = excluded.value;
