-- breaking: no
-- The dispatcher's transaction that has changed what those who receive go by: who has looked before its end has not
-- seen that. Null: `until` has been noted since.
alter table pgps_internal.newcomer add column changed_by xid8;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0061')
on conflict (key) do update set value = excluded.value;
