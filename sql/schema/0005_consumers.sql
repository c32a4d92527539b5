-- breaking: no
-- What consumers name themselves by, and where they are.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0005')
on conflict (key) do update set value = excluded.value;
