-- breaking: no
-- Filters that read more than the event, matched beside the dispatcher.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0009')
on conflict (key) do update set value = excluded.value;
