-- breaking: no
-- What lanes leave to be shared out afterwards is in this table, too (decision 113): whose it is, so that each role has
-- its turn, and up to which event a delivery has been shared out.
alter table pgps_internal.unshared add column owner oid, add column shared_upto bigint not null default 0;
update pgps_internal.unshared u set owner = s.owner::oid
from pgps_internal.subscription s where s.subscription_id = u.subscription_id;
delete from pgps_internal.unshared u where u.owner is null;
alter table pgps_internal.unshared alter column owner set not null;
create index unshared_owner_idx on pgps_internal.unshared (owner, place);

drop function if exists pgps_internal.share_late();

create table pgps_internal.turn_of_sharing ();
comment on table pgps_internal.turn_of_sharing is 'Locked by who shares out what was left to be shared out';

-- A role's subscriptions with competing consumers, of which there are few, or very many of another one.
create index subscription_any_idx on pgps_internal.subscription (owner) where handler = 'any' and callback is null;

-- True while what follows the filters is done: waking, and sharing out what is little.
alter type pgps_internal.lane_attempt add attribute is_ending boolean;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0052')
on conflict (key) do update set value = excluded.value;
