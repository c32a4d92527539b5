-- breaking: no
-- Counts and digests that travel with the batches.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0011')
on conflict (key) do update set value = excluded.value;
