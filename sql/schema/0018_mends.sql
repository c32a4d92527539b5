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

insert into pgps_internal.installation (key, value) values ('schema_revision', '0018')
on conflict (key) do update set value = excluded.value;
