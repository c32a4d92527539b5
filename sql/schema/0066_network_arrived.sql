-- breaking: no
-- Which messages a broker of another network has brought, one row for each of its batches. When it is put back it sends
-- again what waited at that time, under whatever numbers it has then (sql/code/spools/known.sql). known: a hash of the
-- mark of each message; first_id, last_id: between which ids over there they lie; epoch: that of the batch.
create table pgps_internal.network_arrived (
    origin_id bigint not null references pgps_internal.network_origin on delete cascade,
    epoch integer not null,
    first_id bigint not null,
    last_id bigint not null,
    arrived_at timestamptz not null default pgps._clock(),
    known bigint[] not null
);
-- Hashes cannot be compressed.
alter table pgps_internal.network_arrived alter column known set storage external;
create index network_arrived_idx on pgps_internal.network_arrived (origin_id, last_id, first_id, epoch);
create index network_arrived_at_idx on pgps_internal.network_arrived (arrived_at);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0066')
on conflict (key) do update set value = excluded.value;
