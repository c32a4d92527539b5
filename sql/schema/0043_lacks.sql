-- breaking: no
-- Event types, by name, that do not come here from an origin any more though somebody wants them: up to which batch
-- they came, and whether a subscription of this broker itself misses them.
create table pgps_internal.lack (
    origin_id integer not null references pgps_internal.origin,
    name text not null,
    after_batch bigint not null,
    is_own boolean not null,
    primary key (origin_id, name)
);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0043')
on conflict (key) do update set value = excluded.value;
