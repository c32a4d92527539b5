-- breaking: no
-- What had been committed here when the neighbour said "drain"; null: it has not, or all of that is in a batch. Until
-- then its filters (wanted) have the highest gone_batch.
alter table pgps_internal.neighbour add column drain_heard pg_snapshot;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0062')
on conflict (key) do update set value = excluded.value;
