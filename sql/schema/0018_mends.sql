-- breaking: no
-- What mends of broken promises keep.

-- Links. Sessions that send to neighbours lock this together; who ends an epoch locks it alone. Otherwise a session could
-- still send, in the name of the epoch that is over, what the next epoch sends once more.
create table pgps_internal.turn_of_sending ();
comment on table pgps_internal.turn_of_sending is 'Locked together by those who send to other brokers, alone by who ends an epoch';

-- A broker that is resumed after a restore forgets its neighbours; they remember it until they meet again.
alter table pgps_internal.link
    add column is_known boolean not null default false,
    add column is_dropped boolean not null default false;
comment on column pgps_internal.link.is_known is
'The broker at the other end may still have it, though this one was resumed since and has not met it again';
comment on column pgps_internal.link.is_dropped is
'Dropped before the two brokers met again: it goes when the other one has forgotten it, too';

-- Event types ---------------------------------------------------------------------------------------------------------

-- Event types whose code failed in dispatch: they are set aside, so that the others go on. is_mended: the dispatcher may
-- try again.
create table pgps_internal.broken_type (
    type_id integer primary key references pgps_internal.event_type on delete cascade,
    sqlstate text not null,
    error text not null,
    hint text not null,
    failed_at timestamptz not null,
    is_mended boolean not null default false
);
-- What the dispatcher has taken out of the control queue and set aside, window by window. held_batch: the batch that it
-- belonged to; batch_id: the later one that it came into, null = it waits.
create table pgps_internal.set_aside (
    part_id bigint generated always as identity primary key,
    held_batch bigint not null,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    xids xid8[] not null,
    ranges int8multirange not null,
    is_forwarded boolean not null,
    batch_id bigint
);
create index on pgps_internal.set_aside (type_id, batch_id);
create index on pgps_internal.set_aside (held_batch) where batch_id is null;
drop function if exists pgps_internal.dispatch_part(bigint, pgps_internal.part);
drop function if exists pgps_internal.match(bigint, pgps_internal.event_type, int8multirange, bigint, boolean,
    pgps_internal.signature[]);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0018')
on conflict (key) do update set value = excluded.value;
