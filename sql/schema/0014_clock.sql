-- breaking: no
-- The clock.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0014')
on conflict (key) do update set value = excluded.value;
