-- breaking: no
-- What every broker counts of what it sends and receives.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0012')
on conflict (key) do update set value = excluded.value;
