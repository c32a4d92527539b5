-- breaking: no
-- Large transactions and segments.

-- The parts of a large transaction that the dispatcher's transaction has still to match; empty whenever it has ended.
create unlogged table pgps_internal.large_part (
    batch_id bigint not null,
    type_id integer not null,
    xids xid8[] not null,
    ranges int8multirange not null
);
create index large_part_idx on pgps_internal.large_part (batch_id);

-- Asked event by event what the segments themselves tell.
drop function if exists pgps_internal.log_reaches(regclass, bigint);

-- It tells the owner, too.
drop function if exists pgps.pending_subscribers();

-- Workers log what has failed lately.
create index failure_time_idx on pgps_internal.failure (failed_at);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0010')
on conflict (key) do update set value = excluded.value;
