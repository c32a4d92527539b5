-- breaking: no
-- Composite events.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0019')
on conflict (key) do update set value = excluded.value;
