-- breaking: no
-- Units of work with other brokers: the stamp of a conversation at the client's broker, which with its number there
-- says which one it is (null: that broker was of a release that tells none); whether the brokers of its units know that
-- a service was dropped; and what is looked for by the numbers of other brokers.
alter table pgps_internal.conversation add column their_stamp text;
alter table pgps_internal.service_dropped add column is_told boolean not null default false;
create index unit_their_idx on pgps_internal.unit (conversation_no, their_no) where their_no is not null;
create index unit_their_service_idx on pgps_internal.unit (service_id) where their_no is not null;

drop function if exists pgps_internal.relayed_to_look_at(timestamptz, bigint),
    pgps_internal.tell_what_happened();

insert into pgps_internal.installation (key, value) values ('schema_revision', '0050')
on conflict (key) do update set value = excluded.value;
