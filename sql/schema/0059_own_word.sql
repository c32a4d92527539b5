-- breaking: no
-- What a broker that is a neighbour says of its own origins: which event types it withholds from here, as
-- pgps_internal.veiled has them (null: an older broker, which does not say), and all that it ever promised or withheld.
alter table pgps_internal.offer add column withheld text[], add column said text[] not null default '{}';

-- Where the horizon was when the parent became it: what came before, it cannot take back.
alter table pgps_internal.origin add column parent_since bigint not null default 0;
update pgps_internal.origin o set parent_since = coalesce((select a.horizon from pgps_internal.arrival a
    where a.origin_id = o.origin_id order by a.arrival_id desc limit 1), 0);

-- A child that has been told of batches that there are not is to be told how far there are some.
alter table pgps_internal.attached add column back_to bigint;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0059')
on conflict (key) do update set value = excluded.value;
