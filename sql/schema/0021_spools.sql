-- breaking: no
-- Spools: messages for a group that may be away.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0021')
on conflict (key) do update set value = excluded.value;
