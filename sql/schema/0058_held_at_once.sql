-- breaking: no
-- What of a rewind is held already is asked at once for a whole batch.
drop function if exists pgps_internal.held_already(pgps_internal.event_type, int8multirange, integer, bigint);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0058')
on conflict (key) do update set value = excluded.value;
