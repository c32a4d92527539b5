-- breaking: no
-- What mends of broken promises keep.

-- Links. Sessions that send to neighbours lock this together; who ends an epoch locks it alone. Otherwise a session
-- could still send, in the name of the epoch that is over, what the next epoch sends once more.
create table pgps_internal.turn_of_sending ();
comment on table pgps_internal.turn_of_sending is
'Locked together by those who send to other brokers, alone by who ends an epoch';

-- Sessions that receive lock the subscriptions that are to skip something item by item, in the order of what comes.
create table pgps_internal.turn_of_skips ();
comment on table pgps_internal.turn_of_skips is
'Locked by who makes subscriptions skip events that came from another broker';

-- A broker that is resumed after a restore forgets its neighbours; they remember it until they meet again.
alter table pgps_internal.link
    add column is_known boolean not null default false,
    add column is_dropped boolean not null default false;
comment on column pgps_internal.link.is_known is
'The broker at the other end may still have it, though this one was resumed since and has not met it again';
comment on column pgps_internal.link.is_dropped is
'Dropped before the two brokers met again: it goes when the other one has forgotten it, too';

-- Epochs of a broker that has several: after a restore it sends in the new one what some have taken in the former one.
alter table pgps_internal.origin add column is_renewed boolean not null default false;
update pgps_internal.origin o set is_renewed = true
where exists (select from pgps_internal.origin x where x.broker_id = o.broker_id and x.epoch <> o.epoch);

-- Paths: would one bring types that are not published yet; may it be taken here, and how many types come by it now.
alter table pgps_internal.offer
    add column is_open boolean not null default false,
    add column is_usable boolean not null default false,
    add column types_carried bigint not null default 0;

-- Event types of which a filter here is not in force for an origin, though the origin is settled: nobody promises them.
alter table pgps_internal.origin add column unpromised integer[] not null default '{}';
-- Those that are settled now do not know them.
update pgps_internal.origin o set is_settled = false where o.is_settled;

-- Since when the parent for an origin has been asked for it: an attachment that is not answered is shown.
alter table pgps_internal.origin add column asked_at timestamptz;

-- For which attachment of an origin a total was stated last: what another parent stated is of an older batch.
alter table pgps_internal.audit_point add column attachment integer;

-- What a neighbour with narrower filters is told of its origins: from the log, what these filters select.
alter table pgps_internal.neighbour add column is_recounted boolean not null default false;
comment on column pgps_internal.neighbour.is_recounted is
'It compares what a filter selects in the log here with what came';
create table pgps_internal.audit_recount (
    neighbour_id integer not null references pgps_internal.neighbour on delete cascade,
    origin_id integer not null references pgps_internal.origin,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    attachment integer not null,
    filters text not null,
    upto bigint not null,
    packed bigint not null,
    told_at timestamptz not null,
    primary key (neighbour_id, origin_id, type_id)
);
comment on table pgps_internal.audit_recount is
'Up to which batch of an origin (upto) was counted what the filters of a neighbour select, when so many batches of this
broker (packed) were among its items. filters: a digest of them, and of the neighbour''s rights, since counted events
must have been matched with the same ones';
create table pgps_internal.audit_recounted (
    origin_id integer not null references pgps_internal.origin,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    arrival_id bigint not null,
    there bigint not null default 0,
    here bigint not null default 0,
    compared integer not null default 0,
    primary key (origin_id, type_id)
);
comment on table pgps_internal.audit_recounted is
'What was compared of an origin under the filters of this broker. arrival_id: a row of the ledger of arrivals before all
that came since';
alter table pgps_internal.audit_finding drop constraint audit_finding_kind_check,
    add constraint audit_finding_kind_check check (kind in ('hop', 'log', 'end', 'here'));

-- PL/Python functions cannot import files. source is compiled once for all sessions, for the Python that has this
-- magic.
create table pgps_internal.python_module (
    name text primary key,
    digest text not null,
    source text not null,
    magic bytea,
    code bytea
);
comment on table pgps_internal.python_module is
'The modules that PL/Python functions import; digest: of all modules of a release, '
'magic: of the Python that code is for';

-- Event types ---------------------------------------------------------------------------------------------------------

-- Event types whose code failed in dispatch: they are set aside, so that the others go on. is_mended: the dispatcher
-- may try again.
create table pgps_internal.broken_type (
    type_id integer primary key references pgps_internal.event_type on delete cascade,
    sqlstate text not null,
    error text not null,
    hint text not null,
    failed_at timestamptz not null,
    is_mended boolean not null default false
);
-- What the dispatcher has taken out of the control queue and set aside, window by window. held_batch: the batch that it
-- belonged to; batch_id: the later one that it came into, null = it waits.
create table pgps_internal.set_aside (
    part_id bigint generated always as identity primary key,
    held_batch bigint not null,
    type_id integer not null references pgps_internal.event_type on delete cascade,
    xids xid8[] not null,
    ranges int8multirange not null,
    is_forwarded boolean not null,
    batch_id bigint
);
create index on pgps_internal.set_aside (type_id, batch_id);
create index on pgps_internal.set_aside (held_batch) where batch_id is null;
drop function if exists pgps_internal.dispatch_part(bigint, pgps_internal.part);
drop function if exists pgps_internal.match(bigint, pgps_internal.event_type, int8multirange, bigint, boolean,
    pgps_internal.signature[]);

-- Consumers -----------------------------------------------------------------------------------------------------------

-- What the newest receive of each consumer of a shared subscription returned: the events that the transaction leased_by
-- leased between the first and the last (null: none). Acknowledging covers these and no others. received_as: the name
-- and token that it was called with; pid: the server process; overtaken: processes that had received before, and not
-- acknowledged when another one received.
create table pgps_internal.consumer (
    subscription_id bigint not null,
    holder text not null,
    leased_by xid8,
    first_batch bigint not null,
    first_event bigint not null,
    last_batch bigint not null,
    last_event bigint not null,
    used_at timestamptz not null,
    received_as text,
    pid integer,
    overtaken integer[] not null default '{}',
    primary key (subscription_id, holder)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);

-- What consumers hold now: they may acknowledge all of it.
update pgps_internal.share set leased_by = pg_current_xact_id() where holder is not null;
insert into pgps_internal.consumer
    (subscription_id, holder, leased_by, first_batch, first_event, last_batch, last_event, used_at, received_as)
select s.subscription_id, s.holder, pg_current_xact_id(), min(s.batch_id), 0, max(s.batch_id), 9223372036854775807,
    pgps_internal.clock(), substring(s.holder from '^consumer/(.*)$')
from pgps_internal.share s where s.holder is not null group by s.subscription_id, s.holder;

-- The last event that was ever handed out, where that is after the last one received: an event says whether it comes
-- for the first time. Null: nothing after received was.
alter table pgps_internal.position add column seen_batch bigint, add column seen_event bigint;
drop function if exists
    pgps_internal.move(bigint, bigint, bigint, bigint, bigint, bigint, integer, text),
    pgps_internal.lease(pgps_internal.subscription, integer, boolean, text);

-- Filters over tables and functions -----------------------------------------------------------------------------------

-- Which lane a dispatch by hand is asking, 0 = none; kept when its session is killed.
create sequence pgps_internal.lane_by_hand_seq minvalue 0 start 0;
select setval('pgps_internal.lane_by_hand_seq', 0);
drop function if exists pgps_internal.run_lane(bigint, boolean, integer, double precision, integer);

-- What an attempt to match a lane leaves behind when it fails: which signature was asked and since when, and which one
-- has taken longest.
create type pgps_internal.lane_attempt as (
    run pgps_internal.lane_run,
    is_careful boolean,
    budget interval,
    began timestamptz,
    signature_id bigint,
    longest_time interval,
    longest_id bigint,
    state text,
    error text,
    context text
);

-- Callbacks -----------------------------------------------------------------------------------------------------------

-- The functions that a subscription's callback may mean, by number; noted_in: the database in which the numbers are
-- valid.
create table pgps_internal.callback_function (
    subscription_id bigint not null references pgps_internal.subscription on delete cascade,
    function_id oid not null,
    noted_in text not null,
    primary key (subscription_id, function_id)
);
create index on pgps_internal.callback_function (function_id);

-- Publishing ----------------------------------------------------------------------------------------------------------

-- It takes the number of each event.
drop function if exists pgps._insert_events(text, jsonb, text, bigint, text);

-- How a statement publishes that has been told by settings. acts: in the name of another role; volatile: it may be
-- lost in a crash; raiser: the transaction that an immediate event shows; handler as in the control queue.
create type pgps_internal.manner as (acts boolean, volatile boolean, raiser xid8, handler text);

-- Whoever sets the handler looks at it (pgps._manner): a check is read anew by each statement that publishes.
alter table pgps_internal.control drop constraint handler_is_all_raiser_or_any;

-- Subscriptions -------------------------------------------------------------------------------------------------------

-- Deliveries that were not shared out to the consumers of a subscription, since its members were locked by somebody who
-- changed it. No foreign keys: the dispatcher would wait for who drops the subscription.
create table pgps_internal.unshared (
    subscription_id bigint not null,
    class_id bigint not null,
    type_id integer not null,
    batch_id bigint not null,
    primary key (batch_id, subscription_id, class_id)
);

-- Names ---------------------------------------------------------------------------------------------------------------

-- Schema pgps has what users call and read. The views through which its functions enter are in another one.
create schema pgps_entry;
comment on schema pgps_entry is 'pgps: what the functions of schema pgps call; not for applications';
grant usage on schema pgps_entry to public;

-- When a row breaks a constraint, PostgreSQL names the table that it was for. So the tables that events are put into,
-- the segments of the logs and the stages of immediate types, have the names of their event types.
create schema pgps_log_0;
create schema pgps_log_1;
create schema pgps_log_2;
create schema pgps_log_3;
create schema pgps_stage;
comment on schema pgps_log_0 is 'pgps: the first segment of each log';
comment on schema pgps_log_1 is 'pgps: the second segment of each log';
comment on schema pgps_log_2 is 'pgps: the third segment of each log';
comment on schema pgps_log_3 is 'pgps: the fourth segment of each log';
comment on schema pgps_stage is 'pgps: immediate events before they are forwarded';
grant usage on schema pgps_log_0, pgps_log_1, pgps_log_2, pgps_log_3 to pgps_link, pgps_worker, pgps_admin;

do $$
declare
    v_each record;
begin
    for v_each in
        select v.name as old, 'pgps_entry' as schema, ltrim(c.relname, '_') as new
        from unnest('{_calls,_client_calls,_receive_calls,_receive_rows_calls}'::text[]) v(name)
        join pg_class c on c.oid = to_regclass('pgps.' || v.name)
    loop
        execute format('alter view pgps.%I set schema %I', v_each.old, v_each.schema);
        execute format('alter view %I.%I rename to %I', v_each.schema, v_each.old, v_each.new);
    end loop;
    for v_each in
        select s.relation, s.schema, t.name, c.relname
        from pgps_internal.event_type t
        cross join lateral (
            select to_regclass(format('pgps_link.%I', t.name || '_log_' || n)) as relation, 'pgps_log_' || n as schema
            from generate_series(0, 3) n
            union all select to_regclass(format('pgps_internal.%I', t.name || '_stage')), 'pgps_stage'
        ) s
        join pg_class c on c.oid = s.relation
    loop
        execute format('alter table %s set schema %I', v_each.relation, v_each.schema);
        execute format('alter table %I.%I rename to %I', v_each.schema, v_each.relname, v_each.name);
        execute format('alter index if exists %I.%I rename to %I', v_each.schema, v_each.relname || '_event_id_idx',
            v_each.name || '_event_id_idx');
    end loop;
end
$$;

-- Over how many more links a neighbour's filter may be passed on; null: an older broker has not said so, and it goes as
-- far as one of this broker.
alter table pgps_internal.wanted add column reach integer;
create index wanted_key_idx on pgps_internal.wanted (neighbour_id, key);

-- Filters that may imply each other (pgps_internal.family_of).
alter table pgps_internal.link_filter add column family text;
update pgps_internal.link_filter f set family = (
    select md5(concat_ws(E'\n', f.type_id, f.shape, f.environment, f.constant_types,
        array_agg(case when b ~ '[<>]' then '' else c end order by n)))
    from unnest(f.constants, f.bounds) with ordinality u(c, b, n) having bool_or(b ~ '[<>]'));
create index link_filter_family_idx on pgps_internal.link_filter (family) where family is not null;
drop index pgps_internal.filter_shape_idx;

-- A subscription whose filter was changed asks for what it asked before, too, until the new filter is in force; of
-- several the last one has the highest place. What is pushed now may be of a filter that was changed since: it is
-- found anew.
alter table pgps_internal.pushed
    add column place bigint generated always as identity,
    add column is_current boolean not null default false,
    drop constraint pushed_pkey,
    add primary key (subscription_id, type_id, key);
alter table pgps_internal.pushed alter column is_current set default true;
create index pushed_former_idx on pgps_internal.pushed (subscription_id, type_id) where not is_current;

-- Who has subscribed to a type: asked by the views of its queues for each batch, by what shows a broker, and when a
-- type is dropped.
create index member_type_idx on pgps_internal.member (type_id);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0018')
on conflict (key) do update set value = excluded.value;
