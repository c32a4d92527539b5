-- breaking: no
-- Units of work: services, participants, conversations (decision 42). What is written per unit of work is written to
-- ledgers, which are only appended to, share one line of numbers (uow_no_seq), and are cut into four segments by it.

create table pgps_internal.service (
    service_id integer generated always as identity primary key,
    class text not null,
    server text not null,
    service text not null,
    -- Null: as the broker's setting says.
    store text check (store in ('off', 'broker')),
    lifetime interval,
    status_lifetime integer check (status_lifetime between 0 and 254),
    max_uows integer check (max_uows >= 0),
    max_messages_in_uow integer check (max_messages_in_uow >= 1),
    max_message_bytes integer check (max_message_bytes >= 1),
    deferred boolean,
    created_at timestamptz not null,
    -- Where it is served, the name of another broker; null: here.
    broker text,
    unique (class, server, service)
);

-- What was sent to a service that was dropped is DISCARDED, and its senders may still ask for it.
create table pgps_internal.service_dropped (
    service_id integer primary key,
    class text not null,
    server text not null,
    service text not null,
    dropped_at timestamptz not null
);

-- Role 0 is everybody.
create table pgps_internal.service_right (
    service_id integer not null references pgps_internal.service on delete cascade,
    privilege text not null check (privilege in ('send', 'serve')),
    role regrole not null,
    primary key (service_id, privilege, role)
);

-- Who sends and receives: a role with a token, or without one for the time of a session.
create table pgps_internal.participant (
    participant_id bigint generated always as identity primary key,
    role regrole not null,
    token text,
    unique (role, token)
);

-- Each start of the server, and each recovery from a crash, begins another life. The mark is lost in a crash.
create table pgps_internal.broker_life (
    life_id bigint primary key,
    started_at timestamptz not null,
    postmaster timestamptz not null,
    store text not null,
    is_held boolean not null default false
);
create unlogged table pgps_internal.broker_life_mark (
    life_id bigint primary key
);

-- Sessions end with their backend, so nothing of them outlives a crash. A session without a process is one behind a
-- transaction pooler.
create sequence pgps_internal.participant_session_seq as bigint;
create unlogged table pgps_internal.participant_session (
    session_id bigint primary key,
    participant_id bigint not null,
    life_id bigint not null,
    pid integer,
    backend_start timestamptz,
    began_at timestamptz not null,
    -- Behind a pooler: when it was used, at the latest a quarter of its lease ago; null: its token was taken over.
    used_at timestamptz,
    -- Tells in a read-only transaction, which runs no trigger, whose session it is: its role alone can read it.
    secret uuid not null default pg_catalog.gen_random_uuid()
);
create index participant_session_participant_idx on pgps_internal.participant_session (participant_id, session_id);
create index participant_session_pid_idx on pgps_internal.participant_session (pid, session_id);
create unlogged table pgps_internal.participant_session_end (
    session_id bigint primary key,
    ended_at timestamptz not null
);
-- Not shared: each backend keeps the number of its session in it, as the value that currval returns.
create sequence pgps_internal.participant_mark_seq as bigint minvalue 0 start 0;

create unlogged table pgps_internal.serving (
    session_id bigint not null,
    service_id integer not null,
    since timestamptz not null,
    primary key (service_id, session_id)
);
create index serving_session_idx on pgps_internal.serving (session_id);

create sequence pgps_internal.uow_no_seq as bigint;

-- A conversation's row never changes, and is locked by SYNCPOINT.
create table pgps_internal.conversation (
    at_no bigint not null,
    conversation_no bigint not null,
    service_id integer not null,
    client_id bigint not null,
    is_uow boolean not null,
    life_id bigint not null,
    began_at timestamptz not null,
    -- At which broker the other party is, null: here; and the number that the conversation has there, when it is the
    -- client.
    broker text,
    their_no bigint
) partition by list (((at_no / 65536) % 4));
create index conversation_their_idx on pgps_internal.conversation (their_no, broker) where their_no is not null;
create index conversation_no_idx on pgps_internal.conversation (conversation_no);
create index conversation_client_idx on pgps_internal.conversation (client_id, conversation_no);

-- The newest version counts: the server that it is bound to, the commits up to which both sides have completed what
-- they were sent, the commit of its first unit, and whether it was ended.
create table pgps_internal.conversation_state (
    at_no bigint not null,
    conversation_no bigint not null,
    version integer not null,
    server_id bigint,
    done_by_server bigint not null,
    done_by_client bigint not null,
    first_commit_at timestamptz,
    ended text check (ended in ('eoc', 'eoccancel')),
    noted_at timestamptz not null
) partition by list (((at_no / 65536) % 4));
create index conversation_state_idx on pgps_internal.conversation_state (conversation_no, version desc);

-- A unit of work, or a message that belongs to none. The row never changes, and is locked by who changes its state.
create table pgps_internal.unit (
    at_no bigint not null,
    unit_no bigint not null,
    conversation_no bigint not null,
    service_id integer not null,
    to_server boolean not null,
    is_uow boolean not null,
    sender_id bigint not null,
    session_id bigint not null,
    life_id bigint not null,
    is_persistent boolean not null,
    -- For how long its status is kept when it is over; null: not at all.
    status_for interval,
    began_at timestamptz not null,
    ends_at timestamptz not null,
    user_status text,
    -- Sent to another broker, which tells what becomes of it; or come from one, where it has that number.
    is_relayed boolean not null,
    their_no bigint
) partition by list (((at_no / 65536) % 4));
create index unit_ends_idx on pgps_internal.unit (ends_at) where their_no is not null;
create index unit_no_idx on pgps_internal.unit (unit_no);
create index unit_sender_idx on pgps_internal.unit (sender_id, unit_no desc);
create index unit_service_idx on pgps_internal.unit (service_id, unit_no desc);

-- SYNCPOINTs of senders, in the queue of a service or of a participant (pgps_internal.queue_of). A unit that is put
-- into the queue of the server that its conversation was bound to later has a second row, with another entry_no.
create table pgps_internal.unit_commit (
    at_no bigint not null,
    queue_id bigint not null,
    entry_no bigint not null,
    conversation_no bigint not null,
    unit_no bigint not null,
    to_server boolean not null,
    commit_no bigint not null,
    committed_at timestamptz not null,
    xid xid8 not null
) partition by list (((at_no / 65536) % 4));
create index unit_commit_queue_idx on pgps_internal.unit_commit (queue_id, entry_no);
create index unit_commit_xid_idx on pgps_internal.unit_commit (queue_id, xid);
create index unit_commit_unit_idx on pgps_internal.unit_commit (unit_no, entry_no);
create index unit_commit_conversation_idx
on pgps_internal.unit_commit (conversation_no, to_server, commit_no) where entry_no = commit_no;

-- The newest version of a unit counts; one that has none is RECEIVED, or ACCEPTED when it has a commit.
create table pgps_internal.unit_state (
    at_no bigint not null,
    unit_no bigint not null,
    version integer not null,
    status text not null,
    receiver_id bigint,
    session_id bigint,
    attempts integer not null,
    messages_given integer not null,
    noted_at timestamptz not null
) partition by list (((at_no / 65536) % 4));
create index unit_state_idx on pgps_internal.unit_state (unit_no, version desc);

create table pgps_internal.unit_message (
    at_no bigint not null,
    unit_no bigint not null,
    number integer not null,
    message bytea not null
) partition by list (((at_no / 65536) % 4));
create index unit_message_idx on pgps_internal.unit_message (unit_no, number);

create table pgps_internal.unit_note (
    at_no bigint not null,
    unit_no bigint not null,
    version integer not null,
    user_status text
) partition by list (((at_no / 65536) % 4));
create index unit_note_idx on pgps_internal.unit_note (unit_no, version desc);

-- What a session has in hand: the units that it sends and those that it holds. The newest version counts.
create table pgps_internal.session_hand (
    at_no bigint not null,
    session_id bigint not null,
    version bigint not null,
    sent bigint[] not null,
    held bigint[] not null
) partition by list (((at_no / 65536) % 4));
create index session_hand_idx on pgps_internal.session_hand (session_id, version desc);

-- Up to which entry a queue need not be read again, except for the entries that are named, and for those of
-- transactions that were running: not visible in the snapshot, and below an id that is younger than all entries up to
-- low_no.
create table pgps_internal.queue_low (
    at_no bigint not null,
    queue_id bigint not null,
    low_no bigint not null,
    snapshot pg_snapshot not null,
    below xid8 not null,
    left_behind bigint[] not null
) partition by list (((at_no / 65536) % 4));
create index queue_low_idx on pgps_internal.queue_low (queue_id, low_no desc);

-- Units that timed out while they were sent, of which their senders have been told.
create unlogged table pgps_internal.unit_told (
    unit_no bigint primary key
);

-- How many units of work were active when they were counted last, of a service or (0) of all: begun, the number of
-- units then, and what lets that count stand for a refusal until something ends (see pgps_internal.check_active).
create unlogged table pgps_internal.unit_count (
    at_no bigint not null,
    service_id integer not null,
    begun bigint not null,
    active bigint not null,
    ended bigint not null,
    life_id bigint not null,
    next_end timestamptz,
    is_settled boolean not null,
    -- Transactions that had begun units and were open.
    open text[] not null
);
create index unit_count_idx on pgps_internal.unit_count (service_id, at_no desc);
create sequence pgps_internal.units_begun_0 as bigint minvalue 0 start 0;
create sequence pgps_internal.units_ended_0 as bigint minvalue 0 start 0;

-- Units that came from other brokers: sessions that have held some, and up to when timeouts were told of.
create unlogged table pgps_internal.relay_session (
    session_id bigint primary key
);
create table pgps_internal.relay_told (
    life_id bigint not null,
    until timestamptz not null
);

do $$
declare
    v_ledger text;
    v_slot integer;
begin
    foreach v_ledger in array array['conversation', 'conversation_state', 'unit', 'unit_commit', 'unit_state',
        'unit_message', 'unit_note', 'session_hand', 'queue_low'] loop
        for v_slot in 0..3 loop
            execute format('create %s table pgps_internal.%I partition of pgps_internal.%I for values in (%s)',
                case v_ledger when 'session_hand' then 'unlogged' else '' end,
                v_ledger || '_' || v_slot, v_ledger, v_slot);
        end loop;
    end loop;
    -- Messages are often compressed or encrypted already, and are read once.
    for v_slot in 0..3 loop
        execute format('alter table pgps_internal.unit_message_%s alter column message set storage external', v_slot);
    end loop;
end
$$;

-- How a unit stands, derived by whoever looks (see pgps_internal.unit_standing): what restarts mean to it.
create type pgps_internal.life as (
    life_id bigint,
    -- Units of earlier lives are gone, or are not given out.
    emptied_id bigint,
    held_id bigint,
    seen_at timestamptz
);

-- Who calls: a session, and the participant that it speaks for.
create type pgps_internal.speaker as (
    session_id bigint,
    participant_id bigint,
    role regrole,
    token text,
    life_id bigint,
    -- The newest number, read before the transaction had an id; null when it had one already.
    seen_no bigint,
    -- What the session has in hand, in which version (see session_hand).
    hand bigint,
    sent bigint[],
    held bigint[]
);

-- What the functions of this room return: how a unit of work stands, and a message of it.
create type pgps.unit_of_work as (
    uow_id text,
    conversation text,
    status text,
    user_status text,
    class text,
    server text,
    service text,
    committed_at timestamptz,
    attempts integer,
    store text,
    lifetime_ends timestamptz,
    conversation_state text,
    code text
);
create type pgps.received_message as (
    uow_id text,
    conversation text,
    status text,
    user_status text,
    class text,
    server text,
    service text,
    committed_at timestamptz,
    attempts integer,
    store text,
    lifetime_ends timestamptz,
    conversation_state text,
    code text,
    message bytea,
    number integer,
    sender name,
    sender_token text
);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0020')
on conflict (key) do update set value = excluded.value;
