-- breaking: no
-- Versions of generated code.

-- A piece of generated code, as it is written before it is built. kind: function, view, type, or relation (what
-- stands upon one: rules, triggers, grants); name: as PostgreSQL writes it; definition: statements. owner: of a
-- function that runs with somebody's rights.
create type pgps_internal.piece as (
    kind text,
    name text,
    definition text,
    owner regrole,
    comment text
);

-- What was built, and the digest of its text. A database that an earlier release has set up has no rows: all is built
-- once more.
create table pgps_internal.generated (
    name text primary key,
    kind text not null,
    type_id integer,
    digest bytea not null
);
create index on pgps_internal.generated (type_id);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0016')
on conflict (key) do update set value = excluded.value;
