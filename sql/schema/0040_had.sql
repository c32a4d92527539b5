-- breaking: no
-- From which batch on the subscriptions here have had what a filter wants. Truncation moves "since" alone, which is for
-- children. null: since.
alter table pgps_internal.activation add column had_since bigint;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0040')
on conflict (key) do update set value = excluded.value;
