-- breaking: no
-- Whether all that a policy reads are plain tables, which then have to stay so.
alter table pgps_internal.policy add column is_plain boolean not null default true;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0037')
on conflict (key) do update set value = excluded.value;
