-- breaking: no
-- What consumers name themselves by, and where they are.

drop function if exists pgps_internal.restore_audited(pgps_internal.event_type, bigint);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0005')
on conflict (key) do update set value = excluded.value;
