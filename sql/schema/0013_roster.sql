-- breaking: no
-- What a subscription is for, and which rooms take part in an event type, as columns instead of names and look-ups.

-- A subscription is somebody's own (external, internal), or a room's: what a neighbour has asked for, what a client
-- has registered for, the originals of confirming events. The last three are for the rooms of composite events, units
-- of work and spools.
alter table pgps_internal.subscription
    add column kind text not null default 'external'
        constraint subscription_kind_check
        check (kind in ('external', 'internal', 'link', 'registration', 'confirm', 'composite', 'unit', 'spool')),
    -- Of a room alone: it is in no catalogue, and no function of the users knows its name.
    add column is_hidden boolean not null generated always as
        (kind not in ('external', 'internal', 'registration')) stored;
update pgps_internal.subscription s set kind = case
        when s.name like 'pgps\_registration\_%' then 'registration'
        when exists (select from pgps_internal.confirm_link k where k.subscription_id = s.subscription_id)
            then 'confirm'
        when s.scope = 'link' then 'link'
        else 'internal' end,
    scope = case s.scope when 'link' then 'local' else s.scope end
where s.callback is not null or s.scope = 'link' or s.name like 'pgps\_registration\_%';
alter table pgps_internal.subscription alter column kind drop default;
alter table pgps_internal.subscription drop constraint subscription_scope_check;
alter table pgps_internal.subscription add constraint subscription_scope_check check (scope in ('local', 'global'));

-- Which rooms take part when events of a type are dispatched; see pgps_internal.add_feature. Rows of their own, not a
-- column of event_type: who defines something adds one without waiting for anybody, and the dispatcher reads them
-- with the event type. One may be there twice.
create table pgps_internal.feature (
    type_id integer not null references pgps_internal.event_type on delete cascade,
    name text not null
);
create index feature_idx on pgps_internal.feature (type_id);
insert into pgps_internal.feature (type_id, name)
select distinct m.type_id, 'share' from pgps_internal.member m where m.takes_batch
union all
select distinct r.type_id, 'registration' from pgps_internal.registration_type r
union all
select distinct k.original, 'confirm' from pgps_internal.confirm_link k
union all
select distinct g.type_id, 'lane' from pgps_internal.signature g where g.in_lane;

-- It has one more argument now.
drop function if exists pgps_internal.note_slices(pgps_internal.neighbour, jsonb, jsonb, int8multirange);
-- The size and the number of a ledger stand in one place now.
drop function if exists pgps_internal.reclaim_ledger(text, bigint, bigint, bigint, text);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0013')
on conflict (key) do update set value = excluded.value;
