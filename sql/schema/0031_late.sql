-- breaking: no
-- Event types that a new subscription to a prefix could not join, because somebody was changing or dropping them in an
-- open transaction (decision 88). No foreign keys: who inserts would wait for who drops the event type, and the
-- dispatcher, which takes the rows away, for who drops the subscription.
create table pgps_internal.late_type (
    place bigint generated always as identity primary key,
    subscription_id bigint not null,
    type_id integer not null,
    seen pg_snapshot not null
);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0031')
on conflict (key) do update set value = excluded.value;
