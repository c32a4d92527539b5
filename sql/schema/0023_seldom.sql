-- breaking: no
-- What there seldom is, and what dispatch, receive and ack ask for each time: the sequence of an identity column says
-- without a query, and without a look at files, that there never was a row (decision 70).
alter table pgps_internal.broken_type add column place bigint generated always as identity;
alter table pgps_internal.unshared add column place bigint generated always as identity;
alter table pgps_internal.failure add column place bigint generated always as identity;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0023')
on conflict (key) do update set value = excluded.value;
