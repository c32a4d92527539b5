-- breaking: no
-- Up to where a link had come that this broker has dropped, and the other side may still have
-- (sql/code/links/anew.sql): when it meets that broker again, it says so. neighbour_id: what that was here. ends: see
-- pgps_internal.link_ends.
create table pgps_internal.former_link (
    former_id bigint generated always as identity primary key,
    broker_id uuid not null,
    neighbour_id integer not null,
    ends jsonb not null,
    dropped_at timestamptz not null default pgps._clock()
);
create index former_link_idx on pgps_internal.former_link (broker_id, former_id);

drop function if exists pgps_internal.copy_column(regclass, regclass, boolean);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0067')
on conflict (key) do update set value = excluded.value;
