-- breaking: no
-- What links need to be right while paths change.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0006')
on conflict (key) do update set value = excluded.value;
