-- breaking: no
-- What somebody else has locked in an open transaction is not waited for (decision 74).

-- The dispatcher sets aside a type that somebody is dropping. A foreign key would have it wait for him; what is left of
-- a type that was dropped, the dispatcher and reclaim delete.
alter table pgps_internal.broken_type drop constraint broken_type_type_id_fkey;
alter table pgps_internal.set_aside drop constraint set_aside_type_id_fkey;

-- How long a type is left alone that runs into a lock again: not always its log is what is locked.
alter table pgps_internal.broken_type add column patience interval not null default '0';
-- Its event types, or one of them, cannot be read for now.
alter table pgps_internal.composite add column is_held boolean not null default false;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0024')
on conflict (key) do update set value = excluded.value;
