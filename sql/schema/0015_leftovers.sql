-- breaking: no
-- Odds and ends.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0015')
on conflict (key) do update set value = excluded.value;
