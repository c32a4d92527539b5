-- breaking: no
-- What links need to be right while paths change.

-- The attachment for which the parent has answered, be it that there is nothing new.
alter table pgps_internal.origin add column answered integer;
update pgps_internal.origin o set answered = o.attachment
where exists (select from pgps_internal.arrival a where a.origin_id = o.origin_id and a.attachment = o.attachment);

-- Asking again is over when the horizon is reached. What was asked for from ahead of the horizon is asked for once
-- more, from there.
update pgps_internal.origin
set rewind_start = null, rewind_from = null, rewind_keep = '{}', attachment = attachment + 1
where rewind_from is not null;
alter table pgps_internal.origin drop column rewind_to;

-- How many global subscriptions have been made, and for how many of them it is known that their filters are in force
-- for an origin.
alter table pgps_internal.broker add column subscribed bigint not null default 0;
alter table pgps_internal.origin add column settled_for bigint not null default 0;

-- Filters that a neighbour has had with another parent, and that are not known here yet.
alter table pgps_internal.attached add column missing text[] not null default '{}';

-- By which number a filter was told; 0: by a broker that gives none.
alter table pgps_internal.wanted add column told bigint not null default 0;

-- Why a neighbour cannot be carried for: one of the two was restored. Up to which batch this broker's former life
-- goes, if it was this one.
alter table pgps_internal.neighbour
    add column refusal text,
    add column refusal_hint text,
    add column former_batch bigint;

-- A path on which a link is being dropped.
alter table pgps_internal.offer add column is_draining boolean not null default false;
-- It returns one column more from now on.
drop function if exists pgps_internal.ads_for(pgps_internal.neighbour);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0006')
on conflict (key) do update set value = excluded.value;
