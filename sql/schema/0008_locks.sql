-- breaking: no
-- Rows and tables that take turns, in place of advisory locks, which every role could hold (decision 12).

-- Rows that are locked, never changed: one for each subscription, and one for each role, client and origin that has had its turn once.
create table pgps_internal.subscription_turn (subscription_id bigint primary key);
comment on table pgps_internal.subscription_turn is 'Who has the row locked is the one who moves the subscription''s position';
insert into pgps_internal.subscription_turn (subscription_id) select s.subscription_id from pgps_internal.subscription s;

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
comment on table pgps_internal.turn_of_receiving is 'Locked together by those who receive from other brokers, alone by who makes them wait';

insert into pgps_internal.installation (key, value) values ('schema_revision', '0008')
on conflict (key) do update set value = excluded.value;
