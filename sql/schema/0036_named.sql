-- breaking: no
-- By the neighbours of which role an origin was named first; null: it is this broker, or was known before.
alter table pgps_internal.origin add column named_by regrole;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0036')
on conflict (key) do update set value = excluded.value;
