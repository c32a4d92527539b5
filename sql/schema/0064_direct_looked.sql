-- breaking: no
-- The batch up to which a worker has looked which direct clients are away: whoever comes back, or whichever worker
-- looks next, goes on from there. Behind it a client that was gone may have missed something.
create sequence pgps_internal.direct_looked_seq as bigint;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0064')
on conflict (key) do update set value = excluded.value;
