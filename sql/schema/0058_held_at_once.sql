-- breaking: no
-- What of a rewind is held already is asked at once for a whole batch.
drop function if exists pgps_internal.held_already(pgps_internal.event_type, int8multirange, integer, bigint);

-- Whether the dispatcher has seen what other brokers are asked for a newcomer: until then nobody knows from which batch
-- of an origin on its events are for it, and only the dispatcher, which takes all in order, judges what comes.
alter table pgps_internal.newcomer add column is_pushed boolean not null default false;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0058')
on conflict (key) do update set value = excluded.value;
