-- breaking: no
-- Rows and tables that take turns, in place of advisory locks.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0008')
on conflict (key) do update set value = excluded.value;
