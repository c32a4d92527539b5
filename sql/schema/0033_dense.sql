-- breaking: no
-- What detection publishes says itself which events it is (decision 91): who dispatches need not look.
alter table pgps_internal.control add column is_dense boolean;
comment on column pgps_internal.control.is_dense is
'True when the ids from lo to hi are those of this statement, all of them and no others; null when nobody has looked';

-- It takes an argument more.
drop function if exists pgps_internal.record(integer[], bigint[], bigint[], regrole, boolean[], timestamptz[],
    integer[], boolean);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0033')
on conflict (key) do update set value = excluded.value;
