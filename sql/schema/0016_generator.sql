-- breaking: no
-- Versions of generated code.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0016')
on conflict (key) do update set value = excluded.value;
