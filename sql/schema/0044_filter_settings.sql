-- breaking: no
-- The settings in which the filter of a composite event was given anew; null: those in which it was created.
alter table pgps_internal.composite add column filter_environment jsonb;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0044')
on conflict (key) do update set value = excluded.value;
