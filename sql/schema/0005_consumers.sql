-- breaking: no
-- What consumers name themselves by, and where they are.

-- Who was given what lies between acked and received; null: somebody who gave no name.
alter table pgps_internal.position add column consumer text;
-- In which transaction it was leased.
alter table pgps_internal.share add column leased_by xid8;

-- What takes the name of a consumer from now on.
drop function if exists pgps.receive(text, integer), pgps.take(text, integer), pgps.ack(text, bigint),
    pgps.ack_each(text[]),
    pgps.nack(text, bigint, text, interval), pgps.nack_events(text, bigint[], text, interval),
    pgps_internal.move(bigint, bigint, bigint, bigint, bigint, bigint, integer),
    pgps_internal.take(pgps_internal.subscription, integer, boolean),
    pgps_internal.lease(pgps_internal.subscription, integer, boolean),
    pgps_internal.ack_position(pgps_internal.subscription, bigint),
    pgps_internal.ack_lease(pgps_internal.subscription, bigint),
    pgps_internal.put_back(pgps_internal.subscription, bigint[], text, interval),
    pgps_internal.release(pgps_internal.subscription, bigint[]),
    pgps_internal.received_of(pgps_internal.subscription, bigint[]),
    pgps_internal.take_runs(bigint[], pgps_internal.event_type, integer);
drop function if exists pgps_internal.restore_audited(pgps_internal.event_type, bigint);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0005')
on conflict (key) do update set value = excluded.value;
