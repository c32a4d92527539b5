-- breaking: no
-- What runs as whom.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0007')
on conflict (key) do update set value = excluded.value;
