-- breaking: no
-- Large transactions and segments.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0010')
on conflict (key) do update set value = excluded.value;
