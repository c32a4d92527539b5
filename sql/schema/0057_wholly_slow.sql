-- breaking: no
-- A role whose composite events take the detector too long, whatever code they run: all of them are detected apart, not
-- only those that run code (decision 94).
alter table pgps_internal.slow_detection add column is_whole boolean not null default false;

drop function if exists pgps_internal.slow_owners(), pgps_internal.note_slow_owner(bigint, text);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0057')
on conflict (key) do update set value = excluded.value;
