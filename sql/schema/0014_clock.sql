-- breaking: no
-- The clock: whatever records the time when a row is made reads it where leases and lifetimes do (core/clock.sql).
-- Locks: those of altering each table that records a time, until the transaction ends. No table is rewritten.

-- The code, which makes both functions again, runs after this script, and a default needs the function it calls.
create or replace function pgps_internal.clock() returns timestamptz
language sql volatile parallel safe
as $$ select pg_catalog.clock_timestamp() $$;
create or replace function pgps._clock() returns timestamptz
language sql volatile parallel safe
as $$ select pg_catalog.clock_timestamp() $$;
revoke all on function pgps_internal.clock() from public;

-- Of a partitioned table: of its partitions as well.
alter table pgps_internal.event_type alter column created_at set default pgps._clock();
alter table pgps_internal.advertisement alter column advertised_at set default pgps._clock();
alter table pgps_internal.rule alter column created_at set default pgps._clock();
alter table pgps_internal.link alter column created_at set default pgps._clock(),
    alter column changed_at set default pgps._clock();
alter table pgps_internal.subscription alter column created_at set default pgps._clock();
alter table pgps_internal.control alter column published_at set default pgps._clock();
alter table pgps_internal.batch alter column created_at set default pgps._clock();
alter table pgps_internal.position alter column moved_at set default pgps._clock();
alter table pgps_internal.producer alter column seen_at set default pgps._clock();
alter table pgps_internal.failure alter column failed_at set default pgps._clock(),
    alter column due_at set default pgps._clock();
alter table pgps_internal.receipt alter column published_at set default pgps._clock();
alter table pgps_internal.former alter column ended_at set default pgps._clock();
alter table pgps_internal.discarded alter column settled_at set default pgps._clock();
alter table pgps_internal.neighbour alter column created_at set default pgps._clock();
alter table pgps_internal.lent alter column lent_at set default pgps._clock();
alter table pgps_internal.link_session alter column since set default pgps._clock();
alter table pgps_internal.rejected alter column failed_at set default pgps._clock();
alter table pgps_internal.shipment alter column created_at set default pgps._clock();
alter table pgps_internal.arrival alter column received_at set default pgps._clock();
alter table pgps_internal.client alter column created_at set default pgps._clock();
alter table pgps_internal.registration alter column registered_at set default pgps._clock();
alter table pgps_internal.request alter column sent_at set default pgps._clock();
alter table pgps_internal.request_attempt alter column started_at set default pgps._clock();
alter table pgps_internal.reply alter column replied_at set default pgps._clock();
alter table pgps_internal.confirm_link alter column created_at set default pgps._clock();
alter table pgps_internal.stream alter column opened_at set default pgps._clock();
alter table pgps_internal.load alter column created_at set default pgps._clock();
alter table pgps_internal.backlog_gap alter column noted_at set default pgps._clock();

update pgps_internal.setting
set description = 'Transactions are put together into a batch until it has about this many events; '
    'by a worker, 10000 at most'
where name = 'max_batch_events';

insert into pgps_internal.installation (key, value) values ('schema_revision', '0014')
on conflict (key) do update set value = excluded.value;
