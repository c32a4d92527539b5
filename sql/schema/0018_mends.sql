-- breaking: no
-- What mends of broken promises keep.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0018')
on conflict (key) do update set value = excluded.value;
