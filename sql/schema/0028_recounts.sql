-- breaking: no
-- What was counted under filters is compared by the places of events alone (decision 83): no row of the ledger of
-- arrivals is noted for it.

alter table pgps_internal.audit_recounted drop column arrival_id;
comment on table pgps_internal.audit_recounted is 'What was compared of an origin under the filters of this broker';

-- What is truncated is told by the ids that are, not by the first and the last of them.
drop function if exists pgps_internal.note_trimmed(integer, bigint, bigint);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0028')
on conflict (key) do update set value = excluded.value;
