-- breaking: no
-- How many events the newest receive of a consumer returned, without those that it has acknowledged or put back since;
-- null: what it returned was given by a former release.
alter table pgps_internal.consumer add column given bigint;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0041')
on conflict (key) do update set value = excluded.value;
