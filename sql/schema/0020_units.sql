-- breaking: no
-- Units of work: services, participants, conversations.

insert into pgps_internal.installation (key, value) values ('schema_revision', '0020')
on conflict (key) do update set value = excluded.value;
