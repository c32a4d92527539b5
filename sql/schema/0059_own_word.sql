-- breaking: no
-- What a broker that is a neighbour says of its own origins: which event types it withholds from here, as
-- pgps_internal.veiled has them (null: an older broker, which does not say), and all that it ever promised or withheld.
alter table pgps_internal.offer add column withheld text[], add column said text[] not null default '{}';

-- A child that has been told of batches that there are not is to be told how far there are some.
alter table pgps_internal.attached add column back_to bigint;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0059')
on conflict (key) do update set value = excluded.value;
