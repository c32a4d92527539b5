-- breaking: no
-- Filters that read more than the event, matched beside the dispatcher (decision 24).

alter table pgps_internal.signature
    -- Matched in its owner's lane, of batches after this one.
    add column in_lane boolean not null default false,
    add column from_batch bigint not null default 0;
drop index pgps_internal.signature_shape_key;
create unique index signature_shape_key
on pgps_internal.signature (type_id, owner, md5(shape), parameter_types, environment, in_lane);
create index signature_lane_idx on pgps_internal.signature (owner, type_id) where in_lane;

-- Its filter is to be asked about what was dispatched after suspended_batch before it takes part in matching again.
alter table pgps_internal.class add column is_pending boolean not null default false;
create index class_pending_idx on pgps_internal.class (type_id) where is_pending;

-- One for each role that has such filters. The row is locked by who matches them, and changed when the lane becomes
-- slow or quick again.
create table pgps_internal.lane (
    lane_id bigint generated always as identity primary key,
    owner regrole not null unique,
    from_batch bigint not null,
    is_slow boolean not null default false,
    slow_until timestamptz,
    offences integer not null default 0,
    last_error text,
    failed_at timestamptz
);

-- How far each lane is: the newest row counts, else from_batch.
create sequence pgps_internal.lane_step_seq as bigint;
create table pgps_internal.lane_step (
    step_id bigint not null default nextval('pgps_internal.lane_step_seq'),
    lane_id bigint not null,
    batch_id bigint not null
) partition by list (((step_id / 65536) % 4));
create index lane_step_idx on pgps_internal.lane_step (lane_id, step_id desc);

-- Pattern subscriptions that are to join an event type: their lane makes the class. No reference to the subscription:
-- to insert a row would wait for who is dropping that.
create table pgps_internal.joining (
    subscription_id bigint not null,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    from_batch bigint not null,
    skip int8multirange not null,
    failures integer not null default 0,
    primary key (subscription_id, type_id)
);

-- Sessions of workers that match lanes. What each is about stands in the sequence lane_mark_<slot>: a sequence, since
-- it must be seen from outside while it runs, and remain when that is rolled back.
create table pgps_internal.lane_session (
    slot integer primary key check (slot between 0 and 31),
    pid integer not null,
    started_at timestamptz not null
);

-- The same for the dispatcher: its process and the signature (pgps.blame).
create unlogged sequence pgps_internal.matching_seq as bigint minvalue 0 start 0;

-- How a call that matches a lane went.
create type pgps_internal.lane_run as (
    batches integer,
    events bigint,
    is_done boolean,
    told text
);

do $$
declare
    v_slot integer;
begin
    for v_slot in 0..3 loop
        execute format('create table pgps_internal.lane_step_%1$s partition of pgps_internal.lane_step '
            'for values in (%1$s)', v_slot);
    end loop;
    for v_slot in 0..31 loop
        execute format('create unlogged sequence pgps_internal.lane_mark_%s as bigint minvalue 0 start 0', v_slot);
    end loop;
end
$$;

-- The dispatcher writes these, and must not wait for who is dropping a subscription in an open transaction. What is
-- left behind is swept away by pgps.reclaim.
alter table pgps_internal.share drop constraint share_subscription_id_fkey;
alter table pgps_internal.failure drop constraint failure_subscription_id_fkey;

-- What was matched by the dispatcher until now and belongs into a lane: it goes on there behind the last batch. Of a
-- pattern subscription everything, since what is matched in two places would not come in one order.
update pgps_internal.signature g set in_lane = true
where g.tier = 'owner' and not exists (
        select from pgps_internal.class c join pgps_internal.member m using (class_id)
            join pgps_internal.subscription s using (subscription_id)
        where c.signature_id = g.signature_id and s.scope = 'link')
    or exists (
        select from pgps_internal.class c join pgps_internal.member m using (class_id)
            join pgps_internal.subscription s using (subscription_id)
        where c.signature_id = g.signature_id and s.is_pattern and s.scope <> 'link')
    and not exists (
        select from pgps_internal.class c join pgps_internal.member m using (class_id)
            join pgps_internal.subscription s using (subscription_id)
        where c.signature_id = g.signature_id and s.scope = 'link');
insert into pgps_internal.lane (owner, from_batch)
select o.owner, (select coalesce(max(b.batch_id), 0) from pgps_internal.batch b)
from (
    select g.owner from pgps_internal.signature g where g.in_lane
    union
    select s.owner from pgps_internal.subscription s where s.is_pattern and s.scope <> 'link'
) o;

-- Its lane takes the turn of a role without waiting for it, for which there has to be a row.
insert into pgps_internal.turn (kind, id)
select distinct 'o'::"char", s.owner::oid::bigint from pgps_internal.subscription s
where s.is_pattern and s.scope <> 'link' on conflict do nothing;

drop function if exists pgps_internal.find_class(pgps_internal.event_type, regrole, text, text[], jsonb, boolean);
drop function if exists pgps_internal.find_signature(pgps_internal.event_type, regrole, jsonb, text, text[], jsonb);
drop function if exists pgps_internal.clear_blame();
drop function if exists pgps_internal.share_out(bigint, integer);
drop function if exists pgps_internal.resume_class(pgps_internal.class, pgps_internal.event_type);
drop function if exists pgps_internal.replay(bigint, pgps_internal.event_type, bigint, bigint);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0009')
on conflict (key) do update set value = excluded.value;
