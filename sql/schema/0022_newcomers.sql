-- breaking: no
-- Nobody who subscribes holds up those who receive from other brokers (decision 64): a subscriber only inserts.

-- Global subscriptions from their beginning until all that was being received then has been dispatched.
-- joined_batch: the last batch when it was made. until: when the dispatcher has seen it, the first transaction that
-- saw it for sure. from_batch: the batch after which it begins; its members are hidden until they have it.
create table pgps_internal.newcomer (
    subscription_id bigint primary key,
    joined_batch bigint not null,
    made_by xid8 not null default pg_current_xact_id(),
    until xid8,
    from_batch bigint
);
comment on table pgps_internal.newcomer is
'Global subscriptions that some who receive from other brokers may not have seen: for them the dispatcher judges what
comes';

-- What subscriptions are to skip, written by who receives; the dispatcher adds it to them before it matches the events.
-- subscription_ids: null = all but those of links. Type 0, no ids: for a newcomer, so that the dispatcher has one table
-- to look into.
create table pgps_internal.to_skip (
    skip_id bigint generated always as identity primary key,
    type_id integer not null,
    ids int8multirange not null,
    subscription_ids bigint[]
);
comment on table pgps_internal.to_skip is
'Events that came over links and that subscriptions are to skip: not yet noted with them';

-- A row for each change after which an origin is not settled any more: a global subscription, an event type.
create table pgps_internal.unsettled (
    made_at timestamptz not null default pgps._clock()
);
comment on table pgps_internal.unsettled is
'While there is a row, no origin counts as settled; who sends to a neighbour takes them away and looks anew';

-- What took turns, or was counted, instead.
drop table pgps_internal.turn_of_receiving;
drop table pgps_internal.turn_of_skips;
update pgps_internal.origin o set is_settled = false where o.is_settled;
alter table pgps_internal.origin drop column settled_for;
alter table pgps_internal.broker drop column subscribed;

drop function if exists pgps_internal.hold_work(text, boolean);
drop function if exists pgps_internal.hold_skips();
drop function if exists pgps_internal.skip_joining(int8multirange, integer[], integer, bigint);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0022')
on conflict (key) do update set value = excluded.value;
