-- breaking: no
-- Who subscribes to a prefix and who makes an event type of it, in transactions that are open at the same time, do not
-- see each other. A row says that it may have happened; holders: the transactions that were open then, tried: the pairs
-- (subscription, event type) that were found since. after_batch: where the subscription joins, null: at the next batch.
create table pgps_internal.unmet (
    place bigint generated always as identity primary key,
    holders text[] not null,
    tried text[] not null default '{}'
);
alter table pgps_internal.late_type add column after_batch bigint;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0032')
on conflict (key) do update set value = excluded.value;
