-- breaking: no
-- What takes part in what, by kind.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0013')
on conflict (key) do update set value = excluded.value;
