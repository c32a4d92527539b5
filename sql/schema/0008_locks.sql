-- breaking: no
-- Rows and tables that take turns, in place of advisory locks, which every role could hold (decision 12).

-- Rows that are locked, never changed: one for each subscription, and one for each role, client and origin that has
-- had its turn once.
create table pgps_internal.subscription_turn (subscription_id bigint primary key);
comment on table pgps_internal.subscription_turn is
'Who has the row locked is the one who moves the subscription''s position';
insert into pgps_internal.subscription_turn (subscription_id)
select s.subscription_id from pgps_internal.subscription s;

create table pgps_internal.turn (
    kind "char" not null,
    id bigint not null,
    primary key (kind, id)
);
comment on table pgps_internal.turn is
'Who has a row locked has the turn of a role''s definitions (o), of a client (c), of receiving from an origin (r)';

-- Empty tables that are locked as a whole: that takes no transaction id and writes nothing.
create table pgps_internal.turn_of_routes ();
comment on table pgps_internal.turn_of_routes is 'Locked by who changes routes';
create table pgps_internal.turn_of_neighbours ();
comment on table pgps_internal.turn_of_neighbours is 'Locked by who meets another broker';
create table pgps_internal.turn_of_receiving ();
comment on table pgps_internal.turn_of_receiving is
'Locked together by those who receive from other brokers, alone by who makes them wait';

-- Who dispatches, and the session that can be woken for it. One row, changed when the leader does.
create table pgps_internal.leader (
    pid integer not null,
    started_at timestamptz not null,
    bell_pid integer,
    bell_started_at timestamptz
);
create unique index leader_one_idx on pgps_internal.leader ((true));
comment on table pgps_internal.leader is
'The session that dispatches, while it lives (pg_stat_activity); bell: the session that pgps._ring '
'interrupts where publishers may not NOTIFY';

-- Which session looks alone for the event that hangs or kills a callback, while it lives.
create table pgps_internal.suspect (
    subscription_id bigint primary key references pgps_internal.subscription on delete cascade,
    pid integer not null,
    started_at timestamptz not null
);
comment on table pgps_internal.suspect is
'Internal subscriptions that one worker''s session runs event by event, and which session that is';

-- What is read and set outside of transactions, by whom nobody can impersonate: sequences of ours. Unlogged: to set
-- one takes no transaction id, and after a crash there is no leader.
create unlogged sequence pgps_internal.wake_seq as bigint minvalue 0;
comment on sequence pgps_internal.wake_seq is
'Whether a publisher has to wake the dispatcher: 0, no, it is awake; otherwise the second in which it last said '
'that it sleeps. What was said
long ago was said by a leader that is gone.';
create unlogged sequence pgps_internal.ring_seq as bigint;
comment on sequence pgps_internal.ring_seq is 'How often publishers have rung';

insert into pgps_internal.installation (key, value) values ('schema_revision', '0008')
on conflict (key) do update set value = excluded.value;
