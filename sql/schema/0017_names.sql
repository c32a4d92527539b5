-- breaking: no
-- One word for one thing: internal names.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0017')
on conflict (key) do update set value = excluded.value;
